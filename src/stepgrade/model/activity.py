"""What a device and its host did in one step, beyond the ledger: what the rules look at.

Counts and milliseconds are means over the profiled steps, on the mean rank.
What the source did not say is None.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from stepgrade.model.ledger import ACCOUNTS

# Times of single gaps, steps and lines, which do not grow with the step.
_SINGLE = frozenset({"longest_ms", "stall_from_ms", "input_ms", "line", "lines"})


class HostLine(Struct, frozen=True, kw_only=True):
    """A line of the user's code that the host was in: where its function begins, and what that calls."""

    where: str  # file.py:line
    function: str
    calls: str | None = None
    ms: float = 0.0

    @property
    def shown(self) -> str:
        """Return the line in words: file.py:12 make_batch, in sleep."""
        inner = "" if self.calls is None else f", in {self.calls}"
        return f"{self.where} {self.function}{inner}"


class CopyRow(Struct, frozen=True, kw_only=True):
    """Copies between host and device in a step, of one direction and one kind of host memory."""

    direction: str  # h2d, d2h, other
    memory: str | None = None  # pinned, pageable; None where the trace does not say
    calls: float
    ms: float
    bytes: float | None = None
    gb_s: float | None = None  # of the copies whose size is known
    during: str | None = None  # input, forward, backward, optimizer, other; None: any of them


class WaitTally(Struct, frozen=True, kw_only=True):
    """Calls of one name, made in one operation, in which the host waited for the device."""

    call: str
    caller: str | None
    count: float
    ms: float
    direction: str | None = None  # h2d, d2h: of the copy that it waited for
    idle_ms: float | None = None  # of the device, in gaps that opened in these waits
    line: HostLine | None = None  # that waits the longest


class CollectiveTally(Struct, frozen=True, kw_only=True):
    """One kind of collective; `bytes` are those of the larger side of one rank, all calls together."""

    name: str
    group_size: int | None
    count: float
    ms: float
    bytes: float | None = None


class Counted(Struct, frozen=True, kw_only=True):
    """What our recorder counted in a step, whatever a profiler saw of it."""

    backward_passes: float
    synced_passes: float = 0.0  # of them, those after which DDP reduced all gradients
    unused_gradients_share: float | None = None  # by elements, dropped before an optimizer used them
    collectives: tuple[CollectiveTally, ...] = ()


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


class LoopTally(Struct, frozen=True, kw_only=True):
    """Loops in Python over operations of microseconds."""

    turns: float
    ms: float  # from the first operation of a loop to its last
    backward_ms: float  # of the nodes that it made
    operations: tuple[str, ...]  # of one turn of the longest loop
    line: HostLine | None = None


class KernelTally(Struct, frozen=True, kw_only=True):
    """Kernels, the short ones among them, and their launches."""

    count: float
    ms: float
    short_count: float
    short_ms: float
    graph_share: float  # of the kernels, how many were replayed from a graph
    launch_call_us: float | None = None  # median of a launching call on the host
    outrun_share: float = 0.0  # of the kernels, how many are shorter than the call that launched them


class QueueDepth(Struct, frozen=True, kw_only=True):
    """Kernels and copies that were launched and have not begun, over the steady steps."""

    mean: float
    empty_share: float  # of the steps' time, with nothing left to begin
    known_share: float  # of the kernels and copies, how many have a recorded launch


class CounterMean(Struct, frozen=True, kw_only=True):
    """One counter of the device in the steady steps, under the name that the profiler gives it."""

    name: str
    mean: float
    least: float
    most: float
    samples: int


class KernelUse(Struct, frozen=True, kw_only=True):
    """How the kernels of a step fill the device; shares from 0 to 1, None where the profiler does not say."""

    sm_efficiency: float | None = None  # multiprocessors with a block, of all of them over the step
    occupancy: float | None = None  # of the warps they can hold, while such kernels run
    occupancy_known_share: float | None = None  # of the kernels' time
    tensor_core_share: float | None = None  # of the matrix products' time, on tensor cores
    tensor_core_known_share: float | None = None  # of that time, in kernels whose names say
    queue: QueueDepth | None = None
    counters: tuple[CounterMean, ...] = ()


