"""The mean rank of a run: the figures of its ranks, added up one after the other and none of them kept."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import fsum
from typing import Any, TypeVar

from msgspec import Struct, structs

from stepgrade.model.activity import Activity
from stepgrade.model.layers import LayerStep, ModuleStep
from stepgrade.model.memory import Memory
from stepgrade.model.notes import Note
from stepgrade.model.operations import Operation, Span
from stepgrade.model.profile import PhaseTime, Profile, WorkKind
from stepgrade.ranks.operation_columns import MeanOperations, PackedOperations

_OF_THE_FILE = ("trace", "events", "recorded", "devices", "versions")
_OF_THE_RUN = ("steps from", "layers from")
# Rows of an activity that have the same of these are added up.
_KEYS: dict[str, Callable[[Any], Hashable]] = {
    "copies": lambda c: (c.direction, c.memory, c.during),
    "waits": lambda w: (w.call, w.caller, w.direction),
    "collectives": lambda c: (c.name, c.group_size),
    "gemms": lambda g: (g.batch, g.m, g.k, g.n, g.dtype),
    "parts": lambda p: (p.work_class, p.role, p.direction, p.dtype),
}
_SINGLE = ("kernels", "gaps", "optimizer")
_BY_NAME = ("matmul_dtype_ms", "marks", "parallelism_ms", "kernel_group_ms", "class_kernels")
_MEANS = ("communication_ms", "scalar_read_ms", "dropout_ms", "recompute_ms", "startup_ms")
_FIRST_KNOWN = ("loader", "loop", "skipped_part", "lines", "sequence")
_MOST_RANKS_NAMED = 4  # of those that a note is of
Figures = TypeVar("Figures", bound=Struct)


class MeanRank:
    """What the ranks of a run are on average; the first of them is the first that is added."""

    def __init__(self, count: int, steps: int, places: dict[str, int]) -> None:
        self._count, self._steps = count, steps  # of ranks, and of the steps that they share
        self._places = places  # of the files in the run
        self._phases: dict[str, float] = {}
        self._operations = MeanOperations()
        self._samples: dict[str, list[float]] = {}  # of phases
        self._counts_of_steps: set[int | None] = set()
        self._activity = MeanActivity()
        self._flops: list[float] | None = []
        self._launches = array("d")
        self._contents: dict[str, dict[str, None]] = {}
        self.layers: tuple[LayerStep, ...] = ()
        self.modules: tuple[ModuleStep, ...] = ()
        self.memory: Memory | None = None
        self.matmul_known_share: float | None = None
        self.works: set[WorkKind] = set()
        self.first: Profile | None = None
        self.notes, self.warnings = NotesOnce(), NotesOnce()
        self.known: dict[str, Any] = {}  # what the first rank says that knows it

    def add(
        self, profile: Profile, operations: PackedOperations | None = None, rank: int | None = None
    ) -> None:
        """Add one rank, with its operations where the profile is without them, and its number."""
        self.first = self.first or profile
        self._counts_of_steps.add(profile.steps)
        for phase in profile.phases:
            before = self._phases.get(phase.name, 0.0)
            self._phases[phase.name] = before + (phase.per_step_ms or 0.0) / self._count
        if len(self._counts_of_steps) == 1:
            self._add_samples(profile.phases, profile.steps or 0)
        self._operations.add(
            operations or PackedOperations.of(profile.operations),
            1 / self._count,
            1 / self._count if len(self._counts_of_steps) == 1 else None,
            self._places[profile.source.files[0]],
        )
        self._add_sums(profile)
        self.layers = self.layers or profile.layers
        self.modules = self.modules or profile.modules
        if profile.activity:
            self._activity.add(profile.activity)
        self.works.add(profile.work)
        self.notes.add(profile.notes, rank)
        self.warnings.add(profile.warnings, rank)
        for name, text in profile.contents.items():
            self._contents.setdefault(name, {})[text] = None

    def _add_sums(self, profile: Profile) -> None:
        # The rank that holds most decides whether the run fits.
        memories = [memory for memory in (self.memory, profile.memory) if memory is not None]
        self.memory = max(memories, key=lambda memory: memory.peak_bytes or 0.0, default=None)
        if profile.matmul_flops is None:
            self._flops = None
        elif self._flops is not None:
            self._flops.append(profile.matmul_flops)
        shares = [s for s in (self.matmul_known_share, profile.matmul_known_share) if s is not None]
        self.matmul_known_share = min(shares, default=None)
        self._launches.append(profile.launches_per_step or 0.0)
        for name in ("tokens_per_step", "device", "matmul_dtype", "compilation", "kernel_use"):
            if self.known.get(name) is None:
                self.known[name] = getattr(profile, name)

    def _add_samples(self, phases: Sequence[PhaseTime], steps: int) -> None:
        for phase in phases:
            if phase.samples_ms:
                row = self._samples.setdefault(phase.name, [0.0] * steps)
                for place, ms in enumerate(phase.samples_ms):
                    row[place] += ms / self._count

    @property
    def work(self) -> WorkKind:
        """Return what the steps hold: one rank that trains makes it training."""
        kinds: tuple[WorkKind, ...] = ("training", "inference")
        return next((kind for kind in kinds if kind in self.works), "unknown")

    @property
    def phases(self) -> tuple[PhaseTime, ...]:
        """Return the phases."""
        samples = self._samples if len(self._counts_of_steps) == 1 else {}  # else the ranks' steps differ
        return tuple(
            PhaseTime(
                name=name,
                total_ms=ms * self._steps,
                per_step_ms=ms,
                samples_ms=tuple(samples.get(name, ())),
            )
            for name, ms in self._phases.items()
        )

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Return the operations, the longest first."""
        steps = next(iter(self._counts_of_steps)) if len(self._counts_of_steps) == 1 else None
        return self._operations.result(steps)

    @property
    def activity(self) -> Activity | None:
        """Return what happened in a step; None if no rank says."""
        return self._activity.result()

    @property
    def launches_per_step(self) -> float | None:
        """Return how many launches a step has; None for none."""
        return fsum(self._launches) / self._count or None

    @property
    def matmul_flops(self) -> float | None:
        """Return the work of a step; None when a rank does not know its part."""
        return None if self._flops is None else fsum(self._flops) / self._count

    def contents(self, numbers: Iterable[int]) -> dict[str, str]:
        """Return what the sources contain: each text once, and which ranks they are."""
        merged: dict[str, str] = {}
        for name in (name for name in _OF_THE_FILE if name in self._contents):
            texts = [*self._contents[name]]
            merged[name] = texts[0] if len(texts) == 1 else f"{texts[0]} (and others)"
        merged["ranks"] = show_numbers(numbers)
        for name in (name for name in _OF_THE_RUN if name in self._contents):
            merged[name] = next(iter(self._contents[name]))
        return merged


