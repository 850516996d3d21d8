"""Rules about the profile itself: what must be known before any advice is taken."""

from __future__ import annotations

from collections.abc import Callable

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, Remedy, Rule
from stepgrade.model.finding import Severity
from stepgrade.units import show_count, show_ms, show_share

_OF_START = (
    *("slow-launches", "host-stall", "launch-gaps", "short-kernels", "dispatch-latency", "sync-wait"),
    *("allocator-sync", "device-synchronize", "scalar-read-sync", "blocking-copy-sync", "hardly-any-work"),
    *("input-wait", "pageable-copies", "unexplained-idle", "recording-slows-host"),
)


def warning_of_source(severity: Severity, *codes: str) -> Callable[[RuleContext], Found | None]:
    """Return a function that repeats the reader's warning of one of these codes."""

    def find(context: RuleContext) -> Found | None:
        note = next((note for note in context.profile.warnings if note.code in codes), None)
        if note is None:
            return None
        code, text = note.code, str(note) if note.ranks else note.text
        # On a processor steps differ because other programs run as well.
        level = "info" if code == "warm_up" and context.activity.driver == "host" else severity
        return Found(severity=level, claim=text, evidence={"flaw": code}, warning=code)

    return find


def unexplained_idle(context: RuleContext) -> Found | None:
    """Report idle time without a reason; much of it makes the other accounts doubtful."""
    text = next((note.text for note in context.profile.warnings if note.code == "unattributed"), None)
    if text is None:
        return None
    share = context.account("unattributed")
    return Found(
        severity="warning" if share >= context.limits.unexplained_share else "info",
        claim=text,
        evidence={"unattributed_share": share},
        warning="unattributed",
    )


def hardly_any_work(context: RuleContext) -> Found | None:
    kernels, busy, limits = context.activity.kernels, context.account("compute"), context.limits
    step_ms = context.times.typical_ms
    if context.activity.driver == "host" and step_ms is not None and step_ms < limits.shortest_step_ms:
        calls = sum(op.calls or 0.0 for op in context.operations)
        if calls < limits.few_operations:
            claim = f"A step has {show_count(round(calls))} operations and takes {show_ms(step_ms)}."
            return Found("warning", claim, {"operations": calls, "step_ms": step_ms})
    if kernels is None or not context.on_device or context.ledger is None:
        return None
    working = busy + context.account("exposed_communication")
    if kernels.count >= limits.few_kernels or working >= limits.idle_device_share:
        return None
    count = "one kernel" if round(kernels.count) == 1 else f"{show_count(round(kernels.count))} kernels"
    claim = f"A step has {count}, and the device works for {show_share(busy)} of it."
    return Found("warning", claim, {"kernels": kernels.count, "compute": busy})


def start_up(context: RuleContext) -> Found | None:
    """Report a single step that holds the program's start: later ones do without."""
    share = context.step_share(context.activity.startup_ms)
    if (context.profile.steps or 1) > 1 or share < context.limits.startup_share:
        return None
    claim = (
        f"{show_ms(context.activity.startup_ms)} of the step, {show_share(share)}, are single calls that "
        "load kernels or set the device up: the recording holds the start of the program."
    )
    return Found("warning", claim, {"startup_ms": context.activity.startup_ms, "share": share})


def graph_capture(context: RuleContext) -> Found | None:
    captures = context.activity.marks.get("graph_capture", 0.0)
    if not captures or context.account("compute") > context.limits.busy_share:
        return None
    claim = (
        f"Kernels are captured into graphs ({show_count(round(captures))} calls) and hardly run: not a step."
    )
    return Found("warning", claim, {"captures": captures, "compute": context.account("compute")})


def collective_is_all(context: RuleContext) -> Found | None:
    communication, compute = context.account("exposed_communication"), context.account("compute")
    limits, profile = context.limits, context.profile
    if communication < limits.collective_share or compute > limits.collective_compute_share:
        return None
    if len(profile.ranks) > 1 or (profile.steps or 1) > 2:
        return None
    claim = (
        f"{show_share(communication)} of the step is communication and {show_share(compute)} computing: did "
        "the ranks start recording together?"
    )
    return Found("warning", claim, {"communication": communication, "compute": compute})


def above_roof(context: RuleContext) -> Found | None:
    limit = context.limits.above_roof
    fast = [
        (op.roof_share, op)
        for op in context.operations
        if op.roof == "compute" and op.roof_share and op.roof_share > limit and (op.share or 0.0) > 0.01
    ]
    if not fast:
        return None
    reached, top = max(fast, key=lambda pair: pair[0])
    claim = f"{top.name} runs at {show_share(reached, 0)} of its roof, which is impossible."
    return Found("info", claim, {"operation": top.name, "roof_share": reached})


