"""Rules about what the device waits for: input, copies, and the host's own waits for the device."""

from __future__ import annotations

import re
from functools import partial

from stepgrade.contract import Bottleneck as BottleneckV1
from stepgrade.diagnosis.context import RuleContext, Runtime
from stepgrade.diagnosis.rule import Evidence, Found, Rule, Worth, in_inference, on_amd
from stepgrade.model.activity import CopyRow, HostLine, WaitTally
from stepgrade.statistics import median
from stepgrade.units import how_often, show_bytes, show_count, show_ms, show_share

_PREFETCHED = "prefetching hides all of it except the first batch of an epoch"
_ON_MAIN_THREAD = "_SingleProcessDataLoaderIter"
_SYNC = "idle_sync+idle_host"
_USUAL_WORKERS = 4
_RUNS_AHEAD = "without the wait the host runs ahead of the device"
_SCALAR = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"})
_SHAPES = r"^aten::(nonzero|masked_select|_?unique\w*|index|index_put_|repeat_interleave)$"
_ALLOCATOR = r"^(cuda|hip)(Malloc|Free)"
_OUTLASTS = 1.5  # times the wait: then the host's work after it holds the device up, not the wait
_DEVICE_SYNC = r"^(cuda|hip)(Device|Event|Stream)Synchronize$"
_COPIES = "exposed_copy+idle_sync+idle_host"
input_rule = partial(Rule, area="input", levels="input")
synchronisation_rule = partial(Rule, area="synchronisation", levels="sync")
transfer_rule = partial(Rule, area="transfer", levels="copy")


def _input_line(context: RuleContext) -> HostLine | None:
    """Return the line of the user's code that prepares batches, if stacks were recorded."""
    return next(iter(context.activity.lines.get("input", ())), None)


@input_rule(
    sees="Batches are prepared on the training thread while the device waits.",
    evidence="iterator class, share waiting for input",
    fix="Prepare batches ahead of the step, in other processes.",
    fix_pytorch="Give the DataLoader num_workers=4 or more (it has 0) and persistent_workers=True, so that "
    "batches are prepared ahead of the step. pin_memory=True speeds up their copies to the device.",
    wrong_when="batches are in memory and indexing is free",
    check="The iterator is _MultiProcessingDataLoaderIter and the wait for input is gone.",
    worth=Worth("idle_input", 0.9, _PREFETCHED),
    explains=("input-wait", "starved-loader", "unsteady-steps"),
    sources="PM, AL, TBP",
)
def loader_on_main_thread(context: RuleContext) -> Found | None:
    if context.activity.loader != _ON_MAIN_THREAD:
        return None
    share = context.figures["input_share"]
    claim = f"{show_share(share)} of the step is spent preparing batches on the training thread."
    evidence: Evidence = {"input_share": share, "loader": _ON_MAIN_THREAD}
    return Found(claim, evidence, share, remedy=_workers_for(context), line=_input_line(context))


