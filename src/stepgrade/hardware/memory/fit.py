"""Whether a run fits a device, and the cheapest changes that make it fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct, structs

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.memory.device import Phase
from stepgrade.hardware.memory.need import Verdict, memory_need, verdict_of
from stepgrade.hardware.memory.static import capacity_bytes
from stepgrade.hardware.models.shape import ModelShape

# A change that saves less than this share of the need is not worth a line.
_WORTH = 0.01


class MemoryChange(Struct, frozen=True, kw_only=True):
    """One change: what it saves after the earlier ones, its cost in words, and whether the run fits then."""

    change: str
    text: str
    saves_bytes: float
    price: str
    verdict: Verdict


class _Way(Struct, frozen=True):
    """How to change a plan; None where the change does not apply."""

    name: str
    text: str
    price: str
    apply: Callable[[ModelShape, Plan], Plan | None]


def _when(applies: Callable[[Plan], bool], **fields: Any) -> Callable[[ModelShape, Plan], Plan | None]:
    return lambda _, plan: structs.replace(plan, **fields) if applies(plan) else None


def _sharing(applies: Callable[[Plan], bool], **fields: Any) -> Callable[[ModelShape, Plan], Plan | None]:
    def apply(_: ModelShape, plan: Plan) -> Plan | None:
        if plan.parallel.shards == 1 or not applies(plan):
            return None
        return structs.replace(plan, parallel=structs.replace(plan.parallel, **fields))

    return apply


def _smaller_batch(_: ModelShape, plan: Plan) -> Plan | None:
    if plan.batch == 1:
        return None
    halves = -(-plan.batch // 2)
    return structs.replace(plan, batch=halves, micro_batches=plan.micro_batches * (plan.batch // halves))


def _more_tensor(shape: ModelShape, plan: Plan) -> Plan | None:
    parallel, wanted = plan.parallel, 2 * plan.parallel.tensor
    divides = all(layer.heads % wanted == 0 and layer.ffn_width % wanted == 0 for layer in shape.layers)
    if wanted > 8 or parallel.replicas % 2 or not divides or parallel.shard_group is not None:
        return None
    return structs.replace(plan, parallel=structs.replace(parallel, tensor=wanted, sequence=True))


_EAGER = ("transformers", "eager", "eager-unfused")
# In the order of their measured prices (torchtune 3B; torchtitan 8B and 14B).
_WAYS = (
    _Way(
        "expandable_segments",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "no slower",
        _when(lambda plan: plan.allocator == "default", allocator="expandable"),
    ),
    _Way(
        "chunked_loss",
        "compute the loss in chunks",
        "2 % faster",
        _when(
            lambda plan: (
                plan.loss in ("upcast", "upcast-copy", "plain", "plain-copy") and plan.parallel.tensor == 1
            ),
            loss="chunked",
        ),
    ),
    _Way(
        "compile",
        "torch.compile",
        "27 % faster",
        _when(lambda plan: plan.kernels in _EAGER and not plan.is_frozen, kernels="compiled"),
    ),
    _Way(
        "optimizer_in_backward",
        "step the optimizer in the backward pass",
        "1 % faster, without gradient accumulation",
        _when(
            lambda plan: (
                plan.micro_batches == 1
                and not plan.is_frozen
                and not plan.optimizer_in_backward
                and plan.parallel.devices == 1
            ),
            optimizer_in_backward=True,
        ),
    ),
    _Way(
        "zero1",
        "shard the optimizer's states (ZeRO-1)",
        "no slower",
        _sharing(lambda plan: plan.parallel.zero_stage == 0, data="zero1"),
    ),
    _Way(
        "zero2",
        "shard the gradients too (ZeRO-2)",
        "no slower",
        _sharing(lambda plan: plan.parallel.zero_stage == 1 and plan.parallel.pipeline == 1, data="zero2"),
    ),
    _Way(
        "adamw_8bit",
        "8-bit AdamW",
        "5 % slower",
        _when(
            lambda plan: plan.optimizer in ("adamw", "adamw-fp32", "adamw-bf16"),
            optimizer="adamw-8bit",
        ),
    ),
    _Way(
        "op_checkpointing",
        "selective checkpointing: recompute every second matmul",
        "8 % slower",
        _when(lambda plan: plan.checkpointing in ("none", "selective"), checkpointing="op"),
    ),
    _Way(
        "smaller_micro_batch",
        "half the micro-batch, with twice the gradient accumulation",
        "slower if kernels get too small",
        _smaller_batch,
    ),
    _Way(
        "full_checkpointing",
        "full checkpointing: recompute every layer",
        "21 to 23 % slower",
        _when(lambda plan: plan.checkpointing != "full", checkpointing="full"),
    ),
    _Way(
        "fsdp",
        "shard the weights too (FSDP, ZeRO-3)",
        "half as much again over the link",
        _sharing(lambda plan: plan.parallel.data != "fsdp", data="fsdp"),
    ),
    _Way(
        "tensor_parallel",
        "twice the tensor parallelism, inside a node",
        "two all-reduces more in every layer",
        _more_tensor,
    ),
    _Way(
        "offload_optimizer",
        "keep the optimizer's states in host memory",
        "1.9 to 4.2 times slower",
        _when(lambda plan: plan.offload == "none" and not plan.is_frozen, offload="optimizer"),
    ),
)


def fits(shape: ModelShape, plan: Plan, capacity: float, offset: float | None = None) -> bool:
    """Return whether a device surely has the memory that the run needs."""
    return verdict_of(memory_need(shape, plan, offset), capacity) == "fits"


def cheapest_changes(
    shape: ModelShape, plan: Plan, capacity: float, offset: float | None = None
) -> tuple[MemoryChange, ...]:
    """Return the cheapest change after which the run fits, else the fewest of them, cheapest first.

    If all together are not enough, return them all; return none if the run already fits.
    """
    if fits(shape, plan, capacity, offset):
        return ()
    taken: list[_Way] = []
    for way in _WAYS:
        alone = way.apply(shape, plan)
        if alone is not None and fits(shape, alone, capacity, offset):
            taken = [way]
            break
    else:
        # Take changes, cheapest first, until the run fits; then drop those that turned out not to be needed.
        changed, before = plan, memory_need(shape, plan, offset).need_bytes
        worth = _WORTH * before
        for way in (*_WAYS, _WAYS[-2], _WAYS[-2]):  # tensor parallelism over two, four, eight devices
            more = way.apply(shape, changed)
            if more is None or before - (after := memory_need(shape, more, offset).need_bytes) < worth:
                continue
            taken.append(way)
            changed, before = more, after
            if fits(shape, changed, capacity, offset):
                break
        for way in reversed(taken[:-1]):  # the most expensive first
            fewer = [other for other in taken if other is not way]
            taken = fewer if fits(shape, _applied(shape, plan, fewer), capacity, offset) else taken
    found, need = [], memory_need(shape, plan, offset)
    for way in taken:
        plan, before_need = _applied(shape, plan, [way]), need
        need = memory_need(shape, plan, offset)
        change = MemoryChange(
            change=way.name,
            text=way.text,
            saves_bytes=before_need.need_bytes - need.need_bytes,
            price=way.price,
            verdict=verdict_of(need, capacity),
        )
        found.append(change)
    return tuple(found)


def adapters_instead(shape: ModelShape, plan: Plan, capacity: float) -> MemoryChange | None:
    """Return the first adapter training that fits; it is a different training, not a change of this one."""
    if plan.is_frozen:
        return None
    before = memory_need(shape, plan)
    # As the run is before full checkpointing; frozen weights as they are before 4 bits.
    for method, is_full in itertools.product(("lora", "qlora"), (False, True)):
        checkpointing = "full" if is_full else plan.checkpointing
        after = memory_need(shape, structs.replace(plan, method=method, checkpointing=checkpointing))
        if verdict_of(after, capacity) == "fits":
            name = {"lora": "LoRA", "qlora": "QLoRA"}[method]
            more = ", with full checkpointing" if is_full else ""
            return MemoryChange(
                change=method,
                text=f"train {name} adapters of rank {plan.rank}{more}",
                saves_bytes=before.need_bytes - after.need_bytes,
                price="the base weights are not trained",
                verdict="fits",
            )
    return None


def _applied(shape: ModelShape, plan: Plan, ways: list[_Way]) -> Plan:
    for way in ways:
        plan = way.apply(shape, plan) or plan
    return plan


_MOST_SEQUENCES = 2**20
_MOST_DEVICES = 2**14


class Anchor(Struct, frozen=True, kw_only=True):
    """Measured peak memory of a run with the same setup; its micro-batch may differ."""

    peak_bytes: float
    kind: Literal["allocated", "reserved"]
    batch: int | None = None
    seq: int | None = None


class MemoryFit(Struct, frozen=True, kw_only=True):
    """What one device must hold at its peak, and whether it fits; None if its memory is unknown.

    `low_bytes` and `high_bytes` are the band around `need_bytes`; `parts` add up to it. `changes` are the
    cheapest that make a run fit that does not; `least_devices` is how many could hold it with FSDP where
    they are not enough. `another_training` is one with adapters that fits where this one does not.
    """

    verdict: Verdict | None
    need_bytes: float
    low_bytes: float
    high_bytes: float
    capacity_bytes: float | None
    allocated_bytes: float
    reserved_bytes: float
    parts: dict[str, float]
    phase: Phase
    stage: int
    largest_micro_batch: int | None
    changes: tuple[MemoryChange, ...] = ()
    least_devices: int | None = None
    another_training: MemoryChange | None = None
    is_anchored: bool = False


def memory_fit(
    shape: ModelShape, plan: Plan, device: Device | None, anchor: Anchor | None = None
) -> MemoryFit:
    """Return what a device holds in the run, corrected by a measured run if there is one."""
    offset = None
    if anchor is not None:
        same = structs.replace(plan, batch=anchor.batch or plan.batch, seq=anchor.seq or plan.seq)
        predicted = memory_need(shape, same)
        is_allocated = anchor.kind == "allocated"
        offset = anchor.peak_bytes - (predicted.allocated_bytes if is_allocated else predicted.reserved_bytes)
    need, capacity = memory_need(shape, plan, offset), capacity_bytes(device)
    fit = MemoryFit(
        **structs.asdict(need),
        verdict=None,
        capacity_bytes=capacity,
        largest_micro_batch=None,
        is_anchored=anchor is not None,
    )
    if capacity is None:
        return fit
    verdict, changes = verdict_of(need, capacity), cheapest_changes(shape, plan, capacity, offset)
    needs_devices = verdict != "fits" and (not changes or changes[-1].verdict != "fits")
    return structs.replace(
        fit,
        verdict=verdict,
        largest_micro_batch=largest_micro_batch(shape, plan, capacity, offset),
        changes=changes,
        least_devices=least_devices(shape, plan, capacity) if needs_devices else None,
        another_training=adapters_instead(shape, plan, capacity) if verdict != "fits" else None,
    )


def least_devices(shape: ModelShape, plan: Plan, capacity: float) -> int | None:
    """Return how many devices (2, 4, 8, …) hold the run with FSDP and everything recomputed, or None."""
    lean = structs.replace(plan, batch=1, checkpointing="full", allocator="expandable", loss="chunked")
    for devices in (1 << power for power in range(1, _MOST_DEVICES.bit_length())):
        parallel = Parallelism(devices=devices, data="fsdp")
        if fits(shape, structs.replace(lean, parallel=parallel), capacity):
            return devices
    return None


def largest_micro_batch(shape: ModelShape, plan: Plan, capacity: float, offset: float | None = None) -> int:
    """Return the largest micro-batch that still fits; 0 if one sequence does not."""

    def takes(batch: int) -> bool:
        return fits(shape, structs.replace(plan, batch=batch), capacity, offset)

    # The need only grows with the batch, so doubling and halving find the last that fits.
    if not takes(1):
        return 0
    most = 1
    while most < _MOST_SEQUENCES and takes(2 * most):
        most *= 2
    step = most // 2
    while step:
        if most + step <= _MOST_SEQUENCES and takes(most + step):
            most += step
        step //= 2
    return most
