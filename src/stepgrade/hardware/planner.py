"""Find parallel plans for a run that fit the devices, ranked by throughput."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from stepgrade.errors import BadOption
from stepgrade.hardware.ceilings import FLOPS_PER_TFLOP, Figures, utilisation
from stepgrade.hardware.cost.model_costs import ModelCosts, model_costs
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.launch_flags import launch_flags
from stepgrade.hardware.memory.allocator import capacity_bytes
from stepgrade.hardware.memory.need import MemoryNeed, Verdict, memory_need, verdict_of
from stepgrade.hardware.models.hf_config import read_model
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.hardware.plan_table import (
    TRAINERS,
    Cluster,
    PlanRequest,
    PlanTable,
    RankedPlan,
    Reason,
    Trainer,
    WhyNotBetter,
)
from stepgrade.hardware.setup import Setup, figures_of
from stepgrade.model.notes import Note
from stepgrade.units import BYTES_PER_GB, show_share

# Gradients and gathered weights travel while the backward pass computes, two thirds of the step.
_HIDDEN_BEHIND = 2 / 3
# Context-parallel sizes by sequence length: Megatron-LM's recipes start with 2 at 8,192.
_CONTEXTS = {8192: (1, 2), 32_768: (1, 2, 4, 8)}
_REASON_SHARE = 0.01
_MOST_AT_ONCE = 1 << 14  # sequences of a micro-batch


def plan(setup: Setup, request: PlanRequest) -> PlanTable:
    """Return the best ways to run `setup` on a cluster; what is not chosen is kept from its plan."""
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
        if run.is_frozen and not trainer.trains_adapters:
            continue
        own = structs.replace(run, kernels=trainer.kernels, weights=trainer.weights, allocator="expandable")
        for parallel in ways_to_share(shape, own, cluster, trainer):
            shared = structs.replace(own, parallel=parallel)
            for found, need in plans_that_fit(shape, shared, global_batch, capacity, trainer):
                considered += 1
                judged = _Judged(name=name, plan=found, need=need, verdict=verdict_of(need, capacity))
                ranked = ranked_plan(shape, figures, cluster, judged)
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
    if trainer.is_data_parallel_only:
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
                for spread in spread_experts(experts, division, trainer):
                    yield from sharded_ways(shape, spread, trainer)


def spread_experts(experts: int, division: Parallelism, trainer: Trainer) -> Iterator[Parallelism]:
    """Yield the ways to spread experts: each whole on one device, or divided like other matrices."""
    if not experts:
        yield division
        return
    peers = division.replicas * division.context
    for expert in _divisors(peers, experts):
        if experts % expert == 0:
            yield structs.replace(division, expert=expert)
    if division.tensor > 1 and trainer.divides_experts:
        for expert in _divisors(peers * division.tensor, experts):
            if experts % expert == 0 and expert > 1:
                yield structs.replace(division, expert=expert, expert_tensor=1)


def sharded_ways(shape: ModelShape, division: Parallelism, trainer: Trainer) -> Iterator[Parallelism]:
    """Yield the schedules and shardings of one division of the devices."""
    ways = trainer.data if division.shards > 1 else ("ddp",)
    if division.shards > 1 and division.replicas < division.devices and not trainer.mixes_ddp:
        ways = tuple(way for way in ways if way != "ddp")
    if division.pipeline > 1:
        ways = tuple(way for way in ways if way != "fsdp")  # it would gather for every micro-batch
    virtuals = [1]
    if division.pipeline > 1 and shape.depth % division.pipeline == 0:
        stage = shape.depth // division.pipeline
        virtuals += [virtual for virtual in (2, 4) if stage % virtual == 0]
    for virtual in virtuals:
        for data in ways:
            yield structs.replace(division, virtual=virtual, data=data)


def plans_that_fit(
    shape: ModelShape, run: Plan, global_batch: int, capacity: float, trainer: Trainer
) -> Iterator[tuple[Plan, MemoryNeed]]:
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
                yield plan, need


class _Judged(Struct, frozen=True, kw_only=True):
    """A trainer's plan, and whether it fits."""

    name: str
    plan: Plan
    need: MemoryNeed
    verdict: Verdict


_LOSSES: dict[Reason, str] = {
    "bubble": "the pipeline is idle",
    "recompute": "layers are recomputed",
    "exposed_link": "devices wait for communication",
    "memory_bandwidth": "memory bandwidth limits compute",
}


def ranked_plan(shape: ModelShape, figures: Figures, cluster: Cluster, judged: _Judged) -> RankedPlan:
    """Return the plan with its throughput, and what limits it."""
    plan, need = judged.plan, judged.need
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
    if judged.verdict == "too_close":
        why.insert(0, WhyNotBetter("too_close", None, "too close to call"))
    peak = figures.peak(plan.dtype)
    tok_s = tokens / step
    return RankedPlan(
        trainer=judged.name,
        tensor=parallel.tensor,
        sequence=parallel.sequence,
        pipeline=parallel.pipeline,
        virtual=parallel.virtual,
        context=parallel.context,
        expert=parallel.expert,
        expert_tensor=parallel.expert_tensor,
        replicas=parallel.replicas,
        data=parallel.data,
        checkpointing=plan.checkpointing,
        loss=plan.loss,
        micro_batch=plan.batch,
        micro_batches=plan.micro_batches,
        verdict=judged.verdict,
        need_bytes=need.need_bytes,
        low_bytes=need.low_bytes,
        high_bytes=need.high_bytes,
        tok_s=tok_s,
        tok_s_per_device=tok_s / parallel.devices,
        mfu=utilisation(tok_s, costs.flops.model, peak.per_s / FLOPS_PER_TFLOP, parallel.devices)
        if peak
        else None,
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