def _workers_for(context: RuleContext) -> str | None:
    """Return how many workers the machine has cores for, where there are fewer than is usual."""
    recorded = context.profile.recorded
    if recorded is None or recorded.processor_cores is None or context.runtime is not Runtime.PYTORCH:
        return None
    cores = max(1, recorded.processor_cores // recorded.processor_ranks)
    if cores >= _USUAL_WORKERS:
        return None
    there_are = "there is 1 core" if cores == 1 else f"there are {cores} cores"
    each = " for each rank" if recorded.processor_ranks > 1 else ""
    return (
        f"Give the DataLoader num_workers={cores} (it has 0, and {there_are}{each}) and "
        "persistent_workers=True, so that batches are prepared ahead of the step."
    )


@input_rule(
    sees="Some steps wait long for a batch, others hardly: the prefetch queue runs empty.",
    evidence="steps that wait beyond a limit, longest and median wait",
    fix="Deepen the prefetch queue and even out the batches: more workers, a larger prefetch.",
    fix_pytorch="Raise prefetch_factor and num_workers; shard or sort samples so that no batch takes much "
    "longer.",
    wrong_when="the slow steps are epoch ends",
    check="No step waits longer than the others.",
    worth=Worth(
        "idle_input",
        0.8,
        "a deeper queue absorbs slow batches only if workers keep up with the steps on average",
    ),
    explains=("input-wait", "unsteady-steps"),
    sources="GPF",
)
def starved_loader(context: RuleContext) -> Found | None:
    waits, limits = sorted(context.activity.input_ms), context.limits
    slow = [ms for ms in waits if ms > limits.starved_ms]
    if not waits or len(slow) < limits.starved_steps_share * len(waits):
        return None
    median_ms = median(waits)
    if median_ms > limits.starved_ms / 2:
        return None
    share = context.figures["input_share"]
    claim = (
        f"{show_count(len(slow))} of {len(waits)} steps wait up to {show_ms(waits[-1])} for a batch; "
        f"the median step waits {show_ms(median_ms)}."
    )
    steps = {"steps": float(len(slow)), "longest_ms": waits[-1], "median_ms": median_ms}
    return Found(claim, {**steps, "input_share": share}, share)


@input_rule(
    sees="The device is idle while the host waits for the next batch.",
    evidence="share waiting for input",
    fix="Load batches ahead of the step: more loader workers, prefetching, cheaper decoding.",
    fix_pytorch="Raise DataLoader's num_workers and prefetch_factor, keep persistent_workers=True, and "
    "move decoding or augmentation out of the loop.",
    fix_jax="Prefetch to the device, for example with flax's prefetch_to_device or grain's workers.",
    wrong_when="only the start of an epoch is slow, and was recorded",
    check="The wait for input disappears from the ledger and the step gets shorter by as much.",
    worth=Worth("idle_input", 0.9, _PREFETCHED),
    explains=("unsteady-steps",),
    sources="XP, TBP, TML, GPF, NAI",
)
def input_wait(context: RuleContext) -> Found | None:
    share = context.figures["input_share"]
    claim = f"{show_share(share)} of the step is spent waiting for input."
    if context.profile.steps == 1 and context.activity.loader == "_MultiProcessingDataLoaderIter":
        claim += " Only one step was recorded: its wait may include starting the loader's workers."
    return Found(claim, {"input_share": share}, share, line=_input_line(context))


def kind_of_wait(wait: WaitTally) -> str:
    """Return what made the host wait."""
    if re.match(_ALLOCATOR, wait.call):
        return "allocator"
    if wait.caller in _SCALAR:
        return "scalar"
    if wait.caller is not None and re.match(_SHAPES, wait.caller):
        return "shape"
    if wait.direction == "d2h":
        return "scalar"
    if wait.caller is None and wait.direction is None and re.match(_DEVICE_SYNC, wait.call):
        return "explicit"
    return "copy"


def is_outlasted(context: RuleContext, wait: WaitTally) -> bool:
    """Return whether the host's work after these waits delays the device more than the waits do."""
    gaps = context.activity.gaps
    if gaps is None or wait.idle_ms is None or not wait.count:
        return False
    return wait.idle_ms > _OUTLASTS * wait.ms and wait.idle_ms / wait.count > gaps.stall_from_ms


def outlasted_share(context: RuleContext) -> float:
    """Return the share of the step that the device idles after waits that the host's work outlasts."""
    waits = [wait for wait in context.activity.waits if is_outlasted(context, wait)]
    return context.step_share(sum(min(wait.ms, wait.idle_ms or 0.0) for wait in waits))


def idle_share_of(context: RuleContext, chosen: list[WaitTally]) -> float:
    """Return the share of the step that the device idles because of these waits.

    A wait costs at most its own length, since without it the host would be ahead by that much. If the gaps
    after waits were not recorded, the waits share the idle time by length.
    """
    waits, idle = context.activity.waits, context.figures["sync_share"]
    waited_ms = sum(wait.ms for wait in chosen)
    if all(wait.idle_ms is not None for wait in waits):
        followed_ms = sum(wait.idle_ms or 0.0 for wait in chosen)
        return min(idle, context.step_share(min(followed_ms, waited_ms)))
    total_ms = sum(wait.ms for wait in waits)
    return idle * waited_ms / total_ms if total_ms else 0.0


def _waits(kind: str, what_happens: str, context: RuleContext) -> Found | None:
    waits = [
        wait
        for wait in context.activity.waits
        if kind_of_wait(wait) == kind and not is_outlasted(context, wait)
    ]
    if not waits:
        return None
    share, count, longest = idle_share_of(context, waits), sum(wait.count for wait in waits), waits[0]
    claim = f"{what_happens} {how_often(count)}, leaving the device idle for {show_share(share)} of the step."
    evidence: Evidence = {
        "calls": count,
        "wait_ms": sum(wait.ms for wait in waits),
        "idle_share": share,
        "call": longest.call,
        "caller": longest.caller or None,
    }
    return Found(claim, evidence, share, line=longest.line)


scalar_read_sync = synchronisation_rule(
    sees="The loop reads values back from the device (.item(), .cpu(), .tolist(), print, `if tensor`).",
    evidence="reads per step, milliseconds waited, idle share",
    fix="Read values back every 100 steps, or keep them on the device until the end.",
    fix_pytorch="Take .item(), .cpu(), .tolist(), print(tensor) and `if tensor:` out of the loop; keep the "
    "loss as a detached tensor and read it every 100 steps.",
    fix_where=(
        in_inference(
            "Launch the next batch before copying results to the host: .to('cpu', non_blocking=True) into "
            "pinned memory, without .item(), .tolist() or `if tensor:` before it.",
        ),
    ),
    fix_jax="Do not convert arrays to Python numbers in the loop; log every 100 steps.",
    wrong_when="the next step depends on the value",
    check="No wait under aten::item or a copy to the host, and the synchronisation account is near zero.",
    worth=Worth(_SYNC, 0.8, _RUNS_AHEAD, "sync"),
    explains=("sync-wait", "launch-gaps", "blocking-copy-sync", "host-stall"),
    sources="TG, NS, NAI, XP",
    find=partial(_waits, "scalar", "Values are read back from the device"),
)


data_dependent_sync = synchronisation_rule(
    sees="The host waits for data-dependent sizes (nonzero, masked_select, unique).",
    evidence="calls per step, the operation, idle share",
    fix="Use operations with a fixed output size: where, scatter, padding and masks.",
    fix_pytorch="Replace nonzero, masked_select, boolean indexing and unique with torch.where, scatter or "
    "masks of fixed size.",
    fix_jax="Give jnp.nonzero and similar functions a static size=.",
    wrong_when="the dense form would do far more work",
    check="The operation no longer synchronises.",
    worth=Worth(_SYNC, 0.7, _RUNS_AHEAD, "sync"),
    explains=("sync-wait", "launch-gaps", "blocking-copy-sync"),
    sources="TG",
    find=partial(_waits, "shape", "Sizes are read back from the device"),
)


allocator_sync = synchronisation_rule(
    sees="Steady steps allocate or free device memory, which stops the device.",
    evidence="calls per step (cudaFree, cudaMalloc, hipFree), idle share",
    fix="Allocate once and reuse: keep memory in a pool.",
    fix_pytorch="Keep the caching allocator on: no PYTORCH_NO_CUDA_MEMORY_CACHING, no empty_cache() in "
    "the loop; with changing sizes use PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    fix_where=(
        on_amd(
            "Keep the caching allocator on: no PYTORCH_NO_HIP_MEMORY_CACHING, no empty_cache() in the "
            "loop; with changing sizes use PYTORCH_HIP_ALLOC_CONF=expandable_segments:True.",
        ),
    ),
    fix_jax="Leave XLA_PYTHON_CLIENT_PREALLOCATE on.",
    wrong_when="these are the first steps, while the pool grows",
    check="No cudaMalloc or cudaFree in steady steps.",
    worth=Worth(_SYNC, 0.9, "a pool that has grown makes no such calls", "sync"),
    explains=("sync-wait", "launch-gaps", "memory-nearly-full"),
    sources="TML, TG",
    find=partial(_waits, "allocator", "Device memory is allocated or freed"),
)


