"""Rules about launches and host work: the device waits because nothing was launched in time."""

from __future__ import annotations

from msgspec import structs

from stepgrade.config.limits import Limits
from stepgrade.contract.scorecard import LAUNCH_ADVICE
from stepgrade.diagnosis.advice import fewer_launches, fused_operations
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Remedy, Rule, Worth
from stepgrade.diagnosis.rules.synchronisation import is_outlasted
from stepgrade.scoring.causes import LEAST_LINE_SHARE
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import show_count, show_ms, show_share

# What PyTorch puts around the operations of a model, of a backward pass and of an optimizer.
_CALLING = frozenset(
    f"torch.{name}"
    for name in (
        *("wrapper", "_call_impl", "_wrapped_call_impl", "__getattr__", "step", "backward", "_use_grad"),
        *("decorate_context", "profile_hook_step", "_engine_run_backward", "_single_tensor_adam"),
    )
)
_MOSTLY = 0.5
_ACCOUNT = "idle_host"
_GENERAL = "Launch fewer, larger kernels: fuse operations, or replay the step as a graph."
_JAX = "Put the whole training step under one jit, and several steps under lax.scan."
_SLOWED = "stacks or shapes were recorded, which slows the host: record without them"
_FUSED_AWAY = 0.67  # of the time of short kernels: fusing three into one saves two trips through memory
_ELSEWHERE = 0.5  # of the host's work, that another thread or process could do
_BECAUSE = "graphs and fusion measured 2.4 to 6 times faster on steps of small kernels; some gaps stay"


def _levels(limits: Limits) -> Levels:
    return Levels(limits.launch_info_share, limits.launch_warning_share, limits.launch_critical_share)


def _stall_levels(limits: Limits) -> Levels:
    return Levels(limits.stall_info_share, limits.stall_warning_share, limits.stall_critical_share)


def _launch_share(context: RuleContext) -> float:
    """Return the share of the step that the device waits for launches: short gaps, not long stalls."""
    gaps = context.activity.gaps
    others = _stall_share(context) + (context.step_share(gaps.after_sync_ms) if gaps else 0.0)
    return max(0.0, context.account(_ACCOUNT) - others) if context.on_device else 0.0


def _stall_share(context: RuleContext) -> float:
    """Return the share of the step in gaps too long for a launch: the host did something else."""
    gaps = context.activity.gaps
    return min(context.account(_ACCOUNT), context.step_share(gaps.stall_ms)) if gaps else 0.0


def short_kernels(context: RuleContext) -> Found | None:
    kernels, limits = context.activity.kernels, context.limits
    if kernels is None or kernels.count < limits.short_kernel_launches or kernels.graph_share > 0.5:
        return None
    mean_us = context.mean_ms(kernels.ms) / kernels.count * 1000.0
    if mean_us >= limits.short_kernel_us and kernels.short_count < 0.5 * kernels.count:
        return None
    idle, run = _launch_share(context), context.busy_share(kernels.short_ms)
    return _levels(limits).found(
        idle + _FUSED_AWAY * run,
        f"{show_count(round(kernels.short_count))} of {show_count(round(kernels.count))} kernels a step are "
        f"shorter than 10 µs: they run for {show_share(run)} of it, and the device waits for launches for "
        f"{show_share(idle)}.",
        {
            "kernels": kernels.count,
            "short_kernels": kernels.short_count,
            "mean_us": mean_us,
            "shorter_than_launch_share": kernels.outrun_share,
            "idle_share": idle,
            "run_share": run,
        },
        remedy=fewer_launches(context) if idle >= limits.launch_info_share else fused_operations(context),
    )


def launch_gaps(context: RuleContext) -> Found | None:
    share, launches = _launch_share(context), context.profile.launches_per_step
    evidence: Evidence = {"idle_share": share}
    count = ""
    if launches:
        evidence["launches"] = launches
        count = f" ({show_count(round(launches))} launches a step)"
    claim = f"The device waits for launches for {show_share(share)} of the step{count}."
    use = context.profile.kernel_use
    if use is not None and use.queue is not None and use.queue.known_share >= _MOSTLY:
        evidence |= {"queue_depth": use.queue.mean, "queue_empty_share": use.queue.empty_share}
        claim += (
            f" {use.queue.mean:,.2g} launches are ahead of it on average; for "
            f"{show_share(use.queue.empty_share)} of the step there is none."
        )
    return _levels(context.limits).found(share, claim, evidence, remedy=fewer_launches(context))


