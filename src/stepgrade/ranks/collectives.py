"""The collectives of one rank: their time and size, their purpose, and the columns that matching needs.

The purpose is read from what the collectives of a process group do and where in the step they are. Gradients
are reduced in the backward pass only. Shards of weights are gathered before use, in forward too, and their
gradients scattered in backward. Activations of a divided layer are reduced in both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from stepgrade.costs.recorded_inputs import Shapes, decode_shapes
from stepgrade.model.activity import CollectiveTally
from stepgrade.model.columns import among
from stepgrade.model.events import NONE, Collective, Longs
from stepgrade.model.ranks import CollectiveRow
from stepgrade.naming.kernels import CollectiveKind, collective_kind
from stepgrade.naming.torch_names import COMMUNICATION_OP, COMMUNICATION_RANGE, EMBEDDING_TABLES, named
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline.steps import steps_of
from stepgrade.timeline.timeline import IN_BACKWARD, IN_OPTIMIZER, Driver, Pieces, Timeline
from stepgrade.units import NS_PER_MS

_ITEM_BYTES = {
    name: size
    for size, names in (
        (1, ("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2")),
        (2, ("half", "float16", "bfloat16", "short")),
        (4, ("float", "float32", "int")),
        (8, ("double", "float64", "long", "int64")),
    )
    for name in names
}
_MESSAGES = ("send", "recv")
FORWARD, BACKWARD, OPTIMIZER = range(3)
# Smaller messages carry counts, statistics and losses: they are no kind of parallelism.
LEAST_BYTES = 256 * 1024
# A layer that is divided reduces in forward about as often as in backward; gradients never do.
LEAST_FORWARD_PART = 0.25
Counts = dict[tuple[CollectiveKind, int], int]


def tally_collectives(timeline: Timeline, pieces: Pieces, steps: int) -> tuple[CollectiveTally, ...]:
    """Return the collectives of a steady step by kind, longest first."""
    if timeline.driver is not Driver.DEVICE:
        return ()
    kinds: dict[tuple[str, int | None], list[tuple[int, int | None]]] = defaultdict(list)
    for row in np.flatnonzero((pieces.work_class == WorkClass.COMMUNICATION) & pieces.steady).tolist():
        name, described = describe(timeline, pieces, row)
        kinds[name, described.group_size].append((row, message_bytes(described)))
    found = []
    for (name, group_size), calls in kinds.items():
        known = [size for _, size in calls if size is not None]
        found.append(
            CollectiveTally(
                name=name,
                group_size=group_size,
                count=len(calls) / steps,
                ms=int(pieces.dur_ns[[row for row, _ in calls]].sum()) / steps / NS_PER_MS,
                bytes=sum(known) / steps if len(known) == len(calls) else None,
            )
        )
    return tuple(sorted(found, key=lambda kind: (-kind.ms, kind.name)))


def describe(timeline: Timeline, pieces: Pieces, row: int) -> tuple[str, Collective]:
    """Return the name of the collective (else of its operation or kernel), and its recorded description."""
    trace = timeline.trace
    index = int(trace.work.collective[pieces.work[row]])
    described = trace.collectives[index] if index >= 0 else Collective()
    return described.name or trace.strings[int(pieces.name[row])], described


def _item_bytes(collective: Collective) -> int | None:
    return _ITEM_BYTES.get((collective.dtype or "").lower().removeprefix("c10::"))


def message_bytes(collective: Collective) -> int | None:
    """Return the bytes of the larger side of a collective, None if they were not recorded."""
    size = _item_bytes(collective)
    if size is None or collective.in_elements is None or collective.out_elements is None:
        return None
    return size * max(collective.in_elements, collective.out_elements)


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

    Columns are bytes: little-endian integers that are compared, sent and stored as they are.
    """

    calls: tuple[CollectiveCall, ...] = ()
    call: bytes = b""  # index into `calls`, 32 bits; all other columns have 64
    step: bytes = b""  # number of the step
    start_ns: bytes = b""  # the first start, then the difference of each from the one before
    dur_ns: bytes = b""

    @classmethod
    def of(cls, rows: Sequence[tuple[CollectiveCall, int, int, int]]) -> Arrivals:
        """Return the columns of rows: the call, its step, its start and its duration."""
        calls = sorted({row[0] for row in rows})
        index = {call: number for number, call in enumerate(calls)}
        start = np.array([row[2] for row in rows], "<i8")
        return cls(
            calls=tuple(calls),
            call=np.array([index[row[0]] for row in rows], "<i4").tobytes(),
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
        return _arrivals_on_host(timeline)
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
            group = ProcessGroup()  # of all ranks, if none was recorded
            if described.group or described.group_ranks:
                group = ProcessGroup(
                    name=described.group or "",
                    size=described.group_size or 0,
                    ranks=described.group_ranks or "",
                )
            size, item = message_bytes(described), _item_bytes(described)
            is_exchange = collective_kind(name) is CollectiveKind.ALL_TO_ALL and item is not None
            call = known[name, described] = CollectiveCall(
                name=name,
                group=group,
                bytes=NONE if size is None else size,
                received=(item or 0) * (described.out_elements or 0) if is_exchange else NONE,
                peer=NONE if described.peer is None else described.peer,
            )
        start = int(pieces.start_ns[row]) + (trace.base_ns or 0)
        found.append((call, int(numbers[pieces.step[row]]), start, int(pieces.dur_ns[row])))
    return Arrivals.of(found)


def _arrivals_on_host(timeline: Timeline) -> Arrivals:
    """Return the collectives of a run without accelerators by the ranges that their backend writes.

    A message's peer comes from the operation that asked for it: operations and ranges of one kind are in the
    same order, on any threads.
    """
    trace, numbers = timeline.trace, timeline.steps.number
    ops, ranges = trace.ops, trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, COMMUNICATION_RANGE))
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    steps = steps_of(ranges.start_ns[rows], timeline.steps)
    asked: dict[str, list[Shapes | None]] = {}
    own = np.flatnonzero(named(trace.strings, ops.name, COMMUNICATION_OP) & (ops.inputs >= 0))
    for row in own[np.argsort(ops.start_ns[own], kind="stable")].tolist():
        shapes = decode_shapes(trace.inputs[int(ops.inputs[row])])
        asked.setdefault(_kind_on_host(trace.strings[int(ops.name[row])]), []).append(shapes)
    names = [trace.strings[int(name)] for name in ranges.name[rows].tolist()]
    counts = Counter(map(_kind_on_host, names))
    found = []
    seen: Counter[str] = Counter()
    for name, row, step in zip(names, rows.tolist(), steps.tolist(), strict=True):
        kind = _kind_on_host(name)
        # If an operation was not recorded, the others cannot be assigned.
        same = asked.get(kind, [])
        shapes = same[seen[kind]] if len(same) == counts[kind] else None
        seen[kind] += 1
        inputs = NONE if ranges.inputs is None else int(ranges.inputs[row])
        message = decode_shapes(trace.inputs[inputs]) if inputs >= 0 else None
        size = message.bytes_at(*message.tensors) if message and message.tensors else None
        received = shapes.bytes_at(0) if shapes and kind is CollectiveKind.ALL_TO_ALL else None
        peer = shapes.value(2) if shapes and kind in _MESSAGES else None
        call = CollectiveCall(
            name=name,
            group=ProcessGroup(),
            bytes=NONE if size is None else max(size, received or 0),
            received=NONE if received is None else received,
            peer=peer if type(peer) is int and 0 <= peer < 1 << 31 else NONE,
        )
        if 0 <= step < len(numbers):
            start = int(ranges.start_ns[row]) + (trace.base_ns or 0)
            found.append((call, int(numbers[step]), start, int(ranges.dur_ns[row])))
    return Arrivals.of(found)


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
    """Return the collectives of one rank per step, over these steps, longest first."""
    call, step = np.frombuffer(arrivals.call, "<i4"), np.frombuffer(arrivals.step, "<i8")
    rows = among(step, np.array(steps, np.int64)) if len(steps) else np.zeros(len(step), np.bool_)
    dur_ns = np.frombuffer(arrivals.dur_ns, "<i8")
    count = np.bincount(call[rows], minlength=len(arrivals.calls))
    total = np.bincount(call[rows], dur_ns[rows], len(arrivals.calls))
    found = [
        collective_row(own, len(steps), int(count[index]), int(total[index]))
        for index, own in enumerate(arrivals.calls)
        if count[index]
    ]
    return tuple(sorted(found, key=lambda row: (-row.ms, row.name, row.bytes or 0.0)))


