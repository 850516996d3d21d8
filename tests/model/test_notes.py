"""Notes survive JSON with their codes, whatever their texts are."""

from __future__ import annotations

from typing import Any

import pytest

from stepgrade.model.notes import Note, Result, texts_to_notes


class Noted(Result, frozen=True, kw_only=True):
    NOTES = ("notes", "reasons")

    notes: tuple[Note, ...] = ()
    reasons: tuple[Note, ...] = ()


NOTES = (Note("first", "the same text"), Note("more", "a text", more_ranks=3, ranks=(2, 5)))
REASONS = (Note("second", "the same text", fatal=True), Note("supply", "no device", supply="{device}"))


def test_notes_keep_their_codes() -> None:
    document = Noted(notes=NOTES, reasons=REASONS).to_dict()
    assert document["notes"][0] == document["reasons"][0] == "the same text"
    read = texts_to_notes(document, Noted.NOTES)
    assert (tuple(read["notes"]), tuple(read["reasons"])) == (NOTES, REASONS)


@pytest.mark.parametrize("coded", [None, [], [{"code": "x", "text": "another"}], "no list"])
def test_texts_without_a_code_have_an_empty_one(coded: Any) -> None:
    document = {"notes": ["a text"], "notes_coded": coded}
    if coded is None:
        del document["notes_coded"]
    assert texts_to_notes(document, Noted.NOTES)["notes"] == [{"code": "", "text": "a text"}]
