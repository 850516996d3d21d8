"""How a model is trained: batch, precision, method, optimizer, parallelism; checked once, here."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.errors import BadOption

# Bytes of one stored weight by the precision of the run.
DTYPES: dict[str, float] = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "tf32": 4.0, "fp8": 1.0, "int8": 1.0}
_DTYPE_ALIASES = {
    "bfloat16": "bf16",
    "amp_bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "amp_fp16": "fp16",
    "float32": "fp32",
    "float": "fp32",
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


def _check_whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise BadOption(f"must be a whole number, 1 or more, not {value!r}", where=f"--{name}")


def _check_known(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadOption(f"{value!r} is not known", where=option, hint=f"one of {', '.join(known)}")


def _unknown(what: str, value: str, known: tuple[str, ...]) -> BadOption:
    return BadOption(f"{value!r} is no kind of {what}", hint=f"one of {', '.join(known)}")


class Parallelism(Struct, frozen=True, kw_only=True):
    """How the devices share the work; what tensor, pipeline leave of them is data parallel."""

    devices: int = 1
    data: Literal["ddp", "fsdp"] = "ddp"
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for name in ("devices", "tensor", "pipeline", "expert"):
            _check_whole(name, getattr(self, name))
        if self.data not in ("ddp", "fsdp"):
            raise _unknown("data parallelism", str(self.data), ("ddp", "fsdp"))
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
        for name in ("batch", "seq", "micro_batches", "rank"):
            _check_whole(name.replace("_", "-"), getattr(self, name))
        _check_known("--dtype", self.dtype, tuple(DTYPES))
        _check_known("--method", self.method, METHODS)
        _check_known("--lora-targets", self.lora_targets, ("all", "attention"))
        _check_known("--optimizer", self.optimizer, tuple(OPTIMIZERS))
        _check_known("--checkpointing", self.checkpointing, CHECKPOINTING)
        _check_known("--loss", self.loss, tuple(LOSSES))
        _check_known("--dequantise", self.dequantise, ("fused", "unfused"))
        if self.packed_seq is not None and not 0 < self.packed_seq <= self.seq:
            raise BadOption(
                f"must be above 0 and at most the sequence, not {self.packed_seq:g}", where="--packed-seq"
            )

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


def find_dtype(name: str) -> str:
    """Return the short name of a precision (bf16 for bfloat16, torch.bfloat16, …); raise BadOption."""
    plain = name.casefold().removeprefix("torch.")
    dtype = _DTYPE_ALIASES.get(plain, plain)
    if dtype == "nf4":
        raise BadOption(
            "nf4 only stores weights", where="--dtype", hint="use --method qlora with --dtype bf16"
        )
    _check_known("--dtype", dtype, tuple(DTYPES))
    return dtype
