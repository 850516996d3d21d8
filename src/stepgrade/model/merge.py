"""How several profiles become one: a policy for each field, in each of three situations.

Ranks of a run that were traced at the same time, ranks that our recorder recorded, and recordings of one
process that were made one after the other. Profiles are added one by one and none is kept, so that thousands
of ranks take little memory. A field without a policy fails a test.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import fsum
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct, structs

from stepgrade.model.activity import Activity
from stepgrade.model.ledger import Ledger
from stepgrade.model.notes import Note
from stepgrade.model.profile import PhaseShare, Profile
from stepgrade.statistics import mean
from stepgrade.units import show_numbers

_MOST_RANKS_NAMED = 4  # in a note
_UNKNOWN: tuple[object, ...] = (None, (), {})


class Origin(NamedTuple):
    """The profile that a value comes from."""

    weight: float = 1.0  # in means: 1 for a rank, its steps for a recording
    rank: int | None = None
    steps: int = 0
    step_ms: float = 0.0


class Merger(Protocol):
    """How one field merges: the values of the profiles are added in order, then the result is taken."""

    def add(self, value: Any, origin: Origin) -> None: ...  # noqa: D102

    def result(self, weight: float) -> Any:
        """Return the merged value; `weight` is that of all profiles together."""


Policy: TypeAlias = Callable[[], Merger]


class _Fold:
    """One value of two, again and again."""

    def __init__(self, choose: Callable[[Any, Any], Any]) -> None:
        self._choose = choose
        self._values: list[Any] = []

    def add(self, value: Any, origin: Origin) -> None:
        self._values = [self._choose(self._values[0], value) if self._values else value]

    def result(self, weight: float) -> Any:
        return self._values[0]


class _All:
    """What a function makes of all values together; for those that are small."""

    def __init__(self, combine: Callable[[list[Any]], Any]) -> None:
        self._combine = combine
        self._values: list[Any] = []

    def add(self, value: Any, origin: Origin) -> None:
        self._values.append(value)

    def result(self, weight: float) -> Any:
        return self._combine(self._values)


class _OfSlowest:
    """The value of the profile with the longest step."""

    def __init__(self) -> None:
        self._value: Any = None
        self._step_ms = -1.0

    def add(self, value: Any, origin: Origin) -> None:
        if origin.step_ms > self._step_ms:
            self._value, self._step_ms = value, origin.step_ms

    def result(self, weight: float) -> Any:
        return self._value


class _Mean:
    """The weighted mean of figures; None counts as 0, and there is no mean unless `known` of them are."""

    def __init__(self, known: Callable[[Sequence[bool]], bool] = any) -> None:
        self._is_known = known
        self._known: list[bool] = []
        self._terms = array("d")

    def add(self, value: float | None, origin: Origin) -> None:
        self._known.append(value is not None)
        self._terms.append((value or 0.0) * origin.weight)

    def result(self, weight: float) -> float | None:
        return fsum(self._terms) / weight if weight and self._is_known(self._known) else None


class _MeanByName:
    """The mean of the figures of each name; 0 for a profile that does not have the name."""

    def __init__(self) -> None:
        self._means: defaultdict[str, _Mean] = defaultdict(_Mean)

    def add(self, value: Mapping[str, float], origin: Origin) -> None:
        for name, figure in value.items():
            self._means[name].add(figure, origin)

    def result(self, weight: float) -> dict[str, float | None]:
        return {name: figures.result(weight) for name, figures in self._means.items()}


class _MeanRow:
    """The mean of rows: of their floats, unless one is None; booleans are and-ed, the rest is the first's."""

    def __init__(self) -> None:
        self._first: Struct | None = None
        self._figures: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._unknown: set[str] = set()
        self._false: set[str] = set()
        self._rows = 0

    def add(self, value: Struct | None, origin: Origin) -> None:
        if value is None:
            return
        self._first = self._first or value
        self._rows += 1
        for name in value.__struct_fields__:
            figure = getattr(value, name)
            if isinstance(figure, float):
                self._figures[name].append(figure)
            elif figure is None:
                self._unknown.add(name)
            elif figure is False:
                self._false.add(name)

    def result(self, weight: float = 0.0) -> Any:
        """Return the sums divided by the weight, or by the number of rows."""
        if self._first is None:
            return None
        averaged: dict[str, Any] = dict.fromkeys(self._false, False)
        for name, figures in self._figures.items():
            averaged[name] = None if name in self._unknown else fsum(figures) / (weight or self._rows)
        return structs.replace(self._first, **averaged)


