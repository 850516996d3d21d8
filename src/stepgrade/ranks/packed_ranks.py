"""One rank's results in few bytes, with its operations in columns that add up across ranks.

Ranks that run the same program have the same operation names in the same order, so that names are decoded
once and figures are added as columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from stepgrade.costs.call_costs import MOST_SHAPES, add_shapes
from stepgrade.decoding import from_msgpack
from stepgrade.model.ledger import Ledger
from stepgrade.model.operations import KernelRow, LayerStep, ModuleStep, Operation, ShapeRow, Span
from stepgrade.model.profile import Profile, RecordedStep
from stepgrade.model.step_view import StepView
from stepgrade.ranks.collectives import Arrivals
from stepgrade.timeline.intervals import NOTHING, Spans

FAST = 1  # zlib's level: a higher one takes three times as long for a tenth less
_FIGURES = ("ms", "calls", "flops", "bytes", "known_share")
_ROW_FIGURES = (*_FIGURES[:4], "flops_least", "flops_most")
# Ranks may have shapes of their own, as experts do: beyond this many per operation they share one row.
_MOST_ROWS = 8 * MOST_SHAPES
_MOST_PLANS = 256  # that are kept; ranks of one run need a few
_LAYERS = tuple[LayerStep, ...]
_MODULES = tuple[ModuleStep, ...]
_VIEWS = tuple[StepView, ...]
_RECORDED = tuple[RecordedStep, ...]
_APART = ("operations", "layers", "modules", "views", "steps_to_replay")  # packed on their own
_RowKey = tuple[str | None, bool, bool]  # the shape, and whether FLOPs and bytes are known
Known = TypeVar("Known")


def pack(part: object) -> bytes:
    """Return MessagePack in zlib; nothing for an empty tuple."""
    return zlib.compress(msgspec.msgpack.encode(part), FAST) if part != () else b""


def pack_spans(spans: Spans) -> bytes:
    """Return the intervals in zlib: starts as differences, then lengths; nothing for none."""
    columns = np.diff(spans.starts, prepend=np.int64(0)), spans.ends - spans.starts
    return zlib.compress(np.concatenate(columns).astype("<i8").tobytes(), FAST) if len(spans.starts) else b""


def unpack_spans(packed: bytes) -> Spans:
    """Return packed intervals."""
    if not packed:
        return NOTHING
    differences, lengths = np.frombuffer(zlib.decompress(packed), "<i8").reshape(2, -1)
    starts = np.cumsum(differences)
    return Spans(starts, starts + lengths)


def _unpack(packed: bytes, kind: type[Known]) -> Known:
    return from_msgpack(zlib.decompress(packed) if packed else b"\x90", kind)  # 90: an empty array


class NamedOperation(Struct, frozen=True, kw_only=True):
    """An operation without its figures; those that are known are 0."""

    operation: Operation
    rows: tuple[ShapeRow, ...]
    has_shapes: bool


class PackedOperations(Struct, frozen=True, kw_only=True):
    """A rank's operations in bytes, each part in zlib; columns are little-endian."""

    names: bytes  # NamedOperation of each, by name, in MessagePack, as are the kernels
    figures: bytes  # 64-bit floats, in the order of the names
    longest: bytes  # start and duration, for operations that have one: 64 bits
    order: bytes  # the original index of each operation, and then of each one's rows: 32 bits
    kernels: bytes

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> PackedOperations:
        """Return the operations packed."""
        ordered = sorted(range(len(operations)), key=lambda index: operations[index].name)
        names, figures, longest, order = list[NamedOperation](), list[float](), list[int](), list[int]()
        for op in (operations[index] for index in ordered):
            rows = op.rows
            indices = sorted(
                range(len(rows)),
                key=lambda at: (rows[at].shape or "", rows[at].flops is None, rows[at].bytes is None),
            )
            known = _known(op, _FIGURES)
            figures += [getattr(op, name) for name in known]
            figures += op.samples_ms
            found = []
            for row in (rows[index] for index in indices):
                own = _known(row, _ROW_FIGURES)
                figures += [getattr(row, name) for name in own]
                found.append(structs.replace(row, **dict.fromkeys(own, 0.0)))
            plain = structs.replace(
                op,
                **dict.fromkeys(known, 0.0),
                samples_ms=(0.0,) * len(op.samples_ms),
                longest=structs.replace(op.longest, start_ns=0, dur_ns=0) if op.longest else None,
                shapes=(),
                kernels=(),
            )
            if op.longest:
                longest += [op.longest.start_ns, op.longest.dur_ns]
            names.append(NamedOperation(operation=plain, rows=tuple(found), has_shapes=bool(op.shapes)))
            order += np.argsort(indices).tolist()
        return cls(
            names=pack(names),
            figures=zlib.compress(np.array(figures, "<f8").tobytes(), FAST),
            longest=zlib.compress(np.array(longest, "<i8").tobytes(), FAST),
            order=zlib.compress(np.array(np.argsort(ordered).tolist() + order, "<i4").tobytes(), FAST),
            kernels=pack([operations[index].kernels for index in ordered]),
        )

    def unpacked(self) -> tuple[Operation, ...]:
        """Return the operations as they were packed."""
        figures = iter(np.frombuffer(zlib.decompress(self.figures), "<f8").tolist())
        longest = iter(np.frombuffer(zlib.decompress(self.longest), "<i8").tolist())
        names = self.named()
        order = np.frombuffer(zlib.decompress(self.order), "<i4").tolist()
        own, of_rows = order[: len(names)], iter(order[len(names) :])
        found = []
        for each, kernels in zip(names, self.kernels_by_name(), strict=True):
            op = each.operation
            own_figures = {name: next(figures) for name in _known(op, _FIGURES)}
            samples = tuple(next(figures) for _ in op.samples_ms)
            rows = [
                structs.replace(row, **{name: next(figures) for name in _known(row, _ROW_FIGURES)})
                for row in each.rows
            ]
            indices = [next(of_rows) for _ in rows]
            span = op.longest and structs.replace(op.longest, start_ns=next(longest), dur_ns=next(longest))
            found.append(
                structs.replace(
                    op,
                    **own_figures,
                    samples_ms=samples,
                    longest=span,
                    shapes=tuple(rows[index] for index in indices) if each.has_shapes else (),
                    kernels=kernels,
                )
            )
        return tuple(found[index] for index in own)

    def named(self) -> list[NamedOperation]:
        """Return the operations without their figures, by name."""
        return _unpack(self.names, list[NamedOperation])

    def kernels_by_name(self) -> list[tuple[KernelRow, ...]]:
        """Return the kernels of each operation, by its name."""
        return _unpack(self.kernels, list[tuple[KernelRow, ...]])


