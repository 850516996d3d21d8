"""What the rules look at: the profile and what was worked out from it."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.config.limits import DEFAULT_LIMITS, Limits
from stepgrade.hardware.setup import Target
from stepgrade.model import Ledger, Profile
from stepgrade.model.activity import Activity
from stepgrade.model.memory import Memory
from stepgrade.model.operations import Operation
from stepgrade.model.profile import WorkKind
from stepgrade.model.scorecard import Cause
from stepgrade.scoring.causes import Verdict, Work
from stepgrade.scoring.efficiency import Efficiency
from stepgrade.scoring.goodput import WallLedger
from stepgrade.scoring.layers import SlowLayer
from stepgrade.scoring.memory import capacity_of
from stepgrade.scoring.phases import PhaseKind, PhasesOfStep
from stepgrade.scoring.runtime import Runtime
from stepgrade.scoring.step_times import RunTimes

NOTHING_DONE = Activity(driver="unknown")
FIRST_CAPABILITY = {"fp16": 7.0, "bf16": 8.0, "tf32": 8.0, "fp8": 8.9}  # of NVIDIA's tensor cores
_MOSTLY = 0.5


class RuleContext(Struct, frozen=True, kw_only=True):
    """Everything known of a run before it is judged; milliseconds of a step are those of the typical one."""

    profile: Profile
    times: RunTimes
    phases: PhasesOfStep
    efficiency: Efficiency
    verdict: Verdict
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

    @property
    def on_device(self) -> bool:
        """Return whether the time is that of an accelerator's timeline."""
        return self.activity.driver == "device"

    @property
    def platform(self) -> str | None:
        """Return whose runtime drives the device (cuda, rocm, ...), cpu without one, None if not known."""
        device = self.target.device
        if self.activity.platform is not None or device is None:
            return "cpu" if self.activity.driver == "host" else self.activity.platform
        return {"NVIDIA": "cuda", "AMD": "rocm"}.get(device.vendor or "")

    @property
    def parallelism(self) -> str | None:
        """Return what most communication is for: data, fsdp, tensor, pipeline, expert; None if not known."""
        times = self.activity.parallelism_ms
        longest = max(times, key=lambda kind: times[kind], default="unknown")
        return None if longest == "unknown" else longest

    @property
    def replays_graphs(self) -> bool:
        """Return whether most kernels are replayed from a graph."""
        return self.activity.kernels is not None and self.activity.kernels.graph_share > _MOSTLY

    @property
    def is_compiled(self) -> bool:
        """Return whether kernels were already generated and fused by a compiler."""
        generated, kernels = self.activity.kernel_group_ms.get("triton", 0.0), self.activity.kernels
        return generated > 0.0 if kernels is None else generated >= self.limits.compiled_share * kernels.ms

    def uses(self, mark: str) -> bool:
        """Return whether the step calls what this mark counts."""
        return self.activity.marks.get(mark, 0.0) > 0.0

    def has_recorded(self, setting: str) -> bool:
        """Return whether the profiler was set to record this (shapes, stacks, memory)."""
        return self.profile.recorded is not None and setting in self.profile.recorded.settings

    def can_compute_in(self, dtype: str) -> bool | None:
        """Tell by the catalogue, else by the compute capability, whether the device has this precision."""
        device = self.target.device
        if device is not None and device.peak_tflops:
            return dtype in device.peak_tflops
        first = FIRST_CAPABILITY.get(dtype)
        try:
            capability = float(self.activity.capability or "")
        except ValueError:
            return None
        return None if self.platform != "cuda" or first is None else capability >= first

    def step_share(self, ms: float) -> float:
        """Return milliseconds of the typical step as a share of it, 0 when the step time is not known."""
        return ms / self.times.typical_ms if self.times.typical_ms else 0.0

    def mean_ms(self, ms: float) -> float:
        """Return milliseconds of the typical step as the mean over all steps, which rates are made from."""
        return ms / self.times.scale

    def account(self, *names: str) -> float:
        """Return the share of the step in these accounts of the ledger; what is not known counts as 0."""
        return sum(getattr(self.ledger, name) or 0.0 for name in names) if self.ledger else 0.0

    def busy_share(self, ms: float) -> float:
        """Return device work of one step as a share of it; work that runs at the same time is scaled down."""
        whole = sum(op.ms or 0.0 for op in self.operations if op.kind != "communication")
        if whole <= 0.0:
            return 0.0
        return ms / max(whole, 1e-12) * min(self.account("compute") or 1.0, self.step_share(whole) or 1.0)

    def class_share(self, *kinds: str) -> float:
        """Return the share of the step in operations of these classes that are large enough to be judged."""
        chosen = (op for op in self.operations if op.kind in kinds and self.is_large(op))
        return self.busy_share(sum(op.ms or 0.0 for op in chosen))

    def is_large(self, op: Operation) -> bool:
        """Return whether a call of the operation moves or computes more than calling it takes.

        On a processor small tensors stay in its cache, and microseconds are the price of any call.
        """
        if self.activity.driver != "host":
            return True
        if not op.shapes:
            return self._is_large_call(op.bytes, op.calls, op.mean_ms)
        # Most calls may be small, and most of the time be in the large ones.
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
        """Return the share of the step in phases of this kind, 0 when there are none."""
        return self.phases.by_kind.get(kind, 0.0)

    @property
    def memory_share(self) -> float | None:
        """Return the peak of the device's memory as a share of its size; None when either is not known."""
        used, size = self.profile.peak_memory_bytes, capacity_of(self.profile, self.target)
        return used / size if used and size else None
