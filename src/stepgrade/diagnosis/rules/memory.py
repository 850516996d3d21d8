"""Rules about the device's memory: what it holds, how it is lost, when it runs out, or is hardly used."""

from __future__ import annotations

import re
from functools import partial

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rule import Evidence, Found, Rule
from stepgrade.model.memory import Memory
from stepgrade.scoring.causes import Bottleneck
from stepgrade.units import show_bytes, show_count, show_share

# Operations that allocate for a loss over a vocabulary, besides the logits.
_LOSS = re.compile(r"log_softmax|nll_loss|cross_entropy|CrossEntropy|NllLoss", re.IGNORECASE)
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_WAYS_OUT = (
    f"Cheapest first: {_EXPANDABLE}; a chunked loss, or one fused with the head; torch.compile; sharded "
    "(ZeRO-1, FSDP) or 8-bit optimizer states; selective activation checkpointing; a smaller "
    "micro-batch with gradient accumulation; full activation checkpointing."
)
memory_rule = partial(Rule, area="memory")
measured_rule = partial(
    memory_rule, needs="memory", sources="MEM"
)  # rules from published memory measurements


@measured_rule(
    sees="The log or snapshot ends with a failed allocation.",
    evidence="requested and free bytes, holders of memory, other processes",
    fix=_WAYS_OUT,
    wrong_when="the run continued with a smaller batch",
    check="The run continues past the point where it failed.",
)
def out_of_memory(_: RuleContext, memory: Memory) -> Found | None:
    failed = memory.out_of_memory
    if failed is None:
        return None
    asked, others, lost = (
        size or 0.0 for size in (failed.asked_bytes, failed.other_processes_bytes, failed.unallocated_bytes)
    )
    held, remedy, why = memory.categories, _WAYS_OUT, ""
    if others > asked:
        why = f", while other processes hold {show_bytes(others)} of the device"
        remedy = f"Stop the other processes on the device, or use another device. {_WAYS_OUT}"
    elif lost >= asked > 0.0:
        why = f", though {show_bytes(lost)} are reserved but in no tensor"
        remedy = f"The memory is fragmented: set {_EXPANDABLE}. It costs no time."
    elif held:
        most = max(held, key=held.__getitem__)
        why = f"; most of the memory holds {most} ({show_bytes(held[most])})"
    elif failed.allocated_bytes:
        why = f" on top of {show_bytes(failed.allocated_bytes)} in tensors"
    what = show_bytes(failed.asked_bytes) if failed.asked_bytes is not None else "memory"
    claim = f"The run ended out of memory: {what} could not be allocated{why}."
    evidence: Evidence = {
        "asked_bytes": failed.asked_bytes,
        "free_bytes": failed.free_bytes,
        "allocated_bytes": failed.allocated_bytes,
        "unallocated_bytes": failed.unallocated_bytes,
        "other_processes_bytes": failed.other_processes_bytes,
    }
    return Found(claim, evidence, severity="critical", remedy=remedy)


@measured_rule(
    sees="Each step leaves more memory allocated.",
    evidence="bytes per step, and who allocates them",
    fix="Do not keep tensors with their graph: store loss.item() or loss.detach(), clear lists of outputs.",
    wrong_when="a cache fills up to a known size",
    check="The same memory is allocated at the end of every step.",
)
def memory_grows(context: RuleContext, memory: Memory) -> Found | None:
    growth = memory.growth
    if growth is None or growth.bytes_per_step < context.limits.growth_bytes:
        return None
    where = growth.holders[0].shown if growth.holders else None
    claim = f"Memory grows by {show_bytes(growth.bytes_per_step)} every step"
    left = memory.headroom_bytes
    if left is not None and left > 0.0:
        claim += f" and is full after {show_count(int(left / growth.bytes_per_step))} more"
    claim += f": {where} allocates it" if where is not None else ""
    evidence: Evidence = {
        "bytes_per_step": growth.bytes_per_step,
        "steps": float(growth.steps),
        "allocated_by": where,
    }
    return Found(f"{claim}.", evidence, severity="warning")


@measured_rule(
    sees="In steady steps the allocator returns memory and requests it again.",
    evidence="number of retries",
    fix="Leave more headroom: a smaller micro-batch, or fewer tensors kept.",
    fix_pytorch=f"Set {_EXPANDABLE}; no empty_cache() in the loop; leave more headroom.",
    wrong_when="empty_cache() is called on purpose, as before an evaluation",
    check="num_alloc_retries in torch.cuda.memory_stats() stays 0.",
)
def allocator_retries(_: RuleContext, memory: Memory) -> Found | None:
    retries = memory.retries
    if not retries:
        return None
    times = "once" if retries == 1 else f"{show_count(retries)} times"
    claim = f"The allocator ran out of memory {times}, returned its cache to the device and retried."
    return Found(claim, {"retries": float(retries)}, severity="warning")


