"""How a model is trained: batch, precision, method, optimizer, parallelism; checked once, here."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from stepgrade.errors import BadOption, did_you_mean

# Bytes of one stored weight by the precision of the run.
DTYPES: dict[str, float] = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "tf32": 4.0, "fp8": 1.0, "int8": 1.0}
_DTYPE_NAMES = {
    "bf16": "bfloat16 amp_bf16",
    "fp16": "float16 half amp_fp16 f16",
    "fp32": "float32 float f32",
    "fp64": "float64 double",
    "fp8": "float8 amp_fp8 mxfp8 e4m3",
}
_DTYPE_ALIASES = {alias: name for name, aliases in _DTYPE_NAMES.items() for alias in aliases.split()}
METHODS = ("full", "lora", "qlora")
# Bytes that one step of the optimizer moves per trainable parameter: gradient, states, weights.
OPTIMIZERS: dict[str, float] = {
    "adamw": 28.0,  # fp32 states and master weights: 2 + 8 + 8 + 4 + 4 + 2
    "adamw-fp32": 28.0,
    "adamw-bf16": 14.0,
    "adamw-8bit": 10.0,
    "adamw-4bit": 9.0,
    "sgd": 6.0,
    "sgd-momentum": 14.0,
    "muon": 20.0,  # one state instead of two
}
# Selective recomputes attention's scores, op every second matmul and what lies between them, full each layer,
# every-second each second layer.
CHECKPOINTING = ("none", "selective", "op", "op-all", "every-second", "full")
# Bytes of loss traffic per token and vocabulary entry.
LOSSES: dict[str, float] = {
    "upcast": 26.0,  # logits.float(), then cross_entropy
    "upcast-copy": 34.0,  # as above, with a shifted copy
    "plain": 12.0,  # cross_entropy of the logits as they are
    "plain-copy": 16.0,
    "parallel": 26.0,  # DTensor's loss_parallel
    "megatron": 16.0,  # over a vocabulary that tensor parallelism divides
    "megatron-native": 16.0,  # the same with --cross-entropy-loss-fusion
    "compiled": 8.0,
    "chunked": 6.0,
    "chunked-head": 6.0,  # the head is inside the chunks
    "fused": 2.0,  # Liger's fused linear cross-entropy
}
# How weights, gradients and the optimizer's master copy are kept: bytes of each.
WEIGHTS: dict[str, tuple[float, float, float]] = {
    "master": (2.0, 2.0, 4.0),  # DeepSpeed, and torch with a master copy
    "bf16": (2.0, 2.0, 0.0),  # nothing in fp32
    "fp32": (4.0, 4.0, 0.0),  # autocast, or FSDP's mixed precision
    "megatron": (2.0, 4.0, 4.0),  # gradients summed in fp32
    "megatron-fp16": (2.0, 6.0, 4.0),  # Megatron in fp16: fp16 gradients and fp32 ones
    "megatron-bf16-gradients": (2.0, 2.0, 8.0),
}
# bitsandbytes before 0.43.2 ("unfused-old") also kept the input of every quantised matrix.
DEQUANTISE = ("fused", "unfused", "unfused-old")
# Bytes of one quantised weight: half a byte or one, and a scale in 64 or 128.
QUANTISATION: dict[str, float] = {
    "nf4": 0.5 + 4 / 64,
    "nf4-double": 0.5 + 1 / 64 + 4 / 16_384,  # with a scale of scales in 16,384
    "gptq-4": 0.53,
    "gptq-8": 1.03,
}
# Which implementation runs; it decides what autograd saves.
KERNELS = ("transformers", "eager", "eager-unfused", "compiled", "te")
ATTENTION = ("flash", "written-out")
OFFLOAD = ("none", "optimizer", "parameters", "activations")
ALLOCATORS = ("default", "expandable")
LENGTHS = ("fixed", "variable")
# How data parallelism shards: the ZeRO stage, or FSDP (stage 3).
ZERO_STAGE = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "fsdp-no-reshard": 3}
LORA_TARGETS = ("all", "attention", "q", "k", "v", "o", "gate", "up", "down", "head")
MOST = 2**40
# The fields of a plan that take one of several names.
_KNOWN: dict[str, Collection[str]] = {
    "dtype": DTYPES,
    "method": METHODS,
    "optimizer": OPTIMIZERS,
    "checkpointing": CHECKPOINTING,
    "loss": LOSSES,
    "dequantise": DEQUANTISE,
    "quantisation": QUANTISATION,
    "weights": WEIGHTS,
    "kernels": KERNELS,
    "attention": ATTENTION,
    "offload": OFFLOAD,
    "allocator": ALLOCATORS,
    "lengths": LENGTHS,
}


def _check_whole(settings: Struct, *fields: str) -> None:
    for field in fields:
        value = getattr(settings, field)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise BadOption(f"must be a whole number, 1 or more, not {value!r}", field=field)


def _check_known(field: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise BadOption(f"{value!r} is unknown", field=field, hint=did_you_mean(value, known))


class Parallelism(Struct, frozen=True, kw_only=True):
    """How the devices share the work; devices beyond tensor x pipeline x context are data parallel.

    `expert_tensor` divides each expert's matrices (None: as `tensor` does under Megatron, else not);
    `shard_group` is the number of devices that share the shards, if not all (HSDP, Megatron's instances of
    the distributed optimizer); with `separate_embedding`, FSDP gathers the embedding apart from the head.
    """

    devices: int = 1
    data: str = "ddp"
    tensor: int = 1
    sequence: bool = False
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    shard_group: int | None = None
    separate_embedding: bool = False

    def __post_init__(self) -> None:
        _check_whole(self, "devices", "tensor", "pipeline", "expert", "virtual", "context")
        optional = {"expert_tensor": self.expert_tensor, "shard_group": self.shard_group}
        _check_whole(self, *(field for field, value in optional.items() if value is not None))
        _check_known("data", self.data, ZERO_STAGE)
        if self.virtual > 1 and self.pipeline == 1:
            raise BadOption("virtual stages need a pipeline", field="virtual", supply="{pipeline}")
        if self.devices % (self.tensor * self.pipeline * self.context):
            product, names = f"{self.tensor} x {self.pipeline}", "tensor x pipeline"
            if self.context > 1:
                product, names = f"{product} x {self.context}", f"{names} x context"
            raise BadOption(f"{product} ({names}) does not divide {self.devices} devices")
        if self.shard_group is not None:
            peers = self.replicas * self.context
            if peers % self.shard_group:
                problem = f"{self.shard_group} does not divide the {peers} data-parallel devices"
                raise BadOption(problem, field="shard_group")
        if self.devices % self.expert:
            raise BadOption(f"expert parallelism over {self.expert} does not divide {self.devices} devices")

    @property
    def replicas(self) -> int:
        """Return how many data-parallel copies there are."""
        return self.devices // (self.tensor * self.pipeline * self.context)

    @property
    def zero_stage(self) -> int:
        """Return what data parallelism shards: 1 optimizer states, 2 also gradients, 3 also weights."""
        return ZERO_STAGE[self.data]

    @property
    def shards(self) -> int:
        """Return how many devices share what is sharded: replicas, and the devices that split a sequence."""
        return self.shard_group or self.replicas * self.context


class Plan(Struct, frozen=True, kw_only=True):
    """One run's settings; `batch` is sequences per micro-batch and replica, `seq` tokens in each.

    `packed_seq` is the length that attention sees if several texts are packed into one sequence (the mean
    weighted by length); None if every sequence is one text.
    """

    batch: int
    seq: int
    micro_batches: int = 1
    dtype: str = "bf16"
    method: str = "full"
    rank: int = 16
    lora_targets: str = "all"
    lora_dropout: bool = False
    optimizer: str = "adamw"
    checkpointing: str = "none"
    loss: str = "upcast"
    quantisation: str = "nf4-double"
    dequantise: str = "unfused"
    packed_seq: float | None = None
    weights: str = "master"
    kernels: str = "transformers"
    attention: str = "flash"
    offload: str = "none"
    allocator: str = "default"
    lengths: str = "fixed"
    optimizer_in_backward: bool = False
    parallel: Parallelism = Parallelism()

    def __post_init__(self) -> None:
        _check_whole(self, "batch", "seq", "micro_batches", "rank")
        for target in self.lora_targets.split(","):
            _check_known("lora_targets", target, LORA_TARGETS)
        for field, known in _KNOWN.items():
            _check_known(field, getattr(self, field), known)
        if self.packed_seq is not None and not 0 < self.packed_seq <= self.seq:
            problem = f"must be above 0 and at most the sequence, not {self.packed_seq:g}"
            raise BadOption(problem, field="packed_seq")

    @property
    def tokens(self) -> int:
        """Return the tokens of one micro-batch on one replica."""
        return self.batch * self.seq

    @property
    def is_frozen(self) -> bool:
        """Return whether only adapters are trained."""
        return self.method != "full"

    @property
    def expert_tensor(self) -> int:
        """Return how many devices share each expert's matrices; Megatron divides them like the others."""
        if self.parallel.expert_tensor is not None:
            return self.parallel.expert_tensor
        return self.parallel.tensor if self.kernels == "te" else 1

    @property
    def recomputed_share(self) -> float:
        """Return the share of the layers that are computed again as a whole."""
        return {"full": 1.0, "every-second": 0.5}.get(self.checkpointing, 0.0)

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of one weight of the layers, as they are stored."""
        return QUANTISATION[self.quantisation] if self.method == "qlora" else DTYPES[self.dtype]

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
