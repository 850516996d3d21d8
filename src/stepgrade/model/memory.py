"""What a device's memory held over a step: by category, at its peak, and what was left."""

from __future__ import annotations

from msgspec import Struct

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "temporary", "other")
WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY, OTHER = range(len(CATEGORIES))


class PeakPlace(Struct, frozen=True, kw_only=True):
    """What allocated the last bytes of the peak."""

    op: str | None = None
    layer: str | None = None
    where: str | None = None  # "file.py:line" of the user's own code


class Holder(Struct, frozen=True, kw_only=True):
    """What allocated a part of the memory."""

    bytes: float
    op: str | None = None
    where: str | None = None
    category: str | None = None

    @property
    def shown(self) -> str:
        """Return the line of code, else the operation."""
        return self.where or self.op or "not known"


class MemoryCurve(Struct, frozen=True, kw_only=True):
    """The memory over a step: for each category bytes at the same moments, in order of time."""

    at_ms: tuple[float, ...]  # from the start of the step; of a source without times, the number of the event
    has_times: bool
    categories: dict[str, tuple[float, ...]]
    peak_index: int


class MemoryGrowth(Struct, frozen=True, kw_only=True):
    """Memory that is kept from each step: how much more after every one, and who allocates it."""

    bytes_per_step: float
    steps: int
    holders: tuple[Holder, ...] = ()


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """An allocation that failed, as the allocator's message or snapshot tells it."""

    asked_bytes: float | None = None
    free_bytes: float | None = None
    capacity_bytes: float | None = None
    process_bytes: float | None = None  # all that this process holds, the framework's and the driver's
    allocated_bytes: float | None = None
    unallocated_bytes: float | None = None  # reserved by the framework, and in no tensor
    other_processes_bytes: float | None = None
    where: str | None = None

    @property
    def context_bytes(self) -> float | None:
        """Return what this process holds outside of the framework: the driver's context, NCCL, libraries."""
        if self.process_bytes is None or self.allocated_bytes is None:
            return None
        return max(0.0, self.process_bytes - self.allocated_bytes - (self.unallocated_bytes or 0.0))


class Memory(Struct, frozen=True, kw_only=True):
    """The memory of one device; what the source does not tell is None, or absent from the categories."""

    peak_bytes: float | None = None
    capacity_bytes: float | None = None
    reserved_bytes: float | None = None  # by the framework from the device, at most
    categories: dict[str, float] = {}  # at the peak; they add up to it
    peak_at: PeakPlace | None = None
    fragmentation: float | None = None  # of what is reserved, the share in no tensor when least is
    largest_free_bytes: float | None = None  # in one piece, of what is reserved
    headroom_bytes: float | None = None  # between the peak and what the device has
    from_before_bytes: float | None = None  # allocated before the source begins
    retries: int | None = None  # of the allocator, which then gives back what it holds and asks again
    holders: tuple[Holder, ...] = ()  # who allocated what is held at the peak, most first
    growth: MemoryGrowth | None = None
    out_of_memory: OutOfMemory | None = None
    curve: MemoryCurve | None = None