device_synchronize = synchronisation_rule(
    sees="Each step synchronises with the device explicitly.",
    evidence="synchronising calls per step outside operations, idle share",
    fix="Remove the explicit synchronisation; measure times with events.",
    fix_pytorch="Remove torch.cuda.synchronize() and stream.synchronize() from the loop; time with CUDA "
    "events.",
    fix_jax="Remove block_until_ready() from the loop.",
    wrong_when="the profiler itself made the call",
    check="No synchronising call in steady steps.",
    worth=Worth(_SYNC, 0.8, _RUNS_AHEAD, "sync"),
    explains=("sync-wait", "launch-gaps", "host-stall"),
    sources="NS, NAI",
    find=partial(_waits, "explicit", "The program waits for the device explicitly"),
)


blocking_copy_sync = synchronisation_rule(
    sees="The host blocks until copies finish.",
    evidence="blocking copies per step, milliseconds waited, idle share",
    fix="Copy asynchronously, from pinned memory.",
    fix_pytorch="Copy with non_blocking=True from pinned memory; read results back a step later.",
    wrong_when="the host needs the value at once",
    check="Copy calls return before the copies end.",
    worth=Worth(_SYNC, 0.7, _RUNS_AHEAD, "sync"),
    explains=("sync-wait",),
    sources="NS",
    find=partial(_waits, "copy", "The host waits for copies to finish"),
)


