"""What a finding says is not said again as a note."""

from __future__ import annotations

import pytest

import stepgrade as sg
from stepgrade.model import Note
from tests.report.html.cards import bundled_card, changed, make_finding

SAID, UNSAID = "The file is cut off.", "Clocks do not agree."


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_a_finding_is_not_repeated_as_a_note(form: str) -> None:
    fitness = (Note("truncated", SAID), Note("clocks", UNSAID))
    finding = changed(make_finding(claim=SAID), warning="truncated")
    card = changed(bundled_card(), fitness=fitness, findings=(finding,), notes=())
    text = sg.render(card, to=form, width=200)
    assert text.count(SAID) == 1
    assert text.count(UNSAID) == 1
