"""What the rules look at: the profile and what scoring derived from it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property

from msgspec import Struct

from stepgrade.config.limits import DEFAULT_LIMITS, Limits
from stepgrade.hardware.setup import Target
from stepgrade.model import Ledger, Note, Profile
from stepgrade.model.activity import Activity, HostGaps
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.memory import Memory
from stepgrade.model.operations import Operation
from stepgrade.model.profile import APR_PROFILER_V1, STEP_PROFILER_V2, WorkKind
from stepgrade.model.scorecard import Cause, Severity
from stepgrade.replay.promises import Promises
from stepgrade.scoring.causes import Verdict, Work
from stepgrade.scoring.efficiency import Efficiency
from stepgrade.scoring.goodput import WallLedger
from stepgrade.scoring.layers import SlowLayer
from stepgrade.scoring.phases import PhaseKind, PhasesOfStep
from stepgrade.scoring.step_times import RunTimes
from stepgrade.scoring.target import capacity_of

NOTHING_DONE = Activity(driver="unknown")
FIRST_CAPABILITY = {"fp16": 7.0, "bf16": 8.0, "tf32": 8.0, "fp8": 8.9}  # of NVIDIA's tensor cores
_MOSTLY = 0.5
# Work, and waits for something that the file shows; a late host is what a bad recording looks like as well.
_KNOWN_CAUSES = ("transfer", "communication", "straggler", "input")
_NO_GAPS = HostGaps(after_sync_ms=0.0, stall_ms=0.0, stalls=0.0, longest_ms=0.0, dispatch_ms=0.0)
_LEAST_NORMS = 4.0
LIKE_CUDA = frozenset({None, "cuda", "rocm"})  # PyTorch drives AMD's devices through torch.cuda as well


class Runtime(StrEnum):
    """Whose advice fits."""

    PYTORCH = "pytorch"
    JAX = "jax"
    REFERENCE = "reference"
    GENERAL = "general"


_RUNTIME_WORDS = {Runtime.PYTORCH: ("torch", "kineto"), Runtime.JAX: ("jax", "xplane", "xla", "xprof")}


def runtime_of(profile: Profile) -> Runtime:
    """Return the runtime by the names of the producer, the profile's runtime and the format."""
    source = profile.source
    if source.producer in (STEP_PROFILER_V2, APR_PROFILER_V1):  # which contract v1's advice is for
        return Runtime.REFERENCE
    names = " ".join((source.producer or "", profile.runtime or "", source.format)).casefold()
    return next(
        (runtime for runtime, words in _RUNTIME_WORDS.items() if any(word in names for word in words)),
        Runtime.GENERAL,
    )


