"""Find parallel plans that fit the devices, ranked by the throughput to expect."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct, structs

from stepgrade.errors import BadOption, did_you_mean
from stepgrade.hardware.ceilings import FLOPS_PER_TFLOP, Figures, utilisation
from stepgrade.hardware.cluster import Cluster, LinkRates
from stepgrade.hardware.cost.model_costs import model_costs
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.memory.need import MemoryNeed, Verdict, memory_need, verdict_of
from stepgrade.hardware.memory.static import capacity_bytes
from stepgrade.hardware.models.hf_config import read_model
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.hardware.setup import Setup, check_above_zero, figures_of
from stepgrade.hardware.throughput import Expected, StepModel, StepTime, achieved_rate, expected_rate
from stepgrade.hardware.trainers import (
    TRAINERS,
    RankedPlan,
    Reason,
    Trainer,
    WhyNotBetter,
    launch_flags,
)
from stepgrade.model.notes import Note, Result
from stepgrade.units import BYTES_PER_GB, show_share

# Far beyond what anyone runs.
_MOST_SEQUENCES = 1_000_000_000
_MOST_AT_ONCE = 1 << 14  # sequences of a micro-batch
_MOST_TOKENS = 1 << 17  # of a micro-batch on one device: more make nothing faster
# Fewer tokens of a sequence per device make context parallelism slower than it is worth.
_LEAST_CONTEXT = 4096
_MOST_CONTEXT = 64
# The longest stage may have so much more than its share of the layers.
_MOST_UNEVEN = 1.15
_REASON_SHARE = 0.01


class PlanTable(Result, frozen=True, kw_only=True):
    """The plans that fit, fastest first, then those too close to call; `considered` counts all of them.

    Each division of the devices is there once, with the fastest of its schedules, shardings and batches.
    """

    NOTES = ("notes",)

    device: str
    devices: int
    model: str
    global_batch: int
    seq: int
    capacity_bytes: float
    considered: int
    plans: tuple[RankedPlan, ...]
    cost: RunCost | None = None
    notes: tuple[Note, ...] = ()


class PlanMatrix(Result, frozen=True, kw_only=True):
    """Plans for several devices, or numbers of them, side by side, in the order asked.

    `fastest` and `cheapest` are indexes of `tables`, by the first plan's throughput and by the training's
    money; None if no plan fits, or if the money is not known for all that fit.
    """

    tables: tuple[PlanTable, ...]
    fastest: int | None
    cheapest: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the matrix as its JSON has it."""
        return super().to_dict() | {"tables": [table.to_dict() for table in self.tables]}


class RunCost(Struct, frozen=True, kw_only=True):
    """What training on so many tokens takes with the best plan; `low` is the least of it.

    Energy is that of the devices alone, at their power limit; money and energy are None if unknown.
    """

    tokens: float
    days: Expected
    device_hours: Expected
    money: Expected | None
    energy_kwh: Expected | None


class PlanRequest(Struct, frozen=True, kw_only=True):
    """What to plan: the cluster, the batch of a step, and the candidate trainers."""

    cluster: Cluster
    global_batch: int  # sequences per step
    trainers: tuple[str, ...] = tuple(TRAINERS)
    most: int = 10
    tokens: float | None = None  # of the whole training
    price: float | None = None  # of one device and hour

    def __post_init__(self) -> None:
        if not 1 <= self.global_batch <= _MOST_SEQUENCES:
            raise BadOption(f"must be a whole number from 1 to {_MOST_SEQUENCES:,}", field="global_batch")
        check_above_zero(tokens=self.tokens, price=self.price)
        if self.most < 1:
            raise BadOption("must be a whole number, 1 or more", field="most")
        unknown = [name for name in self.trainers if name not in TRAINERS]
        if unknown:
            hint = did_you_mean(unknown[0], TRAINERS)
            raise BadOption(f"{unknown[0]!r} is unknown", field="trainers", hint=hint)


def plan(setup: Setup, request: PlanRequest) -> PlanTable:
    """Return the best ways to run `setup` on a cluster; what is not planned stays as in `setup.plan`."""
    if setup.model is None or setup.plan is None:
        raise BadOption("a plan needs the model", supply="{model} with {seq}")
    return rank_plans(read_model(setup.model), figures_of(setup), setup.plan, request)


