"""Names of any length in the width of a terminal: as the obvious slow version has them, in bounded work."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.report import names
from stepgrade.report.names import cells, printable, shortened, wrapped
from tests.report.html import cards

TEXTS = st.text(st.sampled_from("ab ·é漢\u0301"), max_size=40)
MEGABYTES = 3_000_000


def slow_front(text: str, width: int) -> str:
    return next(text[:end] for end in range(len(text), -1, -1) if cells(text[:end]) <= width)


@given(TEXTS, st.integers(2, 12))
def test_shortened_is_what_fits_from_both_ends(text: str, width: int) -> None:
    front, back = slow_front(text, width // 2), slow_front(text[::-1], (width - 1) // 2)[::-1]
    assert shortened(text, width) == (text if cells(text) <= width else f"{front}…{back}")


@given(TEXTS, st.integers(1, 12))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cells(line) <= max(width, 2) for line in lines)


@pytest.mark.parametrize("letter", ["x", "·", "漢"])
def test_a_name_of_megabytes_is_not_measured_whole(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    cell = names._cell
    monkeypatch.setattr(names, "_cell", lambda character: looked_at.append(1) or cell(character))
    assert cells(shortened(letter * MEGABYTES, 60)) <= 60
    assert len(looked_at) < 1000


@pytest.mark.parametrize("letter", ["x", "·"])
def test_wrapping_looks_at_every_character_about_once(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    cell = names._cell
    monkeypatch.setattr(names, "_cell", lambda character: looked_at.append(1) or cell(character))
    lines = wrapped(printable(letter * 100_000), 80)
    assert len(lines) == 1250
    assert len(looked_at) < 110_000


COMMANDS = [
    "::stop-commands::x",
    "::error file=a::b",
    "  ::set-output name=x::y",
    "##vso[task.setvariable variable=PATH]x",
    "##[error]x",
    "##teamcity[buildStop]",
    "a ##vso[task.complete]",
]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("to", ["terminal", "markdown", "json", "html", "junit", "sarif"])
def test_no_name_commands_a_ci_system(name: str, to: str) -> None:
    """GitHub obeys a line that begins with ::, Azure ##vso[ and TeamCity ##teamcity[ anywhere in a line."""
    made = cards.hostile_gate((name,) * 9) if to in ("junit", "sarif") else cards.hostile_card((name,) * 9)
    for width in (30, 80, 200):
        text = sg.render(made, to=to, width=width) if to == "terminal" else sg.render(made, to=to)
        lines = [line.strip() for line in text.splitlines()]
        # The rules of our own style sheet are not a name.
        assert not any(line.startswith("::") and name.strip()[:6] in line for line in lines)
        assert not any(sign in text for sign in ("##vso[", "##[", "##teamcity["))
    if to == "json":
        assert name in "".join(strings(json.loads(text)))


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("to", ["terminal", "markdown", "html", "junit", "sarif"])
def test_a_name_of_ten_megabytes_is_cut(to: str) -> None:
    name = "x" * 10_000_000
    made = cards.hostile_gate((name,) * 9) if to in ("junit", "sarif") else cards.hostile_card((name,) * 9)
    assert len(sg.render(made, to=to)) < 1_000_000
