"""From a decoded memory snapshot to the allocations of its busiest device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepgrade.errors import BadInput
from stepgrade.model.allocations import (
    IN_BACKWARD,
    IN_FORWARD,
    IN_OPTIMIZER,
    IN_SETUP,
    IN_ZERO_GRAD,
    STATES_PER_WEIGHT,
    Allocations,
    MemoryRecording,
)
from stepgrade.model.events import NONE, Longs
from stepgrade.model.memory import Holder, OutOfMemory
from stepgrade.model.notes import Note
from stepgrade.naming.python_frames import read_frame
from stepgrade.readers.base import text_of
from stepgrade.readers.plain_pickle import Plain, decode
from stepgrade.readers.source import ByteSource
from stepgrade.units import show_bytes, show_count

Row = Mapping[str, Plain]

_OPTIMIZER_FILE = re.compile(r"(?:^|[/\\])optim(?:izers?)?[/\\.]|[/\\]optimizer\.py$")
# Where modules make their parameters, or move them to the device.
_MODULE_FILE = re.compile(r"[/\\]nn[/\\](?:modules|parameter)|modeling_utils\.py$")
_MAKES_MODULES = frozenset({"__init__", "_apply", "convert", "reset_parameters", "from_pretrained"})
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#(\w{1,60})")
_LONGEST_PATH = 1000
_LARGEST = 1 << 53  # a time of today in microseconds, or an address, and no more
_GROWS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_CHANGES = {"alloc": 1, "free_completed": -1}


class _Stack(NamedTuple):
    """What the frames of an allocation say: who asked for it, and in which pass."""

    maker: Holder
    phase: int


class _Held(NamedTuple):
    """What a device holds when the snapshot is taken."""

    allocated: int
    reserved: int
    largest_free: int  # in one piece, of what is reserved


def read_snapshot(source: ByteSource) -> MemoryRecording:
    """Return the allocations of the device with most of them."""
    snapshot = decode(source.chunks(), source.memory_bytes)
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments"), list):
        raise BadInput("is a pickle, and no memory snapshot: it has no segments")
    traces = [_rows(trace) for trace in _once(_list(snapshot, "device_traces"))] or [[]]
    segments = _rows(_list(snapshot, "segments"))
    reserved: Counter[int] = Counter()
    for segment in segments:
        reserved[_device_of(segment)] += _size(segment, "total_size")
    busiest = max(range(len(traces)), key=lambda number: (len(traces[number]), reserved[number]))
    own = [segment for segment in segments if _device_of(segment) == busiest]
    blocks = [row for part in _once([segment.get("blocks") for segment in own]) for row in _rows(part)]
    held = _Held(
        allocated=sum(_size(block, "size") for block in blocks if _is_active(block)),
        reserved=sum(_size(segment, "total_size") for segment in own),
        largest_free=max((_size(block, "size") for block in blocks if not _is_active(block)), default=0),
    )
    spans, optimizer = _optimizer_spans(_rows(_list(snapshot, "external_annotations")))
    history = walk_history(traces[busiest], spans)
    if not held.allocated and not history.rows:
        raise BadInput("is a memory snapshot in which nothing is allocated")
    # What happened is counted back from what is held at the end.
    base = max(held.allocated - history.allocated, 0)
    reserved_base = max(held.reserved - history.reserved, 0)
    table = np.array(history.rows, np.int64).reshape(-1, 6)
    return MemoryRecording(
        file=source.name,
        format="snapshot",
        producer="torch.cuda.memory",
        events=Allocations(
            time_ns=table[:, 0],
            delta=table[:, 1],
            address=table[:, 2],
            phase=_known_phases(table[:, 1], table[:, 3]).astype(np.int8),
            tag=table[:, 4].astype(np.int32),
            makers=tuple(history.makers),
            base_bytes=base,
            states_per_weight=STATES_PER_WEIGHT.get(optimizer, 0),
            reserved=reserved_base + table[:, 5],
        ),
        has_phases=history.has_frames,
        held_bytes=held.allocated,
        reserved_bytes=held.reserved,
        largest_free_bytes=held.largest_free,
        step_ends=tuple(history.step_ends),
        retries=history.retries if history.rows else None,
        failed=failure_in(history, base, reserved_base),
        contents=_contents(history, len(own), held, snapshot),
        notes=_notes(history),
    )


class _History(NamedTuple):
    """What happened on a device, entry by entry; amounts count from its first one."""

    rows: list[tuple[int, int, int, int, int, int]]  # time, change, address, phase, maker, reserved after
    makers: dict[Holder, int]
    allocated: int
    reserved: int
    step_ends: list[int]
    retries: int
    has_frames: bool
    failed: tuple[int, int, int, int, str | None] | None  # asked, free, allocated, reserved, where


def walk_history(entries: Sequence[Row], spans: Sequence[tuple[int, int]]) -> _History:
    """Return what the entries say; `spans` are the optimizer's steps."""
    stacks: dict[int, _Stack] = {}
    makers: dict[Holder, int] = {}
    rows: list[tuple[int, int, int, int, int, int]] = []
    reserved = allocated = 0
    failed, retries, gave_back, step_ends = None, 0, False, list[int]()
    for entry in entries:
        action, size = text_of(entry.get("action")), _size(entry, "size")
        if action in _GROWS:
            reserved += _GROWS[action] * size
            # An allocator that finds no room gives back what it holds, and asks for more again.
            retries += gave_back and _GROWS[action] > 0
            gave_back = _GROWS[action] < 0
            continue
        stack = _stack(entry, stacks)
        if action == "oom":
            failed = (size, _size(entry, "device_free"), allocated, reserved, stack.maker.where)
        if action not in _CHANGES or not size:
            continue
        time_ns = _size(entry, "time_us") * 1000 if "time_us" in entry else NONE
        while len(step_ends) < len(spans) and spans[len(step_ends)][1] < time_ns:
            step_ends.append(len(rows))
        in_step = len(step_ends) < len(spans) and spans[len(step_ends)][0] <= time_ns
        phase = IN_OPTIMIZER if in_step and stack.phase != IN_ZERO_GRAD else stack.phase
        maker = makers.setdefault(stack.maker, len(makers))
        change = _CHANGES[action] * size
        rows.append((time_ns, change, _size(entry, "addr"), phase, maker, reserved))
        allocated += change
    has_frames = any(stack.phase != IN_BACKWARD for stack in stacks.values())
    return _History(rows, makers, allocated, reserved, step_ends, retries, has_frames, failed)


