"""Changes that make a run need less memory, cheapest first, each with what it costs in speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.memory.need import MemoryNeed, Verdict, memory_need, verdict_of
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


def cheapest_changes(
    shape: ModelShape, plan: Plan, capacity: float, anchor_offset: float | None = None
) -> tuple[MemoryChange, ...]:
    """Return the cheapest change after which the run fits, else the fewest of them, cheapest first.

    If all together are not enough, return them all; return none if the run already fits.
    """

    def need(changed: Plan) -> MemoryNeed:
        return memory_need(shape, changed, anchor_offset)

    now = need(plan)
    if verdict_of(now, capacity) == "fits":
        return ()
    for way in _WAYS:
        alone = way.apply(shape, plan)
        if alone is not None and verdict_of(need(alone), capacity) == "fits":
            return (_changed(way, now, need(alone), capacity),)
    found, changed = [], plan
    for way in changes_together(shape, plan, capacity, need):
        more = _applied(shape, changed, [way])
        found.append(_changed(way, need(changed), need(more), capacity))
        changed = more
    return tuple(found)


# Adapters as the run is and with every layer recomputed; frozen weights as they are before those in 4 bits.
_ADAPTERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("train LoRA adapters of rank {rank}", {"method": "lora"}),
    (
        "train LoRA adapters of rank {rank}, with full checkpointing",
        {"method": "lora", "checkpointing": "full"},
    ),
    ("train QLoRA adapters of rank {rank}", {"method": "qlora"}),
    (
        "train QLoRA adapters of rank {rank}, with full checkpointing",
        {"method": "qlora", "checkpointing": "full"},
    ),
)


def adapters_instead(shape: ModelShape, plan: Plan, capacity: float) -> MemoryChange | None:
    """Return the first adapter training that fits; it is a different training, not a change of this one."""
    if plan.is_frozen:
        return None
    before = memory_need(shape, plan)
    for text, fields in _ADAPTERS:
        after = memory_need(shape, structs.replace(plan, **fields))
        if verdict_of(after, capacity) == "fits":
            return MemoryChange(
                change=fields["method"],
                text=text.format(rank=plan.rank),
                saves_bytes=before.need_bytes - after.need_bytes,
                price="the base weights are not trained",
                verdict="fits",
            )
    return None


def changes_together(
    shape: ModelShape, plan: Plan, capacity: float, need: Callable[[Plan], MemoryNeed]
) -> list[_Way]:
    """Return the changes to make together, cheapest first, none that turned out not to be needed."""
    taken: list[_Way] = []
    changed, worth = plan, _WORTH * need(plan).need_bytes
    for way in (*_WAYS, _WAYS[-2], _WAYS[-2]):  # tensor parallelism over two, four, eight devices
        more = way.apply(shape, changed)
        if more is None or need(changed).need_bytes - need(more).need_bytes < worth:
            continue
        taken.append(way)
        changed = more
        if verdict_of(need(changed), capacity) == "fits":
            break
    for way in reversed(taken[:-1]):  # the most expensive first
        fewer = [other for other in taken if other is not way]
        if verdict_of(need(_applied(shape, plan, fewer)), capacity) == "fits":
            taken = fewer
    return taken


def _applied(shape: ModelShape, plan: Plan, ways: list[_Way]) -> Plan:
    for way in ways:
        plan = way.apply(shape, plan) or plan
    return plan


def _changed(way: _Way, before: MemoryNeed, after: MemoryNeed, capacity: float) -> MemoryChange:
    return MemoryChange(
        change=way.name,
        text=way.text,
        saves_bytes=before.need_bytes - after.need_bytes,
        price=way.price,
        verdict=verdict_of(after, capacity),
    )
