"""What is planned and what comes of it: the trainers, the cluster, the request, and the table of plans."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.errors import BadOption, did_you_mean
from stepgrade.hardware.memory.need import Verdict
from stepgrade.model.notes import Note, Result

# One 400 Gbit/s adapter for each device, which is what most clusters of such nodes have.
DEFAULT_NETWORK_GB_S = 50.0
DEFAULT_PER_NODE = 8
# Far beyond what anyone runs; every way to share them out is looked at.
_MOST_DEVICES = 10_000_000
_MOST_SEQUENCES = 1_000_000_000

Reason = Literal["bubble", "recompute", "exposed_link", "memory_bandwidth", "too_close"]


class Trainer(Struct, frozen=True, kw_only=True):
    """What a trainer can do, and how it keeps what it trains; checkpointing from fastest to leanest."""

    kernels: str
    weights: str
    losses: tuple[str, ...]
    data: tuple[str, ...]
    checkpointing: tuple[str, ...]
    is_data_parallel_only: bool = False
    trains_adapters: bool = False
    divides_experts: bool = False  # among the devices of tensor parallelism, unless configured otherwise
    mixes_ddp: bool = True  # plain copies with tensor, pipeline, context or expert parallelism
    gathers_head_alone: bool = False  # FSDP's last group is the head, without the embedding


TRAINERS = {
    "torchtitan": Trainer(
        kernels="compiled",
        weights="fp32",
        losses=("compiled",),
        data=("ddp", "fsdp-no-reshard", "fsdp"),
        checkpointing=("none", "op", "full"),
        mixes_ddp=False,
        gathers_head_alone=True,
    ),
    "megatron": Trainer(
        kernels="te",
        weights="megatron",
        losses=("megatron",),
        data=("ddp", "zero1"),
        checkpointing=("none", "full"),
        divides_experts=True,
    ),
    "deepspeed": Trainer(
        kernels="transformers",
        weights="master",
        losses=("upcast", "fused"),
        data=("ddp", "zero1", "zero2", "zero3"),
        checkpointing=("none", "full"),
        is_data_parallel_only=True,
        trains_adapters=True,
    ),
    "accelerate": Trainer(
        kernels="transformers",
        weights="fp32",
        losses=("upcast", "fused"),
        data=("ddp", "fsdp-no-reshard", "fsdp"),
        checkpointing=("none", "full"),
        is_data_parallel_only=True,
        trains_adapters=True,
    ),
}


class Cluster(Struct, frozen=True, kw_only=True):
    """A number of equal devices: how many share a node, and the rate of each to other nodes."""

    devices: int
    per_node: int = DEFAULT_PER_NODE
    network_gb_s: float = DEFAULT_NETWORK_GB_S

    def __post_init__(self) -> None:
        if self.devices < 1 or self.per_node < 1 or not self.network_gb_s > 0:
            raise BadOption("devices, devices per node and the network's rate must be above 0")
        if self.devices > _MOST_DEVICES:
            raise BadOption(f"must be a whole number from 1 to {_MOST_DEVICES:,}", field="plan_devices")


class WhyNotBetter(Struct, frozen=True):
    """One thing that keeps a plan from being faster, and the share of the step that it takes."""

    reason: Reason
    share: float | None
    text: str


class RankedPlan(Struct, frozen=True, kw_only=True):
    """One way to run it; `tok_s` is of all devices, at the best rates that were measured if they are known.

    The memory is that of `trainer`, and `flags` start the plan in it.
    """

    trainer: str
    tensor: int
    sequence: bool
    pipeline: int
    virtual: int
    context: int
    expert: int
    expert_tensor: int | None
    replicas: int
    data: str
    checkpointing: str
    loss: str
    micro_batch: int
    micro_batches: int
    verdict: Verdict
    need_bytes: float
    low_bytes: float
    high_bytes: float
    tok_s: float
    tok_s_per_device: float
    mfu: float | None
    why_not_better: tuple[WhyNotBetter, ...]
    flags: str


class PlanTable(Result, frozen=True, kw_only=True):
    """The plans that fit, fastest first, then those too close to call; `considered` counts all of them."""

    NOTES = ("notes",)

    device: str
    devices: int
    model: str
    global_batch: int
    seq: int
    capacity_bytes: float
    considered: int
    plans: tuple[RankedPlan, ...]
    notes: tuple[Note, ...] = ()


class PlanRequest(Struct, frozen=True, kw_only=True):
    """What to plan: the cluster, the batch of a step, and the candidate trainers."""

    cluster: Cluster
    global_batch: int  # sequences per step
    trainers: tuple[str, ...] = tuple(TRAINERS)
    most: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.global_batch <= _MOST_SEQUENCES:
            raise BadOption(f"must be a whole number from 1 to {_MOST_SEQUENCES:,}", field="global_batch")
        if self.most < 1:
            raise BadOption("must be a whole number, 1 or more", field="most")
        unknown = [name for name in self.trainers if name not in TRAINERS]
        if unknown:
            hint = did_you_mean(unknown[0], TRAINERS)
            raise BadOption(f"{unknown[0]!r} is unknown", field="trainers", hint=hint)