def failure_in(history: _History, base: int, reserved_base: int) -> OutOfMemory | None:
    """Return what an entry of the kind `oom` says: what was asked, what was free, what was held then."""
    if history.failed is None:
        return None
    asked, free, allocated, reserved, where = history.failed
    held = base + allocated
    return OutOfMemory(
        asked_bytes=float(asked),
        free_bytes=float(free),
        allocated_bytes=float(max(held, 0)),
        unallocated_bytes=float(max(reserved_base + reserved - held, 0)),
        where=where,
    )


def _known_phases(change: Longs, phase: Longs) -> Longs:
    """Return the phases, with that of the event before where stacks of frees were not recorded."""
    freed = change < 0
    if (phase[freed] != IN_BACKWARD).any():
        return phase
    last = np.maximum.accumulate(np.where(freed, 0, np.arange(len(phase))))
    return phase[last]


def _stack(entry: Row, known: dict[int, _Stack]) -> _Stack:
    """Return what the frames of an entry say; those of many entries are one list, which is read once."""
    frames = entry.get("frames")
    if not isinstance(frames, list):
        frames = []
    if id(frames) in known:
        return known[id(frames)]
    op = where = None
    phase = IN_BACKWARD  # autograd's threads run no Python
    for frame in frames:  # the innermost is first
        if not isinstance(frame, dict):
            continue
        path, name = (
            text_of(frame.get("filename"), _LONGEST_PATH),
            text_of(frame.get("name"), _LONGEST_PATH),
        )
        if not path.endswith((".py", ">")):
            continue
        phase = _phase_of_frame(path, name, phase)
        read = read_frame(f"{path}({_size(frame, 'line')}): {name}")
        op = op or read.name
        where = where or (read.where if read.is_user else None)
    found = _Stack(Holder(bytes=0.0, op=op, where=where), phase)
    if frames:
        known[id(frames)] = found
    return found


