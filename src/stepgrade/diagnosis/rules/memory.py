"""Rules about the device's memory: what it holds, how it is lost, when it runs out, or is hardly used."""

from __future__ import annotations

import re

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, Rule
from stepgrade.model.memory import Memory, OutOfMemory
from stepgrade.scoring.causes import Bottleneck
from stepgrade.units import show_bytes, show_count, show_share

# What a loss over a vocabulary allocates beside the logits themselves.
_LOSS = re.compile(r"log_softmax|nll_loss|cross_entropy|CrossEntropy|NllLoss", re.IGNORECASE)
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
# In the order of what they cost in speed.
_WAYS_OUT = (
    f"Cheapest first: {_EXPANDABLE}; a loss in chunks or fused with the head; torch.compile; "
    "sharded optimizer states (ZeRO-1, FSDP), or 8-bit ones; selective activation checkpointing; a smaller "
    "micro-batch with gradient accumulation; full activation checkpointing."
)


def memory_nearly_full(context: RuleContext) -> Found | None:
    share, limits = context.memory_share, context.limits
    if share is None or share < limits.memory_warning_share:
        return None
    return Found(
        severity="critical" if share >= limits.memory_critical_share else "warning",
        claim=f"The step's peak is {show_share(share)} of the device's memory.",
        evidence={"memory_share": share},
    )


def memory_idle(context: RuleContext) -> Found | None:
    share, bottleneck = context.memory_share, context.verdict.bottleneck
    would_help = bottleneck in {Bottleneck.LAUNCH, Bottleneck.MEMORY_BW, Bottleneck.HOST}
    if share is None or share >= context.limits.memory_idle_share or not would_help:
        return None
    claim = (
        f"Only {show_share(share, 0)} of the device's memory is used, and the run is limited by "
        f"{bottleneck.value}."
    )
    return Found("info", claim, {"memory_share": share})


def out_of_memory(context: RuleContext) -> Found | None:
    failed = context.memory.out_of_memory if context.memory else None
    if failed is None:
        return None
    asked = show_bytes(failed.asked_bytes) if failed.asked_bytes is not None else "an allocation"
    claim = f"The run ended out of memory: {asked} could not be had"
    sizes = {
        "asked_bytes": failed.asked_bytes,
        "free_bytes": failed.free_bytes,
        "allocated_bytes": failed.allocated_bytes,
        "unallocated_bytes": failed.unallocated_bytes,
        "other_processes_bytes": failed.other_processes_bytes,
    }
    evidence: dict[str, float | str] = {name: size for name, size in sizes.items() if size is not None}
    reason, remedy = why_it_failed(failed, context.memory)
    return Found("critical", f"{claim}{reason}.", evidence, remedy=remedy)


def why_it_failed(failed: OutOfMemory, memory: Memory | None) -> tuple[str, str]:
    """Return what took the memory, and the cheapest way out."""
    asked, others = failed.asked_bytes or 0.0, failed.other_processes_bytes or 0.0
    if others > asked:
        reason = f", while other processes hold {show_bytes(others)} of the device"
        return reason, f"End the other processes on the device, or run on another one. {_WAYS_OUT}"
    if (failed.unallocated_bytes or 0.0) >= asked > 0.0:
        reason = f", though {show_bytes(failed.unallocated_bytes or 0.0)} are reserved and in no tensor"
        return reason, f"The memory is in fragments: set {_EXPANDABLE}. It costs no time."
    held = memory.categories if memory else {}
    most = max(held, key=lambda name: held[name], default=None)
    if most is None:
        in_tensors = failed.allocated_bytes
        return (f" beside {show_bytes(in_tensors)} in tensors" if in_tensors else ""), _WAYS_OUT
    return f"; most of the memory holds {most} ({show_bytes(held[most])})", _WAYS_OUT


