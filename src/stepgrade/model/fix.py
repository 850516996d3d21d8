"""What `stepgrade fix` answers with."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.model.notes import Note, Result

Verdict = Literal["accepted", "rejected", "cannot_tell", "does_not_apply", "not_tried"]


class Gain(Struct, frozen=True, kw_only=True):
    """The share of the step that a change saves, with its interval."""

    gain: float
    low: float
    high: float
    rounds: int


class Loss(Struct, frozen=True, kw_only=True):
    """How far the losses of a change are from the base's."""

    compared: int
    max_relative: float | None
    allowed: float


class BaseRun(Struct, frozen=True, kw_only=True):
    """The unchanged script: medians of its trials, and how far two of them are apart."""

    step_ms: float
    processor_ms: float
    steps: int  # of each trial
    trials: int
    noise: float | None  # share by which trials of the same script differ
    grade: str
    bottleneck: str
    is_repeatable: bool  # two trials have the same losses and weights, bit for bit


class Predicted(Struct, frozen=True, kw_only=True):
    """What the recording's findings promise of a change."""

    low: float
    high: float


class Try(Struct, frozen=True, kw_only=True):
    """One change: how it was made, what it brought, and whether the work was the same."""

    change: str
    what: str
    applies: bool
    verdict: Verdict
    why: str
    breaks: str
    how: str = ""  # what exactly is changed in this script
    where: str | None = None  # the call that the change is for
    predicted: Predicted | None = None
    measured: Gain | None = None
    same_work: bool | None = None
    loss: Loss | None = None
    diff: str | None = None  # None if the change cannot be written as an edit of one call


class Together(Struct, frozen=True, kw_only=True):
    """The accepted changes at once, and what the edited script measured without any change at run time."""

    changes: tuple[str, ...]
    step_ms: float
    measured: Gain
    same_work: bool
    dropped: tuple[str, ...] = ()  # accepted alone, no help beside the others
    diff: str | None = None
    written: Gain | None = None
    written_changes: tuple[str, ...] = ()


class FixReport(Result, frozen=True, kw_only=True):
    """What was tried, and what came of it."""

    NOTES = ("notes",)

    command: tuple[str, ...]
    base: BaseRun
    tries: tuple[Try, ...]
    together: Together | None
    seconds: float
    edits: dict[str, str] = {}  # new text of each file, by its path in the folder
    notes: tuple[Note, ...] = ()
    schema_version: int = 2

    def to_dict(self) -> dict[str, object]:
        """Return the result as its JSON has it; the new texts are in the diffs."""
        document = super().to_dict()
        del document["edits"]
        return document
