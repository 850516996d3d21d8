"""From a decoded memory snapshot to the allocations of its busiest device."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from stepgrade.errors import BadInput
from stepgrade.memory import check
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
from stepgrade.naming.python_frames import PythonFrame, read_frame
from stepgrade.readers.base import text_of
from stepgrade.readers.plain_pickle import Plain, Row, decode
from stepgrade.readers.source import ByteSource
from stepgrade.units import show_bytes, show_count

Entry: TypeAlias = dict[str, Plain] | Row

_OPTIMIZER_FILE = re.compile(r"(?:^|[/\\])optim(?:izers?)?[/\\.]|[/\\]optimizer\.py$")
# Where modules make their parameters, or move them to the device.
_MODULE_FILE = re.compile(r"[/\\]nn[/\\](?:modules|parameter)|modeling_utils\.py$")
_MAKES_MODULES = frozenset({"__init__", "_apply", "convert", "reset_parameters", "from_pretrained"})
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#(\w{1,60})")
_LONGEST_PATH = 1000
_LARGEST = 1 << 53  # a time of today in microseconds, or an address, and no more
_GROWS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_CHANGES = {"alloc": 1, "free_completed": -1}
_FIELDS = ("action", "size", "addr", "time_us", "device_free", "frames")
_COLUMNS = 6  # of an event: time, change, address, phase, maker, reserved after it
_EVENT_BYTES = 160  # from its row to the result, measured; a pickle can repeat an entry in two bytes


_NO_HISTORY = Note(
    "no_memory_history",
    "The history of allocations was not recorded: only what is held at the end is known.",
)
_NO_STACKS = Note(
    "no_memory_stacks", "The snapshot has no Python stacks, so the purpose of allocations is unknown."
)


class _Stack(NamedTuple):
    """Who requested an allocation, and in which pass, by its stack."""

    maker: Holder
    phase: int


def read_snapshot(source: ByteSource) -> MemoryRecording:
    """Return the allocations of the device with most of them."""
    snapshot = decode(source.chunks(), source.memory_bytes, has_rows=True)
    if not isinstance(snapshot, dict | Row) or not isinstance(snapshot.get("segments"), list | tuple):
        raise BadInput("is a pickle but not a memory snapshot: it has no segments")
    traces = [_rows(trace) for trace in _once(_list(snapshot, "device_traces"))] or [[]]
    segments = _rows(_list(snapshot, "segments"))
    reserved: Counter[int] = Counter()
    for segment in segments:
        reserved[_size(segment, "device")] += _size(segment, "total_size")
    busiest = max(range(len(traces)), key=lambda number: (len(traces[number]), reserved[number]))
    own = [segment for segment in segments if _size(segment, "device") == busiest]
    sizes: dict[bool, list[int]] = {
        True: [],
        False: [0],
    }  # of the blocks that are in use, and of those that are free
    for block in (row for part in _once([segment.get("blocks") for segment in own]) for row in _rows(part)):
        sizes[text_of(block.get("state")).startswith("active")].append(_size(block, "size"))
    held_bytes, reserved_bytes = sum(sizes[True]), sum(_size(segment, "total_size") for segment in own)
    spans, optimizer = _optimizer_spans(_rows(_list(snapshot, "external_annotations")))
    check(len(traces[busiest]) * _EVENT_BYTES, source.memory_bytes)
    history = _walk(traces[busiest], spans)
    table = history.rows
    if not held_bytes and not len(table):
        raise BadInput("is a memory snapshot without allocations")
    # Earlier states are computed backwards from what is held at the end.
    base = max(held_bytes - history.allocated, 0)
    reserved_base = max(reserved_bytes - history.reserved, 0)
    phase = table[:, 3]
    freed = table[:, 1] < 0
    if (phase[freed] == IN_BACKWARD).all():  # the stacks of frees were not recorded: take the event before
        phase = phase[np.maximum.accumulate(np.where(freed, 0, np.arange(len(phase))))]
    failed = None
    if history.failed is not None:
        requested, free, allocated, reserved_then, where = history.failed
        in_use = base + allocated
        failed = OutOfMemory(
            asked_bytes=float(requested),
            free_bytes=float(free),
            allocated_bytes=float(max(in_use, 0)),
            unallocated_bytes=float(max(reserved_base + reserved_then - in_use, 0)),
            where=where,
        )
    settings = snapshot.get("allocator_settings")
    is_expandable = isinstance(settings, dict) and settings.get("expandable_segments") is True
    return MemoryRecording(
        file=source.name,
        format="snapshot",
        producer="torch.cuda.memory",
        events=Allocations(
            time_ns=table[:, 0],
            delta=table[:, 1],
            address=table[:, 2],
            phase=phase.astype(np.int8),
            tag=table[:, 4].astype(np.int32),
            makers=tuple(history.makers),
            base_bytes=base,
            states_per_weight=STATES_PER_WEIGHT.get(optimizer, 0),
            reserved=reserved_base + table[:, 5],
        ),
        has_phases=history.has_frames,
        held_bytes=held_bytes,
        reserved_bytes=reserved_bytes,
        largest_free_bytes=max(sizes[False]),
        step_ends=tuple(history.step_ends),
        retries=history.retries if len(table) else None,
        failed=failed,
        contents={
            "events": f"{show_count(len(table))} allocations and frees",
            "segments": f"{show_count(len(own))}, {show_bytes(reserved_bytes)}",
            "recorded": "stacks" if history.has_frames else "no stacks",
            **({"allocator": "expandable segments"} if is_expandable else {}),
        },
        notes=() if history.has_frames and len(table) else (_NO_STACKS if len(table) else _NO_HISTORY,),
    )


class _History(NamedTuple):
    """The history of a device, entry by entry; amounts are relative to the first."""

    rows: Longs  # of _COLUMNS each
    makers: dict[Holder, int]
    allocated: int
    reserved: int
    step_ends: list[int]
    retries: int
    has_frames: bool
    failed: tuple[int, int, int, int, str | None] | None  # asked, free, allocated, reserved, where


def _walk(entries: Sequence[Entry], spans: Sequence[tuple[int, int]]) -> _History:
    """Return the history in the entries; `spans` are the optimizer's steps."""
    stacks = _Stacks()
    makers: dict[Holder, int] = {}
    rows = array("q")
    reserved = allocated = count = 0
    failed, retries, gave_back, step_ends = None, 0, False, list[int]()
    for action, size, address, time_ns, free, frames in _fields_of(entries):
        if action in _GROWS:
            reserved += _GROWS[action] * size
            # An allocator without room releases its cache and retries.
            retries += gave_back and _GROWS[action] > 0
            gave_back = _GROWS[action] < 0
            continue
        stack = stacks.read(frames)
        if action == "oom":
            failed = (size, free, allocated, reserved, stack.maker.where)
        if action not in _CHANGES or not size:
            continue
        while len(step_ends) < len(spans) and spans[len(step_ends)][1] < time_ns:
            step_ends.append(count)
        in_step = len(step_ends) < len(spans) and spans[len(step_ends)][0] <= time_ns
        phase = IN_OPTIMIZER if in_step and stack.phase != IN_ZERO_GRAD else stack.phase
        maker = makers.setdefault(stack.maker, len(makers))
        change = _CHANGES[action] * size
        try:
            rows.extend((time_ns, change, address, phase, maker, reserved))
        except OverflowError:
            raise BadInput("is a memory snapshot with impossible sizes") from None
        count += 1
        allocated += change
    table = np.frombuffer(rows, np.int64).reshape(-1, _COLUMNS)
    return _History(table, makers, allocated, reserved, step_ends, retries, stacks.has_python, failed)