def _known(row: Operation | ShapeRow, figures: Sequence[str]) -> list[str]:
    """Return the figures that a row has."""
    return [name for name in figures if getattr(row, name) is not None]


class RankStep(Struct, frozen=True, kw_only=True):
    """One recorded step of a rank, on the clock of its file."""

    number: int
    start_ns: int
    dur_ns: int
    steady: bool
    ledger: Ledger | None


class RankProfile(Struct, frozen=True, kw_only=True):
    """One rank's profile, with what merging ranks needs beside it."""

    profile: Profile
    rank: int | None
    base_ns: int | None  # epoch nanoseconds that the steps' times count from
    steps: tuple[RankStep, ...]
    arrivals: Arrivals
    process: str | None = None
    host: str | None = None  # from the name of its file
    alone: bytes = b""  # packed: when it communicates and does nothing else, in steady steps

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that the rank was recorded in."""
        return self.profile.source.files

    @property
    def world_size(self) -> int | None:
        """Return how many ranks the run has, as far as this one knows."""
        return self.profile.world_size or None

    def unpacked(self) -> RankProfile:
        """Return the rank itself."""
        return self

    def packed(self) -> PackedRank:
        """Return the rank packed."""
        return PackedRank.of(self)


class PackedRank(Struct, frozen=True, kw_only=True):
    """One rank in few bytes: what is needed from all ranks at once, and the rest packed by who needs it.

    Packed parts are MessagePack in zlib.
    """

    rank: int | None
    base_ns: int | None
    steps: tuple[RankStep, ...]
    process: str | None
    host: str | None
    files: tuple[str, ...]
    world_size: int | None
    body: bytes  # packed: the profile without the following parts
    operations: PackedOperations
    layers: bytes  # packed, as the next two: a run shows those of one or few ranks
    modules: bytes
    views: bytes
    steps_to_replay: bytes
    program: bytes  # packed: its collectives without their times, which most ranks have in common
    times: bytes  # start and duration of each, in zlib
    alone: bytes  # when it communicates and does nothing else

    @classmethod
    def of(cls, rank: RankProfile) -> PackedRank:
        """Return the rank packed."""
        profile, arrivals = rank.profile, rank.arrivals
        return cls(
            rank=rank.rank,
            base_ns=rank.base_ns,
            steps=rank.steps,
            process=rank.process,
            host=rank.host,
            files=rank.files,
            world_size=rank.world_size,
            body=pack(
                structs.replace(profile, operations=(), layers=(), modules=(), views=(), steps_to_replay=())
            ),
            operations=PackedOperations.of(profile.operations),
            layers=pack(profile.layers),
            modules=pack(profile.modules),
            views=pack(profile.views),
            steps_to_replay=pack(profile.steps_to_replay),
            program=pack(structs.replace(arrivals, start_ns=b"", dur_ns=b"")),
            times=zlib.compress(arrivals.start_ns + arrivals.dur_ns, FAST),
            alone=rank.alone,
        )

    def lean(self, *, layers: bool, modules: bool) -> Profile:
        """Return the profile under its current files, with layers and modules if asked for."""
        profile = _unpack(self.body, Profile)
        # Nothing else refers to it yet, and a new one would have all its figures checked again.
        structs.force_setattr(profile, "source", structs.replace(profile.source, files=self.files))
        has_layers, has_modules = layers and self.layers, modules and self.modules
        if not has_layers and not has_modules:
            return profile
        return structs.replace(
            profile,
            layers=_unpack(self.layers, _LAYERS) if has_layers else (),
            modules=_unpack(self.modules, _MODULES) if has_modules else (),
        )

    def drawn(self) -> tuple[StepView, ...]:
        """Return its drawn steps."""
        return _unpack(self.views, _VIEWS)

    def recorded(self) -> tuple[RecordedStep, ...]:
        """Return its steps that can be replayed."""
        return _unpack(self.steps_to_replay, _RECORDED)

    def arrivals(self, programs: dict[bytes, Arrivals]) -> Arrivals:
        """Return its collectives; `programs` holds those of earlier ranks, and gets this one's."""
        program = programs.get(self.program)
        if program is None:
            program = programs[self.program] = _unpack(self.program, Arrivals)
        times = zlib.decompress(self.times)
        half = len(times) // 2
        return structs.replace(program, start_ns=times[:half], dur_ns=times[half:])

    def unpacked(self) -> RankProfile:
        """Return the rank as it was packed, under its current files."""
        return RankProfile(
            profile=structs.replace(
                self.lean(layers=True, modules=True),
                operations=self.operations.unpacked(),
                views=self.drawn(),
                steps_to_replay=self.recorded(),
            ),
            rank=self.rank,
            base_ns=self.base_ns,
            steps=self.steps,
            arrivals=self.arrivals({}),
            process=self.process,
            host=self.host,
            alone=self.alone,
        )

    def packed(self) -> PackedRank:
        """Return the rank itself."""
        return self

    def sharing(self, known: dict[bytes, bytes]) -> PackedRank:
        """Return the rank with bytes that other ranks have too kept once, in `known`."""
        names = known.setdefault(self.operations.names, self.operations.names)
        return structs.replace(
            self,
            operations=structs.replace(self.operations, names=names),
            program=known.setdefault(self.program, self.program),
        )


