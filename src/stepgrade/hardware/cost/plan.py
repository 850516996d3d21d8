"""How a model is trained: batch, precision, method, optimizer, parallelism; checked once, here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from msgspec import Struct

from stepgrade.errors import BadOption, did_you_mean

# Bytes of one stored weight by the precision of the run.
DTYPES: dict[str, float] = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "tf32": 4.0, "fp8": 1.0, "int8": 1.0}
_DTYPE_ALIASES = {
    "bfloat16": "bf16",
    "amp_bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "amp_fp16": "fp16",
    "f16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "float8": "fp8",
    "amp_fp8": "fp8",
    "mxfp8": "fp8",
    "e4m3": "fp8",
}
METHODS = ("full", "lora", "qlora")
# Bytes that one step of the optimizer moves per trainable parameter: gradient, states, weights.
OPTIMIZERS: dict[str, float] = {
    "adamw": 28.0,  # fp32 states and master weights: 2 + 8 + 8 + 4 + 4 + 2
    "adamw-fp32": 28.0,
    "adamw-bf16": 14.0,
    "adamw-8bit": 10.0,
    "sgd": 6.0,
}
CHECKPOINTING = ("none", "selective", "full")
# Bytes of loss traffic per token and vocabulary entry.
LOSSES: dict[str, float] = {"upcast": 26.0, "chunked": 6.0, "fused": 2.0}
MOST = 2**40


def _check_whole(field: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise BadOption(f"must be a whole number, 1 or more, not {value!r}", field=field)


def _check_known(field: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise BadOption(f"{value!r} is not known", field=field, hint=did_you_mean(value, known))


class Parallelism(Struct, frozen=True, kw_only=True):
    """How the devices share the work; what tensor and pipeline parallelism leave is data parallel."""

    devices: int = 1
    data: Literal["ddp", "fsdp"] = "ddp"
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        _check_whole("devices", self.devices)
        _check_whole("tensor", self.tensor)
        _check_whole("pipeline", self.pipeline)
        _check_whole("expert", self.expert)
        _check_known("data", self.data, ("ddp", "fsdp"))
        if self.devices % (self.tensor * self.pipeline):
            raise BadOption(
                f"{self.tensor} x {self.pipeline} (tensor x pipeline) does not divide {self.devices} devices"
            )
        if self.devices % self.expert:
            raise BadOption(f"expert parallelism over {self.expert} does not divide {self.devices} devices")

    @property
    def replicas(self) -> int:
        """Return how many data-parallel copies there are."""
        return self.devices // (self.tensor * self.pipeline)


class Plan(Struct, frozen=True, kw_only=True):
    """One run's settings; `batch` is sequences per micro-batch and replica, `seq` tokens in each.

    `packed_seq` is the length that attention sees when several texts are packed into one sequence
    (the mean weighted by length); None when every sequence is one text.
    """

    batch: int
    seq: int
    micro_batches: int = 1
    dtype: str = "bf16"
    method: str = "full"
    rank: int = 16
    lora_targets: str = "all"
    optimizer: str = "adamw"
    checkpointing: str = "none"
    loss: str = "upcast"
    dequantise: str = "unfused"
    packed_seq: float | None = None
    parallel: Parallelism = Parallelism()

    def __post_init__(self) -> None:
        _check_whole("batch", self.batch)
        _check_whole("seq", self.seq)
        _check_whole("micro_batches", self.micro_batches)
        _check_whole("rank", self.rank)
        _check_known("dtype", self.dtype, DTYPES)
        _check_known("method", self.method, METHODS)
        _check_known("lora_targets", self.lora_targets, ("all", "attention"))
        _check_known("optimizer", self.optimizer, OPTIMIZERS)
        _check_known("checkpointing", self.checkpointing, CHECKPOINTING)
        _check_known("loss", self.loss, LOSSES)
        _check_known("dequantise", self.dequantise, ("fused", "unfused"))
        if self.packed_seq is not None and not 0 < self.packed_seq <= self.seq:
            problem = f"must be above 0 and at most the sequence, not {self.packed_seq:g}"
            raise BadOption(problem, field="packed_seq")

    @property
    def tokens(self) -> int:
        """Return the tokens of one micro-batch on one replica."""
        return self.batch * self.seq

    @property
    def is_frozen(self) -> bool:
        """Tell whether only adapters are trained."""
        return self.method != "full"

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of one weight of the layers, as they are stored."""
        # NF4 with double quantisation: half a byte, one scale in 64, one scale of scales in 16,384.
        return 0.5 + 1 / 64 + 4 / 16_384 if self.method == "qlora" else DTYPES[self.dtype]

    @property
    def value_bytes(self) -> float:
        """Return the bytes of one activation, gradient or adapter weight."""
        return 4.0 if self.dtype in ("fp32", "tf32") else 2.0


def short_dtype(name: str) -> str:
    """Return the short name of a precision: bf16 for bfloat16, torch.bfloat16, …; else the name itself."""
    plain = name.strip().casefold().removeprefix("torch.").removeprefix("c10::")
    return _DTYPE_ALIASES.get(plain, plain)


def find_dtype(name: str) -> str:
    """Return the short name of a precision (bf16 for bfloat16, torch.bfloat16, …); raise BadOption."""
    dtype = short_dtype(name)
    if dtype == "nf4":
        raise BadOption("nf4 only stores weights", field="dtype", hint="use the method qlora with bf16")
    _check_known("dtype", dtype, DTYPES)
    return dtype