def memory_fragmented(context: RuleContext) -> Found | None:
    memory, limits = context.memory, context.limits
    if memory is None or memory.fragmentation is None or memory.reserved_bytes is None:
        return None
    lost = memory.fragmentation * memory.reserved_bytes
    capacity = memory.capacity_bytes
    has_room = capacity is not None and memory.reserved_bytes < limits.memory_tight_share * capacity
    if memory.fragmentation < limits.fragmentation_share or lost < limits.fragmentation_bytes or has_room:
        return None
    claim = (
        f"{show_bytes(lost)} of device memory, {show_share(memory.fragmentation)} of what is reserved, are "
        "in no tensor at the peak."
    )
    return Found("warning", claim, {"fragmentation": memory.fragmentation, "lost_bytes": lost})


def allocator_retries(context: RuleContext) -> Found | None:
    retries = context.memory.retries if context.memory else None
    if not retries:
        return None
    times = "once" if retries == 1 else f"{show_count(retries)} times"
    claim = f"The allocator found no room {times}, gave its memory back to the device and asked again."
    return Found("warning", claim, {"retries": float(retries)})


def loss_dominates_memory(context: RuleContext) -> Found | None:
    memory = context.memory
    if memory is None or not memory.peak_bytes:
        return None
    held = sum(holder.bytes for holder in memory.holders if holder.op and _LOSS.search(holder.op))
    share = held / memory.peak_bytes
    if share < context.limits.loss_memory_share:
        return None
    claim = f"The loss makes the peak: {show_bytes(held)} of it, {show_share(share)}, are its own."
    return Found("warning", claim, {"loss_bytes": held, "loss_share": share})


def optimizer_unsharded(context: RuleContext) -> Found | None:
    memory, ranks = context.memory, context.profile.world_size or 1
    states = memory.categories.get("optimizer", 0.0) if memory else 0.0
    if memory is None or not memory.peak_bytes or ranks < 2 or context.parallelism not in {"data", None}:
        return None
    share = states / memory.peak_bytes
    weights = memory.categories.get("weights", 0.0)
    # States in shards are smaller than the weights that they are for.
    if share < context.limits.optimizer_memory_share or states < weights:
        return None
    claim = (
        f"Every one of {ranks} ranks holds all optimizer states: {show_bytes(states)}, {show_share(share)} "
        "of the peak."
    )
    return Found("info", claim, {"optimizer_bytes": states, "ranks": float(ranks)})


def activations_kept(context: RuleContext) -> Found | None:
    memory, limits = context.memory, context.limits
    if memory is None or not memory.peak_bytes or (context.activity.recompute_ms or 0.0) > 0.0:
        return None
    kept = memory.categories.get("activations", 0.0)
    tight = memory.out_of_memory is not None or (context.memory_share or 0.0) >= limits.memory_tight_share
    if kept < limits.activation_memory_share * memory.peak_bytes or not tight:
        return None
    claim = (
        f"{show_bytes(kept)} of activations, {show_share(kept / memory.peak_bytes)} of the peak, are kept "
        "for the backward pass, and none are recomputed."
    )
    return Found("info", claim, {"activation_bytes": kept})


def memory_grows(context: RuleContext) -> Found | None:
    growth = context.memory.growth if context.memory else None
    if growth is None or growth.bytes_per_step < context.limits.growth_bytes:
        return None
    where = growth.holders[0].shown if growth.holders else None
    claim = f"Memory grows by {show_bytes(growth.bytes_per_step)} with every step"
    left = context.memory.headroom_bytes if context.memory else None
    if left is not None and left > 0.0:
        claim += f", and is full after {show_count(int(left / growth.bytes_per_step))} more"
    evidence: dict[str, float | str] = {"bytes_per_step": growth.bytes_per_step, "steps": float(growth.steps)}
    if where is not None:
        evidence["allocated_by"] = where
        claim += f": {where} allocates it"
    return Found("warning", f"{claim}.", evidence)


