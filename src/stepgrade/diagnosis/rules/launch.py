"""Rules about launches, host work and torch.compile: the device has no work because none was launched."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from stepgrade.contract.scorecard import LAUNCH_ADVICE
from stepgrade.diagnosis.advice import fewer_launches, fused_operations
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rule import Evidence, Found, Remedy, Rule, Worth, in_inference
from stepgrade.diagnosis.rules.waits import outlasted_share
from stepgrade.model.activity import HostGaps, KernelTally, LoopTally
from stepgrade.model.compilation import Compilation
from stepgrade.patterns import regex
from stepgrade.scoring.causes import LEAST_LINE_SHARE
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import how_often, show_count, show_ms, show_number, show_share

# PyTorch functions that wrap the operations of a model, a backward pass or an optimizer.
_CALLING = frozenset(
    f"torch.{name}"
    for name in (
        *("wrapper", "_call_impl", "_wrapped_call_impl", "__getattr__", "step", "backward", "_use_grad"),
        *("decorate_context", "profile_hook_step", "_engine_run_backward", "_single_tensor_adam"),
    )
)
# What a line calls that prints, logs or makes a tensor into text.
_PRINTS = regex(
    r"(^|\.)(print|write|flush|pprint|__format__|__repr__|__str__|_tensor_str|_str)$|^logging\.|Logger\."
)
_MOSTLY = 0.5
_SEVERAL = 3.0  # gaps a step, for their ends to say something
_LONGEST_KERNEL = 60  # characters of a kernel's name in a claim
_FEWER_LAUNCHES = "Launch fewer, larger kernels: fuse operations, or replay the step as a graph."
_JAX = "Put the whole training step under one jit, or several steps under lax.scan."
_AS_A_MODULE = (
    "Call the model as a module, model(x), or name the parts of the loop with Recorder.phase: what calls "
    "forward() itself is in no phase."
)
_SLOWED = "stacks or shapes slowed the host: record without them"
_FUSED_AWAY = 0.67  # of the short kernels' time: fusing three into one saves two passes over memory
_ELSEWHERE = 0.5  # share of the host's work that another thread or process could do
_GRAPHS_GAIN = "graphs and fusion measured 2.4 to 6 times faster on steps of small kernels; some gaps remain"
_FEW_SIZES = (
    "Pad inputs to a few sizes, or compile with dynamic=True or torch._dynamo.mark_dynamic; keep changing "
    "Python numbers out of the function."
)
_WHOLE_GRAPHS = (
    "Take prints, .item() and data-dependent branches out of the compiled function, or compile the parts "
    "between them."
)
launch_rule = partial(Rule, area="launch", levels="launch")
compilation_rule = partial(Rule, area="compilation", needs="profile.compilation", levels="compile")


@launch_rule(
    sees="Launches are slow while the device waits: a slow or shared CPU, or kernels loaded at first launch.",
    evidence="mean launch time, share in such calls with the device idle",
    fix="Record later, when all kernels are loaded; then give the process its own cores and look "
    "for other load on the host.",
    wrong_when="the queue is full: launches then wait for the device",
    check="A launch takes 5 to 20 µs.",
    worth=Worth("idle_host", 0.3, "faster launches shorten the gaps but leave as many"),
    explains=("host-stall", "launch-gaps", "dispatch-latency"),
    sources="HTA, XP, NAI",
    needs="activity.kernels",
)
def slow_launches(context: RuleContext, kernels: KernelTally) -> Found | None:
    if kernels.launch_call_us is None or kernels.graph_share > 0.5:
        return None
    if kernels.launch_call_us <= context.limits.slow_launch_us:
        return None
    launch_ms = (context.profile.launches_per_step or kernels.count) * kernels.launch_call_us / 1000.0
    share = min(context.account("idle_host"), context.step_share(launch_ms * context.times.scale))
    claim = (
        f"A launch takes the host {kernels.launch_call_us:.0f} µs (5 to 20 µs is usual), which costs "
        f"{show_share(share)} of the step."
    )
    return Found(claim, {"launch_call_us": kernels.launch_call_us, "idle_share": share}, share)


many_compiled_regions = launch_rule(
    sees="The compiled program is in many pieces, and the device waits between them.",
    evidence="compiled regions per step, idle share",
    fix="Compile larger regions.",
    fix_pytorch="TORCH_LOGS=graph_breaks,recompiles shows what breaks the graph; compile changing sizes "
    "with dynamic=True.",
    wrong_when="blocks are compiled separately, and the host stays ahead",
    check="Fewer compiled regions per step.",
    worth=Worth("idle_host", 0.5, "each region has its own guards and launch"),
    explains=("launch-gaps", "short-kernels", "dispatch-latency"),
    sources="ME, XP",
    claim="The compiled step is split into {regions} pieces, and the device waits {idle_share} of it "
    "for launches.",
    figures={"regions": "compiled_regions", "idle_share": "launch_share"},
)


@launch_rule(
    sees="Kernels take less time to run than to launch.",
    evidence="kernels per step, mean time, share shorter than their launch, idle share",
    fix=_FEWER_LAUNCHES,
    fix_jax=_JAX,
    wrong_when=_SLOWED,
    check="Fewer launches per step, and a shorter wait for the host.",
    worth=Worth("idle_host+compute", 0.6, _GRAPHS_GAIN),
    explains=("launch-gaps", "fragmented-elementwise", "dispatch-latency", "elementwise-chains"),
    sources="NAI, TL, HTA, XP, ME",
    needs="activity.kernels",
)
def short_kernels(context: RuleContext, kernels: KernelTally) -> Found | None:
    limits = context.limits
    if kernels.count < limits.short_kernel_launches or kernels.graph_share > 0.5:
        return None
    mean_us = context.mean_ms(kernels.ms) / kernels.count * 1000.0
    if mean_us >= limits.short_kernel_us and kernels.short_count < 0.5 * kernels.count:
        return None
    idle, run = context.figures["launch_share"], context.busy_share(kernels.short_ms)
    return Found(
        f"{show_count(round(kernels.short_count))} of {show_count(round(kernels.count))} kernels a step are "
        f"shorter than 10 µs: they run for {show_share(run)} of the step, and the device waits "
        f"{show_share(idle)} of it for launches.",
        {
            "kernels": kernels.count,
            "short_kernels": kernels.short_count,
            "mean_us": mean_us,
            "shorter_than_launch_share": kernels.outrun_share,
            "idle_share": idle,
            "run_share": run,
        },
        idle + _FUSED_AWAY * run,
        remedy=fewer_launches(context) if idle >= limits.launch_info_share else fused_operations(context),
    )


# What the host is in, in a claim, and what to do about that.
_STALLED: dict[str, tuple[str, str]] = {
    "compiling": ("compiling", f"Compile before the steps that count. {_FEW_SIZES}"),
    "graph launch": (
        "launching a graph",
        (
            "Replay one graph of the whole step many times: a graph is set up at its first launch, and again "
            "after each change."
        ),
    ),
    "allocation": (
        "allocating or freeing memory",
        (
            "Allocate once and reuse: no empty_cache() in the loop, pinned buffers made before it, the "
            "caching allocator on."
        ),
    ),
    "garbage collection": (
        "in Python's garbage collector",
        "Call gc.disable() after set-up, and gc.collect() every 1,000 steps, in the same step on all ranks.",
    ),
    "input": (
        "preparing input",
        "Prepare batches ahead of the step: in loader workers, with prefetching, or on the device.",
    ),
    "checkpoint": ("saving", "Save less often, or in the background while the next steps run."),
    "logging": ("logging", "Log every 100 steps, or from another thread."),
    "compiled region": (
        "inside compiled regions",
        (
            "The host is slow between the kernels of a compiled region: guards, allocations, calls of its "
            'kernels. Replay it as a graph with torch.compile(mode="reduce-overhead"), or compile one larger '
            "region."
        ),
    ),
    "launch": (
        "in single launches",
        (
            "A launch that takes long loads its kernel, or waits for a place in the queue: warm up before "
            "recording, and give the process its own cores."
        ),
    ),
}


@launch_rule(
    sees="The device waits longer than a launch takes: the host does something else.",
    evidence="stalls per step, the longest, share; what the host is in, and the kernel that ends them",
    levels="stall",
    fix="Take host work out of the step: logging, metrics, checkpoints, garbage collection.",
    fix_pytorch="Take what the host does there out of the step, or do it in another thread. Recording "
    "with_stack=True shows the lines.",
    fix_where=(
        in_inference(
            "Prepare the next batch in a thread or in loader workers while the device runs the current "
            "batch, or preprocess on the device. Recording with_stack=True shows the lines.",
        ),
    ),
    fix_jax="Move host callbacks, logging and checkpoints out of the step, or make them asynchronous.",
    wrong_when="a rare checkpoint or evaluation was recorded",
    check="No gap of a millisecond or more in steady steps.",
    worth=Worth(
        "idle_host+idle_sync",
        0.7,
        "most host work between launches can run ahead, or in another thread",
        "stalls+sync",
    ),
    explains=("launch-gaps", "unsteady-steps", "host-phases", "python-overhead"),
    sources="XP, NAI, NS, TML",
    needs="activity.gaps",
)
def host_stall(context: RuleContext, gaps: HostGaps) -> Found | None:
    own = context.figures["stall_share"]
    lines = context.activity.lines.get("stall", ())
    line = lines[0] if lines else None
    if context.activity.driver == "host":
        # Other programs interrupt a process now and then: only stalls that most steps have are its own.
        sure = own if gaps.steady_stall_ms is None else min(own, context.step_share(gaps.steady_stall_ms))
        claim = (
            f"The loop spends {show_share(own)} of the step outside of operations, up to "
            f"{show_ms(gaps.longest_ms)} at a time."
        )
        numbers: Evidence = {"stall_share": own, "in_most_steps": sure, "longest_ms": gaps.longest_ms}
        severity = context.severity("stall", sure)
        # Between the framework's own calls a step only loses time when other programs stop the process.
        in_framework_ms = sum(row.ms for row in lines if row.calls in _CALLING)
        if severity is not None and in_framework_ms > _MOSTLY * sum(row.ms for row in lines):
            severity = "info"
        return Found(claim, numbers, sure, severity, gain=own, line=line)
    hidden = outlasted_share(context)
    # Hidden waits may overlap the host's own gaps: the device waits no longer than it idles.
    share = min(own + hidden, context.account("idle_host", "idle_sync"))
    # Host work can hide behind the device's as long as the host waits for it; part of the rest can move.
    waited = context.step_share(sum(wait.ms for wait in context.activity.waits))
    gain = max(min(share, waited), share * _ELSEWHERE)
    what, remedy, seen = _why_stalled(context)
    claim = (
        f"The host keeps the device waiting in long gaps for {show_share(share)} of the step, up to "
        f"{show_ms(gaps.longest_ms)} at a time{what}."
    )
    evidence: Evidence = {
        "stall_share": share,
        "stalls": gaps.stalls,
        "longest_ms": gaps.longest_ms,
        "hidden_if_ahead": hidden or None,
        **seen,
    }
    return Found(claim, evidence, share, gain=gain, remedy=remedy, line=line)


def _why_stalled(context: RuleContext) -> tuple[str, str | None, Evidence]:
    """Return what the host is in during most of the long gaps, in words, its remedy, and the evidence."""
    by_cause: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    by_end: defaultdict[str, float] = defaultdict(float)
    for row in context.activity.stalls:  # of operations each is a cause of its own
        by_cause[row.cause, row.inside if row.cause == "operation" else None] += row.ms
        by_end[row.ended_by or ""] += row.count
    if not by_cause:
        return "", None, {}
    (cause, operation), cause_ms = max(by_cause.items(), key=lambda item: item[1])
    end, ended = max(by_end.items(), key=lambda item: item[1])
    inside = operation or next(row.inside for row in context.activity.stalls if row.cause == cause)
    evidence: Evidence = {}
    what, whole_ms, gaps = "", sum(by_cause.values()), sum(by_end.values())
    words = f"inside {operation}" if operation else _STALLED[cause][0] if cause in _STALLED else ""
    if words and cause_ms >= _MOSTLY * whole_ms:
        what = f", {show_share(cause_ms / whole_ms, 0)} of that {words}"
        evidence |= {"cause": cause, "cause_share": cause_ms / whole_ms, "inside": inside}
    if end and ended >= _MOSTLY * gaps and gaps >= _SEVERAL:
        what += f"; {show_share(ended / gaps, 0)} of the gaps end with {end[:_LONGEST_KERNEL]}"
        evidence |= {"ended_by": end, "ended_by_share": ended / gaps}
    remedy = _STALLED[cause][1] if "cause" in evidence and cause in _STALLED else None
    return what, remedy, evidence


@launch_rule(
    sees="The host launches work more slowly than the device runs it.",
    evidence="idle share in short gaps, launches per step",
    fix=_FEWER_LAUNCHES,
    fix_jax=_JAX,
    wrong_when=_SLOWED,
    check="The device's wait for the host shrinks, and the step by as much.",
    worth=Worth("idle_host", 0.6, _GRAPHS_GAIN),
    explains=("dispatch-latency", "fragmented-elementwise"),
    sources="XP, TL, HTA, GPF",
)
def launch_gaps(context: RuleContext) -> Found | None:
    share, launches = context.figures["launch_share"], context.profile.launches_per_step
    evidence: Evidence = {"idle_share": share, "launches": launches or None}
    count = f" ({show_count(round(launches))} launches a step)" if launches else ""
    claim = f"The device waits {show_share(share)} of the step for launches{count}."
    use = context.profile.kernel_use
    if use is not None and use.queue is not None and use.queue.known_share >= _MOSTLY:
        evidence |= {"queue_depth": use.queue.mean, "queue_empty_share": use.queue.empty_share}
        claim += (
            f" On average {show_number(use.queue.mean, 2)} launches are queued; the queue is empty for "
            f"{show_share(use.queue.empty_share)} of the step."
        )
    return Found(claim, evidence, share, remedy=fewer_launches(context))


dispatch_latency = launch_rule(
    sees="Work is launched in time but starts late on an idle device.",
    evidence="time between launch and start",
    fix="Keep several launches queued ahead: fewer waits in the loop, graphs, larger kernels.",
    wrong_when="host and device clocks differ",
    check="Dispatch shrinks in the ledger.",
    worth=Worth("idle_host", 0.5, "queued work starts in a microsecond or two", "dispatch"),
    sources="HTA",
    claim="The device is idle for {dispatch_share} of the step between launch and start of its work.",
    figures={"dispatch_ms": "dispatch_ms", "dispatch_share": "dispatch_share"},
    least={"dispatch_share": "dispatch_info_share"},
    severity="info",
)


@launch_rule(
    sees="Much of the step belongs to no phase: launches and host work.",
    evidence="share in no phase",
    fix=_FEWER_LAUNCHES,
    fix_reference=LAUNCH_ADVICE,
    wrong_when="the profiler does not time every phase",
    check="Wall coverage rises, and the step shrinks by as much.",
    worth=Worth("unattributed", 0.5, "not all untimed work is overhead"),
    sources="REF, GPF, TML",
    severity="warning",
)
def uncovered_time(context: RuleContext) -> Found | None:
    share = context.figures["uncovered_share"]
    if not share:
        return None
    lines = context.activity.lines.get("unseen", ())
    evidence: Evidence = {"uncovered_share": share, "limit_share": context.limits.launch_advice_share}
    claim = f"{show_share(share)} of the step belongs to no phase."
    remedy = _AS_A_MODULE if context.platform == "cpu" else None
    return Found(claim, evidence, share, remedy=remedy, line=lines[0] if lines else None)


@launch_rule(
    sees="Allocation, encoding, synchronisation or writing takes part of the step.",
    evidence="share in such phases",
    levels="stall",
    fix="Take host work out of the step: allocations, synchronisation, logging.",
    fix_pytorch="Prepare batches in DataLoader workers; log, read the loss and write files every 100 steps.",
    wrong_when="a phase with such a name runs on the device",
    check="The phases shrink, and the step by as much.",
    worth=Worth(
        "idle_host", 0.6, "most host work can be done once, ahead of time or in another thread", "stalls"
    ),
    sources="XP, TML",
)
def host_phases(context: RuleContext) -> Found | None:
    share = context.phase_share(PhaseKind.HOST)
    claim = f"Host work takes {show_share(share)} of the step."
    lines = context.activity.lines.get("stall", ())
    # A line with only a small part of the time would point to the wrong code.
    line = lines[0] if lines and context.step_share(lines[0].ms) >= LEAST_LINE_SHARE * share else None
    return Found(claim, {"host_share": share}, share, line=line)


@launch_rule(
    sees="On a CPU: a Python loop calls a few small operations many times.",
    evidence="iterations per step, time and operations of each, share with backward",
    levels="stall",
    fix="Do the whole loop in one call on larger arrays.",
    fix_pytorch="Replace the loop with operations on whole tensors, a loop over time with torch.nn.LSTM, GRU "
    "or RNN or with one product for all time steps before it; or compile it with torch.compile.",
    fix_jax="Replace the loop with vmap or lax.scan.",
    wrong_when="iterations depend on each other, and no single operation replaces them",
    check="The loop's operations are called a few times a step.",
    worth=Worth(
        "compute+idle_host", 0.8, "one call on everything takes little longer than a single iteration"
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
    needs="activity.loop",
)
def python_loop(context: RuleContext, loop: LoopTally) -> Found | None:
    share = context.step_share(loop.ms + loop.backward_ms)
    also = " and its backward pass" if loop.backward_ms else ""
    claim = (
        f"A Python loop with {show_count(round(loop.turns))} iterations of small operations "
        f"({', '.join(name.removeprefix('aten::') for name in loop.operations[:4])}){also} takes "
        f"{show_share(share)} of the step."
    )
    evidence: Evidence = {
        "turns": loop.turns,
        "turn_us": context.mean_ms(loop.ms) / loop.turns * 1000.0,
        "share": share,
    }
    return Found(claim, evidence, share, line=loop.line)


@launch_rule(
    sees="The loop prints or logs in every step, and tensors are made into text for it.",
    evidence="line, share",
    levels="stall",
    fix="Print every 100 steps, and single numbers instead of tensors.",
    fix_pytorch="Print every 100 steps; collect losses with detach() and read them then.",
    wrong_when="a few prints at the start are most of a short run",
    check="The line is no longer among those that hold the step.",
    worth=Worth("idle_host+idle_sync+compute", 0.9, "a print every hundredth step costs a hundredth"),
    explains=(
        *(
            "host-stall",
            "host-phases",
            "python-overhead",
            "python-loop",
            "scalar-read-loop",
            "data-shuffling",
        ),
        *("slow-elementwise", "elementwise-chains", "device-copies", "one-hot-operation"),
    ),
    sources="ours: seen by the recorder's samples of the training thread",
)
def frequent_printing(context: RuleContext) -> Found | None:
    printed = [row for row in context.activity.lines.get("stall", ()) if _PRINTS.search(row.calls or "")]
    if not printed:
        return None
    share = min(1.0, context.step_share(sum(row.ms for row in printed)))
    return Found(f"Printing takes {show_share(share)} of the step.", {"share": share}, share, line=printed[0])


python_overhead = launch_rule(
    sees="On a CPU: much of the step is in Python or outside the framework.",
    evidence="share between operations, without long pauses",
    fix="Do more per call: larger batches, fused operations.",
    fix_pytorch="Use torch.compile, larger batches or whole-tensor operations: Python takes longer than "
    "the work.",
    wrong_when="the profiler slows small operations most",
    check="Less of the step is between operations.",
    worth=Worth("idle_host", 0.5, "every step keeps some Python, and recording adds to it"),
    sources="XP",
    claim="{share} of the step is spent between operations, in Python.",
    figures={"share": "python_share"},
    least={"share": "python_info_share"},
    severity="info",  # small models spend much of the step there even when nothing is wrong
)


def has_log(context: RuleContext) -> bool:
    """Return whether a torch.compile log already names the guards and reasons."""
    found = context.profile.compilation
    return found is not None and found.logged_ms is not None


@compilation_rule(
    sees="torch.compile could not compile a function.",
    evidence="functions, and the message of the first",
    fix="Fix what the message names: until then the function runs uncompiled, or the run ends with it.",
    wrong_when="the failure was caught and the function compiled another way",
    check="The log of torch.compile has no failure.",
    sources="ours: dynamo's fail_type",
)
def compile_failed(_context: RuleContext, found: Compilation) -> Found | None:
    failed = [frame for frame in found.frames if frame.failure]
    if not failed:
        return None
    first = failed[0]
    named = " ".join(
        filter(None, (first.function or f"frame {first.frame}", first.where and f"({first.where})"))
    )
    more = f" {len(failed) - 1} more failed." if len(failed) > 1 else ""
    return Found(
        f"torch.compile could not compile {named}: {(first.failure or '').rstrip('.')}.{more}",
        {"functions": float(len(failed)), "where": first.where, "reason": first.failure},
        severity="warning",
    )


@compilation_rule(
    sees="torch.compile recompiles functions during the recording.",
    evidence="compilations, recompilations, time, line; from a torch.compile log, the failed guard",
    fix=f"TORCH_TRACE=directory logs the failing guard; pass it with the trace. {_FEW_SIZES}",
    fix_where=(Remedy("the log of torch.compile was given", has_log, _FEW_SIZES),),
    wrong_when="only the first steps compile",
    check="The trace has no entire_frame_compile after the first steps.",
    worth=Worth("idle_host+unattributed+compute", 0.9, "nothing is compiled once all sizes are known"),
    explains=("host-stall", "python-overhead", "launch-gaps", "fast-backward", "one-hot-operation"),
    sources="ours: pytorch 149096, 97783; tlparse",
)
def compiles_again(context: RuleContext, found: Compilation) -> Found | None:
    again = [frame for frame in found.frames if frame.recompiles]
    if not again:
        return None
    worst = max(again, key=lambda frame: frame.ms)
    at = f" at {worst.where}" if worst.where else ""
    claim = (
        f"torch.compile recompiles: {found.recompiles} of {found.compiles} compilations, most of the time in "
        f"frame {worst.frame}{at}."
    )
    guard = worst.guards[0].reason if worst.guards else None
    claim += f" Its failed guard: {guard.rstrip('.')}." if guard is not None else ""
    evidence: Evidence = {
        "recompiles": float(found.recompiles),
        "compile_ms": found.total_ms,
        "frame": worst.frame,
        "where": worst.where or None,
        "guard": guard,
    }
    if found.recorded_ms is None:  # only a log, which does not say how long the run took
        return Found(f"{claim} Compiling takes {show_ms(found.total_ms)}.", evidence, 0.0, severity="info")
    # Either the steady steps compile, or those that were left out because they do.
    share = max(
        context.step_share((found.ms_per_step or 0.0) * context.times.scale),
        found.total_ms / found.recorded_ms if found.recorded_ms else 0.0,
    )
    share = evidence["share"] = min(1.0, share)
    claim += f" Compiling takes {show_ms(found.total_ms)}, {show_share(share)} of the recorded time."
    return Found(claim, evidence, share)


@compilation_rule(
    sees="Compiled graphs break, and Python runs between their parts.",
    evidence="breaks per step, the most frequent line; from a torch.compile log, the reason",
    fix=f"TORCH_TRACE=directory logs why; pass it with the trace. {_WHOLE_GRAPHS}",
    fix_where=(Remedy("the log of torch.compile was given", has_log, _WHOLE_GRAPHS),),
    wrong_when="one compiled function calls another on purpose",
    check="The step has as many compiled regions as compiled functions.",
    worth=Worth("idle_host", 0.5, "some of the waits for the host are at graph breaks"),
    sources="ours: pytorch 108971; tlparse",
)
def graph_breaks(context: RuleContext, found: Compilation) -> Found | None:
    if not (found.breaks or found.graph_breaks):
        return None
    if found.graph_breaks is not None and found.graph_breaks < context.limits.graph_breaks:
        return None
    top = next((row for row in found.breaks if row.where), None)
    at = f", most at {top.where} in {top.function}" if top else ""
    why = f" Why: {top.reason.rstrip('.')}." if top and top.reason else ""
    share = context.account("idle_host") if context.on_device else 0.0
    often = f"at {len(found.breaks)} {'place' if len(found.breaks) == 1 else 'places'}"
    if found.graph_breaks is not None:
        often = how_often(found.graph_breaks)
    evidence: Evidence = {
        "places": float(len(found.breaks)),
        "graph_breaks": found.graph_breaks,
        "where": top.where if top else None,
        "reason": (top.reason or None) if top else None,
    }
    return Found(f"Compiled graphs break {often}{at}.{why}", evidence, share, severity="info")


@compilation_rule(
    sees="CUDA graphs of compiled code are re-recorded (from torch.compile logs).",
    evidence="CUDA graph recordings, repeats",
    fix="Call compiled functions in the same order in every step, with inputs of few sizes and at fixed "
    "addresses; for changing sizes set torch._inductor.config.triton.cudagraph_skip_dynamic_graphs.",
    wrong_when="the log covers only the first steps",
    check="The log has no CUDAGraphNode.record after the first steps.",
    worth=Worth("idle_host", 0.5, "some of the waits for the host are for graphs being recorded"),
    sources="torch warns from 8 sizes of one graph on (triton.cudagraph_dynamic_shape_warn_limit)",
)
def graphs_recorded_again(context: RuleContext, found: Compilation) -> Found | None:
    if not found.cudagraph_rerecords:
        return None
    graphs = max(found.cudagraph_records - found.cudagraph_rerecords, 1)
    if found.cudagraph_rerecords / graphs < context.limits.cudagraph_rerecords:
        return None
    claim = (
        f"CUDA graphs are re-recorded: {found.cudagraph_rerecords} of {found.cudagraph_records} recordings "
        "repeat an earlier graph."
    )
    evidence: Evidence = {
        "rerecords": float(found.cudagraph_rerecords),
        "records": float(found.cudagraph_records),
    }
    share = context.account("idle_host") if context.on_device else 0.0
    return Found(claim, evidence, share, severity="info")