def plan_each(cases: Iterable[tuple[Setup, PlanRequest]]) -> PlanMatrix:
    """Plan each setup on its cluster, and say which is the fastest and which the cheapest."""
    tables = tuple(plan(setup, request) for setup, request in cases)
    fitting = {index: table for index, table in enumerate(tables) if table.plans}
    money = {
        index: table.cost.money.mid for index, table in fitting.items() if table.cost and table.cost.money
    }
    return PlanMatrix(
        tables=tables,
        fastest=max(fitting, key=lambda index: fitting[index].plans[0].expected_tok_s.mid, default=None),
        cheapest=min(money, key=lambda index: money[index]) if money and len(money) == len(fitting) else None,
    )


def rank_plans(shape: ModelShape, figures: Figures, run: Plan, request: PlanRequest) -> PlanTable:
    """Return the best ways to train `run` on a cluster: batch, checkpointing and parallelism are chosen."""
    cluster, global_batch = request.cluster, request.global_batch
    device, capacity = figures.device, capacity_bytes(figures.device)
    if device is None or capacity is None:
        raise BadOption("a plan needs a device whose memory is known", supply="{device}")
    links = cluster.links(figures)
    model = StepModel(shape, figures, links)
    if not figures.compute(run.dtype) or not model.is_known:
        text = f"no {run.dtype} peak of {device.name} is known"
        raise BadOption(text, field="device", supply="{peak_tflops}")
    search = _Search(shape, figures, run, request, model, capacity)
    chosen = search.best(cluster.devices)
    plans = tuple(
        structs.replace(ranked, flags=launch_flags(ranked, run, shape.depth, cluster.per_node))
        for ranked in (search.ranked(one) for one in chosen)
    )
    gb_s = links.network / BYTES_PER_GB
    notes = [Note("network", f"{links.per_node} devices per node, {gb_s:g} GB/s each between nodes")]
    achieved = achieved_rate(figures)
    if achieved is not None:
        notes.append(Note("matmul_rate", f"best matmul rate: {achieved.source}"))
    if not plans:
        text = f"no plan for {global_batch:,} sequences on {cluster.devices} devices fits"
        notes.append(Note("no_plan", text, supply="more {plan_devices}, or another {global_batch}"))
    elif plans[0].devices < cluster.devices:
        text = f"{plans[0].devices} devices are faster than all {cluster.devices} with this batch"
        notes.append(Note("idle_devices", text, supply="a larger {global_batch}"))
    cost = None
    if plans and request.tokens is not None:
        each = plans[0].expected_tok_s
        rates = {"low": each.high, "mid": each.mid, "high": each.low}
        hours = Expected(**{name: request.tokens / rate for name, rate in rates.items()}).scaled(1 / 3600)
        device_hours, watts = hours.scaled(plans[0].devices), device.tdp_w
        cost = RunCost(
            tokens=request.tokens,
            days=hours.scaled(1 / 24),
            device_hours=device_hours,
            money=None if request.price is None else device_hours.scaled(request.price),
            energy_kwh=None if watts is None else device_hours.scaled(watts / 1000),
        )
    return PlanTable(
        device=device.name,
        devices=cluster.devices,
        model=f"{shape.architecture}, {shape.parameters:,} parameters",
        global_batch=global_batch,
        seq=run.seq,
        capacity_bytes=capacity,
        considered=search.considered,
        plans=plans,
        cost=cost,
        notes=tuple(notes),
    )


class _Found(Struct, frozen=True):
    """The fastest plan of one division of the devices that memory does not rule out."""

    trainer: str
    plan: Plan
    need: MemoryNeed
    verdict: Verdict
    seconds: float

    @property
    def order(self) -> tuple[bool, float, float]:
        """Return the sort key: fitting plans first, then the fastest, then the least memory."""
        return self.verdict != "fits", self.seconds, self.need.need_bytes

    @property
    def division(self) -> tuple[int, ...]:
        """Return how the devices share the model."""
        own = self.plan.parallel
        return (own.tensor, own.pipeline, own.context, own.expert, own.expert_tensor or 0)


