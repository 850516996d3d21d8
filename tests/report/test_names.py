"""Names of any length in the width of a terminal: as the obvious slow version has them, in bounded work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.report import names
from stepgrade.report.names import cells, printable, shortened, wrapped

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