@synchronisation_rule(
    sees="The device is idle because the host waited for it instead of running ahead.",
    evidence="idle share in synchronisation, the longest waits",
    fix="Find what synchronises in the loop (reading values back, blocking copies, barriers) and remove it.",
    fix_pytorch="torch.cuda.set_sync_debug_mode('warn') reports the lines that synchronise; remove them.",
    wrong_when="the loop has to wait, for example for early stopping",
    check="The synchronisation account shrinks, and the step with it.",
    worth=Worth(_SYNC, 0.7, _RUNS_AHEAD, "sync"),
    explains=("launch-gaps",),
    sources="NS, NAI",
)
def sync_wait(context: RuleContext) -> Found | None:
    share = max(0.0, context.figures["sync_share"] - outlasted_share(context))
    longest = ", ".join(f"{wait.call} {show_ms(wait.ms)}" for wait in context.activity.waits[:3])
    claim = f"The device is idle for {show_share(share)} of the step because the host synchronised with it."
    return Found(claim, {"idle_share": share, "waits": longest}, share)


@synchronisation_rule(
    sees="Without an accelerator: single values are read in a loop.",
    evidence="reads per step, share between reads",
    fix="Work on whole arrays instead of one value at a time.",
    fix_pytorch="Replace the loop over .item() or tensor[i] with one tensor operation, or one .tolist().",
    wrong_when="the step is long and the reads are a small part of it",
    check="aten::item is called a few times a step.",
    worth=Worth("compute+idle_host", 0.9, "one call on the whole tensor takes about as long as one read"),
    explains=(
        "python-loop",
        "python-overhead",
        "host-stall",
        "device-copies",
        "elementwise-chains",
        "data-shuffling",
        "slow-layer",
    ),
    sources="PM",
)
def scalar_read_loop(context: RuleContext) -> Found | None:
    reads, limits = context.activity.marks.get("item", 0.0), context.limits
    if context.activity.driver != "host" or reads < limits.reads_per_step:
        return None
    loop, lines = context.activity.loop, context.activity.lines.get("reads", ())
    in_loop_ms = loop.ms if loop is not None and "aten::item" in loop.operations else 0.0
    share = context.step_share(max(context.activity.scalar_read_ms, in_loop_ms))
    claim = f"Each step reads {show_count(round(reads))} single values, {show_share(share)} of its time."
    severity = context.severity("sync", share)
    # Hundreds of reads are a loop over values, and on a device each of them would stop the step.
    if severity == "info" and reads >= limits.many_reads_per_step:
        severity = "warning"
    return Found(claim, {"reads": reads, "share": share}, share, severity, line=lines[0] if lines else None)


def _lost_share(context: RuleContext, copies: list[CopyRow]) -> float:
    """Return the share of the step that these host-to-device copies cost, exposed or waited for."""
    copies_ms = sum(copy.ms for copy in copies)
    total_ms = sum(copy.ms for copy in context.activity.copies)
    to_device_ms = sum(copy.ms for copy in context.activity.copies if copy.direction == "h2d")
    waited = idle_share_of(context, [wait for wait in context.activity.waits if kind_of_wait(wait) == "copy"])
    exposed = context.account("exposed_copy") * copies_ms / total_ms if total_ms else 0.0
    return exposed + (waited * copies_ms / to_device_ms if to_device_ms else 0.0)


