"""What a result says besides its numbers: a code for programs, a text for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, structs

from stepgrade import display
from stepgrade.decoding import from_builtins
from stepgrade.errors import name_fields

NO_FLAGS: Mapping[str, str] = {}


class Note(Struct, frozen=True, omit_defaults=True):
    """One remark; `code` says what it is about, so that nothing needs to recognise `text` by its words.

    A fatal note is a reason why the run cannot be graded. `supply` says what the user could give, with
    parameters as {name}: "{throughput_tok_s} or {tokens_per_step}".
    """

    code: str
    text: str
    fatal: bool = False
    supply: str = ""
    more_ranks: int = 0  # that have the same note as the rank whose text this is
    ranks: tuple[int, ...] = ()  # the first of those that have it, where others of the run do not

    def __str__(self) -> str:
        return self.said({})

    def said(self, flags: Mapping[str, str]) -> str:
        """Return the text with what to give, parameters by their names in `flags`, else by their own."""
        supply = f": give {name_fields(self.supply, flags)}" if self.supply else ""
        of_ranks = ""
        if self.ranks:
            others = ", ".join(map(str, self.ranks[1:])) + (
                ", …" if self.more_ranks >= len(self.ranks) else ""
            )
            more = f"; similar on {self.more_ranks:,} more: {others}" if self.more_ranks else ""
            of_ranks = f" (on rank {self.ranks[0]}{more})"
        elif self.more_ranks:
            ranks = "1 more rank" if self.more_ranks == 1 else f"{self.more_ranks:,} more ranks"
            of_ranks = f" (The same on {ranks}.)"
        return f"{self.text}{supply}{of_ranks}"


def texts_of(notes: Iterable[Note], flags: Mapping[str, str] = NO_FLAGS) -> tuple[str, ...]:
    """Return what the notes say, with parameters by their names in `flags`."""
    return tuple(note.said(flags) for note in notes)


def has_code(notes: Iterable[Note], *codes: str) -> bool:
    """Tell whether one of the notes has one of the codes."""
    return any(note.code in codes for note in notes)


class Result(Struct, frozen=True):
    """What a command answers with; in JSON its notes are texts, and their codes are in `notes_coded`."""

    NOTES: ClassVar[tuple[str, ...]] = ()  # which fields hold notes

    def __str__(self) -> str:
        """Return the result as a terminal shows it."""
        return display.render(self, "terminal").rstrip("\n")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as its JSON has it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        if not self.NOTES:
            return document
        notes: dict[str, tuple[Note, ...]] = {name: getattr(self, name) for name in self.NOTES}
        texts = {name: [str(note) for note in some] for name, some in notes.items()}
        coded = [msgspec.to_builtins(note) | {"text": str(note)} for some in notes.values() for note in some]
        return document | texts | {"notes_coded": coded}

    def to_json(self) -> str:
        """Return the result as JSON, in one line; bytes of names that are not UTF-8 are escaped."""
        document = self.to_dict()
        try:
            return msgspec.json.encode(document).decode()
        except UnicodeEncodeError:
            return msgspec.json.encode(_encodable(document)).decode()


def _encodable(value: Any) -> Any:
    """Return a document with every text as UTF-8 can hold it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list | tuple) else value


class NotebookResult(Result, frozen=True):
    """A result that a notebook shows as a card."""

    def _repr_markdown_(self) -> str:
        return display.render(self, "markdown")

    def _repr_html_(self) -> str | None:
        return display.render_cell(self)


def texts_to_notes(document: dict[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Undo what `to_dict` does to notes: `notes_coded` lists those of all `fields` in order.

    A text without its entry there, as in older documents, gets an empty code.
    """
    try:
        coded = iter(from_builtins(document.get("notes_coded", []), list[Note]))
    except msgspec.ValidationError:
        coded = iter(())
    notes: dict[str, list[Any]] = {}
    for name, texts in ((name, document.get(name)) for name in fields):
        if not isinstance(texts, list):
            continue
        notes[name] = []
        for text in texts:
            note = next(coded, None)
            if note is None or note.text != text:
                notes[name].append({"code": "", "text": text})
                continue
            # The text in JSON ends with what to supply and how many more ranks have the note.
            added = str(structs.replace(note, text=""))
            notes[name].append(structs.replace(note, text=text.removesuffix(added)))
    return document | notes


def by_weight(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return the notes in the order in which they are shown: fatal ones, what was lost, the others."""
    return tuple(sorted(notes, key=lambda note: (not note.fatal, note.code != "lost")))
