"""NVTX ranges of an export: those of programs, and NCCL's calls, which describe collectives and the rank."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from stepgrade.model.events import NONE, Collective, DeviceEvent
from stepgrade.readers.nsys.device import PID_BITS, PID_MASK, process_of, texts_of
from stepgrade.readers.processes import Events
from stepgrade.readers.sqlite import SqliteFile, json_object

# As kernels name their type: ncclDevKernel_AllReduce_Sum_bf16_RING_LL.
_DTYPES: Final = {
    "f16": ("half", 2),
    "bf16": ("bfloat16", 2),
    "f32": ("float", 4),
    "f64": ("double", 8),
    "i8": ("char", 1),
    "u8": ("byte", 1),
    "i32": ("int", 4),
    "i64": ("long", 8),
    "u32": ("int", 4),
    "u64": ("long", 8),
}
_DTYPE_IN_NAME: Final = re.compile(r"_(bf16|f16|f32|f64|[iu](?:8|32|64))_")
_COMMUNICATOR: Final = "NCCL communicator ID"
_SIZE: Final = "Message size [bytes]"
_RANKS: Final = "No. of ranks"
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_MOST_RANKS: Final = 1 << 20
_MOST_IN_GROUP: Final = 4096
_COLUMNS: Final = ("start", "end", "globalTid", "text", "textId", "jsonText", "jsonTextId")
_RANGES: Final = 'where eventType in (59, 60) and "end" is not null'
_LONGEST_NAME: Final = 100


class CommunicationCall(Struct, frozen=True, kw_only=True):
    """A call into NCCL with its payload."""

    name: str
    start_ns: int
    end_ns: int
    payload: dict[str, Any]


def add_ranges(file: SqliteFile, events: Events) -> dict[int, list[CommunicationCall]]:
    """Add the ranges that have an end; return NCCL's calls by thread. Marks and domains have no end."""
    numbers = file.whole_numbers("NVTX_EVENTS", ("textId", "jsonTextId"), _RANGES)
    strings = texts_of(file, *numbers.values())
    del numbers
    calls: dict[int, list[CommunicationCall]] = {}
    for start, end, thread, text, text_id, json, json_id in file.rows("NVTX_EVENTS", _COLUMNS, _RANGES):
        if not (isinstance(start, int) and isinstance(end, int) and isinstance(thread, int)):
            continue
        name = text if isinstance(text, str) else strings.get(text_id, "")
        if not name.startswith("nccl"):
            events.annotate(thread >> PID_BITS & PID_MASK, thread, start, end, name)
            continue
        payload = json if isinstance(json, str) else strings.get(json_id, "")
        call = CommunicationCall(
            name=name[:_LONGEST_NAME], start_ns=start, end_ns=end, payload=json_object(payload)
        )
        calls.setdefault(thread, []).append(call)
    for thread_calls in calls.values():
        thread_calls.sort(key=lambda call: call.start_ns)
    return calls


class Communicators:
    """The communicators of a process: how many ranks each has, and which one the process is."""

    def __init__(self, calls: dict[int, list[CommunicationCall]], process: int) -> None:
        self.calls = {
            thread: found for thread, found in calls.items() if int(process_of(np.int64(thread))) == process
        }
        self.sizes: dict[int, int] = {}
        self.rank: int | None = None
        self.world_size: int | None = None
        for call in (call for thread_calls in self.calls.values() for call in thread_calls):
            group, ranks, rank = (call.payload.get(key) for key in (_COMMUNICATOR, _RANKS, "Rank"))
            if not (isinstance(group, int) and isinstance(ranks, int) and 0 < ranks < _MOST_RANKS):
                continue
            self.sizes[group] = ranks
            # The largest communicator is the run itself.
            if isinstance(rank, int) and 0 <= rank < ranks and ranks >= (self.world_size or 0):
                self.rank, self.world_size = rank, ranks

    def describe(self, kernel: str, calls: Sequence[CommunicationCall]) -> Collective:
        """Return the collective that a kernel carries out for the calls of a group."""
        payload: dict[str, Any] = {}
        for call in calls:
            payload |= call.payload
        group = payload.get(_COMMUNICATOR)
        ranks = self.sizes.get(group) if isinstance(group, int) else None
        found = _DTYPE_IN_NAME.search(kernel)
        dtype, item_bytes = _DTYPES[found[1]] if found else ("byte", 1)
        names = {call.name.removeprefix("nccl").lower() for call in calls}
        name = names.pop() if len(names) == 1 else "send_recv" if names <= {"send", "recv"} else "group"
        # What is sent is what another rank receives: counted once.
        counted = [call for call in calls if call.name != "ncclRecv"] or calls
        sizes = [size for call in counted if isinstance(size := call.payload.get(_SIZE), int) and size >= 0]
        elements = sum(sizes) // item_bytes if len(sizes) == len(counted) else None
        # NCCL counts what one rank gives to an all-gather, and what one gets from a reduce-scatter.
        whole = elements * ranks if elements is not None and ranks is not None else elements
        return Collective(
            name=name,
            in_elements=whole if name == "reducescatter" else elements,
            out_elements=whole if name == "allgather" else elements,
            dtype=dtype,
            group_size=ranks,
            group=None if group is None else str(group)[:40],
        )


def describe_kernels(events: Events, process: int, communicators: Communicators) -> None:
    """Match NCCL kernels to NCCL calls by their launch, and set their collectives."""
    work, calls = events.table("work"), events.table("calls")
    texts = list(events.strings)
    is_nccl = np.array([text.startswith("nccl") for text in texts], np.bool_)
    own = (work["process"] == process) & (work["kind"] == DeviceEvent.KERNEL)
    rows = np.flatnonzero(own & is_nccl[work["name"]]) if texts else np.empty(0, np.intp)
    if not len(rows) or not communicators.calls:
        return
    process_rows = np.flatnonzero(calls["process"] == process)
    launches = dict(zip(calls["correlation"][process_rows].tolist(), process_rows.tolist(), strict=True))
    starts = {thread: [call.start_ns for call in found] for thread, found in communicators.calls.items()}
    made: dict[tuple[int, int, int], int] = {}  # a group launches many kernels, and is searched once
    for row in rows.tolist():
        launch = launches.get(int(work["correlation"][row]), NONE)
        thread = int(calls["thread"][launch]) if launch >= 0 else NONE
        if thread not in starts:
            continue
        thread_calls, name = communicators.calls[thread], int(work["name"][row])
        time_ns = int(calls["start_ns"][launch])
        last = bisect_right(starts[thread], time_ns) - 1
        # The call may be nested in another, as those of a group are.
        around = (
            index for index in range(last, max(last - 4, -1), -1) if thread_calls[index].end_ns >= time_ns
        )
        index = next(around, NONE)
        if index == NONE:
            continue
        if (thread, index, name) not in made:
            found = [thread_calls[index]]
            if found[0].name == _GROUP_END:  # it launches the calls of its group
                first = index
                while (
                    first > 0 and thread_calls[first].name != _GROUP_START and index - first < _MOST_IN_GROUP
                ):
                    first -= 1
                found = [call for call in thread_calls[first:index] if _SIZE in call.payload]
            made[thread, index, name] = NONE
            if found:
                collective = communicators.describe(texts[name], found)
                made[thread, index, name] = events.collectives.setdefault(collective, len(events.collectives))
        if made[thread, index, name] != NONE:
            work["collective"][row] = made[thread, index, name]
