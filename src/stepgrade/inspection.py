"""What a file holds and what can be known from it, before anything is judged."""

from __future__ import annotations

from typing import Any

from stepgrade.grading import score
from stepgrade.loading import profile_given
from stepgrade.model import Note, Profile, Source
from stepgrade.model.notes import Result, has_code
from stepgrade.model.scorecard import UNGRADED
from stepgrade.readers.source import PathLike
from stepgrade.scoring.operations import ms_by_operation
from stepgrade.scoring.step_times import times_of
from stepgrade.units import show_count, show_ms, show_rate, show_share

# Whatever is given, these steps are no measure of a training run.
UNMEASURED = ("inference", "one_operation", "moves_memory", "loader_start")


class Inspection(Result, frozen=True, kw_only=True):
    """The contents of a source, what is missing and how to supply it, and whether it is fit to be graded."""

    NOTES = ("fitness", "notes", "ungraded_because")

    source: Source
    holds: dict[str, str]
    missing: dict[str, Note]
    fitness: tuple[Note, ...]
    notes: tuple[Note, ...]
    fit: bool  # to be graded, as it is or with what `ungraded_because` asks for
    grade: str | None = None  # what `score` gives the profile as it is; None where nothing was measured
    ungraded_because: tuple[Note, ...] = ()
    schema_version: int = 2

    def to_dict(self) -> dict[str, Any]:
        """Return the inspection as its JSON has it: what is missing is said in texts."""
        return super().to_dict() | {"missing": {name: str(note) for name, note in self.missing.items()}}


_RATE = "{throughput_tok_s} or {tokens_per_step}"
_UNGRADED_WITHOUT = Note("missing", "a grade needs it", supply=_RATE)
_MISSING = {
    "throughput": Note("missing", "the throughput is not known", supply=_RATE),
    "step time": Note("missing", "the source has no average step time"),
    "phases": Note("missing", "where a step's time goes is not known"),
    "layers": Note("missing", "layers cannot be compared"),
    "operations": Note("missing", "there are no hotspots and no parity"),
    "wall coverage": Note("missing", "how much of the wall time the profile explains is not known"),
}


def inspect(profile: Profile | PathLike) -> Inspection:
    """List what a profile or its file contains and lacks, and whether `score` would grade it."""
    profile = profile_given(profile)
    card = None if profile.is_empty else score(profile)
    reasons = card.ungraded_because if card is not None else ()
    has_fatal = any(note.fatal for note in (*profile.warnings, *reasons))
    is_graded = card is not None and card.grade != UNGRADED
    times, operations = times_of(profile), ms_by_operation(profile)
    steps, recorded = profile.steps or None, profile.recorded_steps
    shown_steps = show_count(steps) if steps else None
    if steps and recorded is not None and recorded != steps:
        shown_steps = f"{show_count(recorded)}, {shown_steps} of them steady"
    throughput = None
    if profile.throughput_tok_s is not None:
        throughput = show_rate(profile.throughput_tok_s)
    elif profile.tokens_per_step and times.typical_ms:
        throughput = f"{show_count(profile.tokens_per_step)} tokens per step"
    elif profile.samples_per_step and times.typical_ms:
        throughput = f"{show_count(profile.samples_per_step)} samples per step"
    found: dict[str, str | None] = {
        **profile.contents,
        "device": profile.device.name if profile.device else None,
        "steps": shown_steps,
        "step time": show_ms(times.typical_ms) if times.typical_ms else None,
        "throughput": throughput,
        "phases": _listed(len(profile.phases), [phase.name for phase in profile.phases]),
        "layers": _listed(len(profile.layers), []),
        "operations": _listed(len(operations), sorted(operations, key=lambda name: -operations[name])),
        "wall coverage": show_share(profile.wall_coverage) if profile.wall_coverage is not None else None,
        "launches per step": show_count(profile.launches_per_step) if profile.launches_per_step else None,
        "bottleneck by its producer": profile.claimed_bottleneck,
    }
    missing = _MISSING if is_graded else {**_MISSING, "throughput": _UNGRADED_WITHOUT}
    return Inspection(
        source=profile.source,
        holds={name: text for name, text in found.items() if text is not None},
        missing={name: note for name, note in missing.items() if found[name] is None},
        fitness=card.fitness if card is not None else profile.warnings,
        notes=profile.notes,
        # What the user can give is no reason against the file; to call inference training is no figure.
        fit=is_graded
        or (
            not has_fatal
            and not any(has_code(reasons, code) for code in UNMEASURED)
            and any(note.supply for note in reasons)
        ),
        grade=card.grade if card is not None else None,
        ungraded_because=reasons,
    )


def _listed(count: int, names: list[str]) -> str | None:
    if not count:
        return None
    shown = ", ".join(names[:4])
    more = ", …" if len(names) > 4 else ""
    return f"{count}: {shown}{more}" if shown else str(count)