class _MeanOfKnown(_MeanRow):
    """The mean of the rows of those profiles that have one."""

    def result(self, weight: float = 0.0) -> Any:
        return super().result()


class _MeanRows:
    """The mean of the rows that have the same key, over all profiles, the longest first."""

    def __init__(self, *key: str) -> None:
        self._key = key
        self._rows: defaultdict[Hashable, _MeanRow] = defaultdict(_MeanRow)

    def add(self, value: Sequence[Struct], origin: Origin) -> None:
        for row in value:
            self._rows[tuple(getattr(row, name) for name in self._key)].add(row, origin)

    def result(self, weight: float) -> tuple[Any, ...]:
        return tuple(sorted((row.result(weight) for row in self._rows.values()), key=lambda row: -row.ms))


class _Phases:
    """The mean of each phase; and of each of its steps, where the profiles have as many."""

    def __init__(self) -> None:
        self._means = _MeanByName()
        self._samples: dict[str, list[float]] = {}
        self._counts: set[int] = set()

    def add(self, value: Sequence[PhaseShare], origin: Origin) -> None:
        self._means.add({phase.name: phase.ms or 0.0 for phase in value}, origin)
        self._counts.add(origin.steps)
        for phase in value if len(self._counts) == 1 else ():
            if phase.samples_ms:
                row = self._samples.setdefault(phase.name, [0.0] * origin.steps)
                for index, ms in enumerate(phase.samples_ms):
                    row[index] += ms * origin.weight

    def result(self, weight: float) -> tuple[PhaseShare, ...]:
        samples = self._samples if len(self._counts) == 1 else {}
        return tuple(
            PhaseShare(
                name=name,
                ms=ms,
                samples_ms=tuple(sample / weight for sample in samples.get(name, ())),
            )
            for name, ms in self._means.result(weight).items()
        )


class _Contents:
    """What the sources contain in words: each text once, and which ranks they are."""

    def __init__(self) -> None:
        self._texts: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._ranks: list[int] = []

    def add(self, value: Mapping[str, str], origin: Origin) -> None:
        self._ranks.append(origin.rank or 0)
        for name, text in value.items():
            self._texts[name][text] = None

    def result(self, weight: float) -> dict[str, str]:
        merged: dict[str, str] = {}
        for name in filter(self._texts.__contains__, ("trace", "events", "recorded", "devices", "versions")):
            first, *others = self._texts[name]
            merged[name] = f"{first} (and others)" if others else first
        merged["ranks"] = show_numbers(self._ranks)
        for name in filter(self._texts.__contains__, ("steps from", "layers from")):
            merged[name] = next(iter(self._texts[name]))
        return merged


class NotesOnce:
    """The notes of several profiles: the first of each, with how many more ranks have it, and which."""

    def __init__(self, *, without: str | None = None, names_ranks: bool = True) -> None:
        self._without, self._names_ranks = without, names_ranks
        self._first: dict[tuple[str, int], Note] = {}
        self._ranks: dict[tuple[str, int], list[int | None]] = {}
        self._profiles = 0

    def add(self, value: Sequence[Note], origin: Origin) -> None:
        """Add the notes of one profile."""
        self._profiles += 1
        seen: Counter[str] = Counter()
        for note in value:
            key = (note.code, seen[note.code])  # a rank may have several notes of one code
            seen[note.code] += 1
            if note.code != self._without:
                self._first.setdefault(key, note)
                self._ranks.setdefault(key, []).append(origin.rank if self._names_ranks else None)

    def result(self, weight: float) -> tuple[Note, ...]:
        """Return them in the order in which they first came."""
        found = []
        for key, note in self._first.items():
            ranks = self._ranks[key]
            known = tuple(rank for rank in ranks if rank is not None)
            found.append(
                structs.replace(
                    note,
                    more_ranks=note.more_ranks + len(ranks) - 1,
                    ranks=known[:_MOST_RANKS_NAMED] if len(ranks) < self._profiles else (),
                )
            )
        return tuple(found)


