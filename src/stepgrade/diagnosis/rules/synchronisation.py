"""Rules about synchronisation: the host waits for the device, then the device for the host."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import structs

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Remedy, Rule, Worth
from stepgrade.model.activity import WaitTally
from stepgrade.units import how_often, show_count, show_ms, show_share

_ACCOUNT = "idle_sync+idle_host"
_BECAUSE = "without the wait the host runs ahead and waits only for the device's own work"
_SCALAR = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"})
_SHAPES = r"^aten::(nonzero|masked_select|_?unique\w*|index|index_put_|repeat_interleave)$"
_ALLOCATOR = r"^(cuda|hip)(Malloc|Free)"
_OUTLASTS = 1.5  # times a wait: the host's work after it is then what holds the device up
_DEVICE_SYNC = r"^(cuda|hip)(Device|Event|Stream)Synchronize$"


def _levels(limits: Limits) -> Levels:
    return Levels(limits.sync_info_share, limits.sync_warning_share, limits.sync_critical_share)


def kind_of_wait(wait: WaitTally) -> str:
    """Return what made the host wait; the first that fits."""
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
    """Return whether the host works longer after these waits than they last, and so delays the device.

    Without them it would be ahead by less than it then takes, and in gaps that no launch takes.
    """
    gaps = context.activity.gaps
    if gaps is None or wait.idle_ms is None or not wait.count:
        return False
    return wait.idle_ms > _OUTLASTS * wait.ms and wait.idle_ms / wait.count > gaps.stall_from_ms


def idle_share_of(context: RuleContext, chosen: list[WaitTally]) -> float:
    """Return the share of the step that these waits keep the device idle for.

    That is what follows them, but no more than they last: without them the host would be ahead by as much. By
    their length alone where gaps have no known wait.
    """
    waits, idle = context.activity.waits, _idle_share(context)
    waited_ms = sum(wait.ms for wait in chosen)
    if all(wait.idle_ms is not None for wait in waits):
        followed_ms = sum(wait.idle_ms or 0.0 for wait in chosen)
        return min(idle, context.step_share(min(followed_ms, waited_ms)))
    total_ms = sum(wait.ms for wait in waits)
    return idle * waited_ms / total_ms if total_ms else 0.0


def _idle_share(context: RuleContext) -> float:
    """Return the share of the step idle in waits of the host, and after them, as it could not run ahead."""
    gaps = context.activity.gaps
    return context.account("idle_sync") + (context.step_share(gaps.after_sync_ms) if gaps else 0.0)


def waits_of(kind: str, what_happens: str) -> Callable[[RuleContext], Found | None]:
    """Return a function that reports waits of one kind."""

    def find(context: RuleContext) -> Found | None:
        waits = [
            wait
            for wait in context.activity.waits
            if kind_of_wait(wait) == kind and not is_outlasted(context, wait)
        ]
        if not waits:
            return None
        share, count, longest = idle_share_of(context, waits), sum(wait.count for wait in waits), waits[0]
        claim = (
            f"{what_happens} {how_often(count)}: the device is idle for {show_share(share)} of the step "
            "because of it."
        )
        evidence: Evidence = {
            "calls": count,
            "wait_ms": sum(wait.ms for wait in waits),
            "idle_share": share,
            "call": longest.call,
        }
        if longest.caller:
            evidence["caller"] = longest.caller
        return _levels(context.limits).found(share, claim, evidence, line=longest.line)

    return find


def sync_wait(context: RuleContext) -> Found | None:
    outlasted_ms = sum(
        min(wait.ms, wait.idle_ms or 0.0) for wait in context.activity.waits if is_outlasted(context, wait)
    )
    share = max(0.0, _idle_share(context) - context.step_share(outlasted_ms))
    longest = ", ".join(f"{wait.call} {show_ms(wait.ms)}" for wait in context.activity.waits[:3])
    claim = f"The device is idle for {show_share(share)} of the step because the host waited for it."
    return _levels(context.limits).found(share, claim, {"idle_share": share, "waits": longest})


def scalar_read_loop(context: RuleContext) -> Found | None:
    reads, limits = context.activity.marks.get("item", 0.0), context.limits
    if context.activity.driver != "host" or reads < limits.reads_per_step:
        return None
    loop, lines = context.activity.loop, context.activity.lines.get("reads", ())
    in_loop_ms = loop.ms if loop is not None and "aten::item" in loop.operations else 0.0
    share = context.step_share(max(context.activity.scalar_read_ms, in_loop_ms))
    claim = (
        f"{show_count(round(reads))} single values are read in each step: {show_share(share)} of its time."
    )
    line = lines[0] if lines else None
    found = _levels(limits).found(share, claim, {"reads": reads, "share": share}, line=line)
    # Hundreds are a loop over values, whatever else the step does: on a device each would stop it.
    if found is not None and found.severity == "info" and reads >= limits.many_reads_per_step:
        return structs.replace(found, severity="warning")
    return found


RULES = (
    Rule(
        name="scalar-read-sync",
        find=waits_of("scalar", "Values are read back from the device"),
        sees="The loop reads values back from the device (.item(), .cpu(), .tolist(), print, `if tensor`).",
        evidence="reads per step, milliseconds waited, share of the step idle",
        fix="Read values back every hundredth step, or keep them on the device until the end.",
        fix_pytorch="Take .item(), .cpu(), .tolist(), print(tensor) and `if tensor:` out of the loop; keep "
        "the loss as a detached tensor and read it every hundredth step.",
        fix_where=(
            Remedy(
                "inference",
                lambda context: context.work == "inference",
                "Copy results to the host once, after the next batch was launched: .to('cpu', "
                "non_blocking=True) into pinned memory, and no .item(), .tolist() or `if tensor:` before.",
            ),
        ),
        fix_jax="Do not convert arrays to Python numbers in the loop: log every hundredth step, or use "
        "jax.debug.callback.",
        wrong_when="the value decides what the next step does",
        check="No wait under aten::item or a copy to the host, and the synchronisation account is near zero.",
        worth=Worth(_ACCOUNT, 0.8, _BECAUSE),
        explains=("sync-wait", "launch-gaps", "blocking-copy-sync", "host-stall"),
        sources="TG, NS, NAI, XP",
    ),
    Rule(
        name="data-dependent-sync",
        find=waits_of("shape", "Sizes are read back from the device"),
        sees="The host waits for data-dependent sizes (nonzero, masked_select, unique).",
        evidence="calls per step, the operation, share of the step idle",
        fix="Use operations with a fixed output size: where, scatter, padding and masks.",
        fix_pytorch="Replace nonzero, masked_select, boolean indexing and unique by torch.where, scatter or "
        "masks of fixed size.",
        fix_jax="Give jnp.nonzero and functions like it a static size=.",
        wrong_when="the dense form would do far more work",
        check="The operation no longer waits.",
        worth=Worth(_ACCOUNT, 0.7, _BECAUSE),
        explains=("sync-wait", "launch-gaps", "blocking-copy-sync"),
        sources="TG",
    ),
    Rule(
        name="allocator-sync",
        find=waits_of("allocator", "Device memory is allocated or freed"),
        sees="Steady steps allocate or free device memory, which stops the device.",
        evidence="calls per step (cudaFree, cudaMalloc, hipFree), share of the step idle",
        fix="Keep memory in a pool: allocate once, reuse.",
        fix_pytorch="Keep the caching allocator on: no PYTORCH_NO_CUDA_MEMORY_CACHING, no empty_cache() in "
        "the loop; with changing sizes use PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        fix_where=(
            Remedy(
                "on AMD's devices",
                lambda context: context.platform == "rocm",
                "Keep the caching allocator on: no PYTORCH_NO_HIP_MEMORY_CACHING, no empty_cache() in the "
                "loop; with changing sizes use PYTORCH_HIP_ALLOC_CONF=expandable_segments:True.",
            ),
        ),
        fix_jax="Leave XLA_PYTHON_CLIENT_PREALLOCATE on.",
        wrong_when="these are the first steps, in which the pool grows",
        check="No cudaMalloc or cudaFree in the steady steps.",
        worth=Worth(_ACCOUNT, 0.9, "a pool needs no call at all once it has grown"),
        explains=("sync-wait", "launch-gaps", "memory-nearly-full"),
        sources="TML, TG",
    ),
    Rule(
        name="device-synchronize",
        find=waits_of("explicit", "The program waits for the device explicitly"),
        sees="Each step synchronises with the device explicitly.",
        evidence="synchronising calls per step outside operations, share of the step idle",
        fix="Remove the explicit synchronisation, or measure with events.",
        fix_pytorch="Remove torch.cuda.synchronize() and stream.synchronize() from the loop; time with CUDA "
        "events.",
        fix_jax="Remove block_until_ready() from the loop.",
        wrong_when="the profiler made the call, to write a step",
        check="No synchronising call in the steady steps.",
        worth=Worth(_ACCOUNT, 0.8, _BECAUSE),
        explains=("sync-wait", "launch-gaps", "host-stall"),
        sources="NS, NAI",
    ),
    Rule(
        name="blocking-copy-sync",
        find=waits_of("copy", "The host waits for copies to finish"),
        sees="The host blocks until copies finish.",
        evidence="blocking copies per step, milliseconds waited, share of the step idle",
        fix="Copy asynchronously, from pinned memory.",
        fix_pytorch="Copy with non_blocking=True from pinned memory; read results back a step later.",
        wrong_when="the host needs the value at once",
        check="The copies' calls return before the copies end.",
        worth=Worth(_ACCOUNT, 0.7, _BECAUSE),
        explains=("sync-wait",),
        sources="NS",
    ),
    Rule(
        name="sync-wait",
        find=sync_wait,
        sees="The device is idle because the host waited for it and could not run ahead.",
        evidence="share of the step idle in synchronisation, the longest waits",
        fix="Find what waits in the loop (reading values back, blocking copies, barriers) and take it out.",
        fix_pytorch="torch.cuda.set_sync_debug_mode('warn') names the lines that wait; take them out of the "
        "loop.",
        wrong_when="the loop must wait, as for early stopping",
        check="The synchronisation account shrinks, and the step with it.",
        worth=Worth(_ACCOUNT, 0.7, _BECAUSE),
        explains=("launch-gaps",),
        sources="NS, NAI",
    ),
    Rule(
        name="scalar-read-loop",
        find=scalar_read_loop,
        sees="Without an accelerator: single values are read in a loop.",
        evidence="reads per step, share of the step between reads",
        fix="Work on whole arrays instead of one value at a time.",
        fix_pytorch="Replace the loop over .item() or tensor[i] by one operation on the tensor, or one "
        ".tolist().",
        wrong_when="the reads are many but each step is long",
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
    ),
)