def show_numbers(numbers: Iterable[int]) -> str:
    """Return whole numbers in order, more than two that follow each other as a range: 0, 1, 4 to 9."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    few = len(runs) == 1 and runs[0][1] - runs[0][0] < 16
    return ", ".join(
        f"{first} to {last}" if last - first > 1 and not few else ", ".join(map(str, range(first, last + 1)))
        for first, last in runs
    )


def in_file(span: Span | None, profile: Profile, places: dict[str, int]) -> Span | None:
    """Return the span of one rank with the place that its file has in the run."""
    return structs.replace(span, file=places[profile.source.files[0]]) if span else None


class NotesOnce:
    """The notes of several ranks: the first of each, with how many more ranks have it, and which."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], Note] = {}
        self._ranks: dict[tuple[str, int], list[int | None]] = {}
        self._count = 0

    def add(self, notes: Sequence[Note], rank: int | None = None) -> None:
        """Add the notes of one rank, with its number where it is known."""
        self._count += 1
        seen: Counter[str] = Counter()
        for note in notes:
            key = (note.code, seen[note.code])  # a rank may have several notes of one code
            seen[note.code] += 1
            self._first.setdefault(key, note)
            self._ranks.setdefault(key, []).append(rank)

    @property
    def all(self) -> tuple[Note, ...]:
        """Return them in the order in which they first came."""
        found = []
        for key, note in self._first.items():
            ranks = self._ranks[key]
            known = tuple(rank for rank in ranks if rank is not None)
            found.append(
                structs.replace(
                    note,
                    more_ranks=note.more_ranks + len(ranks) - 1,
                    ranks=known[:_MOST_RANKS_NAMED] if len(ranks) < self._count else (),
                )
            )
        return tuple(found)