class _Way(NamedTuple):
    """One parallelism of a trainer, and the shortest step that it could have."""

    bound: float
    trainer: str
    run: Plan


class _Search:
    """Looks for plans from the one that could be fastest on, until no other can be among the best."""

    def __init__(
        self,
        shape: ModelShape,
        figures: Figures,
        run: Plan,
        request: PlanRequest,
        model: StepModel,
        capacity: float,
    ) -> None:
        self.considered = 0
        self._shape, self._figures, self._run, self._request = shape, figures, run, request
        self._model, self._capacity = model, capacity
        self._is_tpu = figures.device is not None and figures.device.arch == "tpu"

    def best(self, devices: int) -> list[_Found]:
        """Return the best plans on at most so many devices; fewer are used where more are slower."""
        found, useful = self._on(devices), 0.0
        if found:
            parts = self._model.step(found[0].plan).parts()
            useful = sum(parts[name] for name in ("matrices", "attention", "vector", "recompute"))
        # Half of the devices can be as fast only where these work for less than half of the step.
        if devices % 2 == 0 and (not found or useful < found[0].seconds / 2):
            fewer = self.best(devices // 2)
            if fewer and (not found or fewer[0].order < found[0].order):
                return fewer
        return found

    def _ways(self, devices: int) -> list[_Way]:
        """Return every parallelism of every trainer, the one whose step could be shortest first."""
        ways = []
        for name in self._request.trainers:
            trainer = TRAINERS[name]
            if self._run.method not in trainer.methods or trainer.is_of_xla != self._is_tpu:
                continue
            own = structs.replace(
                self._run, kernels=trainer.kernels, weights=trainer.weights, allocator="expandable"
            )
            for parallel in ways_to_share(self._shape, own, devices, self._model.links, trainer):
                shared = structs.replace(own, parallel=parallel, loss=trainer.losses[-1])
                bound, each = math.inf, self._request.global_batch // parallel.replicas
                # Larger micro-batches fill matrices better, pipelines worse: beyond the best all are slower.
                for size in reversed(self._batches(shared)):
                    run = structs.replace(shared, batch=size, micro_batches=each // size)
                    self.considered, seconds = self.considered + 1, self._model.seconds(run)
                    if seconds > bound:
                        break
                    bound = seconds
                if bound < math.inf:
                    ways.append(_Way(bound, name, shared))
        return sorted(ways, key=lambda way: way.bound)

    def _on(self, devices: int) -> list[_Found]:
        """Return the best plan of each division of so many devices, and the best of each trainer."""
        most = self._request.most
        best: dict[tuple[int, ...], _Found] = {}
        leading: dict[str, _Found] = {}
        fastest: list[float] = []  # the steps of the best divisions that fit
        for way in self._ways(devices):
            is_late = len(fastest) >= most and way.bound >= fastest[most - 1]
            found = None if is_late and way.trainer in leading else self._best_of(way)
            if found is None:
                continue
            if way.trainer not in leading or found.order < leading[way.trainer].order:
                leading[way.trainer] = found
            other = best.get(found.division)
            if other is None or found.order < other.order:
                best[found.division] = found
                if found.verdict == "fits":
                    if other is not None and other.verdict == "fits":
                        fastest.remove(other.seconds)
                    insort(fastest, found.seconds)
        every = sorted(best.values(), key=lambda found: found.order)[:most]
        every += [found for found in leading.values() if found not in every]
        return sorted(every, key=lambda found: found.order)

    def _batches(self, run: Plan) -> list[int]:
        """Return the sizes of micro-batches that divide the batch of a step, smallest first."""
        parallel, batch = run.parallel, self._request.global_batch
        if batch % parallel.replicas:
            return []
        each = batch // parallel.replicas
        return [
            size
            for size in _divisors(each, _MOST_AT_ONCE)
            if (size == 1 or size * run.seq <= _MOST_TOKENS * parallel.context)
            and each // size >= parallel.pipeline  # else the pipeline is never full
            and (parallel.virtual == 1 or (each // size) % parallel.pipeline == 0)
        ]

    def _best_of(self, way: _Way) -> _Found | None:
        """Return the fastest choice that fits; else the fastest that is too close to call.

        A choice is of loss, checkpointing and micro-batch, and of what is offloaded if nothing fits without.
        """
        trainer, sizes = TRAINERS[way.trainer], self._batches(way.run)
        each = self._request.global_batch // way.run.parallel.replicas
        # All states of a full training would not fit into the memory of most hosts.
        others = trainer.offload if way.run.is_frozen or trainer.is_of_xla else ()
        choices = itertools.product(("none", *others), trainer.losses, trainer.checkpointing)
        kinds = [
            structs.replace(way.run, offload=offload, loss=loss, checkpointing=again)
            for offload, loss, again in choices
        ]
        for offload in ("none", *others):
            options: list[tuple[float, Plan]] = []
            for kind in (kind for kind in kinds if kind.offload == offload):
                plans = [structs.replace(kind, batch=size, micro_batches=each // size) for size in sizes]
                # A larger micro-batch needs at least as much.
                most = bisect_left(
                    plans,
                    1,
                    key=lambda plan: (
                        verdict_of(memory_need(self._shape, plan), self._capacity) == "does_not_fit"
                    ),
                )
                options += [(self._model.seconds(plan), plan) for plan in plans[:most]]
                self.considered += len(plans)
            close: _Found | None = None
            for seconds, plan in sorted(options, key=lambda option: option[0]):
                need = memory_need(self._shape, plan)
                found = _Found(way.trainer, plan, need, verdict_of(need, self._capacity), seconds)
                if found.verdict == "fits":
                    return found
                close = close or found
            if close is not None:
                return close
        return None

    def ranked(self, found: _Found) -> RankedPlan:
        """Return the plan with its throughput, and where its step goes."""
        plan, need, parallel = found.plan, found.need, found.plan.parallel
        costs = model_costs(self._shape, plan)
        tokens = plan.tokens * plan.micro_batches * parallel.replicas
        own = tokens / parallel.devices
        rates, bandwidths = self._figures.compute(plan.dtype), self._figures.bandwidth()
        # Arithmetic at the best rate known, or weights and optimizer states once through memory.
        computing = costs.flops.hardware * own / rates[-1].per_s
        moving = costs.traffic.shared * own / bandwidths[0].per_s if bandwidths else 0.0
        slots = plan.micro_batches * parallel.virtual
        tok_s = tokens / (max(computing, moving) * (1 + (parallel.pipeline - 1) / slots))
        step = self._model.step(plan)
        expected = expected_rate(self._shape, plan, step.total, tok_s)
        peak, mfu, expected_mfu = self._figures.peak(plan.dtype), None, None
        if peak is not None:
            each = costs.flops.model, peak.per_s / FLOPS_PER_TFLOP, parallel.devices
            mfu, expected_mfu = utilisation(tok_s, *each), utilisation(expected.mid, *each)
        sizes = ("tensor", "sequence", "pipeline", "virtual", "context", "expert", "expert_tensor")
        return RankedPlan(
            **{name: getattr(parallel, name) for name in sizes},
            devices=parallel.devices,
            replicas=parallel.replicas,
            data=parallel.data,
            shard_group=parallel.shard_group,
            offload=plan.offload,
            trainer=found.trainer,
            checkpointing=plan.checkpointing,
            loss=plan.loss,
            micro_batch=plan.batch,
            micro_batches=plan.micro_batches,
            verdict=found.verdict,
            need_bytes=need.need_bytes,
            low_bytes=need.low_bytes,
            high_bytes=need.high_bytes,
            memory_parts=need.parts,
            tok_s=tok_s,
            expected_tok_s=expected,
            step_s=step.parts(),
            tok_s_per_device=tok_s / parallel.devices,
            mfu=mfu,
            expected_mfu=expected_mfu,
            why_not_better=why_not_better(step, found.verdict),
            flags="",
        )


# Where the parts of a step go, in words; those of one reason are added up.
_REASONS: dict[Reason, tuple[tuple[str, ...], str]] = {
    "compute": (("matrices", "attention"), "matrices and attention take {} of the step"),
    "memory_bandwidth": (("vector",), "norms, activations and the loss, at memory bandwidth, {}"),
    "recompute": (("recompute",), "recomputation {}"),
    "bubble": (("bubble",), "the idle pipeline {}"),
    "exposed_link": (("tensor", "expert", "context", "pipeline", "data"), "exposed communication {}"),
    "host": (("host",), "waiting for launches {}"),
    "optimizer": (("optimizer",), "the optimizer {}"),
    "stragglers": (("straggler",), "waiting for stragglers {}"),
}
_COMMUNICATION = {
    "tensor": "tensor parallelism",
    "expert": "experts",
    "context": "context parallelism",
    "pipeline": "the pipeline",
    "data": "data parallelism",
}


def why_not_better(step: StepTime, verdict: Verdict) -> tuple[WhyNotBetter, ...]:
    """Return where the step goes, the largest share first after the work itself."""
    parts, total = step.parts(), step.total
    why = []
    for reason, (names, text) in _REASONS.items():
        share = sum(parts[name] for name in names) / total
        if share < _REASON_SHARE and reason != "compute":
            continue
        shown = text.format(show_share(share, 0))
        if reason == "exposed_link":
            shown += f", most of it of {_COMMUNICATION[max(names, key=lambda name: parts[name])]}"
        why.append(WhyNotBetter(reason, share, shown))
    why[1:] = sorted(why[1:], key=lambda one: -(one.share or 0.0))
    if verdict == "too_close":
        why.insert(0, WhyNotBetter("too_close", None, "too close to call"))
    return tuple(why)


def ways_to_share(
    shape: ModelShape, run: Plan, world: int, links: LinkRates, trainer: Trainer
) -> Iterator[Parallelism]:
    """Yield every parallelism of the trainer that divides heads and experts evenly, and layers nearly."""
    if trainer.is_of_transformers:
        for data in trainer.data if world > 1 else ("ddp",):
            yield Parallelism(devices=world, data=data)
            if data in ("fsdp", "zero3") and _is_grouped(world, links.per_node):
                yield Parallelism(devices=world, data=data, shard_group=links.per_node)
        return
    experts = max(layer.expert_count for layer in shape.layers)
    contexts = [1]
    while contexts[-1] < min(_MOST_CONTEXT, run.seq // _LEAST_CONTEXT):
        contexts.append(2 * contexts[-1])
    for tensor, context in itertools.product((1, 2, 4, 8, 16), contexts):
        divides = all(layer.heads % tensor == 0 and layer.ffn_width % tensor == 0 for layer in shape.layers)
        if tensor > links.per_node or world % (tensor * context) or not divides:
            continue
        for pipeline in _divisors(world // (tensor * context), shape.depth + 2):
            if pipeline > 1 and (trainer.is_of_xla or _is_uneven(shape.depth, pipeline)):
                continue
            division = Parallelism(
                devices=world,
                tensor=tensor,
                sequence=tensor > 1,
                pipeline=pipeline,
                context=context,
                separate_embedding=trainer.gathers_head_alone,
            )
            yield from _sharded(shape, experts, division, links, trainer)


def _is_grouped(peers: int, group: int) -> bool:
    return 1 < group < peers and peers % group == 0


def _sharded(
    shape: ModelShape, experts: int, division: Parallelism, links: LinkRates, trainer: Trainer
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
        most = (shape.depth + 2) // division.pipeline
        virtuals += [n for n in range(2, most + 1) if not _is_uneven(shape.depth, division.pipeline * n)]
    group = max(1, links.per_node // division.tensor)
    for spread, virtual, data in itertools.product(spreads, virtuals, ways):
        yield structs.replace(spread, virtual=virtual, data=data)
        is_hybrid = trainer.group_sizes and data.startswith("fsdp") and spread.expert == 1
        if is_hybrid and _is_grouped(peers, group) and group % division.context == 0:
            yield structs.replace(spread, virtual=virtual, data=data, shard_group=group)


def _is_uneven(depth: int, stages: int) -> bool:
    """Return whether the longest stage is much longer than the mean."""
    return -(-depth // stages) * stages > _MOST_UNEVEN * (depth + 2)


@lru_cache(maxsize=4096)
def _divisors(number: int, most: int) -> list[int]:
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return sorted(part for part in {*small, *(number // part for part in small)} if part <= most)