def host_stall(context: RuleContext) -> Found | None:
    """Report host work that the device waits for in long gaps, with those that a shorter wait began."""
    gaps = context.activity.gaps
    if gaps is None:
        return None
    own = _stall_share(context)
    lines = context.activity.lines.get("stall", ())
    line = lines[0] if lines else None
    if context.activity.driver == "host":
        # Other programs stop a process now and then: only what most steps have is its own.
        sure = own if gaps.steady_stall_ms is None else min(own, context.step_share(gaps.steady_stall_ms))
        claim = (
            f"The loop does something else than operations for {show_share(own)} of the step, up to "
            f"{show_ms(gaps.longest_ms)} at a time."
        )
        numbers: Evidence = {"stall_share": own, "in_most_steps": sure, "longest_ms": gaps.longest_ms}
        found = _stall_levels(context.limits).found(sure, claim, numbers, gain=own, line=line)
        # Between the framework's own calls a step only loses time where other programs stop the process.
        calling = sum(one.ms for one in lines if one.calls in _CALLING)
        if found is not None and calling > _MOSTLY * sum(one.ms for one in lines):
            return structs.replace(found, severity="info")
        return found
    # Host work hides behind the device's as far as the host waits for it; of more, some is done elsewhere.
    hidden = context.step_share(
        sum(
            min(wait.ms, wait.idle_ms or 0.0)
            for wait in context.activity.waits
            if is_outlasted(context, wait)
        )
    )
    # What a wait hides may lie in gaps of the host's own: the device waits for no longer than it idles.
    share = min(own + hidden, context.account(_ACCOUNT, "idle_sync"))
    waited = context.step_share(sum(wait.ms for wait in context.activity.waits))
    gain = max(min(share, waited), share * _ELSEWHERE)
    claim = (
        f"The host keeps the device waiting for {show_share(share)} of the step in long gaps, up to "
        f"{show_ms(gaps.longest_ms)} at a time."
    )
    evidence: Evidence = {"stall_share": share, "stalls": gaps.stalls, "longest_ms": gaps.longest_ms}
    if hidden:
        evidence["hidden_if_ahead"] = hidden
    return _stall_levels(context.limits).found(share, claim, evidence, gain=gain, line=line)


def slow_launches(context: RuleContext) -> Found | None:
    kernels, limits = context.activity.kernels, context.limits
    if kernels is None or kernels.launch_call_us is None or kernels.graph_share > 0.5:
        return None
    if kernels.launch_call_us <= limits.slow_launch_us:
        return None
    launch_ms = (context.profile.launches_per_step or kernels.count) * kernels.launch_call_us / 1000.0
    share = min(context.account(_ACCOUNT), context.step_share(launch_ms * context.times.scale))
    claim = (
        f"A launch takes the host {kernels.launch_call_us:.0f} µs (5 to 20 µs is usual), {show_share(share)} "
        "of the step."
    )
    return _levels(limits).found(
        share, claim, {"launch_call_us": kernels.launch_call_us, "idle_share": share}
    )


def dispatch_latency(context: RuleContext) -> Found | None:
    gaps = context.activity.gaps
    share = context.step_share(gaps.dispatch_ms) if gaps else 0.0
    if gaps is None or share < context.limits.dispatch_info_share:
        return None
    claim = f"The device is idle for {show_share(share)} of the step between launches and their start."
    return Found("info", claim, {"dispatch_ms": gaps.dispatch_ms, "dispatch_share": share}, share=share)


def many_compiled_regions(context: RuleContext) -> Found | None:
    regions, share = context.activity.marks.get("compiled_region", 0.0), _launch_share(context)
    if regions <= context.limits.compiled_regions:
        return None
    claim = (
        f"The compiled step comes in {show_count(round(regions))} pieces, and the device waits for launches "
        f"for {show_share(share)} of it."
    )
    return _levels(context.limits).found(share, claim, {"regions": regions, "idle_share": share})


def uncovered_time(context: RuleContext) -> Found | None:
    share, limit = context.phases.uncovered_share, context.limits.launch_advice_share
    if share is None or not share > limit:
        return None
    claim = f"{show_share(share)} of the step is in no phase."
    return Found("warning", claim, {"uncovered_share": share, "limit_share": limit}, share=share)


