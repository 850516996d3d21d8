"""Find parallel plans that fit the devices, ranked by throughput, with the flags that launch them.

Flags are those of torchtitan 0.2, Megatron-LM, and the Trainer of Transformers with DeepSpeed or Accelerate.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Struct, structs

from stepgrade.errors import BadOption, did_you_mean
from stepgrade.hardware.ceilings import FLOPS_PER_TFLOP, Figures, utilisation
from stepgrade.hardware.cost.model_costs import ModelCosts, model_costs
from stepgrade.hardware.cost.plan import ZERO_STAGE, Parallelism, Plan
from stepgrade.hardware.memory.need import MemoryNeed, Verdict, memory_need, verdict_of
from stepgrade.hardware.memory.static import capacity_bytes
from stepgrade.hardware.models.hf_config import read_model
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.hardware.setup import Setup, figures_of
from stepgrade.model.notes import Note, Result
from stepgrade.units import BYTES_PER_GB, show_share

# One 400 Gbit/s adapter for each device, which is what most clusters of such nodes have.
DEFAULT_NETWORK_GB_S = 50.0
DEFAULT_PER_NODE = 8
# Far beyond what anyone runs; every way to share them out is looked at.
_MOST_DEVICES = 10_000_000
_MOST_SEQUENCES = 1_000_000_000

Reason = Literal["bubble", "recompute", "exposed_link", "memory_bandwidth", "too_close"]


class Trainer(Struct, frozen=True, kw_only=True):
    """What a trainer can do, and how it keeps what it trains; checkpointing from fastest to leanest."""

    weights: str
    data: tuple[str, ...]
    kernels: str = "transformers"
    losses: tuple[str, ...] = ("upcast", "fused")
    checkpointing: tuple[str, ...] = ("none", "full")
    is_of_transformers: bool = False  # data parallel only, and trains adapters
    divides_experts: bool = False  # among the devices of tensor parallelism, unless configured otherwise
    mixes_ddp: bool = True  # plain copies with tensor, pipeline, context or expert parallelism
    gathers_head_alone: bool = False  # FSDP's last group is the head, without the embedding


_FSDP = ("ddp", "fsdp-no-reshard", "fsdp")
_ZERO = ("ddp", "zero1", "zero2", "zero3")
TRAINERS = {
    "torchtitan": Trainer(
        kernels="compiled",
        weights="fp32",
        losses=("compiled",),
        data=_FSDP,
        checkpointing=("none", "op", "full"),
        mixes_ddp=False,
        gathers_head_alone=True,
    ),
    "megatron": Trainer(
        kernels="te", weights="megatron", losses=("megatron",), data=_ZERO[:2], divides_experts=True
    ),
    "deepspeed": Trainer(weights="master", data=_ZERO, is_of_transformers=True),
    "accelerate": Trainer(weights="fp32", data=_FSDP, is_of_transformers=True),
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


# Pipeline stages per device in torchtitan's interleaved schedule by default.
_USUAL_STAGES = 2


def launch_flags(plan: RankedPlan, run: Plan, depth: int, request: PlanRequest) -> str:
    """Return the flags that launch the plan of a model with `depth` layers in its trainer."""
    if plan.trainer == "torchtitan":
        return _torchtitan_flags(plan, run, depth, request.global_batch)
    half = "fp16" if run.dtype == "fp16" else "bf16"
    is_half, recomputes = run.value_bytes == 2, plan.checkpointing == "full"
    flags: dict[str, object]
    if plan.trainer == "megatron":
        flags = {  # a size of 1 is the default
            "tensor-model-parallel-size": plan.tensor,
            "pipeline-model-parallel-size": plan.pipeline,
            "num-virtual-stages-per-pipeline-rank": plan.virtual,
            "context-parallel-size": plan.context,
            "expert-model-parallel-size": plan.expert,
        }
        flags = {name: size for name, size in flags.items() if size != 1}
        flags |= {} if plan.expert_tensor is None else {"expert-tensor-parallel-size": plan.expert_tensor}
        flags |= {"micro-batch-size": plan.micro_batch, "global-batch-size": request.global_batch}
        switches = {
            f"--{half}": is_half,
            "--sequence-parallel": plan.sequence,
            "--use-distributed-optimizer": plan.data == "zero1",
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1": recomputes,
        }
        chosen = (switch for switch, is_on in switches.items() if is_on)
        return " ".join((_written(flags | {"seq-length": run.seq}), *chosen))
    flags = {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
    }
    flags |= {half: "true"} if is_half else {}
    flags |= {"use_liger_kernel": "true"} if plan.loss == "fused" else {}
    if recomputes and not plan.data.startswith("fsdp"):
        flags["gradient_checkpointing"] = "true"
    if plan.trainer == "deepspeed":
        config = {
            "train_micro_batch_size_per_gpu": plan.micro_batch,
            "gradient_accumulation_steps": plan.micro_batches,
            half: {"enabled": is_half},
            "zero_optimization": {"stage": ZERO_STAGE[plan.data]},
        }
        # With spaces, so that lines can wrap.
        text = msgspec.json.format(msgspec.json.encode(config), indent=0).decode()
        return f"{_written(flags)} --deepspeed '{text}'"
    cluster = request.cluster
    launcher: dict[str, object] = {"num_processes": cluster.devices}
    if cluster.devices > cluster.per_node:
        launcher["num_machines"] = -(-cluster.devices // cluster.per_node)
    launcher |= {"mixed_precision": half} if is_half else {}
    words = ["accelerate launch", _written(launcher)]
    if plan.data != "ddp":
        reshard, recompute = (str(flag).lower() for flag in (plan.data == "fsdp", recomputes))
        words.append(
            "--use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
            f" --fsdp_reshard_after_forward {reshard} --fsdp_activation_checkpointing {recompute}"
        )
    elif cluster.devices > 1:
        words.append("--multi_gpu")
    return " ".join((*words, "train.py", _written(flags)))


def _written(flags: dict[str, object]) -> str:
    return " ".join(f"--{name} {value}" for name, value in flags.items())


def _torchtitan_flags(plan: RankedPlan, run: Plan, depth: int, global_batch: int) -> str:
    """Return torchtitan's flags; with a pipeline, its local batch is a whole step."""
    is_sharded, has_pipeline = plan.data.startswith("fsdp"), plan.pipeline > 1
    degrees = {name: getattr(plan, name) for name in ("tensor", "pipeline", "context", "expert")}
    flags: dict[str, object] = {
        "training.local_batch_size": plan.micro_batch * (plan.micro_batches if has_pipeline else 1),
        "training.global_batch_size": global_batch,
        "training.seq_len": run.seq,
        "parallelism.data_parallel_replicate_degree": 1 if is_sharded else plan.replicas,
        "parallelism.data_parallel_shard_degree": plan.replicas if is_sharded else 1,
    }
    flags |= {f"parallelism.{name}_parallel_degree": size for name, size in degrees.items() if size > 1}
    if is_sharded:
        flags["parallelism.fsdp_reshard_after_forward"] = "always" if plan.data == "fsdp" else "never"
    if has_pipeline:
        pipeline = {
            "schedule": "Interleaved1F1B" if plan.virtual > 1 else "1F1B",
            "microbatch_size": plan.micro_batch,
            # By default the first and the last stage get one layer fewer, for the embedding and the head.
            "first_stage_less_layers": 0,
            "last_stage_less_layers": 0,
        }
        if plan.virtual > _USUAL_STAGES:
            pipeline["layers_per_stage"] = depth // (plan.pipeline * plan.virtual)
        flags |= {f"parallelism.pipeline_parallel_{name}": value for name, value in pipeline.items()}
    flags["activation_checkpoint.mode"] = "selective" if plan.checkpointing == "op" else plan.checkpointing
    if plan.checkpointing == "op":
        flags["activation_checkpoint.selective_ac_option"] = "op"
    return f"{_written(flags)} --compile.enable"


