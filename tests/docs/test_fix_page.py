"""docs/fix.md has a table of the changes, written from their descriptions."""

from __future__ import annotations

import re

import pytest

from stepgrade.diagnosis.rules import RULE_NAMES
from stepgrade.fix.changes import CHANGES
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "fix.md"
TABLE = re.compile(r"(?<=^<!-- from fix/changes.py -->\n).*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)


def test_the_table_is_written_from_the_changes(pytestconfig: pytest.Config) -> None:
    text = PAGE.read_text(encoding="utf-8")
    head = "| change | what it does | results are | tried | it may break |\n|---|---|---|---|---|\n"
    rows = [
        f"| `{one.name}` | {one.what} | {EQUALITY[one.equality]} | {TRIED[bool(one.patch)]}"
        f"{f', with `--allow {one.allow}`' if one.allow else ''} | {one.breaks} |\n"
        for one in CHANGES
    ]
    real = TABLE.sub(lambda _: head + "".join(rows), text)
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(real, encoding="utf-8")
        text = real
    assert text == real


EQUALITY = {"exact": "the same bits", "rounding": "the same up to rounding", "tolerance": "close"}
TRIED = {True: "yes", False: "no"}


def test_changes_are_chosen_by_rules_that_exist() -> None:
    """A rule that another version adds may be named before it is there; most of a change's rules exist."""
    for change in CHANGES:
        named = set(change.rules.split())
        assert not named or named & set(RULE_NAMES), change.name