class _MeanActivity:
    """The mean of the activities of those profiles that have one, by ACTIVITY."""

    def __init__(self) -> None:
        self._fields = {name: policy() for name, policy in ACTIVITY.items() if policy is not None}
        self._count = 0

    def add(self, value: Activity | None, origin: Origin) -> None:
        if value is not None:
            self._count += 1
            for name, merger in self._fields.items():
                merger.add(getattr(value, name), Origin())

    def result(self, weight: float) -> Activity | None:
        if not self._count:
            return None
        return Activity(**{name: merger.result(self._count) for name, merger in self._fields.items()})


def _largest(key: Callable[[Any], float], known: Any, value: Any) -> Any:
    return value if known is None or (value is not None and key(value) > key(known)) else known


# What the profiles have to be seen together for: the caller works it out.
GIVEN = None
first: Policy = partial(_Fold, lambda known, _: known)
first_known: Policy = partial(_Fold, lambda known, value: value if known in _UNKNOWN else known)
largest: Policy = partial(_Fold, partial(_largest, float))
total: Policy = partial(_All, lambda figures: sum(figure or 0 for figure in figures) or None)
total_if_all: Policy = partial(_All, lambda figures: None if None in figures else sum(figures))
least_known: Policy = partial(_All, lambda shares: min((s for s in shares if s is not None), default=None))
least: Policy = partial(_All, lambda shares: min(share or 0.0 for share in shares))
joined: Policy = partial(_All, lambda samples: tuple(chain.from_iterable(samples)))
mean_if_all: Policy = partial(_Mean, all)
# One rank that trains makes it training.
most_work: Policy = partial(_Fold, partial(_largest, ("unknown", "inference", "training").index))
# The rank that holds most decides whether the run fits.
most_memory: Policy = partial(_Fold, partial(_largest, lambda memory: memory.peak_bytes or 0.0))
# The most that any of them was kept from a core says how far their times can be trusted.
most_waiting: Policy = partial(_Fold, partial(_largest, lambda machine: machine.waited_for_core_share or 0.0))

