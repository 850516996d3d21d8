"""Rules about the profile itself: doubts that come before any advice."""

from __future__ import annotations

from functools import partial

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rule import Found, Remedy, Rule
from stepgrade.model.scorecard import Severity
from stepgrade.units import show_count, show_ms, show_share

_OF_START = (
    *("slow-launches", "host-stall", "launch-gaps", "short-kernels", "dispatch-latency", "sync-wait"),
    *("allocator-sync", "device-synchronize", "scalar-read-sync", "blocking-copy-sync", "hardly-any-work"),
    *("input-wait", "pageable-copies", "unexplained-idle", "recording-slows-host"),
)
fitness_rule = partial(Rule, area="fitness")


def _warning(codes: tuple[str, ...], context: RuleContext) -> Found | None:
    """Repeat the reader's warning with one of these codes."""
    note = next((note for note in context.profile.warnings if note.code in codes), None)
    if note is None:
        return None
    # On a processor, steps differ because other programs run too.
    severity: Severity | None = (
        "info" if note.code == "warm_up" and context.activity.driver == "host" else None
    )
    claim = str(note) if note.ranks else note.text
    return Found(claim, {"flaw": note.code}, severity=severity, warning=note.code)


truncated_trace = fitness_rule(
    sees="The file is truncated or damaged.",
    evidence="what could not be read",
    fix="Record again and let the export finish; check for disk space.",
    wrong_when="only the end is missing",
    check="The whole file can be read.",
    sources="HTA",
    severity="warning",
    find=partial(_warning, ("truncated",)),
)


warm_up_only = fitness_rule(
    sees="Most recorded steps are warm-up: compiling, autotuning, growing memory pools.",
    evidence="steps that differ from later ones, and by how much",
    fix="Record later: skip the first ten steps and record at least five.",
    fix_pytorch="Pass schedule=torch.profiler.schedule(wait=10, warmup=2, active=5).",
    wrong_when="steps differ because their batches do",
    check="The steps are steady.",
    sources="GPF, NAI, DL",
    severity="warning",
    find=partial(_warning, ("warm_up",)),
)


no_steps = fitness_rule(
    sees="The recording has no steps, so it counts as one.",
    evidence="no step markers, no repeating pattern",
    fix="Mark steps while recording.",
    fix_pytorch="Call prof.step() once in each iteration.",
    wrong_when="only one step was recorded",
    check="Steps are found.",
    sources="XP, DL",
    severity="info",
    find=partial(_warning, ("no_steps",)),
)


device_unseen = fitness_rule(
    sees="The host drives a device whose work was not recorded.",
    evidence="launches without kernels",
    fix="Record the device too.",
    fix_pytorch="Pass activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    fix_where=(
        Remedy(
            "whose launches were recorded",
            lambda context: any(note.code == "kernels_missing" for note in context.profile.warnings),
            "Check why the driver reports no kernels: another profiler is running, a virtual machine, or a "
            "driver that only lets administrators profile.",
        ),
    ),
    wrong_when="never",
    check="Kernels are in the trace.",
    sources="TML",
    severity="warning",
    find=partial(_warning, ("device_unseen", "kernels_missing")),
)


start_up = fitness_rule(
    sees="The only recorded step includes start-up: loading kernels, setting up the device.",
    evidence="time in such calls with the device idle",
    fix="Record later: skip the first ten steps and record at least five.",
    fix_pytorch="Pass schedule=torch.profiler.schedule(wait=10, warmup=2, active=5).",
    wrong_when="the run is one step long",
    check="A launch takes 5 to 20 µs in every step.",
    explains=_OF_START,
    sources="NAI, DL",
    claim="{startup_ms}, {share} of the step, is one-time work such as loading kernels and setting up "
    "the device: the recording includes start-up.",
    figures={"startup_ms": "startup_ms", "share": "startup_share"},
    least={"share": "startup_share"},
    severity="warning",
)


graph_capture = fitness_rule(
    sees="The recording shows a graph capture, during which nothing runs.",
    evidence="capturing calls, busy share",
    fix="Record later, when steps are running.",
    wrong_when="a step also captures a small graph",
    check="No capturing calls, and the device is busy.",
    explains=_OF_START,
    sources="NAI",
    claim="Kernels are captured into graphs ({captures} calls) and hardly run: this is not a step.",
    figures={"captures": "captures", "compute": "compute"},
    severity="warning",
)


