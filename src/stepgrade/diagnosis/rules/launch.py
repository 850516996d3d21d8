"""Rules about launches and host work: the device waits because nothing was launched in time."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.contract.scorecard import LAUNCH_ADVICE
from stepgrade.diagnosis.advice import fewer_launches, fused_operations
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import show_count, show_ms, show_share

_AREA = "launch"
_ACCOUNT = "idle_host"
_GENERAL = "Launch fewer, larger kernels: fuse operations, or replay the step as a graph."
_FUSED_AWAY = 0.67  # of the time of short kernels: fusing three into one saves two trips through memory
_BECAUSE = "graphs and fusion measured 2.4 to 6 times faster on steps of small kernels; some gaps stay"


def launch_share(context: RuleContext) -> float:
    """Return the share of the step that the device waits for launches: short gaps, not long stalls."""
    gaps = context.activity.gaps
    others = stall_share(context) + (context.step_share(gaps.after_sync_ms) if gaps else 0.0)
    return max(0.0, context.account(_ACCOUNT) - others) if context.on_device else 0.0


def stall_share(context: RuleContext) -> float:
    """Return the share of the step in gaps too long for a launch: the host did something else."""
    gaps = context.activity.gaps
    return min(context.account(_ACCOUNT), context.step_share(gaps.stall_ms)) if gaps else 0.0


@rule(
    name="short-kernels",
    area=_AREA,
    account=f"{_ACCOUNT}+compute",
    sees="Kernels are so short that launching them takes longer than running them.",
    evidence="kernels per step, their mean, how many are shorter than their launch, share of the step idle",
    fix={
        "general": _GENERAL,
        "jax": "Put the whole training step under one jit, and several steps under lax.scan.",
    },
    wrong_when="stacks or shapes were recorded, which slows the host: record without them to be sure",
    check="Fewer launches per step, and the device's wait for the host shrinks.",
    realistic=0.6,
    because=_BECAUSE,
    explains=("launch-gaps", "fragmented-elementwise", "dispatch-latency", "elementwise-chains"),
    sources="NAI-05, TL-03, HTA-03, XP-08, ME-01",
)
def short_kernels(context: RuleContext, limits: Limits) -> Found | None:
    """Report kernels that are shorter than their launches."""
    kernels, idle = context.activity.kernels, launch_share(context)
    if kernels is None or kernels.count < limits.short_kernel_launches or kernels.graph_share > 0.5:
        return None
    run = context.busy_share(kernels.short_ms)
    share = idle + _FUSED_AWAY * run
    severity = severity_of(share, limits, "launch")
    mean_us = context.mean_ms(kernels.ms) / kernels.count * 1000.0
    few = mean_us >= limits.short_kernel_us and kernels.short_count < 0.5 * kernels.count
    if severity is None or few:
        return None
    return Found(
        severity=severity,
        claim=f"{show_count(round(kernels.short_count))} of {show_count(round(kernels.count))} kernels "
        f"a step are shorter than 10 µs: they run {show_share(run)} of it, and {show_share(idle)} waits "
        "for launches.",
        evidence={
            "kernels": kernels.count,
            "short_kernels": kernels.short_count,
            "mean_us": mean_us,
            "shorter_than_launch_share": kernels.outrun_share,
            "idle_share": idle,
            "run_share": run,
        },
        share=share,
        remedy=fewer_launches(context) if idle >= limits.launch_info_share else fused_operations(context),
    )


@rule(
    name="launch-gaps",
    area=_AREA,
    account=_ACCOUNT,
    sees="The device waits for launches: the host takes longer to issue work than the device to do it.",
    evidence="share of the step idle in short gaps, launches per step",
    fix={
        "general": _GENERAL,
        "jax": "Put the whole training step under one jit, and several steps under lax.scan.",
    },
    wrong_when="stacks or shapes were recorded, which slows the host: record without them to be sure",
    check="The device's wait for the host shrinks, and the step by as much.",
    realistic=0.6,
    because=_BECAUSE,
    explains=("dispatch-latency", "fragmented-elementwise"),
    sources="XP-08, XP-10, TL-02, HTA-02, GPF-10",
)
def launch_gaps(context: RuleContext, limits: Limits) -> Found | None:
    """Report waits for launches."""
    share = launch_share(context)
    severity = severity_of(share, limits, "launch")
    if severity is None:
        return None
    launches = context.profile.launches_per_step
    told = f" ({show_count(round(launches))} launches a step)" if launches else ""
    evidence: dict[str, float | str] = {"idle_share": share}
    if launches:
        evidence["launches"] = launches
    return Found(
        severity=severity,
        claim=f"The device waits {show_share(share)} of the step for launches{told}.",
        evidence=evidence,
        share=share,
        remedy=fewer_launches(context),
    )


@rule(
    name="host-stall",
    area=_AREA,
    account=_ACCOUNT,
    sees="The device waits longer than any launch takes while the host does something else.",
    evidence="stalls per step, the longest one, share of the step",
    fix={
        "general": "Take host work out of the step: logging, metrics, checkpoints, garbage collection.",
        "pytorch": "Move logging, metrics, tokenising and checkpoints out of the loop or to a thread; call "
        "gc.disable() and collect every thousandth step. Recording with_stack=True shows the lines.",
        "jax": "Move host callbacks, logging and checkpoints out of the step, or make them asynchronous.",
    },
    wrong_when="the recorded steps hold a checkpoint or an evaluation that comes rarely",
    check="No gap of a millisecond in the steady steps.",
    realistic=0.7,
    because="most host work between launches can run ahead or elsewhere",
    explains=("launch-gaps", "unsteady-steps"),
    sources="XP-09, XP-10, NAI-06, NS-05, NAI-02, TML-04",
)
def host_stall(context: RuleContext, limits: Limits) -> Found | None:
    """Report long gaps that the host is the reason of."""
    gaps, share = context.activity.gaps, stall_share(context)
    severity = severity_of(share, limits, "stall")
    if gaps is None or severity is None:
        return None
    return Found(
        severity=severity,
        claim=f"The host keeps the device waiting {show_share(share)} of the step in long gaps, up to "
        f"{show_ms(gaps.longest_ms)} at a time.",
        evidence={"stall_share": share, "stalls": gaps.stalls, "longest_ms": gaps.longest_ms},
        share=share,
    )


@rule(
    name="slow-launches",
    area=_AREA,
    account=_ACCOUNT,
    sees="A launching call takes longer than usual while the device waits: the host's processor is "
    "slow or shared, or kernels are loaded at their first launch.",
    evidence="mean of a launching call, share of the step in such calls with the device idle",
    fix={
        "general": "Record later, when all kernels are loaded; then give the process cores of its own and "
        "look for other load on the host."
    },
    wrong_when="the queue is full: launches then wait for the device, which is healthy",
    check="A launch takes 5 to 20 µs.",
    realistic=0.3,
    because="a faster launch shortens each gap, not their number",
    explains=("host-stall", "launch-gaps", "dispatch-latency"),
    sources="HTA-04, XP-08, NAI-14",
)
def slow_launches(context: RuleContext, limits: Limits) -> Found | None:
    """Report launching calls that take long."""
    kernels, idle = context.activity.kernels, context.account(_ACCOUNT)
    if kernels is None or kernels.launch_call_us is None or kernels.graph_share > 0.5:
        return None
    spent_ms = (context.profile.launches_per_step or kernels.count) * kernels.launch_call_us / 1000.0
    share = min(idle, context.step_share(spent_ms * context.times.scale))
    severity = severity_of(share, limits, "launch")
    if severity is None or kernels.launch_call_us <= limits.slow_launch_us:
        return None
    return Found(
        severity=severity,
        claim=f"A launch takes the host {kernels.launch_call_us:.0f} µs (5 to 20 µs is usual), "
        f"{show_share(share)} of the step.",
        evidence={"launch_call_us": kernels.launch_call_us, "idle_share": share},
        share=share,
    )


@rule(
    name="dispatch-latency",
    area=_AREA,
    account=_ACCOUNT,
    sees="Work is launched in time but starts late: the way from launch to start takes a share of the step.",
    evidence="milliseconds and share of the step between launch and start with the device idle",
    fix={"general": "Keep several launches queued ahead: fewer waits in the loop, graphs, larger kernels."},
    wrong_when="the clocks of host and device differ",
    check="Dispatch shrinks in the ledger.",
    realistic=0.5,
    because="queued work starts in a microsecond or two",
    sources="HTA-01, HTA-04",
)
def dispatch_latency(context: RuleContext, limits: Limits) -> Found | None:
    """Report time between launch and start."""
    gaps = context.activity.gaps
    share = context.step_share(gaps.dispatch_ms) if gaps else 0.0
    if gaps is None or share < limits.dispatch_info_share:
        return None
    claim = f"{show_share(share)} of the step lies between a launch and its start on an idle device."
    evidence: dict[str, float | str] = {"dispatch_ms": gaps.dispatch_ms, "dispatch_share": share}
    return Found(severity="info", claim=claim, evidence=evidence, share=share)


@rule(
    name="many-compiled-regions",
    area=_AREA,
    account=_ACCOUNT,
    sees="The compiled program comes in many pieces, and the device waits between them.",
    evidence="compiled regions per step, share of the step idle",
    fix={
        "general": "Compile larger regions.",
        "pytorch": "TORCH_LOGS=graph_breaks,recompiles names what breaks the graph; mark changing "
        "sizes dynamic=True.",
    },
    wrong_when="blocks are compiled one by one on purpose and the host keeps ahead",
    check="Fewer compiled regions per step.",
    realistic=0.5,
    because="each region costs guards and a launch of its own",
    explains=("launch-gaps", "short-kernels", "dispatch-latency"),
    sources="ME-03, XP-11",
)
def many_compiled_regions(context: RuleContext, limits: Limits) -> Found | None:
    """Report a compiled step in many pieces."""
    regions, share = context.activity.marks.get("compiled_region", 0.0), launch_share(context)
    severity = severity_of(share, limits, "launch")
    if regions <= limits.compiled_regions or severity is None:
        return None
    claim = (
        f"The compiled step comes in {show_count(round(regions))} pieces, and the device waits "
        f"{show_share(share)} of it for launches."
    )
    return Found(
        severity=severity, claim=claim, evidence={"regions": regions, "idle_share": share}, share=share
    )


@rule(
    name="uncovered-time",
    area=_AREA,
    account="unattributed",
    sees="A large share of the step is in no phase: launches and host work in between.",
    evidence="share of the step in no phase",
    fix={"general": _GENERAL, "reference": LAUNCH_ADVICE},
    wrong_when="the profiler does not time every phase: coverage is then low without any overhead",
    check="Wall coverage rises and the step gets shorter by the same share.",
    realistic=0.5,
    because="what is not timed is not all overhead",
    sources="REF-02, GPF-10, TML-04",
)
def uncovered_time(context: RuleContext, limits: Limits) -> Found | None:
    """Report time outside every phase above the limit."""
    share = context.phases.uncovered_share
    if share is None or not share > limits.launch_advice_share:
        return None
    claim = f"{show_share(share)} of the step is in no phase."
    evidence: dict[str, float | str] = {"uncovered_share": share, "limit_share": limits.launch_advice_share}
    return Found(severity="warning", claim=claim, evidence=evidence, share=share)


@rule(
    name="host-phases",
    area=_AREA,
    account=_ACCOUNT,
    sees="Phases of host work (allocation, encoding, synchronisation, writing) take a share of the step.",
    evidence="share of the step in such phases",
    fix={
        "general": "Take host work out of the step: allocations, synchronisation, logging.",
        "pytorch": "Make batches ahead, in a DataLoader's workers, and log, read the loss and write files in "
        "few of the steps.",
    },
    wrong_when="a phase is called so but runs on the device",
    check="The phases shrink, and the step by as much.",
    realistic=0.6,
    because="host work can mostly be done once, ahead or elsewhere",
    sources="XP-10, TML-04",
)
def host_phases(context: RuleContext, limits: Limits) -> Found | None:
    """Report host work that phases show."""
    share = context.phase_share(PhaseKind.HOST)
    severity = severity_of(share, limits, "stall")
    if severity is None:
        return None
    claim = f"Host work takes {show_share(share)} of the step."
    return Found(severity=severity, claim=claim, evidence={"host_share": share}, share=share)


@rule(
    name="python-overhead",
    area=_AREA,
    account=_ACCOUNT,
    sees="On a run without an accelerator, time passes between operations: in Python, or outside of "
    "the framework.",
    evidence="share of the step in no operation",
    fix={
        "general": "Do more in one call: larger batches, fused operations.",
        "pytorch": "Use torch.compile, larger batches or whole-tensor operations: Python takes "
        "longer than the work.",
    },
    wrong_when="the profiler itself slows every call: small operations look slower than they are",
    check="Less of the step is between operations.",
    realistic=0.5,
    because="some Python stays in every step, and recording adds to it",
    sources="XP-02, XP-09",
)
def python_overhead(context: RuleContext, limits: Limits) -> Found | None:
    """Report time between operations on a host that computes itself."""
    share = context.account(_ACCOUNT) if context.activity.driver == "host" else 0.0
    severity = severity_of(share, limits, "python")
    if severity is None:
        return None
    claim = f"{show_share(share)} of the step is in no operation: Python, or work outside of the framework."
    return Found(severity=severity, claim=claim, evidence={"share": share}, share=share)


RULES = (
    slow_launches,
    many_compiled_regions,
    short_kernels,
    host_stall,
    launch_gaps,
    dispatch_latency,
    uncovered_time,
    host_phases,
    python_overhead,
)