class HostGaps(Struct, frozen=True, kw_only=True):
    """The device's waits for its host: after a wait of the host, in long gaps, at launches."""

    after_sync_ms: float  # in gaps that opened while the host waited, as far as it would have run ahead
    stall_ms: float  # in other gaps, or parts of them, that are too long for a launch
    stalls: float
    longest_ms: float
    dispatch_ms: float
    steady_stall_ms: float | None = None  # that three of four steps have at least
    stall_from_ms: float = 1.0  # gaps from this length on are too long for a launch


class StallRow(Struct, frozen=True, kw_only=True):
    """Long gaps of one cause: what the host was in while the device waited, and the work that ended them."""

    cause: str  # a StallCause
    inside: str | None = None  # the call, operation, range or function
    ended_by: str | None = None  # the kernel or copy
    count: float
    ms: float


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
    last_share: float | None = None  # of the collectives; None where only their time is known
    trouble: str | None = None  # the account of the ledger
    trouble_excess: float = 0.0
    ranks: int = 2
    line: HostLine | None = None  # of the user's code that its host is in while the step waits

    def reason(self, *, on_processor: bool) -> str | None:
        """Return why it is late, by the account that it has more of; None if no account shows it."""
        if on_processor and self.trouble == "idle_host":
            return "it spends time outside of operations"
        return ACCOUNTS[self.trouble].late if self.trouble in ACCOUNTS else None


class Activity(Struct, frozen=True, kw_only=True):
    """What happened in one step of the mean rank."""

    driver: str  # device, host, unseen
    kernels: KernelTally | None = None
    gaps: HostGaps | None = None
    copies: tuple[CopyRow, ...] = ()
    waits: tuple[WaitTally, ...] = ()
    stalls: tuple[StallRow, ...] = ()  # longest first
    collectives: tuple[CollectiveTally, ...] = ()
    communication_ms: float = 0.0  # with what computing hides
    optimizer: OptimizerTally | None = None
    gemms: tuple[GemmTally, ...] = ()
    parts: tuple[PartTime, ...] = ()
    matmul_dtype_ms: dict[str, float] = {}
    marks: dict[str, float] = {}  # how often operations that tell something were called
    # What is communicated for: data, fsdp, tensor, pipeline or expert parallelism, or unknown.
    parallelism_ms: dict[str, float] = {}
    kernel_group_ms: dict[str, float] = {}  # time of kernels that their names put into a group
    class_kernels: dict[str, float] = {}
    input_ms: tuple[float, ...] = ()  # waiting for input in each steady step, of the first rank
    loader: str | None = None
    scalar_read_ms: float = 0.0
    dropout_ms: float = 0.0  # in random numbers that dropout draws, on a processor
    loop: LoopTally | None = None
    backward_passes: float | None = None
    skipped_steps: int = 0  # steady steps without a backward pass or optimizer, while others have it
    skipped_part: str | None = None
    recompute_ms: float = 0.0
    platform: str | None = None  # whose runtime the host calls: cuda, rocm, mtia, xpu, npu, cpu
    startup_ms: float = 0.0  # in single calls that load kernels or set the device up, with the device idle
    lines: dict[str, tuple[HostLine, ...]] = {}  # of the user's code, by what was waited for
    skew_ms: float | None = None
    straggler: Straggler | None = None
    capability: str | None = None
    sequence: int | None = None

    def scaled(self, factor: float) -> Activity:
        """Return this with the time of the step, and so of its parts, multiplied.

        Counts stay, and so do durations of single calls and the times of single steps.
        """
        return self if factor == 1.0 else _scaled(self, factor)


def _scaled(part: Any, factor: float, name: str = "") -> Any:
    """Return the part with every time in it multiplied: the figures whose names end in `ms`."""
    if isinstance(part, Struct):
        times = {field: getattr(part, field) for field in part.__struct_fields__ if field not in _SINGLE}
        return structs.replace(part, **{field: _scaled(v, factor, field) for field, v in times.items()})
    if isinstance(part, tuple):
        return tuple(_scaled(row, factor) for row in part)
    if isinstance(part, dict):
        return {key: _scaled(value, factor, name) for key, value in part.items()}
    return part * factor if name.endswith("ms") and part is not None else part