def host_phases(context: RuleContext) -> Found | None:
    share = context.phase_share(PhaseKind.HOST)
    claim = f"Host work takes {show_share(share)} of the step."
    lines = context.activity.lines.get("stall", ())
    # A line that holds little of it would be the wrong place to look at.
    line = lines[0] if lines and context.step_share(lines[0].ms) >= LEAST_LINE_SHARE * share else None
    return _stall_levels(context.limits).found(share, claim, {"host_share": share}, line=line)


def python_overhead(context: RuleContext) -> Found | None:
    if context.activity.driver != "host":
        return None
    # What a phase of host work holds is reported as that.
    known = max(_stall_share(context), context.phase_share(PhaseKind.HOST))
    share = max(0.0, context.account(_ACCOUNT) - known)
    if share < context.limits.python_info_share:
        return None
    # Of small models it is much even when all is well, and recording adds to it.
    claim = f"{show_share(share)} of the step is between operations: in Python."
    return Found("info", claim, {"share": share}, share=share)


def python_loop(context: RuleContext) -> Found | None:
    loop, limits = context.activity.loop, context.limits
    if loop is None:
        return None
    share = context.step_share(loop.ms + loop.backward_ms)
    also = " and its backward pass" if loop.backward_ms else ""
    claim = (
        f"A Python loop of {show_count(round(loop.turns))} turns over small operations "
        f"({', '.join(name.removeprefix('aten::') for name in loop.operations[:4])}){also} takes "
        f"{show_share(share)} of the step."
    )
    evidence: Evidence = {
        "turns": loop.turns,
        "turn_us": context.mean_ms(loop.ms) / loop.turns * 1000.0,
        "share": share,
    }
    return _stall_levels(limits).found(share, claim, evidence, line=loop.line)