Policies: TypeAlias = tuple[Policy | None, Policy | None, Policy | None]
SITUATIONS = ("ranks", "recorded ranks", "recordings")
# For ranks that were traced together, ranks that our recorder recorded, and recordings of one process.
PROFILE: dict[str, Policies] = {
    "source": (GIVEN, GIVEN, GIVEN),
    "work": (most_work, _OfSlowest, first),
    "steps": (GIVEN, _OfSlowest, total),
    "mean_step_ms": (GIVEN, _OfSlowest, _Mean),
    "samples_ms": (GIVEN, _OfSlowest, joined),
    "processor_samples_ms": (first_known, _OfSlowest, joined),
    "wall_coverage": (
        first_known,
        partial(
            _All, lambda shares: mean(known) if (known := [s for s in shares if s is not None]) else None
        ),
        first,
    ),
    "phases": (_Phases, _Phases, GIVEN),
    "layers": (first_known, first_known, GIVEN),
    "modules": (first_known, _OfSlowest, first),
    "operations": (GIVEN, GIVEN, GIVEN),
    "runtime": (first_known, _OfSlowest, first),
    "throughput_tok_s": (first_known, _OfSlowest, first),
    "tokens_per_step": (first_known, total_if_all, first),
    "samples_per_step": (first_known, total_if_all, first),
    "rank": (GIVEN, GIVEN, first),
    "counted_ranks": (first, GIVEN, first),
    "launches_per_step": (_Mean, _OfSlowest, _Mean),
    "claimed_bottleneck": (first_known, _OfSlowest, first),
    "recorded_steps": (GIVEN, _OfSlowest, total),
    "ledger": (
        GIVEN,
        partial(_All, lambda found: None if None in found else Ledger.sum(found)),
        partial(_All, lambda found: Ledger.sum(known) if (known := [*filter(None, found)]) else None),
    ),
    "ranks": (GIVEN, GIVEN, first),
    "world_size": (GIVEN, _OfSlowest, first),
    "device": (first_known, _OfSlowest, first),
    "machine": (most_waiting, most_waiting, most_waiting),
    "matmul_flops": (mean_if_all, mean_if_all, mean_if_all),
    "matmul_known_share": (least_known, least, least),
    "matmul_dtype": (first_known, _OfSlowest, first),
    "facts": (first_known, _OfSlowest, first),
    "log": (first_known, _OfSlowest, first),
    "activity": (_MeanActivity, _MeanActivity, _MeanActivity),
    "links": (GIVEN, _OfSlowest, first),
    "many_ranks": (GIVEN, _OfSlowest, first),
    "compilation": (first_known, _OfSlowest, first),
    "kernel_use": (first_known, _OfSlowest, first),
    "peak_memory_bytes": (largest, largest, first),
    "memory": (most_memory, _OfSlowest, first),
    "hang": (first_known, _OfSlowest, first),
    "recorded": (first, _OfSlowest, first),
    "views": (GIVEN, _OfSlowest, first),
    "steps_to_replay": (GIVEN, first, first),
    "typical_step": (GIVEN, _OfSlowest, GIVEN),
    "contents": (_Contents, _OfSlowest, GIVEN),
    "notes": (
        NotesOnce,
        partial(NotesOnce, without="one_rank", names_ranks=False),
        partial(NotesOnce, names_ranks=False),
    ),
    "warnings": (NotesOnce, NotesOnce, partial(NotesOnce, names_ranks=False)),
}
ACTIVITY: dict[str, Policy | None] = {
    "driver": first,
    "kernels": _MeanOfKnown,
    "gaps": _MeanOfKnown,
    "copies": partial(_MeanRows, "direction", "memory", "during"),
    "waits": partial(_MeanRows, "call", "caller", "direction"),
    "stalls": partial(_MeanRows, "cause", "inside", "ended_by"),
    "collectives": partial(_MeanRows, "name", "group_size"),
    "communication_ms": _Mean,
    "optimizer": _MeanOfKnown,
    "gemms": partial(_MeanRows, "batch", "m", "k", "n", "dtype"),
    "parts": partial(_MeanRows, "work_class", "role", "direction", "dtype"),
    "matmul_dtype_ms": _MeanByName,
    "marks": _MeanByName,
    "parallelism_ms": _MeanByName,
    "kernel_group_ms": _MeanByName,
    "class_kernels": _MeanByName,
    "input_ms": first,
    "loader": first_known,
    "scalar_read_ms": _Mean,
    "dropout_ms": _Mean,
    "loop": first_known,
    "backward_passes": first,
    "skipped_steps": largest,
    "skipped_part": first_known,
    "recompute_ms": _Mean,
    "platform": first,
    "startup_ms": _Mean,
    "lines": first_known,
    "skew_ms": GIVEN,
    "straggler": GIVEN,
    "capability": first,
    "sequence": first_known,
}


class ProfileMerge:
    """Profiles that are added one by one, in the order of their ranks or of their times."""

    def __init__(self, situation: Literal["ranks", "recorded ranks", "recordings"]) -> None:
        self._weighs_steps = situation == "recordings"
        column = SITUATIONS.index(situation)
        policies = {name: row[column] for name, row in PROFILE.items()}
        self._fields = {name: policy() for name, policy in policies.items() if policy is not None}
        self._weight = 0.0

    def add(self, profile: Profile, rank: int | None = None) -> None:
        """Add a profile."""
        steps = profile.steps or 0
        weight = float(steps) if self._weighs_steps else 1.0
        origin = Origin(weight, rank, steps, profile.mean_step_ms or 0.0)
        self._weight += weight
        for name, merger in self._fields.items():
            merger.add(getattr(profile, name), origin)

    def result(self, **given: Any) -> Profile:
        """Return the profile of all of them, with what was worked out by the caller."""
        if given.keys() != PROFILE.keys() - self._fields.keys():
            missing = PROFILE.keys() - self._fields.keys() ^ given.keys()
            raise TypeError(f"fields to give, or not to give: {', '.join(sorted(missing))}")
        merged = given | {name: merger.result(self._weight) for name, merger in self._fields.items()}
        return Profile(**merged)
