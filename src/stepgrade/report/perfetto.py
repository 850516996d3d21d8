"""A run as one file for Perfetto: every rank on one clock, with its ledger, its waits and the findings.

The file is a stream of protobuf packets (perfetto/trace/trace.proto). Events come by the million, so packets
are made in columns: the bytes of all packets side by side, with a mask of those that a packet has.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stepgrade.model.events import NONE, Longs, Trace
from stepgrade.model.scorecard import UNGRADED, Finding, Scorecard
from stepgrade.model.tracks import RanksTogether, RankTracks, Track
from stepgrade.protobuf import encode_field as _field
from stepgrade.protobuf import encode_varint as _varint
from stepgrade.report.content.scorecard import evidence_rows, gain, grade_badge
from stepgrade.report.names import shortened
from stepgrade.report.own_paths import OwnPaths, without_own_paths
from stepgrade.trace.tracks import RankCollector, lay
from stepgrade.units import NS_PER_MS, show_ms

Bytes: TypeAlias = NDArray[np.uint8]
Mask: TypeAlias = NDArray[np.bool_]

_NAME_CELLS = 200
_ROWS_AT_ONCE = 1 << 16
_COPY_BYTES = 1 << 20
# Numbers of Perfetto's own.
_BEGIN, _END, _COUNTER = 1, 2, 4
_BOOT_CLOCK, _OWN_CLOCK = 6, 64
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_IN_ORDER = 3  # of tracks: as their ranks say
_BYTES_UNIT = 3
# Fields of packets and their messages.
_PACKET, _CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED = 1, 6, 8, 10, 11, 12
_FLAGS, _DEFAULTS, _CLOCK_ID, _DESCRIPTOR = 13, 59, 58, 60
_CATEGORY_IID, _ANNOTATION, _TYPE, _NAME_IID, _TRACK, _NAME = 3, 4, 9, 10, 11, 23
_COUNTER_VALUE, _FLOW = 30, 47
_OPERATION_IID, _STEP_IID = 1, 2  # names of the notes on a slice
# Tracks of the whole run, and of each rank: room for the tracks in it.
_RUN, _FINDINGS = 1, 2
_OF_RANK = 32
_LATE, _WAITS, _PINNED, _FIRST_TRACK = 1, 1 << 20, 1 << 21, 1 << 22
_WAIT_FLOW = 1 << 62


class Shown(NamedTuple):
    """What the written file shows first: a typical step, on its clock."""

    start_ns: int
    dur_ns: int


class _Head(NamedTuple):
    """What is kept of a rank once its events are written."""

    rank: RankTracks  # without its events
    extent: tuple[int, int]  # from its first event to its last
    tracks: tuple[tuple[str, str], ...]  # kind and name of each


def write(card: Scorecard, traces: Iterable[Trace], out: BinaryIO) -> Shown | None:
    """Write the traces of a run's ranks with what was found in them; each is taken in turn and not kept."""
    collector = RankCollector()
    paths = OwnPaths(card)
    card = paths.without(card)
    heads: list[_Head] = []
    with tempfile.TemporaryFile() as spool:
        for index, rank in enumerate(map(collector.add, traces)):
            ends = [int((track.start_ns + track.dur_ns).max()) for track in rank.tracks if len(track.label)]
            begins = [int(track.start_ns.min()) for track in rank.tracks if len(track.label)]
            begins += [int(counter.at_ns.min()) for counter in rank.counters if len(counter.at_ns)]
            extent = min(begins, default=0), max(ends, default=0)
            counters = (("counter", counter.name) for counter in rank.counters)
            names = (*((track.kind, track.name) for track in rank.tracks), *counters)
            kept = structs.replace(rank, file=paths.short(rank.file), strings=[], tracks=(), counters=())
            heads.append(_Head(kept, extent, names))
            spool.writelines(_rank_packets(rank, index, extent[0]))
            del rank
        together = collector.together()
        # All ranks are on one clock, where nothing happens before 0: Perfetto has no such times.
        zeros = [
            head.rank.base_ns - offset + head.extent[0]
            for head, offset in zip(heads, together.offsets_ns, strict=True)
        ]
        lift_ns = -min(0, *zeros, *(at for wait in together.waits for at in (wait.start_ns, wait.until_ns)))
        zeros = [zero + lift_ns for zero in zeros]
        for part in _run_packets(card, heads, together, zeros):
            out.write(part)
        for part in _wait_packets(together, lift_ns):
            out.write(part)
        spool.seek(0)
        shutil.copyfileobj(spool, out, _COPY_BYTES)
    for zero, head in zip(zeros, heads, strict=True):
        if head.rank.typical_step is not None:
            start, dur = head.rank.typical_step
            return Shown(zero + start - head.extent[0], dur)
    return None