RULES = (
    Rule(
        name="truncated-trace",
        find=warning_of_source("warning", "truncated"),
        sees="The file is truncated or damaged.",
        evidence="what could not be read",
        fix="Record again and let the export finish; check the disk's space.",
        wrong_when="only the very end is missing",
        check="Nothing is lost in reading.",
        sources="HTA",
    ),
    Rule(
        name="warm-up-only",
        find=warning_of_source("warning", "warm_up"),
        sees="Most recorded steps are warm-up: compiling, autotuning, growing memory.",
        evidence="how many steps differ from later ones, and by how much",
        fix="Record later: skip the first ten steps and record at least five.",
        fix_pytorch="schedule=torch.profiler.schedule(wait=10, warmup=2, active=5).",
        wrong_when="steps differ because batches do",
        check="The steps are steady.",
        sources="GPF, NAI, DL",
    ),
    Rule(
        name="no-steps",
        find=warning_of_source("info", "no_steps"),
        sees="The recording has no steps, so its span counts as one.",
        evidence="no step marks, no repeating pattern",
        fix="Mark steps while recording.",
        fix_pytorch="Call prof.step() once in each iteration.",
        wrong_when="the recording is of one step",
        check="Steps are found.",
        sources="XP, DL",
    ),
    Rule(
        name="device-unseen",
        find=warning_of_source("warning", "device_unseen", "kernels_missing"),
        sees="The host drives a device whose work was not recorded.",
        evidence="launches without kernels",
        fix="Record the device as well.",
        fix_pytorch="activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
        fix_where=(
            Remedy(
                "whose launches were recorded",
                lambda context: any(note.code == "kernels_missing" for note in context.profile.warnings),
                "Check why the driver gives no kernels away: another profiler beside it, a virtual machine, "
                "or a driver that lets only administrators profile.",
            ),
        ),
        wrong_when="never",
        check="Kernels are in the trace.",
        sources="TML",
    ),
    Rule(
        name="start-up",
        find=start_up,
        sees="The only recorded step includes program start: loading kernels, setting up the device.",
        evidence="milliseconds and share of the step in such calls with the device idle",
        fix="Record later: skip the first ten steps and record at least five.",
        fix_pytorch="schedule=torch.profiler.schedule(wait=10, warmup=2, active=5).",
        wrong_when="the run is one step long",
        check="A launch takes 5 to 20 µs in every step.",
        explains=_OF_START,
        sources="NAI, DL",
    ),
    Rule(
        name="graph-capture",
        find=graph_capture,
        sees="The recording is of a graph capture, in which nothing runs.",
        evidence="capturing calls, busy share of the step",
        fix="Record later, when steps run.",
        wrong_when="a step also captures a small graph",
        check="No capturing calls, and the device works.",
        explains=_OF_START,
        sources="NAI",
    ),
    Rule(
        name="collective-is-all",
        find=collective_is_all,
        sees="Nearly all of one rank's time is one collective: recordings probably started at "
        "different times.",
        evidence="compute and communication shares of the step, ranks given",
        fix="Put a barrier before the recording begins, and give the traces of all ranks.",
        wrong_when="the run really only communicates",
        check="Computing is more than a tenth of the step.",
        explains=(
            *("exposed-communication", "weak-overlap", "small-messages", "slow-link"),
            *("host-stall", "python-loop", "python-overhead"),
        ),
        sources="HYP",
    ),
    Rule(
        name="profiler-overhead",
        find=warning_of_source("info", "profiler_overhead"),
        sees="The profiler itself was at work during steady steps.",
        evidence="its share of the steady steps",
        fix="Record fewer steps, without stacks, memory and shapes, after a warm-up of the profiler.",
        wrong_when="never, but what it slowed may be small",
        check="The overhead is below 2 %.",
        sources="NAI",
    ),
    Rule(
        name="recording-slows-host",
        find=warning_of_source("info", "host_slowed"),
        sees="The device waits for a host that recording slows (stacks, shapes, memory).",
        evidence="share of the step waiting for the host, what was recorded",
        fix="Record once more without stacks, shapes and memory, and compare the step time.",
        wrong_when="the step takes as long without the profiler",
        check="The step time is the same with and without the profiler.",
        sources="NAI",
    ),
    Rule(
        name="clocks-apart",
        find=warning_of_source("info", "clocks"),
        sees="Kernels start before their launch: host and device clocks disagree.",
        evidence="how many, and by how much",
        fix="Record again with newer tools; do not trust gaps shorter than the difference.",
        wrong_when="only a handful of events are off",
        check="No kernel starts before its launch.",
        sources="HTA",
    ),
    Rule(
        name="unexplained-idle",
        find=unexplained_idle,
        sees="The device is idle although work was launched, for no recorded reason.",
        evidence="unattributed share of the step",
        fix="Record all activities on all streams; check whether others use the device.",
        wrong_when="events were removed from the file on purpose",
        check="Less than a tenth of the step is unattributed.",
        sources="HTA, TL",
    ),
    Rule(
        name="hardly-any-work",
        find=hardly_any_work,
        sees="A step has a few kernels and the device hardly works: the run is not in the file.",
        evidence="kernels per step, busy share of the step",
        fix="Record whole training steps with all activities; this file says nothing about the run.",
        wrong_when="the run really launches a handful of kernels",
        check="Each step has the model's kernels.",
        explains=("host-stall", "launch-gaps", "slow-launches", "sync-wait", "fast-backward"),
        sources="DL, NAI",
    ),
    Rule(
        name="above-roof",
        find=above_roof,
        sees="An operation is faster than its device allows: peak, shapes or device are wrong.",
        evidence="the operation, its share of its roof",
        fix="Check the device and precision given, and whether the operation does all that its shapes "
        "say: grouped products skip padding.",
        wrong_when="never: arithmetic cannot exceed its hardware (reads from cache may, and are not judged) ",
        check="No operation is above its roof.",
        sources="TL",
    ),
)