class RuleContext(Struct, frozen=True, kw_only=True, dict=True):
    """Everything known about a run; milliseconds per step are those of the typical step."""

    profile: Profile
    times: RunTimes
    phases: PhasesOfStep
    efficiency: Efficiency
    verdict: Verdict
    promises: Promises
    ratio: float | None
    slow_layers: tuple[SlowLayer, ...]
    ledger: Ledger | None = None
    target: Target = Target()
    operations: tuple[Operation, ...] = ()
    causes: tuple[Cause, ...] = ()
    device_work: Work | None = None  # what the operations' time is made of
    runtime: Runtime = Runtime.GENERAL
    work: WorkKind = "unknown"  # what the steps hold, as given or else as the source shows
    activity: Activity = NOTHING_DONE  # of the typical step; an empty one when the source has no timeline
    limits: Limits = DEFAULT_LIMITS
    wall: WallLedger | None = None  # of the whole run, where the source is a log
    memory: Memory | None = None
    held_up: Note | None = None  # how busy the machine was

    @property
    def on_device(self) -> bool:
        """Return whether the times come from an accelerator's timeline."""
        return self.activity.driver == "device"

    @property
    def platform(self) -> str | None:
        """Return the platform of the device (cuda, rocm, …), cpu without a device, None if unknown."""
        device, recorded = self.target.device, self.profile.recorded
        if recorded is not None and recorded.processor is not None:
            return "cpu"
        if self.activity.platform is not None or device is None:
            return "cpu" if self.activity.driver == "host" else self.activity.platform
        return {"NVIDIA": "cuda", "AMD": "rocm"}.get(device.vendor or "")

    @property
    def parallelism(self) -> str | None:
        """Return the parallelism behind most communication (data, fsdp, tensor, …); None if unknown."""
        times = self.activity.parallelism_ms
        longest = max(times, key=lambda kind: times[kind], default="unknown")
        return None if longest == "unknown" else longest

    @property
    def replays_graphs(self) -> bool:
        """Return whether most kernels are replayed from a graph."""
        return self.activity.kernels is not None and self.activity.kernels.graph_share > _MOSTLY

    @property
    def is_compiled(self) -> bool:
        """Return whether a compiler already generated and fused the kernels."""
        generated, kernels = self.activity.kernel_group_ms.get("triton", 0.0), self.activity.kernels
        return generated > 0.0 if kernels is None else generated >= self.limits.compiled_share * kernels.ms

    def uses(self, mark: str) -> bool:
        """Return whether the step calls the operations that this mark counts."""
        return self.activity.marks.get(mark, 0.0) > 0.0

    def has_recorded(self, setting: str) -> bool:
        """Return whether the profiler recorded this (shapes, stacks, memory)."""
        return self.profile.recorded is not None and setting in self.profile.recorded.settings

    def can_compute_in(self, dtype: str) -> bool | None:
        """Return whether the device supports this precision; None if unknown."""
        device = self.target.device
        if device is not None and device.peak_tflops:
            return dtype in device.peak_tflops
        first = FIRST_CAPABILITY.get(dtype)
        try:
            capability = float(self.activity.capability or "")
        except ValueError:
            return None
        return None if self.platform != "cuda" or first is None else capability >= first

    def severity(self, name: str, share: float) -> Severity | None:
        """Return the highest limit of `name` that the share reaches; None below all of them."""
        levels: tuple[Severity, ...] = ("critical", "warning", "info")
        reached = (
            level for level in levels if share >= getattr(self.limits, f"{name}_{level}_share", math.inf)
        )
        return next(reached, None)

    def step_share(self, ms: float) -> float:
        """Return milliseconds of the typical step as a share of it; 0 if the step time is unknown."""
        return ms / self.times.typical_ms if self.times.typical_ms else 0.0

    def mean_ms(self, ms: float) -> float:
        """Return milliseconds of the typical step scaled to the mean step, which rates are based on."""
        return ms / self.times.scale

    def account(self, *names: str) -> float:
        """Return the share of the step in these accounts of the ledger; unknown ones count as 0."""
        return sum(getattr(self.ledger, name) or 0.0 for name in names) if self.ledger else 0.0

    @property
    def explains_much(self) -> bool:
        """Return whether an account with a known cause is large: the file then shows something of the run."""
        known = [name for name, account in ACCOUNTS.items() if account.cause in _KNOWN_CAUSES]
        return any(self.account(name) > self.limits.explained_share for name in ("compute", *known))

    def busy_share(self, ms: float) -> float:
        """Return device work as a share of the step; concurrent work is scaled down."""
        whole = sum(op.ms or 0.0 for op in self.operations if op.kind != "communication")
        if whole <= 0.0:
            return 0.0
        return ms / max(whole, 1e-12) * min(self.account("compute") or 1.0, self.step_share(whole) or 1.0)

    def operations_share(self, operations: Iterable[Operation]) -> float:
        """Return the share of the step in these operations."""
        return self.busy_share(sum(op.ms or 0.0 for op in operations))

    def class_share(self, *kinds: str) -> float:
        """Return the share of the step in operations of these classes that are large enough to judge."""
        return self.operations_share(op for op in self.operations if op.kind in kinds and self.is_large(op))

    def is_large(self, op: Operation) -> bool:
        """Return whether the operation's work outweighs the cost of calling it.

        On a processor small tensors stay in the cache, and any call takes microseconds.
        """
        if self.activity.driver != "host":
            return True
        if not op.shapes:
            return self._is_large_call(op.bytes, op.calls, op.mean_ms)
        # Most calls may be small while most of the time is in large ones.
        large = (
            row.ms or 0.0
            for row in op.shapes
            if self._is_large_call(row.bytes, row.calls, (row.ms or 0.0) / (row.calls or 1.0))
        )
        return 2.0 * sum(large) >= (op.ms or 0.0)

    def _is_large_call(self, moved: float | None, calls: float | None, mean_ms: float | None) -> bool:
        if moved and calls:
            return moved / calls >= self.limits.large_tensor_bytes
        return (mean_ms or 0.0) >= self.limits.large_operation_ms

    def phase_share(self, kind: PhaseKind) -> float:
        """Return the share of the step in phases of this kind."""
        return self.phases.by_kind.get(kind, 0.0)

    @property
    def memory_share(self) -> float | None:
        """Return the peak memory as a share of the device's capacity; None if either is unknown."""
        used, size = self.profile.peak_memory_bytes, capacity_of(self.profile, self.target)
        return used / size if used and size else None

    @property
    def is_full(self) -> bool:
        """Return whether memory has no room for a larger batch."""
        return (self.memory_share or 0.0) >= self.limits.memory_warning_share

    @cached_property
    def figures(self) -> dict[str, float]:
        """Return every figure that rules without a function judge, and those that several rules share.

        0 where it is unknown or does not apply. Shares are of the step; counts are per step.
        """
        activity, limits, marks = self.activity, self.limits, self.activity.marks
        gaps, on_host = activity.gaps or _NO_GAPS, activity.driver == "host"
        idle = self.account("idle_host")
        stall = min(idle, self.step_share(gaps.stall_ms))
        after_sync = self.step_share(gaps.after_sync_ms)
        regions, uncovered = marks.get("compiled_region", 0.0), self.phases.uncovered_share or 0.0
        copies_ms = sum(copy.ms for copy in activity.copies)
        offload_ms = sum(copy.ms for copy in activity.copies if copy.during in {"backward", "optimizer"})
        again_ms = 0.0 if self.is_full else activity.recompute_ms
        startup_ms = activity.startup_ms if (self.profile.steps or 1) == 1 else 0.0
        norms = min(marks.get("rsqrt", 0.0), marks.get("mean", 0.0))
        is_fused = self.is_compiled or self.class_share("norm") > 0.0
        by_dtype = activity.matmul_dtype_ms
        is_fp16 = bool(by_dtype) and max(by_dtype, key=by_dtype.__getitem__) == "fp16"
        run = self.wall.goodput if self.wall and self.wall.goodput.wall_s >= limits.long_run_s else None
        starting = run.startup + run.compile if run else 0.0
        # The host's own waits say more than nothing where the device was not seen.
        waits_ms = activity.input_ms if activity.driver == "unseen" else ()
        unseen = self.step_share(sum(waits_ms) / len(waits_ms)) if waits_ms else 0.0
        return {
            **{name: self.account(name) for name in ACCOUNTS},
            "input_share": self.account("idle_input") or self.phase_share(PhaseKind.INPUT) or unseen,
            "transfer_share": self.account("exposed_copy") or self.phase_share(PhaseKind.TRANSFER),
            "offload_ms": offload_ms,
            "offload_share": self.account("exposed_copy") * offload_ms / copies_ms if copies_ms else 0.0,
            "sync_share": self.account("idle_sync") + after_sync,
            "stall_share": stall,  # in gaps too long for a launch
            "launch_share": max(0.0, idle - (stall + after_sync)) if self.on_device else 0.0,
            "compiled_regions": regions if regions > limits.compiled_regions else 0.0,
            "uncovered_share": uncovered if uncovered > limits.launch_advice_share else 0.0,
            "dispatch_ms": gaps.dispatch_ms,
            "dispatch_share": self.step_share(gaps.dispatch_ms),
            "python_share": max(0.0, idle - max(stall, self.phase_share(PhaseKind.HOST))) if on_host else 0.0,
            "fp16_scalings": marks.get("loss_scale", 0.0) if is_fp16 and self.can_compute_in("bf16") else 0.0,
            "zero_fills": marks.get("zero_fill", 0.0),
            "fill_share": self.busy_share(activity.kernel_group_ms.get("fill", 0.0)),
            "layout_share": self.busy_share(activity.kernel_group_ms.get("layout", 0.0)),
            "embedding_share": self.class_share("embedding"),
            "elementwise_kernels": activity.class_kernels.get("elementwise", 0.0),
            "elementwise_share": self.class_share("elementwise"),
            "pointwise_share": self.class_share("elementwise", "reduction"),
            "unfused_norms": 0.0 if is_fused or norms < _LEAST_NORMS else norms,
            "data_parallel_calls": marks.get("data_parallel", 0.0),
            "gloo_calls": marks.get("gloo", 0.0) if self.on_device and self.platform in LIKE_CUDA else 0.0,
            "recompute_ms": again_ms,
            "recompute_share": self.busy_share(again_ms),
            "starting_share": starting,
            "starting_s": starting * run.wall_s if run else 0.0,
            "memory_share": self.memory_share or 0.0,
            "startup_ms": startup_ms,
            "startup_share": self.step_share(startup_ms),
            "captures": 0.0 if self.explains_much else marks.get("graph_capture", 0.0),
        }