def _uuid(index: int, track: int = 0) -> int:
    return (index + 1 << _OF_RANK) + track


# --- One packet at a time: ranks, waits and findings.


def _packet(*fields: bytes, sequence: int = 1) -> bytes:
    return _field(_PACKET, b"".join((*fields, _field(_SEQUENCE, sequence))))


def _descriptor(uuid: int, name: str, parent: int = 0, *, rank: int = 0, more: bytes = b"") -> bytes:
    """Return a track; `rank` is its position in its parent."""
    fields = [
        _field(1, uuid),
        _field(2, shortened(name, _NAME_CELLS)),
        _field(11, _IN_ORDER),
        _field(12, rank),
    ]
    if parent:
        fields.append(_field(5, parent))
    return _packet(_field(_DESCRIPTOR, b"".join([*fields, more])))


def _slice(
    track: int, span: tuple[int, int], name: str, notes: dict[str, str], flows: Iterable[int] = ()
) -> bytes:
    """Return the beginning and the end of a slice with its notes; flows join slices by arrows."""
    start, dur = span
    event = [_field(_TYPE, _BEGIN), _field(_TRACK, track), _field(_NAME, shortened(name, _NAME_CELLS))]
    event += [
        _field(_ANNOTATION, _field(10, key) + _field(6, shortened(text)))
        for key, text in notes.items()
        if text
    ]
    event += [_varint(_FLOW << 3 | 1) + flow.to_bytes(8, "little") for flow in flows]
    end = _field(_TYPE, _END) + _field(_TRACK, track)
    return _packet(_field(_TIMESTAMP, start), _field(_EVENT, b"".join(event))) + _packet(
        _field(_TIMESTAMP, start + dur), _field(_EVENT, end)
    )


def _run_packets(
    card: Scorecard, heads: list[_Head], together: RanksTogether, zeros: list[int]
) -> Iterator[bytes]:
    """Yield the clocks and tracks of all ranks, and the findings at the calls or stretches they are about."""
    for index, zero in enumerate(zeros):  # each rank has a clock of its own that is 0 at its first event
        clocks = b"".join(
            _field(1, _field(1, which) + _field(2, at))
            for which, at in ((_BOOT_CLOCK, zero), (_OWN_CLOCK, 0))
        )
        yield _packet(_field(_CLOCKS, clocks + _field(2, _BOOT_CLOCK)), sequence=index + 2)
    yield _packet(_field(_FLAGS, _STATE_CLEARED))
    begin = min(zeros, default=0)
    ends = (zero + head.extent[1] - head.extent[0] for zero, head in zip(zeros, heads, strict=True))
    whole = begin, max(ends, default=begin) - begin
    yield _descriptor(_RUN, "stepgrade: the run", rank=0)
    notes = {
        "bottleneck": card.bottleneck,
        "step": "" if card.step_time_ms is None else show_ms(card.step_time_ms),
        "clock": together.basis,
        "files": ", ".join(card.source.files[:8]),
    }
    title = "not graded" if card.grade == UNGRADED else f"{card.grade}: {grade_badge(card, {}).headline}"
    yield _slice(_RUN, whole, title, notes)
    for number, finding in enumerate(card.findings):
        yield from _finding_packets(_FINDINGS + number, _RUN, number, finding, whole)
    spans = {op.name: op.longest for op in card.operations if op.longest is not None}
    for index, (head, zero) in enumerate(zip(heads, zeros, strict=True)):
        group, shift = _uuid(index), zero - head.extent[0]
        name = f"rank {together.ranks[index]}" if len(together.ranks) > 1 else "the rank"
        yield _descriptor(group, f"{name}: {head.rank.file}", rank=index + 1)
        for track, (kind, title) in enumerate(head.tracks, start=_FIRST_TRACK):
            more = _field(8, _field(3, _BYTES_UNIT)) if kind == "counter" else b""
            yield _descriptor(group + track, title, group, rank=track, more=more)
        for number, finding in enumerate(card.findings, start=_PINNED):
            texts = (text for text in finding.evidence.values() if isinstance(text, str))
            span, at = next((spans[text] for text in texts if text in spans), None), None
            if span is not None and card.source.files[span.file] == head.rank.file:
                at = span.start_ns - head.rank.file_zero_ns, span.dur_ns
            elif span is None and finding.account is not None and finding.severity != "info":
                at = head.rank.longest.get(finding.account)
            if at is not None and shift + at[0] >= 0:
                yield from _finding_packets(group + number, group, number, finding, (shift + at[0], at[1]))


