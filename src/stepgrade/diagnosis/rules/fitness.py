"""Rules about the profile itself: what must be known before any advice is taken."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Check, Found, rule
from stepgrade.model.finding import Severity
from stepgrade.units import show_count, show_share

_AREA = "fitness"


def _on_flaw(code: str, severity: Severity) -> Check:
    """Return the question whether the profile has this flaw."""

    def ask(context: RuleContext, limits: Limits) -> Found | None:  # noqa: ARG001  the reader has judged
        flaw = next((one for one in context.profile.warnings if one.code == code), None)
        if flaw is None:
            return None
        return Found(severity=severity, claim=flaw.text, evidence={"flaw": code}, warning=code)

    return ask


truncated_trace = rule(
    name="truncated-trace",
    area=_AREA,
    sees="The file is cut off or damaged: part of what happened is missing.",
    evidence="what the reader had to leave out",
    fix={"general": "Record again and let the export finish; check the disk's space."},
    wrong_when="only the very end is missing",
    check="Nothing is lost in reading.",
    sources="HTA-07",
)(_on_flaw("truncated", "warning"))

warm_up_only = rule(
    name="warm-up-only",
    area=_AREA,
    sees="Most of the recorded steps are warm-up: compiling, autotuning, growing memory.",
    evidence="how many steps differ from the later ones, and by how much",
    fix={
        "general": "Record later: skip the first ten steps and record at least five.",
        "pytorch": "schedule=torch.profiler.schedule(wait=10, warmup=2, active=5).",
    },
    wrong_when="steps differ because batches do",
    check="The steps are steady.",
    sources="GPF-17, NAI-14, DL-07",
)(_on_flaw("warm_up", "warning"))

profiler_overhead = rule(
    name="profiler-overhead",
    area=_AREA,
    sees="The profiler itself was at work during the steady steps.",
    evidence="share of the steady steps in the profiler's own work",
    fix={
        "general": "Record fewer steps, without stacks, memory and shapes, after a warm-up of the profiler."
    },
    wrong_when="never: but what it slowed may be small",
    check="The overhead is below 2 %.",
    sources="NAI-15",
)(_on_flaw("profiler_overhead", "info"))

host_slowed = rule(
    name="recording-slows-host",
    area=_AREA,
    sees="The device waits for a host that recording itself slows (stacks, shapes, memory).",
    evidence="share of the step waiting for the host, what was recorded",
    fix={"general": "Record once more without stacks, shapes and memory, and compare the step time."},
    wrong_when="the step takes as long without the profiler",
    check="The step time is the same with and without the profiler.",
    sources="NAI-15",
)(_on_flaw("host_slowed", "info"))

no_steps = rule(
    name="no-steps",
    area=_AREA,
    sees="The recording marks no steps, so that its span counts as one.",
    evidence="no step marks, no repeating pattern",
    fix={"general": "Mark steps while recording.", "pytorch": "Call prof.step() once in each iteration."},
    wrong_when="the recording is of one step",
    check="Steps are found.",
    sources="XP-19, DL-08",
)(_on_flaw("no_steps", "info"))

device_unseen = rule(
    name="device-unseen",
    area=_AREA,
    sees="The host drives a device whose work was not recorded.",
    evidence="launches without kernels",
    fix={
        "general": "Record the device as well.",
        "pytorch": "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    },
    wrong_when="never",
    check="Kernels are in the trace.",
    sources="TML-12",
)(_on_flaw("device_unseen", "warning"))

clocks_apart = rule(
    name="clocks-apart",
    area=_AREA,
    sees="Kernels start before their launch: the clocks of host and device do not agree.",
    evidence="how many, and by how much",
    fix={"general": "Record again with newer tools; do not trust gaps shorter than the difference."},
    wrong_when="a handful of events are off",
    check="No kernel starts before its launch.",
    sources="HTA-07",
)(_on_flaw("clocks", "info"))


@rule(
    name="unexplained-idle",
    area=_AREA,
    sees="The device is idle although work was launched, and nothing recorded says why.",
    evidence="share of the step that no account explains",
    fix={"general": "Record all activities on all streams; check whether others use the device."},
    wrong_when="events were removed from the file on purpose",
    check="Less than a tenth of the step is unattributed.",
    sources="HTA-08, TL-22",
)
def unexplained_idle(context: RuleContext, limits: Limits) -> Found | None:
    """Report idle time without a reason; much of it makes the other accounts doubtful."""
    flaw = next((one for one in context.profile.warnings if one.code == "unattributed"), None)
    if flaw is None:
        return None
    share = context.account("unattributed")
    severity: Severity = "warning" if share >= limits.unexplained_share else "info"
    return Found(
        severity=severity, claim=flaw.text, evidence={"unattributed_share": share}, warning="unattributed"
    )


@rule(
    name="hardly-any-work",
    area=_AREA,
    sees="A step holds a few kernels and the device does next to nothing: the run is not in the file.",
    evidence="kernels per step, share of the step with work on the device",
    fix={
        "general": "Record whole training steps with all activities; this file says nothing about the run.",
    },
    wrong_when="the run really launches a handful of kernels",
    check="Each step holds the model's kernels.",
    explains=("host-stall", "launch-gaps", "slow-launches", "sync-wait", "fast-backward"),
    sources="DL-02, NAI-16",
)
def hardly_any_work(context: RuleContext, limits: Limits) -> Found | None:
    """Report a recording that is nearly empty."""
    kernels, busy = context.activity.kernels, context.account("compute")
    if (
        not context.on_device
        or kernels is None
        or context.ledger is None
        or kernels.count >= limits.few_kernels
    ):
        return None
    if busy + context.account("exposed_communication") >= limits.idle_device_share:
        return None
    claim = f"A step holds {_kernels(kernels.count)}, and the device works {show_share(busy)} of it."
    return Found(severity="warning", claim=claim, evidence={"kernels": kernels.count, "compute": busy})


def _kernels(count: float) -> str:
    return "one kernel" if round(count) == 1 else f"{show_count(round(count))} kernels"


@rule(
    name="collective-is-all",
    area=_AREA,
    sees="Nearly all of one rank's time is one collective: most likely the ranks began recording apart.",
    evidence="share of the step computing and in communication, ranks given",
    fix={"general": "Put a barrier before the recording begins, and give the traces of all ranks."},
    wrong_when="the run really only communicates",
    check="Computing is more than a tenth of the step.",
    explains=("exposed-communication", "weak-overlap", "small-messages", "slow-link"),
    sources="HYP-01",
)
def collective_is_all(context: RuleContext, limits: Limits) -> Found | None:
    """Report a recording that is one long wait."""
    talk, work = context.account("exposed_communication"), context.account("compute")
    if talk < limits.collective_share or work > limits.collective_compute_share:
        return None
    if len(context.profile.ranks) > 1 or (context.profile.steps or 1) > 2:
        return None
    claim = (
        f"{show_share(talk)} of the step is communication and {show_share(work)} work: did the "
        "ranks begin together?"
    )
    return Found(severity="warning", claim=claim, evidence={"communication": talk, "compute": work})


@rule(
    name="above-roof",
    area=_AREA,
    sees="An operation is faster than its device allows: the peak, the shapes or the device are wrong.",
    evidence="the operation, its share of its own roof",
    fix={
        "general": "Check the device and the precision it is held against (--device, --dtype), and whether "
        "the operation does all that its shapes say: grouped products leave padding out."
    },
    wrong_when="never: no arithmetic runs faster than its hardware (reads from cache may, and are "
    "not judged)",
    check="No operation is above its roof.",
    sources="TL-21",
)
def above_roof(context: RuleContext, limits: Limits) -> Found | None:
    """Report operations that are too fast to be true."""
    fast = [
        op
        for op in context.operations
        if op.roof == "compute" and (op.roof_share or 0.0) > limits.above_roof and (op.share or 0.0) > 0.01
    ]
    if not fast:
        return None
    top = max(fast, key=lambda op: op.roof_share or 0.0)
    claim = f"{top.name} runs at {show_share(top.roof_share, 0)} of its roof, which cannot be."
    return Found(
        severity="info", claim=claim, evidence={"operation": top.name, "roof_share": top.roof_share or 0.0}
    )


RULES = (
    truncated_trace,
    warm_up_only,
    no_steps,
    device_unseen,
    collective_is_all,
    profiler_overhead,
    host_slowed,
    clocks_apart,
    unexplained_idle,
    hardly_any_work,
    above_roof,
)
