"""What NCCL's own ranges say of the communication kernels that they launched, and of a process's rank."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Final

from stepgrade.model.events import Collective
from stepgrade.readers.nsys.nvtx import CommunicationCall

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
}
_DTYPE_IN_NAME: Final = re.compile(r"_(bf16|f16|f32|f64|i8|u8|i32|i64)_")
_COMMUNICATOR: Final = "NCCL communicator ID"
_SIZE: Final = "Message size [bytes]"
_RANKS: Final = "No. of ranks"
_GROUP_END: Final = "ncclGroupEnd"


class Communicators:
    """The communicators of a process: how many ranks each has, and which one the process is."""

    def __init__(self, calls: dict[int, list[CommunicationCall]]) -> None:
        self.sizes: dict[int, int] = {}
        self.rank: int | None = None
        self.world_size: int | None = None
        for call in (call for of_thread in calls.values() for call in of_thread):
            group, ranks, rank = (call.payload.get(key) for key in (_COMMUNICATOR, _RANKS, "Rank"))
            if not (isinstance(group, int) and isinstance(ranks, int) and 0 < ranks < 1 << 20):
                continue
            self.sizes[group] = ranks
            # The largest communicator is the run itself.
            if isinstance(rank, int) and 0 <= rank < ranks and ranks >= (self.world_size or 0):
                self.rank, self.world_size = rank, ranks

    def describe(self, kernel: str, call: CommunicationCall) -> Collective:
        """Return what is known of the collective that a kernel carries out for a call."""
        group, size = call.payload.get(_COMMUNICATOR), call.payload.get(_SIZE)
        ranks = self.sizes.get(group) if isinstance(group, int) else None
        found = _DTYPE_IN_NAME.search(kernel)
        dtype, item_bytes = _DTYPES[found[1]] if found else ("byte", 1)
        name = call.name.removeprefix("nccl").lower()
        elements = size // item_bytes if isinstance(size, int) and size >= 0 else None
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


def call_at(calls: list[CommunicationCall], starts: list[int], time_ns: int) -> CommunicationCall | None:
    """Return NCCL's call that launched something at this time: that around it, or the last of its group."""
    place = bisect_right(starts, time_ns) - 1
    if place < 0 or calls[place].end_ns < time_ns:
        return None
    if calls[place].name != _GROUP_END:
        return calls[place]
    before = (calls[earlier] for earlier in range(place - 1, -1, -1))
    return next((call for call in before if _SIZE in call.payload), None)