def _fields_of(entries: Sequence[Entry]) -> Iterator[tuple[str, int, int, int, int, Plain]]:
    """Yield action, size, address, time, free memory and frames of each entry."""
    indices, pick = None, itemgetter(0)
    for entry in entries:
        if isinstance(entry, Row):
            if entry[0] is not indices:  # rows of one shape share this dict, which stands for missing fields
                indices = entry[0]
                pick = itemgetter(*(indices.get(name, 0) for name in _FIELDS))
            action, size, address, time_us, free, frames = pick(entry)
        else:
            action, size, address, time_us, free, frames = map(entry.get, _FIELDS)
        time_ns = _number(time_us) * 1000 if "time_us" in entry else NONE
        yield text_of(action), _number(size), _number(address), time_ns, _number(free), frames


class _Stacks:
    """Reads the frames of entries; many entries share a list or a frame, which is read once."""

    def __init__(self) -> None:
        self.has_python = False
        self._known: dict[int, _Stack] = {}
        self._frames: dict[int, tuple[str, str, PythonFrame | None]] = {}

    def read(self, frames: Plain) -> _Stack:
        """Return who requested an allocation, and in which pass."""
        if not isinstance(frames, list | tuple):
            frames = ()
        known = self._known.get(id(frames))
        if known is not None:
            return known
        op = where = None
        phase = IN_BACKWARD  # autograd's threads run no Python
        for frame in frames:  # the innermost is first
            if id(frame) not in self._frames:
                row = frame if isinstance(frame, dict | Row) else {}
                path, name = (text_of(row.get(key), _LONGEST_PATH) for key in ("filename", "name"))
                is_python = path.endswith((".py", ">"))
                python = read_frame(f"{path}({_size(row, 'line')}): {name}") if is_python else None
                self._frames[id(frame)] = path, name, python
            path, name, python = self._frames[id(frame)]
            if python is not None:
                if name == "zero_grad":
                    phase = IN_ZERO_GRAD
                elif phase in (IN_BACKWARD, IN_FORWARD):  # the phases of inner frames that are precise stay
                    is_setup = name in _MAKES_MODULES and _MODULE_FILE.search(path)
                    is_optimizer = _OPTIMIZER_FILE.search(path)
                    phase = IN_OPTIMIZER if is_optimizer else IN_SETUP if is_setup else IN_FORWARD
                op = op or python.name
                where = where or (python.where if python.is_user else None)
        found = _Stack(Holder(bytes=0.0, op=op, where=where), phase)
        if frames:
            self._known[id(frames)] = found
            self.has_python = self.has_python or phase != IN_BACKWARD
        return found


def _optimizer_spans(annotations: Sequence[Entry]) -> tuple[list[tuple[int, int]], str]:
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


def _list(row: Entry, key: str) -> Sequence[Plain]:
    found = row.get(key)
    return found if isinstance(found, list | tuple) else []


def _once(lists: Sequence[Plain]) -> Iterator[Sequence[Plain]]:
    """Yield the lists; a list that occurs several times, as only hostile files have it, is used once."""
    seen: set[int] = set()
    for found in lists:
        is_new = isinstance(found, list | tuple) and (not found or id(found) not in seen)
        seen.add(id(found))
        yield found if is_new and isinstance(found, list | tuple) else []


def _rows(values: Sequence[Plain]) -> list[Entry]:
    return [value for value in values if isinstance(value, dict | Row)]


def _size(row: Entry, key: str) -> int:
    return _number(row.get(key))


def _number(value: Plain) -> int:
    """Return a number of a row; 0 if it is missing or out of range."""
    return value if type(value) is int and 0 <= value < _LARGEST else 0