@fitness_rule(
    sees="One collective takes nearly all of a rank's time: recordings probably started at different times.",
    evidence="compute and communication shares, number of ranks",
    fix="Put a barrier before the recording starts, and pass the traces of all ranks.",
    wrong_when="the run really does little else",
    check="Compute is more than a tenth of the step.",
    explains=(
        *("exposed-communication", "weak-overlap", "small-messages", "slow-link"),
        *("host-stall", "python-loop", "python-overhead"),
    ),
    sources="HYP",
)
def collective_is_all(context: RuleContext) -> Found | None:
    communication, compute = context.account("exposed_communication"), context.account("compute")
    limits, profile = context.limits, context.profile
    if communication < limits.collective_share or compute > limits.collective_compute_share:
        return None
    if len(profile.ranks) > 1 or (profile.steps or 1) > 2:
        return None
    claim = (
        f"{show_share(communication)} of the step is communication and {show_share(compute)} compute: did "
        "the ranks start recording together?"
    )
    return Found(claim, {"communication": communication, "compute": compute}, severity="warning")


profiler_overhead = fitness_rule(
    sees="The profiler itself took time in steady steps.",
    evidence="its share",
    fix="Record fewer steps without stacks, memory and shapes, and let the profiler warm up.",
    wrong_when="never",
    check="The overhead is below 2 %.",
    sources="NAI",
    severity="info",
    find=partial(_warning, ("profiler_overhead",)),
)


recording_slows_host = fitness_rule(
    sees="The device waits for a host slowed by recording (stacks, shapes, memory).",
    evidence="share waiting for the host, what was recorded",
    fix="Record again without stacks, shapes and memory, and compare the step time.",
    wrong_when="the step takes as long without the profiler",
    check="The step time is the same with and without the profiler.",
    sources="NAI",
    severity="info",
    find=partial(_warning, ("host_slowed",)),
)


clocks_apart = fitness_rule(
    sees="Kernels start before their launch: host and device clocks disagree.",
    evidence="how many kernels, and by how much",
    fix="Record again with newer tools; ignore gaps shorter than the difference.",
    wrong_when="only a few events are off",
    check="No kernel starts before its launch.",
    sources="HTA",
    severity="info",
    find=partial(_warning, ("clocks",)),
)


@fitness_rule(
    sees="The device is idle although work was launched, for no recorded reason.",
    evidence="unattributed share",
    fix="Record all activities on all streams; check whether other programs use the device.",
    wrong_when="events were removed from the file",
    check="Less than a tenth of the step is unattributed.",
    sources="HTA, TL",
)
def unexplained_idle(context: RuleContext) -> Found | None:
    if not any(note.code == "unattributed" for note in context.profile.warnings):
        return None
    share = context.account("unattributed")
    return Found(
        f"{show_share(share)} of the step is idle time that the trace does not explain: events are missing, "
        "or the device worked for another process.",
        {"unattributed_share": share},
        severity="warning" if share >= context.limits.unexplained_share else "info",
        warning="unattributed",
    )


@fitness_rule(
    sees="A step has few kernels and the device is hardly busy: the run is not in the file.",
    evidence="kernels per step, busy share",
    fix="Record whole training steps with all activities.",
    wrong_when="the run really has few kernels",
    check="Each step has the model's kernels.",
    explains=("host-stall", "launch-gaps", "slow-launches", "sync-wait", "fast-backward"),
    sources="DL, NAI",
)
def hardly_any_work(context: RuleContext) -> Found | None:
    kernels, busy, limits = context.activity.kernels, context.account("compute"), context.limits
    step_ms = context.times.typical_ms
    if context.activity.driver == "host" and step_ms is not None and step_ms < limits.shortest_step_ms:
        calls = sum(op.calls or 0.0 for op in context.operations)
        if calls < limits.few_operations:
            claim = f"A step has {show_count(round(calls))} operations and takes {show_ms(step_ms)}."
            return Found(claim, {"operations": calls, "step_ms": step_ms}, severity="warning")
    if kernels is None or not context.on_device or context.ledger is None:
        return None
    working = busy + context.account("exposed_communication", "wait_ranks")
    if kernels.count >= limits.few_kernels or working >= limits.idle_device_share or context.explains_much:
        return None
    count = "one kernel" if round(kernels.count) == 1 else f"{show_count(round(kernels.count))} kernels"
    claim = f"A step has {count}, and the device is busy for {show_share(busy)} of it."
    return Found(claim, {"kernels": kernels.count, "compute": busy}, severity="warning")


@fitness_rule(
    sees="An operation does more arithmetic than its device can: peak, shapes or device are wrong.",
    evidence="the operation, its share of its roof",
    fix="Check device and precision, and whether the operation does all the work its shapes imply: "
    "grouped products skip padding.",
    wrong_when="never",
    check="No operation is above its roof.",
    sources="TL",
)
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
    return Found(claim, {"operation": top.name, "roof_share": reached}, severity="info")