def _phase_of_frame(path: str, name: str, inside: int) -> int:
    """Return the phase of a frame, given that of the frames inside it; what is precise stays."""
    if inside in (IN_OPTIMIZER, IN_ZERO_GRAD, IN_SETUP):
        return inside if name != "zero_grad" else IN_ZERO_GRAD
    if name == "zero_grad":
        return IN_ZERO_GRAD
    if _OPTIMIZER_FILE.search(path):
        return IN_OPTIMIZER
    return IN_SETUP if name in _MAKES_MODULES and _MODULE_FILE.search(path) else IN_FORWARD


def _optimizer_spans(annotations: Sequence[Row]) -> tuple[list[tuple[int, int]], str]:
    """Return when the optimizer's steps began and ended, and its class."""
    spans, began, kind = list[tuple[int, int]](), None, ""
    for note in annotations:
        step = _OPTIMIZER_STEP.match(text_of(note.get("name"), _LONGEST_PATH))
        if step is None:
            continue
        kind, time_ns = step[1], _size(note, "time_us") * 1000
        if note.get("stage") == "START":
            began = time_ns
        elif began is not None:
            spans.append((began, time_ns))
            began = None
    return sorted(spans), kind


def _contents(history: _History, segments: int, held: _Held, snapshot: Row) -> dict[str, str]:
    settings = snapshot.get("allocator_settings")
    known = settings if isinstance(settings, dict) else {}
    contents = {
        "events": f"{show_count(len(history.rows))} allocations and frees",
        "segments": f"{show_count(segments)}, {show_bytes(held.reserved)}",
        "recorded": "stacks" if history.has_frames else "no stacks",
        "allocator": "expandable segments" if known.get("expandable_segments") is True else "",
    }
    return {name: text for name, text in contents.items() if text}


def _notes(history: _History) -> tuple[Note, ...]:
    notes = []
    if not history.rows:
        text = "The history of allocations was not recorded: only what is held at the end is known."
        notes.append(Note("no_memory_history", text))
    elif not history.has_frames:
        text = "The snapshot has no Python stacks, so that what the memory is for cannot be told."
        notes.append(Note("no_memory_stacks", text))
    return tuple(notes)


def _is_active(block: Row) -> bool:
    return text_of(block.get("state")).startswith("active")


def _device_of(segment: Row) -> int:
    return _size(segment, "device")


def _list(row: Row, key: str) -> list[Plain]:
    found = row.get(key)
    return found if isinstance(found, list) else []


def _once(lists: Sequence[Plain]) -> Iterator[list[Plain]]:
    """Yield the lists; one that stands in several places, as only a made-up file has it, is taken once."""
    seen: set[int] = set()
    for found in lists:
        is_new = isinstance(found, list) and (not found or id(found) not in seen)
        seen.add(id(found))
        yield found if is_new and isinstance(found, list) else []


def _rows(values: Sequence[Plain]) -> list[dict[str, Plain]]:
    return [value for value in values if isinstance(value, dict)]


def _size(row: Row, key: str) -> int:
    """Return a number of a row, 0 where it is none, or none that makes sense."""
    value = row.get(key, 0)
    return value if type(value) is int and 0 <= value < _LARGEST else 0
