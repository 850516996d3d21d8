"""A rank's operations in columns: their names, which ranks have in common, apart from their figures.

Figures of ranks that run the same program lie at the same places, so they are added up as columns, and names
are looked at once for all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from stepgrade.costs.shapes import MOST_SHAPES, add_shapes
from stepgrade.decoding import from_msgpack
from stepgrade.model.operations import KernelRow, Operation, ShapeRow, Span

FAST = 1  # the level of zlib: a higher one takes three times as long for a tenth less
_FIGURES = ("ms", "calls", "flops", "bytes", "known_share")
_ROW_FIGURES = (*_FIGURES[:4], "flops_least", "flops_most")
# Ranks may have shapes of their own, as experts do: beyond so many of one operation they are one row.
_MOST_ROWS = 8 * MOST_SHAPES
_MOST_PLANS = 256  # that are kept; ranks of one run need a few


def pack(part: object) -> bytes:
    """Return it as MessagePack in zlib."""
    return zlib.compress(msgspec.msgpack.encode(part), FAST)


class NamedOperation(Struct, frozen=True, kw_only=True):
    """An operation without figures: those that are known are 0."""

    operation: Operation
    rows: tuple[ShapeRow, ...]
    has_shapes: bool


class PackedOperations(Struct, frozen=True, kw_only=True):
    """A rank's operations in bytes, each part in zlib; columns are little-endian."""

    names: bytes  # NamedOperation of each, by name, in MessagePack, as are the kernels
    figures: bytes  # 64-bit floats, in the order in which names has them
    longest: bytes  # start and duration, of those operations that have one: 64 bits
    order: bytes  # which of the operations, and then of each one's rows, is first, second, …: 32 bits
    kernels: bytes

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> PackedOperations:
        """Return the operations packed."""
        ordered = sorted(range(len(operations)), key=lambda place: operations[place].name)
        names, figures, longest, order = list[NamedOperation](), list[float](), list[int](), list[int]()
        for op in (operations[place] for place in ordered):
            rows = op.rows
            places = sorted(
                range(len(rows)),
                key=lambda at: (rows[at].shape or "", rows[at].flops is None, rows[at].bytes is None),
            )
            blank = {name: None if getattr(op, name) is None else 0.0 for name in _FIGURES}
            figures += [getattr(op, name) for name, value in blank.items() if value is not None]
            figures += op.samples_ms
            found = []
            for row in (rows[place] for place in places):
                known = {name: None if getattr(row, name) is None else 0.0 for name in _ROW_FIGURES}
                figures += [getattr(row, name) for name, value in known.items() if value is not None]
                found.append(structs.replace(row, **known))
            plain = structs.replace(
                op,
                **blank,
                samples_ms=(0.0,) * len(op.samples_ms),
                longest=structs.replace(op.longest, start_ns=0, dur_ns=0) if op.longest else None,
                shapes=(),
                kernels=(),
            )
            if op.longest:
                longest += [op.longest.start_ns, op.longest.dur_ns]
            names.append(NamedOperation(operation=plain, rows=tuple(found), has_shapes=bool(op.shapes)))
            order += _inverse(places)
        return cls(
            names=pack(names),
            figures=zlib.compress(np.array(figures, "<f8").tobytes(), FAST),
            longest=zlib.compress(np.array(longest, "<i8").tobytes(), FAST),
            order=zlib.compress(np.array(_inverse(ordered) + order, "<i4").tobytes(), FAST),
            kernels=pack([operations[place].kernels for place in ordered]),
        )

    def unpacked(self) -> tuple[Operation, ...]:
        """Return the operations as they were packed."""
        figures = iter(np.frombuffer(zlib.decompress(self.figures), "<f8").tolist())
        longest = iter(np.frombuffer(zlib.decompress(self.longest), "<i8").tolist())
        names = self.named()
        order = np.frombuffer(zlib.decompress(self.order), "<i4").tolist()
        own, of_rows = order[: len(names)], iter(order[len(names) :])
        found = []
        for one, kernels in zip(names, self.kernels_of_each(), strict=True):
            op = one.operation
            own_figures = {name: next(figures) for name in _FIGURES if getattr(op, name) is not None}
            samples = tuple(next(figures) for _ in op.samples_ms)
            rows = [
                structs.replace(
                    row, **{name: next(figures) for name in _ROW_FIGURES if getattr(row, name) is not None}
                )
                for row in one.rows
            ]
            places = [next(of_rows) for _ in rows]
            span = op.longest and structs.replace(op.longest, start_ns=next(longest), dur_ns=next(longest))
            found.append(
                structs.replace(
                    op,
                    **own_figures,
                    samples_ms=samples,
                    longest=span,
                    shapes=tuple(rows[place] for place in places) if one.has_shapes else (),
                    kernels=kernels,
                )
            )
        return tuple(found[place] for place in own)

    def named(self) -> list[NamedOperation]:
        """Return the operations without their figures, by name."""
        return from_msgpack(zlib.decompress(self.names), list[NamedOperation])

    def kernels_of_each(self) -> list[tuple[KernelRow, ...]]:
        """Return the kernels of each operation, by its name."""
        return from_msgpack(zlib.decompress(self.kernels), list[tuple[KernelRow, ...]])


def _inverse(places: Sequence[int]) -> list[int]:
    """Return where each place stands among the places."""
    found = [0] * len(places)
    for at, place in enumerate(places):
        found[place] = at
    return found