AnyRank: TypeAlias = RankProfile | PackedRank


class _Plan(NamedTuple):
    """Where the figures of operations with certain names go to."""

    sums: NDArray[np.intp]  # and where they come from, as the next two
    of_sums: NDArray[np.intp]
    samples: NDArray[np.intp]
    of_samples: NDArray[np.intp]
    longest: NDArray[np.intp]  # the operations that have one


class MeanOperations:
    """The operations of the mean rank; parts without figures are those of the first rank that has them."""

    def __init__(self, ranks: int) -> None:
        self._scale = 1 / ranks
        self._counts_of_steps: set[int | None] = set()
        self._operations: dict[str, Operation] = {}  # without figures, with kernels
        self._rows: dict[str, dict[_RowKey, ShapeRow]] = {}
        self._plans: dict[bytes, _Plan] = {}
        self._slots: dict[tuple[object, ...], int] = {}
        self._sample_slots: dict[tuple[str, int], int] = {}
        self._indices: dict[str, int] = {}
        self._sums, self._samples = np.zeros(0), np.zeros(0)
        self._longest = np.zeros((3, 0), np.int64)  # duration plus 1, start, file

    def add(self, packed: PackedOperations, steps: int | None, file: int) -> None:
        """Add the operations of a rank, given its number of steps and its file in the run."""
        self._counts_of_steps.add(steps)
        plan = self._plans.get(packed.names)
        if plan is None:
            plan = self._plan(packed)
            if len(self._plans) < _MOST_PLANS:
                self._plans[packed.names] = plan
            self._sums = _grown(self._sums, len(self._slots))
            self._samples = _grown(self._samples, len(self._sample_slots))
            self._longest = _grown(self._longest, len(self._indices))
        figures = np.frombuffer(zlib.decompress(packed.figures), "<f8")
        np.add.at(self._sums, plan.sums, figures[plan.of_sums] * self._scale)
        if len(self._counts_of_steps) == 1 and len(plan.samples):
            np.add.at(self._samples, plan.samples, figures[plan.of_samples] * self._scale)
        if len(plan.longest):
            spans = np.frombuffer(zlib.decompress(packed.longest), "<i8").reshape(-1, 2)
            dur, start, of_file = self._longest
            is_longer = spans[:, 1] + 1 > dur[plan.longest]
            longer = plan.longest[is_longer]
            dur[longer], start[longer], of_file[longer] = spans[is_longer, 1] + 1, spans[is_longer, 0], file

    def _plan(self, packed: PackedOperations) -> _Plan:
        """Find a slot for every figure, and keep the names of operations that are new."""
        sums, samples, longest = list[tuple[int, int]](), list[tuple[int, int]](), list[int]()
        kernels: list[tuple[KernelRow, ...]] | None = None
        at = 0

        def take(slots: dict[Any, int], key: object, taken: list[tuple[int, int]]) -> None:
            nonlocal at
            taken.append((slots.setdefault(key, len(slots)), at))
            at += 1

        for index, each in enumerate(packed.named()):
            op = each.operation
            if op.name not in self._operations:
                kernels = kernels or packed.kernels_by_name()
                self._operations[op.name] = structs.replace(op, kernels=kernels[index])
                self._indices[op.name] = len(self._indices)
            for name in _known(op, _FIGURES[:2]):
                take(self._slots, (op.name, name), sums)
            at += len(_known(op, _FIGURES[2:]))  # the sums of its rows
            for step in range(len(op.samples_ms)):
                take(self._sample_slots, (op.name, step), samples)
            for row in each.rows:
                key = self._row(op.name, row)
                for name in _known(row, _ROW_FIGURES):
                    take(self._slots, (op.name, key, name), sums)
            if op.longest:
                longest.append(self._indices[op.name])
        (to_sums, of_sums), (to_samples, of_samples) = (
            np.array(taken, np.intp).reshape(-1, 2).T for taken in (sums, samples)
        )
        return _Plan(to_sums, of_sums, to_samples, of_samples, np.array(longest, np.intp))

    def _row(self, name: str, row: ShapeRow) -> _RowKey:
        """Return the key of the row of an operation that this row is added to."""
        rows = self._rows.setdefault(name, {})
        key = row.shape, row.flops is not None, row.bytes is not None
        if key not in rows and len(rows) >= _MOST_ROWS:
            key = None, *key[1:]
            row = structs.replace(row, shape=None)
        known = rows.setdefault(key, row)
        if row.at_most and not known.at_most:
            rows[key] = row
        return key

    def result(self) -> tuple[Operation, ...]:
        """Return the operations, the longest first; with samples if the ranks have as many steps each."""
        steps = next(iter(self._counts_of_steps)) if len(self._counts_of_steps) == 1 else None
        sums, samples, longest = self._sums.tolist(), self._samples.tolist(), self._longest.T.tolist()
        found = []
        for name, op in self._operations.items():
            rows = [
                structs.replace(
                    row,
                    **{figure: sums[self._slots[name, key, figure]] for figure in _known(row, _ROW_FIGURES)},
                )
                for key, row in self._rows[name].items()
            ]
            dur, start, file = longest[self._indices[name]]
            in_steps = [self._sample_slots.get((name, step)) for step in range(steps or 0)]
            whole = structs.replace(
                op,
                ms=sums[self._slots[name, "ms"]] if (name, "ms") in self._slots else None,
                calls=sums[self._slots[name, "calls"]] if (name, "calls") in self._slots else 0.0,
                samples_ms=tuple(samples[slot] for slot in in_steps if slot is not None),
                longest=Span(file=file, start_ns=start, dur_ns=dur - 1) if dur else None,
            )
            found.append(whole.with_rows(add_shapes([rows])))
        return tuple(sorted(found, key=lambda op: (-(op.ms or 0.0), op.name)))


def _grown(columns: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the columns with room for this many values."""
    if count <= columns.shape[-1]:
        return columns
    grown = np.zeros((*columns.shape[:-1], 2 * count), columns.dtype)
    grown[..., : columns.shape[-1]] = columns
    return grown