def merge_notes(of_ranks: Iterable[Sequence[Note]]) -> tuple[Note, ...]:
    """Return each note once; where several ranks have one, the first with how many more do."""
    merged = NotesOnce()
    for notes in of_ranks:
        merged.add(notes)
    return merged.all


class _Mean:
    """Rows of one kind: the first, with its figures averaged.

    Figures are floats; one that is None in some row becomes None. Booleans are and-ed.
    """

    def __init__(self, first: Struct) -> None:
        self._first = first
        self._figures: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._unknown: set[str] = set()
        self._false: set[str] = set()
        self._rows = 0

    def add(self, row: Struct) -> None:
        self._rows += 1
        for name in row.__struct_fields__:
            value = getattr(row, name)
            if isinstance(value, float):
                self._figures[name].append(value)
            elif value is None:
                self._unknown.add(name)
            elif value is False:
                self._false.add(name)

    def result(self, count: int = 0) -> Any:
        """Return their sums, divided by `count` or the number of rows."""
        averaged: dict[str, Any] = dict.fromkeys(self._false, False)
        for name, values in self._figures.items():
            averaged[name] = None if name in self._unknown else fsum(values) / (count or self._rows)
        return structs.replace(self._first, **averaged)


class MeanActivity:
    """The activity of the mean rank, added up rank by rank."""

    def __init__(self) -> None:
        self._first: Activity | None = None
        self._count = 0
        self._single: dict[str, _Mean] = {}
        self._rows: dict[str, dict[Hashable, _Mean]] = {name: {} for name in _KEYS}
        self._by_name: dict[str, dict[str, array[float]]] = {name: {} for name in _BY_NAME}
        self._means: dict[str, array[float]] = {name: array("d") for name in _MEANS}
        self._known: dict[str, Any] = {}
        self._skipped_steps = 0

    def add(self, activity: Activity) -> None:
        """Add one rank."""
        self._first = self._first or activity
        self._count += 1
        self._skipped_steps = max(self._skipped_steps, activity.skipped_steps)
        for name in _SINGLE:
            for row in filter(None, (getattr(activity, name),)):
                self._single.setdefault(name, _Mean(row)).add(row)
        for (name, key), rows in zip(_KEYS.items(), self._rows.values(), strict=True):
            for row in getattr(activity, name):
                (rows.get(key(row)) or rows.setdefault(key(row), _Mean(row))).add(row)
        for name in _BY_NAME:
            for part, figure in getattr(activity, name).items():
                self._by_name[name].setdefault(part, array("d")).append(figure)
        for name in _MEANS:
            self._means[name].append(getattr(activity, name))
        for name in _FIRST_KNOWN:
            self._known[name] = self._known.get(name) or getattr(activity, name)

    def result(self) -> Activity | None:
        """Return the mean of those that were added; None of none."""
        first, count = self._first, self._count
        if first is None:
            return None
        merged: dict[str, Any] = {name: one.result() for name, one in self._single.items()}
        for name, alike in self._rows.items():
            rows = [one.result(count) for one in alike.values()]
            merged[name] = tuple(sorted(rows, key=lambda row: -row.ms))
        for name, parts in self._by_name.items():
            merged[name] = {part: fsum(values) / count for part, values in parts.items()}
        for name, values in self._means.items():
            merged[name] = fsum(values) / count
        return Activity(
            driver=first.driver,
            input_ms=first.input_ms,
            backward_passes=first.backward_passes,
            capability=first.capability,
            platform=first.platform,
            skipped_steps=self._skipped_steps,
            **merged,
            **self._known,
        )


def merge_activities(activities: Sequence[Activity]) -> Activity:
    """Return the activity of the mean rank, of at least one."""
    merged = MeanActivity()
    for activity in activities:
        merged.add(activity)
    return merged.result() or activities[0]