RULES = (
    Rule(
        name="out-of-memory",
        find=out_of_memory,
        sees="The log or snapshot ends with a failed allocation.",
        evidence="requested, free, what held the memory, what else was on the device",
        fix=_WAYS_OUT,
        wrong_when="the run caught the error and continued with a smaller batch",
        check="The run continues past the point where it failed.",
        sources="MEM",
    ),
    Rule(
        name="memory-grows",
        find=memory_grows,
        sees="Each step leaves more memory allocated than the one before.",
        evidence="bytes per step, and who allocates them",
        fix="Do not keep tensors that hold their graph: store loss.item() or loss.detach(), and clear "
        "lists of outputs.",
        wrong_when="a buffer fills up to a known size, such as a cache",
        check="What is held at the end of a step stays the same.",
        sources="MEM",
    ),
    Rule(
        name="allocator-retries",
        find=allocator_retries,
        sees="In steady steps the allocator returns memory to the device and requests it again.",
        evidence="how often",
        fix="Leave more room: a smaller micro-batch, or less that is held.",
        fix_pytorch=f"{_EXPANDABLE}; no empty_cache() in the loop; leave more room on the device.",
        wrong_when="the run calls empty_cache() on purpose, as before an evaluation",
        check="num_alloc_retries in torch.cuda.memory_stats() stays 0.",
        sources="MEM",
    ),
    Rule(
        name="memory-fragmented",
        find=memory_fragmented,
        sees="At the peak, much of the reserved memory is in no tensor.",
        evidence="share and bytes of it",
        fix="Allocate in few sizes: pad batches to a few lengths.",
        fix_pytorch=f"Set {_EXPANDABLE}; it costs no time. Pad batches to a few lengths.",
        wrong_when="another phase, such as an evaluation, needs that much",
        check="Reserved and allocated memory come closer.",
        sources="MEM",
    ),
    Rule(
        name="loss-dominates-memory",
        find=loss_dominates_memory,
        sees="The loss over all tokens and the whole vocabulary makes the peak.",
        evidence="bytes of the loss at the peak, and their share",
        fix="Compute the loss in chunks of tokens, or fused with the head.",
        fix_pytorch="A loss in chunks, or one fused with the head (Liger's fused linear cross-entropy); "
        "torch.compile the loss.",
        wrong_when="the vocabulary is small and the batch is meant to be that large",
        check="The peak moves to another operation.",
        sources="MEM",
    ),
    Rule(
        name="optimizer-unsharded",
        find=optimizer_unsharded,
        sees="Several ranks hold the same optimizer states.",
        evidence="bytes of the states at the peak, number of ranks",
        fix="Shard the optimizer states over the ranks: ZeRO-1 adds no traffic.",
        fix_pytorch="ZeroRedundancyOptimizer, or FSDP's fully_shard.",
        wrong_when="the memory is not needed otherwise",
        check="Each of N ranks holds 1/N of the states.",
        sources="MEM",
    ),
    Rule(
        name="activations-kept",
        find=activations_kept,
        sees="Memory is nearly full, mostly of activations, and none are recomputed.",
        evidence="bytes of activations at the peak",
        fix="Recompute what is cheap: selective activation checkpointing keeps the matrix products.",
        wrong_when="written-out attention holds them: a fused one drops them without recomputing",
        check="The peak falls, and the step takes at most a tenth longer.",
        sources="MEM",
    ),
    Rule(
        name="memory-nearly-full",
        find=memory_nearly_full,
        sees="The step's peak is close to the device's memory.",
        evidence="peak as a share of the device's memory",
        fix="Recompute activations, shard optimizer state, or make the micro-batch smaller.",
        fix_pytorch="Activation checkpointing, FSDP or an 8-bit optimizer; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        wrong_when="the figure is reserved, not used memory",
        check="The peak is below 90 %.",
        sources="TML, TBP, AL",
    ),
    Rule(
        name="memory-idle",
        find=memory_idle,
        sees="Less than half of the device's memory is used, and a larger batch would help.",
        evidence="peak as a share of the device's memory, the bottleneck",
        fix="A larger micro-batch: each launch and each read of a weight then serves more tokens.",
        wrong_when="the recipe fixes the batch",
        check="Throughput rises with the batch.",
        sources="AL, DL, SM, HF",
    ),
)