RULES = (
    Rule(
        name="slow-launches",
        find=slow_launches,
        sees="Launch calls are slow while the device waits: a slow or shared host CPU, or kernels "
        "loaded at first launch.",
        evidence="mean launch time, share of the step in such calls with the device idle",
        fix="Record later, when all kernels are loaded; then give the process its own cores and look "
        "for other load on the host.",
        wrong_when="the queue is full: launches then wait for the device, which is healthy",
        check="A launch takes 5 to 20 µs.",
        worth=Worth(_ACCOUNT, 0.3, "a faster launch shortens each gap, not their number"),
        explains=("host-stall", "launch-gaps", "dispatch-latency"),
        sources="HTA, XP, NAI",
    ),
    Rule(
        name="many-compiled-regions",
        find=many_compiled_regions,
        sees="The compiled program is in many pieces, and the device waits between them.",
        evidence="compiled regions per step, share of the step idle",
        fix="Compile larger regions.",
        fix_pytorch="TORCH_LOGS=graph_breaks,recompiles names what breaks the graph; mark changing sizes "
        "dynamic=True.",
        wrong_when="blocks are compiled separately on purpose and the host stays ahead",
        check="Fewer compiled regions per step.",
        worth=Worth(_ACCOUNT, 0.5, "each region costs guards and a launch of its own"),
        explains=("launch-gaps", "short-kernels", "dispatch-latency"),
        sources="ME, XP",
    ),
    Rule(
        name="short-kernels",
        find=short_kernels,
        sees="Kernels take less time to run than to launch.",
        evidence="kernels per step, mean, share shorter than their launch, share of the step idle",
        fix=_GENERAL,
        fix_jax=_JAX,
        wrong_when=_SLOWED,
        check="Fewer launches per step, and the device's wait for the host shrinks.",
        worth=Worth("idle_host+compute", 0.6, _BECAUSE),
        explains=("launch-gaps", "fragmented-elementwise", "dispatch-latency", "elementwise-chains"),
        sources="NAI, TL, HTA, XP, ME",
    ),
    Rule(
        name="host-stall",
        find=host_stall,
        sees="The device waits longer than any launch while the host does something else.",
        evidence="stalls per step, the longest, share of the step",
        fix="Take host work out of the step: logging, metrics, checkpoints, garbage collection.",
        fix_pytorch="Prepare batches in DataLoader workers; move logging, metrics, tokenising and "
        "checkpoints out of the loop or to a thread; call gc.disable() and collect every thousandth step. "
        "Recording with_stack=True shows the lines.",
        fix_where=(
            Remedy(
                "inference",
                lambda context: context.work == "inference",
                "Prepare the next batch in a thread or in a loader's workers while the device works on this "
                "one, or do the preprocessing on the device. Recording with_stack=True shows the lines.",
            ),
        ),
        fix_jax="Move host callbacks, logging and checkpoints out of the step, or make them asynchronous.",
        wrong_when="the recorded steps include a rare checkpoint or evaluation",
        check="No gap of a millisecond in the steady steps.",
        worth=Worth("idle_host+idle_sync", 0.7, "most host work between launches can run ahead or elsewhere"),
        explains=("launch-gaps", "unsteady-steps", "host-phases", "python-overhead"),
        sources="XP, NAI, NS, TML",
    ),
    Rule(
        name="launch-gaps",
        find=launch_gaps,
        sees="The device waits for launches: the host issues work slower than the device runs it.",
        evidence="share of the step idle in short gaps, launches per step",
        fix=_GENERAL,
        fix_jax=_JAX,
        wrong_when=_SLOWED,
        check="The device's wait for the host shrinks, and the step by as much.",
        worth=Worth(_ACCOUNT, 0.6, _BECAUSE),
        explains=("dispatch-latency", "fragmented-elementwise"),
        sources="XP, TL, HTA, GPF",
    ),
    Rule(
        name="dispatch-latency",
        find=dispatch_latency,
        sees="Work is launched in time but starts late, with the device idle.",
        evidence="milliseconds and share of the step between launch and start",
        fix="Keep several launches queued ahead: fewer waits in the loop, graphs, larger kernels.",
        wrong_when="host and device clocks differ",
        check="Dispatch shrinks in the ledger.",
        worth=Worth(_ACCOUNT, 0.5, "queued work starts in a microsecond or two"),
        sources="HTA",
    ),
    Rule(
        name="uncovered-time",
        find=uncovered_time,
        sees="Much of the step is in no phase: launches and host work.",
        evidence="share of the step in no phase",
        fix=_GENERAL,
        fix_reference=LAUNCH_ADVICE,
        wrong_when="the profiler does not time every phase",
        check="Wall coverage rises and the step gets shorter by the same share.",
        worth=Worth("unattributed", 0.5, "what is not timed is not all overhead"),
        sources="REF, GPF, TML",
    ),
    Rule(
        name="host-phases",
        find=host_phases,
        sees="Host phases (allocation, encoding, synchronisation, writing) take part of the step.",
        evidence="share of the step in such phases",
        fix="Take host work out of the step: allocations, synchronisation, logging.",
        fix_pytorch="Prepare batches in DataLoader workers, and log, read the loss and write files only "
        "every hundredth step.",
        wrong_when="a phase with such a name runs on the device",
        check="The phases shrink, and the step by as much.",
        worth=Worth(_ACCOUNT, 0.6, "host work can mostly be done once, ahead or elsewhere"),
        sources="XP, TML",
    ),
    Rule(
        name="python-loop",
        find=python_loop,
        sees="Without an accelerator: a Python loop calls the same few small operations many times.",
        evidence="iterations per step, microseconds and operations of one, share of the step with backward",
        fix="Do the whole loop in one call on larger arrays.",
        fix_pytorch="Replace the loop by operations on whole tensors; a loop over time by torch.nn.LSTM, GRU "
        "or RNN, or by one product for all times before it; or compile it with torch.compile.",
        fix_jax="Replace the loop by vmap, or by lax.scan.",
        wrong_when="iterations depend on each other and no operation covers them",
        check="The loop's operations are called a few times a step.",
        worth=Worth(
            "compute+idle_host", 0.8, "one call on everything takes little longer than one iteration"
        ),
        explains=(
            "python-overhead",
            "host-stall",
            "device-copies",
            "elementwise-chains",
            "data-shuffling",
            "slow-layer",
            "slow-backward",
            "fast-backward",
        ),
        sources="PM, TG",
    ),
    Rule(
        name="python-overhead",
        find=python_overhead,
        sees="Without an accelerator: time passes in Python or outside the framework.",
        evidence="share of the step between operations, without long pauses",
        fix="Do more in one call: larger batches, fused operations.",
        fix_pytorch="Use torch.compile, larger batches or whole-tensor operations: Python takes longer than "
        "the work.",
        wrong_when="the profiler slows every call: small operations look slower",
        check="Less of the step is between operations.",
        worth=Worth(_ACCOUNT, 0.5, "some Python stays in every step, and recording adds to it"),
        sources="XP",
    ),
)
