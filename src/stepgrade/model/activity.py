"""What a device and its host did in one step, beyond the ledger: what the rules look at.

Counts and milliseconds are those of one step on the mean rank. What the source did not say is None.
"""

from __future__ import annotations

from msgspec import Struct


class CopyTally(Struct, frozen=True, kw_only=True):
    """Copies between host and device of one direction and one kind of host memory."""

    direction: str  # h2d, d2h, other
    memory: str | None  # pinned, pageable
    during: str  # input, forward, backward, optimizer, other
    count: float
    ms: float
    bytes: float | None = None


class WaitTally(Struct, frozen=True, kw_only=True):
    """Calls of one name, made in one operation, in which the host waited for the device."""

    call: str
    caller: str | None
    count: float
    ms: float
    direction: str | None = None  # h2d, d2h: of the copy that it waited for
    idle_ms: float | None = None  # of the device, in gaps that opened in these waits


class CollectiveTally(Struct, frozen=True, kw_only=True):
    """One kind of collective; `bytes` are those of the larger side of one rank, all calls together."""

    name: str
    group_size: int | None
    count: float
    ms: float
    bytes: float | None = None


class OptimizerTally(Struct, frozen=True, kw_only=True):
    """The optimizer on the device: its kernels, how long they run, and the stretch of time they take."""

    kernels: float
    ms: float
    span_ms: float
    multi_tensor_share: float  # of its kernel time, how much handles many tensors at once
    fused: bool
    name: str | None = None  # its class, as AdamW


class GemmTally(Struct, frozen=True, kw_only=True):
    """Matrix products of one shape: [batch] x (m, k) @ (k, n)."""

    batch: int
    m: int
    k: int
    n: int
    dtype: str | None
    calls: float
    ms: float
    flops: float
    bytes: float | None = None


class KernelTally(Struct, frozen=True, kw_only=True):
    """Kernels, the short ones among them, and their launches."""

    count: float
    ms: float
    short_count: float
    short_ms: float
    graph_share: float  # of the kernels, how many were replayed from a graph
    launch_call_us: float | None = None  # mean of a launching call on the host
    outrun_share: float = 0.0  # of the kernels, how many are shorter than the call that launched them


class HostGaps(Struct, frozen=True, kw_only=True):
    """The device's waits for its host: after a wait of the host, in long gaps, at launches."""

    after_sync_ms: float  # in gaps that opened while the host waited for the device
    stall_ms: float  # in other gaps that are too long for a launch
    stalls: float
    longest_ms: float
    dispatch_ms: float


class PartTime(Struct, frozen=True, kw_only=True):
    """Device work by class, role and direction in a model; without collectives and host copies."""

    work_class: str
    role: str | None
    direction: str | None
    ms: float
    calls: float
    kernels: float
    dtype: str | None = None


class Straggler(Struct, frozen=True, kw_only=True):
    """The rank that the others wait for, and what its device does more of than theirs."""

    rank: int
    caused_ms: float
    last_share: float
    trouble: str | None = None  # the account of the ledger
    trouble_excess: float = 0.0
    ranks: int = 2


class Activity(Struct, frozen=True, kw_only=True):
    """What happened in one step of the mean rank."""

    driver: str  # device, host, unseen
    kernels: KernelTally | None = None
    gaps: HostGaps | None = None
    copies: tuple[CopyTally, ...] = ()
    waits: tuple[WaitTally, ...] = ()
    collectives: tuple[CollectiveTally, ...] = ()
    communication_ms: float = 0.0  # with what computing hides
    optimizer: OptimizerTally | None = None
    gemms: tuple[GemmTally, ...] = ()
    parts: tuple[PartTime, ...] = ()
    matmul_dtype_ms: dict[str, float] = {}
    marks: dict[str, float] = {}  # how often operations that tell something were called
    kernel_group_ms: dict[str, float] = {}  # time of kernels that their names put into a group
    class_kernels: dict[str, float] = {}
    input_ms: tuple[float, ...] = ()  # waiting for input in each steady step, of the first rank
    loader: str | None = None
    scalar_read_ms: float = 0.0
    backward_passes: float | None = None
    skipped_steps: int = 0  # steady steps without a backward pass or optimizer, while others have it
    skipped_part: str | None = None
    recompute_ms: float = 0.0
    skew_ms: float | None = None
    straggler: Straggler | None = None
    capability: str | None = None
    sequence: int | None = None