def communication_by_purpose(timeline: Timeline, pieces: Pieces, steps: int) -> dict[str, float]:
    """Return the milliseconds of a steady step that go to communication of each kind of parallelism.

    They are data, fsdp, tensor, pipeline, expert, or unknown; the longest is first.
    """
    chosen = pieces.steady & (pieces.work_class == WorkClass.COMMUNICATION) & (pieces.work >= 0)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return {}
    context = pieces.context[rows]
    phases = np.where(context & IN_OPTIMIZER, OPTIMIZER, np.where(context & IN_BACKWARD, BACKWARD, FORWARD))
    trains = bool((pieces.context[pieces.steady] & (IN_BACKWARD | IN_OPTIMIZER)).any())
    strings, ops = timeline.trace.strings, timeline.trace.ops
    has_tables = bool(named(strings, ops.name, EMBEDDING_TABLES).any())
    # Integers until all are added: then the order does not matter.
    times_ns: dict[tuple[str, CollectiveKind], int] = defaultdict(int)
    counts: dict[str, Counts] = defaultdict(lambda: defaultdict(int))
    for row, phase in zip(rows.tolist(), phases.tolist(), strict=True):
        name, described = describe(timeline, pieces, row)
        kind = collective_kind(name)
        group = f"{described.group} {described.group_ranks or described.group_size}"
        times_ns[group, kind] += int(pieces.dur_ns[row])
        size = message_bytes(described)
        # Work without a launching host event has no position in the step.
        if pieces.row[row] >= 0 and (size is None or size >= LEAST_BYTES):
            counts[group][kind, phase] += 1
    found_ns: dict[str, int] = defaultdict(int)
    for (group, kind), spent_ns in times_ns.items():
        purpose = _purpose(kind, counts[group], steps, trains=trains, has_tables=has_tables)
        found_ns[purpose] += spent_ns
    longest_first = sorted(found_ns.items(), key=lambda item: (-item[1], item[0]))
    return {purpose: spent_ns / steps / NS_PER_MS for purpose, spent_ns in longest_first}