def _known(row: Operation | ShapeRow, figures: Sequence[str]) -> list[str]:
    """Return the figures that a row has."""
    return [name for name in figures if getattr(row, name) is not None]


class _Column:
    """A column that grows."""

    def __init__(self, kind: type[Any]) -> None:
        self._values: NDArray[Any] = np.zeros(256, kind)

    def upto(self, count: int) -> NDArray[Any]:
        """Return the column, with room for so many values."""
        if count > len(self._values):
            grown = np.zeros(2 * count, self._values.dtype)
            grown[: len(self._values)] = self._values
            self._values = grown
        return self._values


class _Plan(NamedTuple):
    """Where the figures of operations with certain names go to."""

    sums: NDArray[np.intp]  # and where they come from, as the next two
    of_sums: NDArray[np.intp]
    samples: NDArray[np.intp]
    of_samples: NDArray[np.intp]
    longest: NDArray[np.intp]  # the operations that have one


_RowKey = tuple[str | None, bool, bool]  # the shape, and whether FLOPs and bytes are known


class MeanOperations:
    """The operations of the mean rank; what has no figures is as the first rank has it that does it."""

    def __init__(self, ranks: int) -> None:
        self._scale = 1 / ranks
        self._counts_of_steps: set[int | None] = set()
        self._operations: dict[str, Operation] = {}  # without figures, with kernels
        self._rows: dict[str, dict[_RowKey, ShapeRow]] = {}
        self._plans: dict[bytes, _Plan] = {}
        self._slots: dict[tuple[object, ...], int] = {}
        self._places: dict[str, int] = {}
        self._sample_slots: dict[tuple[str, int], int] = {}
        self._sums, self._samples = _Column(np.float64), _Column(np.float64)
        self._longest = tuple(_Column(np.int64) for _ in range(3))  # duration plus 1, start, file

    def add(self, packed: PackedOperations, steps: int | None, file: int) -> None:
        """Add those of a rank with so many steps, which is in this file of the run."""
        self._counts_of_steps.add(steps)
        plan = self._plans.get(packed.names)
        if plan is None:
            plan = self._plan(packed)
            if len(self._plans) < _MOST_PLANS:
                self._plans[packed.names] = plan
        figures = np.frombuffer(zlib.decompress(packed.figures), "<f8")
        np.add.at(self._sums.upto(len(self._slots)), plan.sums, figures[plan.of_sums] * self._scale)
        if len(self._counts_of_steps) == 1 and len(plan.samples):
            samples = self._samples.upto(len(self._sample_slots))
            np.add.at(samples, plan.samples, figures[plan.of_samples] * self._scale)
        if len(plan.longest):
            spans = np.frombuffer(zlib.decompress(packed.longest), "<i8").reshape(-1, 2)
            dur, start, of_file = (column.upto(len(self._places)) for column in self._longest)
            is_longer = spans[:, 1] + 1 > dur[plan.longest]
            longer = plan.longest[is_longer]
            dur[longer], start[longer], of_file[longer] = spans[is_longer, 1] + 1, spans[is_longer, 0], file

    def _plan(self, packed: PackedOperations) -> _Plan:
        """Find a place for every figure, and keep what is not known yet of the operations."""
        sums, samples, longest = list[tuple[int, int]](), list[tuple[int, int]](), list[int]()
        kernels: list[tuple[KernelRow, ...]] | None = None
        at = 0

        def take(slots: dict[Any, int], key: object, taken: list[tuple[int, int]]) -> None:
            nonlocal at
            taken.append((slots.setdefault(key, len(slots)), at))
            at += 1

        for place, one in enumerate(packed.named()):
            op = one.operation
            if op.name not in self._operations:
                kernels = kernels or packed.kernels_of_each()
                self._operations[op.name] = structs.replace(op, kernels=kernels[place])
                self._places[op.name] = len(self._places)
            for name in _known(op, _FIGURES[:2]):
                take(self._slots, (op.name, name), sums)
            at += len(_known(op, _FIGURES[2:]))  # which its rows tell
            for step in range(len(op.samples_ms)):
                take(self._sample_slots, (op.name, step), samples)
            for row in one.rows:
                key = self._row(op.name, row)
                for name in _known(row, _ROW_FIGURES):
                    take(self._slots, (op.name, key, name), sums)
            if op.longest:
                longest.append(self._places[op.name])
        (to_sums, of_sums), (to_samples, of_samples) = (
            np.array(taken, np.intp).reshape(-1, 2).T for taken in (sums, samples)
        )
        return _Plan(to_sums, of_sums, to_samples, of_samples, np.array(longest, np.intp))

    def _row(self, name: str, row: ShapeRow) -> _RowKey:
        """Return the row of an operation that this one is added to."""
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
        sums = self._sums.upto(len(self._slots)).tolist()
        samples = self._samples.upto(len(self._sample_slots)).tolist()
        found = []
        for name, op in self._operations.items():
            rows = [
                structs.replace(
                    row,
                    **{
                        figure: sums[self._slots[name, key, figure]]
                        for figure in _ROW_FIGURES
                        if getattr(row, figure) is not None
                    },
                )
                for key, row in self._rows[name].items()
            ]
            place = self._places[name]
            dur, start, file = (int(column.upto(place + 1)[place]) for column in self._longest)
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
