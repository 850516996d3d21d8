"""One rank's part in collectives, as columns: what matching ranks, and showing one alone, need of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.costs.recorded_inputs import Shapes, decode_shapes
from stepgrade.model.collectives import CollectiveRow
from stepgrade.model.columns import among
from stepgrade.model.events import NONE, Collective, Longs, Trace
from stepgrade.naming.collective_kind import CollectiveKind, collective_kind
from stepgrade.naming.torch_names import COMMUNICATION_OP, COMMUNICATION_RANGE, named
from stepgrade.naming.work_class import WorkClass
from stepgrade.ranks.collectives import describe, item_bytes, message_bytes
from stepgrade.timeline.pieces import Pieces
from stepgrade.timeline.steps import steps_of
from stepgrade.timeline.timeline import Driver, Timeline
from stepgrade.units import NS_PER_MS

_MESSAGES = ("send", "recv")


class ProcessGroup(Struct, frozen=True, kw_only=True, order=True):
    """The ranks of a collective; Kineto lists the first 30, so name and size tell groups apart as well."""

    name: str = ""
    size: int = 0  # 0 where it is not known
    ranks: str = ""


class CollectiveCall(Struct, frozen=True, kw_only=True, order=True):
    """What one call of a collective has in common with others: its name, group and message."""

    name: str
    group: ProcessGroup
    bytes: int = NONE  # of the larger side
    received: int = NONE  # bytes that this rank gets, of an exchange
    peer: int = NONE  # of a message: the rank that it goes to or comes from


class Arrivals(Struct, frozen=True, kw_only=True):
    """One rank's part in collectives, in the order of their issue, on the clock that the ranks share.

    Columns are bytes: little-endian integers that are compared, sent and kept as they are.
    """

    calls: tuple[CollectiveCall, ...] = ()
    call: bytes = b""  # place in `calls`, of 32 bits; all others are of 64
    step: bytes = b""  # number of the step
    start_ns: bytes = b""  # the first, then by how much each starts after the one before
    dur_ns: bytes = b""

    @classmethod
    def of(cls, rows: Sequence[tuple[CollectiveCall, int, int, int]]) -> Arrivals:
        """Return the columns of rows: the call, its step, its start and its duration."""
        calls = sorted({row[0] for row in rows})
        place = {call: number for number, call in enumerate(calls)}
        start = np.array([row[2] for row in rows], "<i8")
        return cls(
            calls=tuple(calls),
            call=np.array([place[row[0]] for row in rows], "<i4").tobytes(),
            step=np.array([row[1] for row in rows], "<i8").tobytes(),
            start_ns=np.diff(start, prepend=np.zeros(1, "<i8")).tobytes(),
            dur_ns=np.array([row[3] for row in rows], "<i8").tobytes(),
        )

    def __len__(self) -> int:
        return len(self.step) // 8

    @property
    def starts_ns(self) -> Longs:
        """Return when each began."""
        return np.cumsum(np.frombuffer(self.start_ns, "<i8"))


def find_arrivals(timeline: Timeline, pieces: Pieces) -> Arrivals:
    """Return the collectives of all steps in the order of their issue, on the clock that ranks share."""
    if timeline.driver is Driver.HOST:
        return arrivals_on_host(timeline)
    if timeline.driver is not Driver.DEVICE:
        return Arrivals()
    trace, numbers = timeline.trace, timeline.steps.number
    usable = (
        (pieces.work_class == WorkClass.COMMUNICATION) & (pieces.step >= 0) & (pieces.step < len(numbers))
    )
    usable &= (trace.work.collective[pieces.work] >= 0) | ~timeline.attribution.unlaunched[pieces.work]
    rows = np.flatnonzero(usable)
    issued = np.where(pieces.launch_ns >= 0, pieces.launch_ns, pieces.start_ns)
    rows = rows[np.lexsort((issued[rows], pieces.step[rows]))]
    known: dict[tuple[str, Collective], CollectiveCall] = {}
    found = []
    for row in rows.tolist():
        name, described = describe(timeline, pieces, row)
        call = known.get((name, described))
        if call is None:
            group = ProcessGroup()  # of all ranks, where nothing is said
            if described.group or described.group_ranks:
                group = ProcessGroup(
                    name=described.group or "",
                    size=described.group_size or 0,
                    ranks=described.group_ranks or "",
                )
            size, item = message_bytes(described), item_bytes(described)
            is_exchange = collective_kind(name) is CollectiveKind.ALL_TO_ALL and item is not None
            call = CollectiveCall(
                name=name,
                group=group,
                bytes=NONE if size is None else size,
                received=(item or 0) * (described.out_elements or 0) if is_exchange else NONE,
                peer=NONE if described.peer is None else described.peer,
            )
            known[name, described] = call
        start = int(pieces.start_ns[row]) + (trace.base_ns or 0)
        found.append((call, int(numbers[pieces.step[row]]), start, int(pieces.dur_ns[row])))
    return Arrivals.of(found)


def arrivals_on_host(timeline: Timeline) -> Arrivals:
    """Return the collectives of a run without accelerators by the ranges that their backend writes."""
    trace, numbers = timeline.trace, timeline.steps.number
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, COMMUNICATION_RANGE))
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    steps = steps_of(ranges.start_ns[rows], timeline.steps)
    calls = calls_on_host(trace, rows)
    return Arrivals.of(
        [
            (
                call,
                int(numbers[index]),
                int(ranges.start_ns[row]) + (trace.base_ns or 0),
                int(ranges.dur_ns[row]),
            )
            for row, index, call in zip(rows.tolist(), steps.tolist(), calls, strict=True)
            if 0 <= index < len(numbers)
        ]
    )


def calls_on_host(trace: Trace, rows: NDArray[np.intp]) -> list[CollectiveCall]:
    """Return what each of these ranges is: its message, and of the operation that asked for it the peer.

    Operations and ranges of one kind are in the same order, on whichever threads they are.
    """
    ops, ranges = trace.ops, trace.ranges
    asked: dict[str, list[Shapes | None]] = {}
    own = np.flatnonzero(named(trace.strings, ops.name, COMMUNICATION_OP) & (ops.inputs >= 0))
    for row in own[np.argsort(ops.start_ns[own], kind="stable")].tolist():
        shapes = decode_shapes(trace.inputs[int(ops.inputs[row])])
        name = trace.strings[int(ops.name[row])]
        asked.setdefault(_kind_on_host(name), []).append(shapes)
    names = [trace.strings[int(name)] for name in ranges.name[rows].tolist()]
    counts = Counter(map(_kind_on_host, names))
    found = []
    seen: Counter[str] = Counter()
    for name, row in zip(names, rows.tolist(), strict=True):
        kind = _kind_on_host(name)
        # Where one was not recorded, nobody knows which.
        places = asked.get(kind, [])
        shapes = places[seen[kind]] if len(places) == counts[kind] else None
        seen[kind] += 1
        place = NONE if ranges.inputs is None else int(ranges.inputs[row])
        message = decode_shapes(trace.inputs[place]) if place >= 0 else None
        size = message.bytes_at(*message.tensors) if message and message.tensors else None
        received = shapes.bytes_at(0) if shapes and kind is CollectiveKind.ALL_TO_ALL else None
        peer = shapes.value(2) if shapes and kind in _MESSAGES else None
        found.append(
            CollectiveCall(
                name=name,
                group=ProcessGroup(),
                bytes=NONE if size is None else max(size, received or 0),
                received=NONE if received is None else received,
                peer=peer if type(peer) is int and 0 <= peer < 1 << 31 else NONE,
            )
        )
    return found


def _kind_on_host(name: str) -> str:
    """Return what a range or operation does: send and recv are two kinds."""
    kind = collective_kind(name)
    if kind is CollectiveKind.SEND_RECEIVE:
        return "send" if "send" in name else "recv"
    return kind


def collective_row(
    call: CollectiveCall,
    steps: int,
    calls: int,
    total_ns: int,
    wait_ms: float | None = None,
    moving_ms: float | None = None,
) -> CollectiveRow:
    """Return the calls of a collective in `steps` steps, and the time they took a rank, per step."""
    return CollectiveRow(
        name=call.name,
        group=call.group.name,
        group_size=call.group.size or None,
        ranks=call.group.ranks,
        bytes=None if call.bytes == NONE else float(call.bytes),
        calls=calls / steps,
        ms=total_ns / steps / NS_PER_MS,
        wait_ms=wait_ms,
        moving_ms=moving_ms,
    )


def collectives_of_rank(arrivals: Arrivals, steps: Sequence[int]) -> tuple[CollectiveRow, ...]:
    """Return the collectives of one rank in one of these steps, longest first."""
    call, step = np.frombuffer(arrivals.call, "<i4"), np.frombuffer(arrivals.step, "<i8")
    rows = among(step, np.array(steps, np.int64)) if len(steps) else np.zeros(len(step), np.bool_)
    dur_ns = np.frombuffer(arrivals.dur_ns, "<i8")
    count = np.bincount(call[rows], minlength=len(arrivals.calls))
    total = np.bincount(call[rows], dur_ns[rows], len(arrivals.calls))
    found = [
        collective_row(one, len(steps), int(count[place]), int(total[place]))
        for place, one in enumerate(arrivals.calls)
        if count[place]
    ]
    return tuple(sorted(found, key=lambda one: (-one.ms, one.name, one.bytes or 0.0)))