def _purpose(kind: CollectiveKind, counts: Counts, steps: int, *, trains: bool, has_tables: bool) -> str:
    """Return what the collectives of one kind in a process group are for, by all that the group does."""

    def often(which: CollectiveKind, *phases: int) -> float:
        return sum(counts.get((which, phase), 0) for phase in phases) / steps

    purpose = "unknown"
    if kind is CollectiveKind.ALL_TO_ALL and not has_tables:  # embedding tables over ranks exchange rows too
        purpose = "expert"
    elif kind is CollectiveKind.SEND_RECEIVE:
        purpose = "pipeline"
    elif kind is CollectiveKind.ALL_REDUCE:
        forward, backward = often(kind, FORWARD), often(kind, BACKWARD, OPTIMIZER)
        if forward >= 2 and (not trains or forward >= LEAST_FORWARD_PART * (forward + backward)):
            purpose = "tensor"
        elif backward:
            purpose = "data"
    elif kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        gathers = often(CollectiveKind.ALL_GATHER, FORWARD) >= 1
        gathers_again = often(CollectiveKind.ALL_GATHER, BACKWARD) >= 1
        scatters_back = often(CollectiveKind.REDUCE_SCATTER, BACKWARD, OPTIMIZER) > 0
        if often(CollectiveKind.REDUCE_SCATTER, FORWARD) >= 1:
            # Sequence parallel scatters activations in forward too; so do embedding tables their rows.
            purpose = "unknown" if has_tables else "tensor"
        elif gathers and (scatters_back or gathers_again):
            purpose = "fsdp"
        else:
            purpose = "data" if scatters_back else purpose  # only the optimizer is sharded
    return purpose