# Gradients and gathered weights travel while the backward pass computes, two thirds of the step.
_HIDDEN_BEHIND = 2 / 3
# Context-parallel sizes by sequence length: Megatron-LM's recipes start with 2 at 8,192.
_CONTEXTS = {8192: (1, 2), 32_768: (1, 2, 4, 8)}
_REASON_SHARE = 0.01
_MOST_AT_ONCE = 1 << 14  # sequences of a micro-batch


def plan(setup: Setup, request: PlanRequest) -> PlanTable:
    """Return the best ways to run `setup` on a cluster; what is not planned stays as in `setup.plan`."""
    if setup.model is None or setup.plan is None:
        raise BadOption("a plan needs the model", supply="{model} with {seq}")
    return rank_plans(read_model(setup.model), figures_of(setup), setup.plan, request)


def rank_plans(shape: ModelShape, figures: Figures, run: Plan, request: PlanRequest) -> PlanTable:
    """Return the best ways to train `run` on a cluster: batch, checkpointing and parallelism are chosen."""
    cluster, global_batch = request.cluster, request.global_batch
    device, capacity = figures.device, capacity_bytes(figures.device)
    if device is None or capacity is None:
        raise BadOption("a plan needs a device whose memory is known", supply="{device}")
    best: dict[tuple[str, Parallelism], RankedPlan] = {}
    considered = 0
    for name in request.trainers:
        trainer = TRAINERS[name]
        if run.is_frozen and not trainer.is_of_transformers:
            continue
        own = structs.replace(run, kernels=trainer.kernels, weights=trainer.weights, allocator="expandable")
        for parallel in ways_to_share(shape, own, cluster, trainer):
            shared = structs.replace(own, parallel=parallel)
            for fitting in plans_that_fit(shape, shared, global_batch, capacity, trainer):
                considered += 1
                ranked = ranked_plan(shape, figures, cluster, name, fitting)
                other = best.get((name, parallel))
                if other is None or _order(ranked) < _order(other):
                    best[name, parallel] = ranked
    every = sorted(best.values(), key=_order)
    # The best plan of each trainer is always shown.
    first = {ranked.trainer: index for index, ranked in reversed(tuple(enumerate(every)))}
    chosen = [
        ranked for index, ranked in enumerate(every) if index < request.most or index == first[ranked.trainer]
    ]
    plans = tuple(
        structs.replace(ranked, flags=launch_flags(ranked, run, shape.depth, request)) for ranked in chosen
    )
    notes = [
        Note(
            "network",
            f"{cluster.per_node} devices per node, {cluster.network_gb_s:g} GB/s each between nodes",
        )
    ]
    if not plans:
        text = f"no plan for {global_batch:,} sequences on {cluster.devices} devices fits"
        notes.append(Note("no_plan", text, supply="more {plan_devices}, or another {global_batch}"))
    return PlanTable(
        device=device.name,
        devices=cluster.devices,
        model=f"{shape.architecture}, {shape.parameters:,} parameters",
        global_batch=global_batch,
        seq=run.seq,
        capacity_bytes=capacity,
        considered=considered,
        plans=plans,
        notes=tuple(notes),
    )


