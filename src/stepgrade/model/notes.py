"""What a result says besides its numbers: a code for programs, a text for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

import msgspec
from msgspec import Struct


class Note(Struct, frozen=True, omit_defaults=True):
    """One remark; `code` says what it is about, so that nothing needs to recognise `text` by its words.

    A fatal note is a reason why the run cannot be graded.
    """

    code: str
    text: str
    fatal: bool = False

    def __str__(self) -> str:
        return self.text


def texts_of(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return the notes' texts."""
    return tuple(note.text for note in notes)


def has_code(notes: Iterable[Note], *codes: str) -> bool:
    """Tell whether one of the notes has one of the codes."""
    return any(note.code in codes for note in notes)


class Result(Struct, frozen=True):
    """What a command answers with; in JSON its notes are texts, and their codes are in `notes_coded`."""

    NOTES: ClassVar[tuple[str, ...]] = ()  # which fields hold notes

    def to_dict(self) -> dict[str, Any]:
        """Return the result as its JSON has it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        if not self.NOTES:
            return document
        coded = [note for name in self.NOTES for note in document[name]]
        texts = {name: [note["text"] for note in document[name]] for name in self.NOTES}
        rows = [{"code": note["code"], "text": note["text"]} for note in coded]
        return document | texts | {"notes_coded": rows}

    def to_json(self) -> str:
        """Return the result as JSON, in one line."""
        return msgspec.json.encode(self.to_dict()).decode()


def texts_to_notes(document: dict[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Undo what `to_dict` does to notes; a text without a code, as in older documents, gets an empty one."""
    known = document.get("notes_coded")
    rows = known if isinstance(known, list) else []
    codes = {row["text"]: row.get("code", "") for row in rows if isinstance(row, dict) and "text" in row}
    notes = {
        name: [{"code": codes.get(text, ""), "text": text} for text in document[name]]
        for name in fields
        if isinstance(document.get(name), list)
    }
    return document | notes