@transfer_rule(
    sees="Copies use pageable host memory: they are staged, slow and blocking.",
    evidence="pageable copies per step, time, bytes, share",
    fix="Copy from pinned (page-locked) host memory, asynchronously.",
    fix_pytorch="Use DataLoader(pin_memory=True) and .to(device, non_blocking=True); pin the "
    "buffers you copy from yourself.",
    wrong_when="the host needs the value at once",
    check="The copies are named Pinned in the trace and the wait is gone.",
    worth=Worth(_COPIES, 0.7, "a copy from pinned memory overlaps kernels, if there are any", "copies+sync"),
    explains=("heavy-transfer", "blocking-copy-sync", "sync-wait"),
    sources="NS, AL, TG",
)
def pageable_copies(context: RuleContext) -> Found | None:
    pageable = [
        copy for copy in context.activity.copies if copy.memory == "pageable" and copy.direction == "h2d"
    ]
    if not pageable:
        return None
    count, ms = sum(copy.calls for copy in pageable), sum(copy.ms for copy in pageable)
    share = _lost_share(context, pageable)
    claim = (
        f"Copies from pageable memory, {how_often(count)} ({show_ms(ms)}), cost {show_share(share)} of the "
        "step."
    )
    sizes = [copy.bytes for copy in pageable if copy.bytes is not None]
    moved = sum(sizes) if len(sizes) == len(pageable) else None
    return Found(claim, {"copies": count, "copy_ms": ms, "lost_share": share, "bytes": moved}, share)


@transfer_rule(
    sees="Each step copies many small values to the device.",
    evidence="copies per step, mean size, share",
    fix="Batch small copies into one, or create the values on the device.",
    fix_pytorch="Build masks, positions and scalars on the device (device=...), and copy the rest as "
    "one tensor.",
    wrong_when="the copies overlap kernels and nothing waits for them",
    check="Fewer copies per step, and the wait shrinks.",
    worth=Worth(_COPIES, 0.6, "one large copy takes about as long as a small one", "copies+sync"),
    explains=("heavy-transfer", "blocking-copy-sync"),
    sources="TL, PM, XP",
)
def many_small_copies(context: RuleContext) -> Found | None:
    limits = context.limits
    small = [
        copy
        for copy in context.activity.copies
        if copy.direction == "h2d"
        and copy.bytes is not None
        and copy.bytes < limits.small_copy_bytes * copy.calls
    ]
    count = sum(copy.calls for copy in small)
    if count <= limits.copies_per_step:
        return None
    share, mean = _lost_share(context, small), sum(copy.bytes or 0.0 for copy in small) / count
    claim = (
        f"{show_count(round(count))} copies a step move {show_bytes(mean)} each to the device and cost "
        f"{show_share(share)} of the step."
    )
    return Found(claim, {"copies": count, "mean_bytes": mean, "lost_share": share}, share)


offload_traffic = transfer_rule(
    sees="The backward pass or optimizer copies between host and device: state is on the host.",
    evidence="time of copies in backward and optimizer, exposed share",
    fix="Keep gradients and optimizer state on the device if they fit; else overlap their copies.",
    fix_pytorch="Shard optimizer state over the devices (FSDP, ZeRO) or use an 8-bit optimizer instead "
    "of CPU offload; with offload, copy on a separate stream.",
    wrong_when="the model only fits with offloading",
    check="No copies in the backward pass or optimizer.",
    worth=Worth("exposed_copy", 0.5, "the state must live somewhere; sharding costs communication instead"),
    explains=("heavy-transfer",),
    sources="XP",
    claim="{copy_ms} a step goes to copies in the backward pass or optimizer: state is on the host.",
    figures={"copy_ms": "offload_ms", "lost_share": "offload_share"},
)


heavy_transfer = transfer_rule(
    sees="Exposed copies between host and device take much of the step.",
    evidence="exposed copy share",
    fix="Copy less between host and device: keep tensors on the device, pin memory, overlap copies.",
    fix_pytorch="Keep tensors on the device; copy batches with pin_memory=True and .to(device, "
    "non_blocking=True), a step ahead.",
    fix_jax="Keep arrays on the device between steps; device_put the next batch while this one runs.",
    fix_reference=BottleneckV1.TRANSFER.recommendation(),
    wrong_when="weights or optimizer state are on the host because they do not fit",
    check="The h2d and d2h phases shrink, and the step by as much.",
    worth=Worth("exposed_copy", 0.7, "the bytes still have to move; overlap hides most of that"),
    sources="TL, TML, NAI, REF",
    claim="Copies between host and device take {transfer_share} of the step.",
    figures={"transfer_share": "transfer_share"},
)