@measured_rule(
    sees="At the peak, much of the reserved memory is in no tensor.",
    evidence="its share and bytes",
    fix="Allocate fewer sizes: pad batches to a few lengths.",
    fix_pytorch=f"Set {_EXPANDABLE}; it costs no time. Pad batches to a few lengths.",
    wrong_when="another phase, such as evaluation, needs it",
    check="Reserved memory is closer to allocated memory.",
)
def memory_fragmented(context: RuleContext, memory: Memory) -> Found | None:
    limits = context.limits
    if memory.fragmentation is None or memory.reserved_bytes is None:
        return None
    lost = memory.fragmentation * memory.reserved_bytes
    capacity = memory.capacity_bytes
    has_room = capacity is not None and memory.reserved_bytes < limits.memory_tight_share * capacity
    if memory.fragmentation < limits.fragmentation_share or lost < limits.fragmentation_bytes or has_room:
        return None
    claim = (
        f"{show_bytes(lost)} of device memory, {show_share(memory.fragmentation)} of the reserved memory, is "
        "in no tensor at the peak."
    )
    return Found(claim, {"fragmentation": memory.fragmentation, "lost_bytes": lost}, severity="warning")


@measured_rule(
    sees="The loss dominates the peak.",
    evidence="its bytes and share at the peak",
    fix="Compute the loss in chunks of tokens, or fused with the head.",
    fix_pytorch="Use a chunked loss, or one fused with the head (Liger's fused linear cross-entropy); or "
    "torch.compile the loss.",
    wrong_when="the batch is large on purpose",
    check="The peak moves to another operation.",
)
def loss_dominates_memory(context: RuleContext, memory: Memory) -> Found | None:
    if not memory.peak_bytes:
        return None
    held = sum(holder.bytes for holder in memory.holders if holder.op and _LOSS.search(holder.op))
    share = held / memory.peak_bytes
    if share < context.limits.loss_memory_share:
        return None
    claim = f"The loss dominates the peak: it takes {show_bytes(held)}, {show_share(share)} of it."
    return Found(claim, {"loss_bytes": held, "loss_share": share}, severity="warning")


@measured_rule(
    sees="Several ranks hold the same optimizer states.",
    evidence="their bytes at the peak, ranks",
    fix="Shard the optimizer states across ranks: ZeRO-1 adds no traffic.",
    fix_pytorch="Use ZeroRedundancyOptimizer, or FSDP's fully_shard.",
    wrong_when="nothing else needs the memory",
    check="Each of N ranks holds 1/N of the states.",
)
def optimizer_unsharded(context: RuleContext, memory: Memory) -> Found | None:
    ranks, states = context.profile.world_size or 1, memory.categories.get("optimizer", 0.0)
    if not memory.peak_bytes or ranks < 2 or context.parallelism not in {"data", None}:
        return None
    share = states / memory.peak_bytes
    weights = memory.categories.get("weights", 0.0)
    # Sharded states are smaller than their weights.
    if share < context.limits.optimizer_memory_share or states < weights:
        return None
    claim = (
        f"Each of {ranks} ranks holds all optimizer states: {show_bytes(states)}, {show_share(share)} of the "
        "peak."
    )
    return Found(claim, {"optimizer_bytes": states, "ranks": float(ranks)}, severity="info")


@measured_rule(
    sees="Memory is nearly full, mostly with activations, and none are recomputed.",
    evidence="bytes of activations at the peak",
    fix="Recompute cheap operations: selective activation checkpointing keeps the matrix products.",
    wrong_when="unfused attention holds them: fuse it instead",
    check="The peak falls, and the step is at most 10 % slower.",
)
def activations_kept(context: RuleContext, memory: Memory) -> Found | None:
    limits = context.limits
    if not memory.peak_bytes or (context.activity.recompute_ms or 0.0) > 0.0:
        return None
    kept = memory.categories.get("activations", 0.0)
    tight = memory.out_of_memory is not None or (context.memory_share or 0.0) >= limits.memory_tight_share
    if kept < limits.activation_memory_share * memory.peak_bytes or not tight:
        return None
    claim = (
        f"{show_bytes(kept)} of activations, {show_share(kept / memory.peak_bytes)} of the peak, is kept for "
        "the backward pass; none are recomputed."
    )
    return Found(claim, {"activation_bytes": kept}, severity="info")


memory_nearly_full = memory_rule(
    sees="The peak of the step is close to the device's capacity.",
    evidence="peak over the device's memory",
    fix="Recompute activations, shard optimizer state, or use a smaller micro-batch.",
    fix_pytorch=f"Use activation checkpointing, FSDP or an 8-bit optimizer; set {_EXPANDABLE}.",
    wrong_when="the figure is reserved memory",
    check="The peak is below 90 %.",
    sources="TML, TBP, AL",
    claim="The step's peak is {memory_share} of the device's memory.",
    figures={"memory_share": "memory_share"},
    levels="memory",
)


@memory_rule(
    sees="Less than half of the device's memory is used, and a larger batch would help.",
    evidence="peak over the device's memory, the bottleneck",
    fix="Use a larger micro-batch: each launch and each read of a weight then serves more tokens.",
    wrong_when="the recipe fixes the batch size",
    check="Throughput rises with the batch size.",
    sources="AL, DL, SM, HF",
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
    return Found(claim, {"memory_share": share}, severity="info")
