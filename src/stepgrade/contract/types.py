"""The types of contract v1: the reference's names, fields and JSON."""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct

from stepgrade.contract.decode import decode_json

USIZE_MAX = 2**64 - 1
Usize = Annotated[int, Meta(ge=0)]


class Grade(Enum):
    """How close a run comes to its ceiling; F < D < C < B < A."""

    F = "F"
    D = "D"
    C = "C"
    B = "B"
    A = "A"

    @classmethod
    def from_efficiency(cls, efficiency: float) -> Grade:
        """Return the grade of a share of the ceiling (0 to 1); NaN is an F."""
        for least, grade in LEAST_EFFICIENCY:
            if efficiency >= least:
                return grade
        return cls.F

    def __str__(self) -> str:
        return self.value

    def __lt__(self, other: object) -> bool:
        return _RANK[self] < _RANK[other] if isinstance(other, Grade) else NotImplemented

    def __le__(self, other: object) -> bool:
        return _RANK[self] <= _RANK[other] if isinstance(other, Grade) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return _RANK[self] > _RANK[other] if isinstance(other, Grade) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return _RANK[self] >= _RANK[other] if isinstance(other, Grade) else NotImplemented


_RANK = {grade: rank for rank, grade in enumerate(Grade)}
LEAST_EFFICIENCY = ((0.60, Grade.A), (0.40, Grade.B), (0.20, Grade.C), (0.10, Grade.D))


class Bottleneck(Enum):
    """What holds a run back, in the reference's four classes."""

    TRANSFER = "transfer"
    LAUNCH = "launch"
    COMPUTE = "compute"
    MEMORY_BW = "memory_bw"

    @classmethod
    def classify(cls, transfer_pct: float, launch_overhead: float, compute_util: float) -> Bottleneck:
        """Return the first class whose share (0 to 1) is above its threshold."""
        if transfer_pct > 0.30:
            return cls.TRANSFER
        if launch_overhead > 0.40:
            return cls.LAUNCH
        if compute_util > 0.50:
            return cls.COMPUTE
        return cls.MEMORY_BW

    def recommendation(self) -> str:
        """Return the reference's advice for this class."""
        return _RECOMMENDATION[self]

    def __str__(self) -> str:
        return self.value


_RECOMMENDATION = {
    Bottleneck.TRANSFER: "Reduce host-device transfers. Check H2D/D2H in profiler.",
    Bottleneck.LAUNCH: "Enable kernel fusion (NF4_FUSED_GEMM=1, NF4_TC_BWD_GEMM=1).",
    Bottleneck.COMPUTE: "GPU ALU bound \N{EM DASH} good! Consider algorithmic improvements.",
    Bottleneck.MEMORY_BW: "Enable tensor cores (NF4_TC_GEMM=1) or FP16 (FP16_GEMM=1).",
}


class _JsonText:
    """`from_json` and `to_json`, as serde reads and writes the reference's types."""

    __slots__ = ()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Decode a JSON text; raise BadJson (a ValueError) naming the place and the reason."""
        return decode_json(text, cls)

    def to_json(self) -> str:
        """Return compact JSON; a float that is not finite is written as null."""
        return msgspec.json.encode(self, order="deterministic").decode()


class PhaseData(Struct, frozen=True, kw_only=True):
    """Time of one phase over all profiled steps, and per step."""

    total_ms: float
    pct: float
    avg_ms: float


class PerLayerData(Struct, frozen=True, kw_only=True):
    """Time of one layer over all profiled steps."""

    layer: Usize
    fwd_ms: float
    bwd_ms: float
    ops: dict[str, float] = {}

    def __post_init__(self) -> None:
        _check_usize("layer", self.layer)


class StepProfilerInput(Struct, _JsonText, frozen=True, kw_only=True):
    """A step profile as the reference takes it; every field may be missing."""

    steps: Usize = 0
    avg_step_ms: float = 0.0
    wall_coverage: float = 0.0
    phases: dict[str, PhaseData] = {}
    per_layer: list[PerLayerData] = []
    bottleneck: str | None = None
    gemm_pct: float = 0.0
    total_ms: float = 0.0

    def __post_init__(self) -> None:
        _check_usize("steps", self.steps)


class HardwareSpec(Struct, frozen=True, kw_only=True):
    """One memory ceiling: bandwidth, and the bytes that a token moves."""

    peak_bw_gb_s: float
    bytes_per_token: float

    @classmethod
    def rtx_4060l(cls) -> HardwareSpec:
        """Return the reference's GeForce RTX 4060 Laptop."""
        return cls(peak_bw_gb_s=256.0, bytes_per_token=158_000_000.0)

    @classmethod
    def gb10(cls) -> HardwareSpec:
        """Return the reference's GB10 (DGX Spark)."""
        return cls(peak_bw_gb_s=273.0, bytes_per_token=158_000_000.0)

    def peak_throughput_tok_s(self) -> float:
        """Return bandwidth over bytes per token, in tok/s; zero bytes give an infinity or NaN."""
        bandwidth = self.peak_bw_gb_s * 1e9
        if self.bytes_per_token != 0.0:
            return bandwidth / self.bytes_per_token
        if bandwidth == 0.0 or math.isnan(bandwidth):
            return math.nan
        return math.copysign(math.inf, bandwidth) * math.copysign(1.0, self.bytes_per_token)


class LayerSummary(Struct, frozen=True, kw_only=True):
    """One layer in the scorecard; `ratio` is backward over forward."""

    layer: Usize
    fwd_ms: float
    bwd_ms: float
    ratio: float
    top_op: str
    top_op_pct: float

    def __post_init__(self) -> None:
        _check_usize("layer", self.layer)


class Regression(Struct, frozen=True, kw_only=True):
    """One metric that got worse than the baseline's."""

    metric: str
    delta: float
    severity: str


class TrainingScorecard(Struct, _JsonText, frozen=True, kw_only=True):
    """The reference's scorecard: eleven fields, all required in JSON."""

    grade: str
    efficiency: float
    bottleneck: Bottleneck
    throughput_tok_s: float
    step_time_ms: float
    forward_backward_ratio: float
    wall_coverage: float
    per_layer_summary: list[LayerSummary]
    hotspot_ops: list[tuple[str, float, float]]
    regressions: list[Regression]
    recommendations: list[str]


class ParityProfile(Struct, _JsonText, frozen=True, kw_only=True):
    """One runtime: its throughput, launches, and milliseconds per operation."""

    runtime: str
    throughput_tok_s: float
    step_time_ms: float
    kernel_launches_per_step: Usize
    ops: dict[str, float]

    def __post_init__(self) -> None:
        _check_usize("kernel_launches_per_step", self.kernel_launches_per_step)


class ParityGap(Struct, frozen=True, kw_only=True):
    """One operation that both runtimes have; `ratio` is ours over theirs."""

    op: str
    apr_ms: float
    baseline_ms: float
    ratio: float


class ParityComparison(Struct, _JsonText, frozen=True, kw_only=True):
    """Two runtimes side by side; ratios above 1 mean ours is behind."""

    apr_runtime: str
    baseline_runtime: str
    throughput_ratio: float
    launch_ratio: float
    top_gaps: list[ParityGap]
    parity_achieved: bool


def _check_usize(name: str, value: int) -> None:
    """Refuse what a 64-bit unsigned integer cannot hold (msgspec's own bounds end at 2**63)."""
    if value > USIZE_MAX:
        raise ValueError(f"`{name}` is above {USIZE_MAX}")