def _finding_packets(
    uuid: int, parent: int, rank: int, finding: Finding, span: tuple[int, int]
) -> Iterator[bytes]:
    """Yield a track with one slice for a finding."""
    notes = {
        "severity": finding.severity,
        "what to do": finding.remedy,
        "gain": gain(finding),
        "how to check": finding.check,
        "where": finding.where or "",
        "evidence": ", ".join(f"{name} {value}" for name, value in evidence_rows(finding)),
    }
    yield _descriptor(uuid, f"{finding.severity}: {finding.rule}", parent, rank=rank)
    yield _slice(uuid, span, finding.claim, notes)


def _wait_packets(together: RanksTogether, lift_ns: int) -> Iterator[bytes]:
    """Yield a slice for each wait, and one where the rank arrives that was waited for; arrows join them."""
    waits = together.waits
    of_rank: dict[int, list[int]] = {}
    arrivals: dict[int, dict[tuple[int, str], list[int]]] = {}
    for number in sorted(
        range(len(waits)), key=lambda number: (waits[number].start_ns, -waits[number].dur_ns)
    ):
        of_rank.setdefault(waits[number].rank, []).append(number)
        late = arrivals.setdefault(waits[number].late, {})
        late.setdefault((waits[number].until_ns, waits[number].name), []).append(number)
    for index, rank in enumerate(together.ranks):
        group, own = _uuid(index), of_rank.get(rank, [])
        layer, dur = lay(
            np.array([waits[number].start_ns for number in own], np.int64),
            np.array([waits[number].dur_ns for number in own], np.int64),
        )
        for part in range(int(layer.max(initial=NONE)) + 1):
            title = "waits for other ranks" + (f", overlapping {part}" if part else "")
            yield _descriptor(group + _WAITS + part, title, group, rank=_WAITS + part)
        for number, track, length in zip(own, layer.tolist(), dur.tolist(), strict=True):
            wait = waits[number]
            notes = {"collective": wait.name, "wait": show_ms(wait.dur_ns / NS_PER_MS)}
            span, name = (wait.start_ns + lift_ns, length), f"waits for rank {wait.late}"
            yield _slice(group + _WAITS + track, span, name, notes, [_WAIT_FLOW + number])
        if rank in arrivals:
            yield _descriptor(group + _LATE, "others wait for this rank", group, rank=_LATE)
        for (until, name), which in sorted(arrivals.get(rank, {}).items()):
            longest = max(waits[number].dur_ns for number in which)
            notes = {"collective": name, "others wait": show_ms(longest / NS_PER_MS)}
            flows = [_WAIT_FLOW + number for number in which]
            yield _slice(group + _LATE, (until + lift_ns, 0), "arrives last", notes, flows)


# --- Many packets at once: the events of a rank.


class _Part(NamedTuple):
    """Some bytes of every row, and a mask of those that a row has."""

    content: Bytes
    has: Mask

    def where(self, present: Mask | None) -> _Part:
        """Return it for these rows only; None means all."""
        return self if present is None else _Part(self.content, self.has & present[:, None])

    @property
    def sizes(self) -> Longs:
        found: Longs = self.has.sum(axis=1)
        return found


def _same(content: bytes, rows: int) -> _Part:
    row = np.frombuffer(content, np.uint8)
    return _Part(np.broadcast_to(row, (rows, len(row))), np.ones((rows, len(row)), np.bool_))


def _varints(values: Longs | NDArray[Any]) -> _Part:
    """Return each number as a varint, as `_varint` does."""
    values = values.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    groups = values[:, None] >> shifts
    has = groups > 0
    has[:, 0] = True
    content = (groups & np.uint64(0x7F)).astype(np.uint8)
    content[:, :-1] |= (has[:, 1:] * 0x80).astype(np.uint8)
    return _Part(content, has)


def _numbers(number: int, values: Longs | NDArray[Any], present: Mask | None = None) -> _Part:
    """Return a field of integers; rows that are not `present` have none."""
    if present is not None:
        values = np.where(present, values, 0)
    return _together(_same(_varint(number << 3), len(values)), _varints(values)).where(present)


def _together(*parts: _Part) -> _Part:
    return _Part(np.hstack([part.content for part in parts]), np.hstack([part.has for part in parts]))


def _message(number: int, *parts: _Part, present: Mask | None = None) -> _Part:
    """Return a field that is a message, with its length before it."""
    inner = _together(*parts)
    head = _together(_same(_varint(number << 3 | 2), len(inner.content)), _varints(inner.sizes))
    return _together(head, inner).where(present)