def ways_to_share(shape: ModelShape, run: Plan, cluster: Cluster, trainer: Trainer) -> Iterator[Parallelism]:
    """Yield every parallelism of the trainer that divides heads, layers and experts evenly."""
    world = cluster.devices
    if trainer.is_of_transformers:
        for data in trainer.data if world > 1 else ("ddp",):
            yield Parallelism(devices=world, data=data)
        return
    contexts = max((ways for seq, ways in _CONTEXTS.items() if run.seq >= seq), default=(1,), key=len)
    experts = max(layer.expert_count for layer in shape.layers)
    for tensor in (1, 2, 4, 8):
        divides = all(layer.heads % tensor == 0 and layer.ffn_width % tensor == 0 for layer in shape.layers)
        if tensor > cluster.per_node or world % tensor or not divides:
            continue
        for pipeline in _divisors(world // tensor, shape.depth):
            for context in contexts:
                if world % (tensor * pipeline * context):
                    continue
                division = Parallelism(
                    devices=world,
                    tensor=tensor,
                    sequence=tensor > 1,
                    pipeline=pipeline,
                    context=context,
                    separate_embedding=trainer.gathers_head_alone,
                )
                yield from _sharded(shape, experts, division, trainer)


def _sharded(
    shape: ModelShape, experts: int, division: Parallelism, trainer: Trainer
) -> Iterator[Parallelism]:
    """Yield the ways to spread experts, schedule stages and shard data in one division of the devices."""
    peers, spreads = division.replicas * division.context, [division]
    if experts:  # each whole on one device, or divided like other matrices
        whole = [size for size in _divisors(peers, experts) if experts % size == 0]
        spreads = [structs.replace(division, expert=size) for size in whole]
        if division.tensor > 1 and trainer.divides_experts:
            sizes = [size for size in _divisors(peers * division.tensor, experts)[1:] if experts % size == 0]
            spreads += [structs.replace(division, expert=size, expert_tensor=1) for size in sizes]
    ways = trainer.data if division.shards > 1 else ("ddp",)
    if division.shards > 1 and division.replicas < division.devices and not trainer.mixes_ddp:
        ways = tuple(way for way in ways if way != "ddp")
    virtuals = [1]
    if division.pipeline > 1:
        ways = tuple(way for way in ways if way != "fsdp")  # it would gather for every micro-batch
        stage, rest = divmod(shape.depth, division.pipeline)
        virtuals += [virtual for virtual in (2, 4) if not rest and stage % virtual == 0]
    for spread, virtual, data in itertools.product(spreads, virtuals, ways):
        yield structs.replace(spread, virtual=virtual, data=data)


Fitting = tuple[Plan, MemoryNeed, Verdict]


def plans_that_fit(
    shape: ModelShape, run: Plan, global_batch: int, capacity: float, trainer: Trainer
) -> Iterator[Fitting]:
    """Yield, for each micro-batch, the plan that recomputes least and is not ruled out by memory."""
    parallel = run.parallel
    if global_batch % parallel.replicas:
        return
    per_replica = global_batch // parallel.replicas
    batches = [
        batch
        for batch in _divisors(per_replica, _MOST_AT_ONCE)
        if per_replica // batch >= parallel.pipeline  # else the pipeline is never full
        and (parallel.virtual == 1 or (per_replica // batch) % parallel.pipeline == 0)
    ]
    settled: set[int] = set()
    for loss in trainer.losses:
        for checkpointing in trainer.checkpointing:
            for batch in batches:
                if batch in settled:
                    continue
                plan = structs.replace(
                    run,
                    batch=batch,
                    micro_batches=per_replica // batch,
                    checkpointing=checkpointing,
                    loss=loss,
                )
                need = memory_need(shape, plan)
                verdict = verdict_of(need, capacity)
                if verdict == "does_not_fit":
                    break  # a larger batch needs at least as much
                if verdict == "fits":
                    settled.add(batch)  # recomputing more would only be slower
                yield plan, need, verdict


_LOSSES: dict[Reason, str] = {
    "bubble": "the pipeline is idle",
    "recompute": "layers are recomputed",
    "exposed_link": "devices wait for communication",
    "memory_bandwidth": "memory bandwidth limits compute",
}


def ranked_plan(
    shape: ModelShape, figures: Figures, cluster: Cluster, trainer: str, fitting: Fitting
) -> RankedPlan:
    """Return the plan with its throughput, and what limits it."""
    plan, need, verdict = fitting
    costs, parallel = model_costs(shape, plan), plan.parallel
    tokens = plan.tokens * plan.micro_batches * parallel.replicas
    own = tokens / parallel.devices
    rates, bandwidths = figures.compute(plan.dtype), figures.bandwidth()
    if not rates:
        raise BadOption(f"no {plan.dtype} peak is known", field="device", supply="{peak_tflops}")
    rate = rates[-1].per_s  # measured if available
    computing = costs.flops.hardware * own / rate
    moving = costs.traffic.total * own / bandwidths[0].per_s if bandwidths else 0.0
    busy = max(computing, moving)
    slots = plan.micro_batches * parallel.virtual
    bubble = busy * (parallel.pipeline - 1) / slots
    exposed = exposed_seconds(figures, costs, plan, cluster, busy)
    step = busy + bubble + exposed
    recomputed = (costs.flops.hardware - costs.flops.model) * own / rate if computing >= moving else 0.0
    lost: dict[Reason, float] = {
        "bubble": bubble / step,
        "recompute": recomputed / step,
        "exposed_link": exposed / step,
        "memory_bandwidth": (moving - computing) / step if moving > computing else 0.0,
    }
    why = [
        WhyNotBetter(reason, share, f"{_LOSSES[reason]} for {show_share(share, 0)} of the step")
        for reason, share in sorted(lost.items(), key=lambda item: -item[1])
        if share >= _REASON_SHARE
    ]
    if verdict == "too_close":
        why.insert(0, WhyNotBetter("too_close", None, "too close to call"))
    peak = figures.peak(plan.dtype)
    tok_s = tokens / step
    sizes = ("tensor", "sequence", "pipeline", "virtual", "context", "expert", "expert_tensor")
    mfu = None
    if peak is not None:
        mfu = utilisation(tok_s, costs.flops.model, peak.per_s / FLOPS_PER_TFLOP, parallel.devices)
    return RankedPlan(
        **{name: getattr(parallel, name) for name in sizes},
        replicas=parallel.replicas,
        data=parallel.data,
        trainer=trainer,
        checkpointing=plan.checkpointing,
        loss=plan.loss,
        micro_batch=plan.batch,
        micro_batches=plan.micro_batches,
        verdict=verdict,
        need_bytes=need.need_bytes,
        low_bytes=need.low_bytes,
        high_bytes=need.high_bytes,
        tok_s=tok_s,
        tok_s_per_device=tok_s / parallel.devices,
        mfu=mfu,
        why_not_better=tuple(why),
        flags="",
    )


def exposed_seconds(figures: Figures, costs: ModelCosts, plan: Plan, cluster: Cluster, busy: float) -> float:
    """Return the seconds per step in which a device waits for communication."""
    link = costs.link
    if link is None:
        return 0.0
    rates, network = figures.link(), cluster.network_gb_s * BYTES_PER_GB
    inside = rates[0].per_s if rates else network
    parallel = plan.parallel

    def seconds(amount: float, span: int) -> float:
        return amount / (inside if span <= cluster.per_node else min(inside, network))

    near = parallel.tensor * parallel.context
    waits = seconds(link.tensor, parallel.tensor)
    waits += seconds(link.expert, plan.expert_tensor * parallel.expert)
    waits += seconds(link.pipeline * parallel.virtual, parallel.devices)
    hidden = seconds(link.data, parallel.devices) + seconds(link.context, near)
    return waits + max(0.0, hidden - _HIDDEN_BEHIND * busy)


def _order(plan: RankedPlan) -> tuple[bool, float, float]:
    """Return the sort key of a plan: fitting plans first, then the fastest, then the least memory."""
    return plan.verdict != "fits", -plan.tok_s, plan.need_bytes


def _divisors(number: int, most: int) -> list[int]:
    return [part for part in range(1, min(number, most) + 1) if number % part == 0]
