"""docs/contract.md describes every field of a scorecard's JSON, and none that is not there."""

from __future__ import annotations

import re

import msgspec
import pytest

import stepgrade as sg
from stepgrade.hardware.memory.fit import MemoryFit
from stepgrade.hardware.planner import PlanTable
from stepgrade.model.fix import FixReport
from stepgrade.model.scorecard import NOT_IN_JSON, Scorecard
from stepgrade.whatif import WhatIf
from tests.conftest import ROOT
from tests.docs.json_fields import fields_by_place

PAGE = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
_ADDED_TO_JSON = {"": ("notes_coded",)}  # made of the notes when the JSON is written
_DRAWN = "views"  # by the HTML report, and not in the JSON


def described(title: str = "Fields of a v2 scorecard") -> dict[str, tuple[str, ...]]:
    """Return the fields that the page's tables list, by the places in the heading above each."""
    section = PAGE.split(f"## {title}", 1)[1].split("\n## ", 1)[0]
    found: dict[str, tuple[str, ...]] = {}
    for part in re.split(r"^### ", "Top level\n" + section, flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        fields = tuple(name for row in rows for name in re.findall(r"`(.*?)`", row))
        for place in re.findall(r"`(.*?)`", heading) or [""]:
            found[place] = fields
    return found


def test_every_field_is_described_and_nothing_else() -> None:
    wanted = {
        place: set(fields) - {_DRAWN, *NOT_IN_JSON.get(place[:-2], ())} | set(_ADDED_TO_JSON.get(place, ()))
        for place, fields in fields_by_place(Scorecard).items()
        if not place.startswith(_DRAWN)
    }
    assert {place: set(fields) for place, fields in described().items()} == wanted


def test_the_json_has_those_fields_at_the_top() -> None:
    card = sg.score(sg.load(ROOT / "examples" / "runs" / "gpt_naive.json"))
    assert set(msgspec.json.decode(card.to_json())) == set(described()[""])


@pytest.mark.parametrize(
    ("title", "result"),
    [
        ("Fields of an estimate's memory", MemoryFit),
        ("Fields of a plan", PlanTable),
        ("Fields of a what-if", WhatIf),
        ("Fields of a fix", FixReport),
    ],
)
def test_memory_and_plans_are_described(title: str, result: type[msgspec.Struct]) -> None:
    wanted = {
        place: set(fields) - {"edits"} for place, fields in fields_by_place(result).items()
    }  # in its diffs
    assert {place: set(fields) for place, fields in described(title).items()} == wanted