def _rank_packets(rank: RankTracks, index: int, begin_ns: int) -> Iterator[bytes]:
    """Yield the packets of one rank, on a clock from its begin; texts come first, each of them once."""
    columns = [
        column
        for track in rank.tracks
        for column in (track.label, track.category, track.operation)
        if column is not None
    ]
    used = np.zeros(len(rank.strings) + 1, np.bool_)
    for column in columns:
        used[column] = True  # NONE is the last, which no text has
    interned = [_field(3, _field(1, _OPERATION_IID) + _field(2, "operation"))]
    interned.append(_field(3, _field(1, _STEP_IID) + _field(2, "step")))
    numbers = np.flatnonzero(used[:-1]).tolist()
    names = without_own_paths([rank.strings[number] for number in numbers])
    for number, name in zip(numbers, names, strict=True):
        text = _field(1, number + 1) + _field(2, shortened(name, _NAME_CELLS))
        interned += [_field(field, text) for field in (1, 2, 29)]
    first = _field(_FLAGS, _STATE_CLEARED) + _field(_DEFAULTS, _field(_CLOCK_ID, _OWN_CLOCK))
    yield _packet(first, _field(_INTERNED, b"".join(interned)), sequence=index + 2)
    for number, track in enumerate(rank.tracks):
        uuid = _uuid(index, _FIRST_TRACK + number)
        yield from _slice_packets(track, begin_ns, index, uuid)
    for number, counter in enumerate(rank.counters):
        uuid = _uuid(index, _FIRST_TRACK + len(rank.tracks) + number)
        for start in range(0, len(counter.at_ns), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            fixed = _same(_field(_TYPE, _COUNTER) + _field(_TRACK, uuid), len(counter.at_ns[some]))
            event = _message(_EVENT, fixed, _numbers(_COUNTER_VALUE, counter.value[some]))
            yield _flat(event, counter.at_ns[some] - begin_ns, index)


def _slice_packets(track: Track, begin_ns: int, index: int, uuid: int) -> Iterator[bytes]:
    """Yield the beginnings and ends of slices in the order in which a stack takes them."""
    count = len(track.label)
    row = np.tile(np.arange(count), 2)
    is_end = np.repeat([False, True], count)
    at = np.concatenate([track.start_ns, track.start_ns + track.dur_ns])
    is_empty = np.tile(track.dur_ns == 0, 2)
    # At the same time: ends, inner ones first; beginnings, outer ones first; slices without duration.
    turn = np.where(is_empty, 2, np.where(is_end, 0, 1))
    tie = np.where(is_empty, 2 * row + is_end, np.where(is_end, -row, row))
    order = np.lexsort((tie, turn, at))
    for first in range(0, len(order), _ROWS_AT_ONCE):
        some = order[first : first + _ROWS_AT_ONCE]
        rows, ends, begins = row[some], is_end[some], ~is_end[some]
        label, category, operation, step, launched = (
            np.full(len(some), NONE) if column is None else column[rows].astype(np.int64)
            for column in (track.label, track.category, track.operation, track.step, track.launched)
        )
        has_flow = begins & (launched > 0)
        flow = np.where(has_flow, launched + (index + 1 << 40), 0).astype("<u8").view(np.uint8).reshape(-1, 8)
        event = _message(
            _EVENT,
            _numbers(_TYPE, np.where(ends, _END, _BEGIN)),
            _same(_field(_TRACK, uuid), len(some)),
            _numbers(_NAME_IID, label + 1, begins),
            _numbers(_CATEGORY_IID, category + 1, begins & (category >= 0)),
            _message(
                _ANNOTATION,
                _same(_field(1, _OPERATION_IID), len(some)),
                _numbers(17, operation + 1),
                present=begins & (operation >= 0),
            ),
            _message(
                _ANNOTATION,
                _same(_field(1, _STEP_IID), len(some)),
                _numbers(3, step),
                present=begins & (step >= 0),
            ),
            _together(
                _same(_varint(_FLOW << 3 | 1), len(some)), _Part(flow, np.ones(flow.shape, np.bool_))
            ).where(has_flow),
        )
        yield _flat(event, at[some] - begin_ns, index)


def _flat(event: _Part, at: Longs, index: int) -> bytes:
    """Return the bytes of the packets, one after the other."""
    tail = _field(_SEQUENCE, index + 2) + _field(_FLAGS, _NEEDS_STATE)
    whole = _message(_PACKET, _numbers(_TIMESTAMP, at), event, _same(tail, len(at)))
    return whole.content[whole.has].tobytes()
