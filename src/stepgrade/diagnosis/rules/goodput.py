"""Rules about the whole run: what interrupts it, how much that costs, whether it gets slower."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Rule, Worth
from stepgrade.model.ledger import ALL_ACCOUNTS
from stepgrade.model.step_log import PauseKind
from stepgrade.scoring.goodput import Pause, period_of
from stepgrade.statistics import median
from stepgrade.units import show_count, show_ms, show_share

# The longest pause is told beside the median where it is so much longer.
_FAR_LONGER = 2.0


def _pauses(context: RuleContext, kind: PauseKind) -> tuple[tuple[Pause, ...], float, Levels]:
    """Return the pauses of one kind, their share of the wall time, and from which shares on that counts."""
    limits = context.limits
    levels = Levels(limits.pause_info_share, limits.pause_warning_share, limits.pause_critical_share)
    if context.wall is None:
        return (), 0.0, levels
    pauses = context.wall.of(kind)
    seconds = sum(pause.seconds for pause in pauses)
    return pauses, seconds / context.wall.goodput.wall_s, levels


def _every(context: RuleContext, pauses: tuple[Pause, ...]) -> tuple[str, Evidence]:
    """Say how often pauses come, in steps and in time."""
    log, wall = context.profile.log, context.wall
    if log is None or wall is None:
        return "", {}
    costs = [pause.seconds for pause in pauses]
    evidence: Evidence = {
        "pauses": float(len(pauses)),
        "seconds": sum(costs),
        "median_s": median(costs),
        "wall_s": wall.goodput.wall_s,
    }
    coarse = median(log.count)
    period = period_of([pause.step for pause in pauses], coarse)
    if period is None:
        return f"{show_count(len(pauses))} times", evidence
    apart_s = wall.goodput.wall_s * period / max(sum(log.count), 1.0)
    return f"every {show_count(round(period))} steps (about {show_ms(apart_s * 1e3)})", evidence | {
        "every_steps": period,
        "every_s": apart_s,
    }


def slow_checkpoints(context: RuleContext) -> Found | None:
    pauses, share, levels = _pauses(context, "checkpoint")
    if not pauses:
        return None
    often, evidence = _every(context, pauses)
    each = show_ms(median(pause.seconds for pause in pauses) * 1e3)
    claim = f"Checkpoints hold the run up {often}, {each} each: {show_share(share)} of the wall time."
    return levels.found(share, claim, evidence | {"share": share})


def long_evaluations(context: RuleContext) -> Found | None:
    pauses, share, levels = _pauses(context, "evaluation")
    if not pauses:
        return None
    often, evidence = _every(context, pauses)
    each = show_ms(median(pause.seconds for pause in pauses) * 1e3)
    claim = f"Evaluation holds the run up {often}, {each} each: {show_share(share)} of the wall time."
    return levels.found(share, claim, evidence | {"share": share})


def recurring_slow_steps(context: RuleContext) -> Found | None:
    pauses, share, levels = _pauses(context, "stall")
    if not pauses:
        return None
    often, evidence = _every(context, pauses)
    each = median(pause.seconds for pause in pauses)
    most = max(pause.seconds for pause in pauses)
    by = show_ms(each * 1e3) + (f" ({show_ms(most * 1e3)} at most)" if most > _FAR_LONGER * each else "")
    lost = f"{show_share(share)} of the wall time"
    claim = f"Steps are late {often}, by {by}, and the log does not say why: {lost}."
    return levels.found(share, claim, evidence | {"share": share})


def restarts(context: RuleContext) -> Found | None:
    log, wall = context.profile.log, context.wall
    if log is None or wall is None or len(log.attempts) < 2:
        return None
    limits = context.limits
    share, count = wall.goodput.restart, len(log.attempts) - 1
    seconds = share * wall.goodput.wall_s
    again = f", {show_count(round(wall.lost_steps))} steps done again" if wall.lost_steps else ""
    part = f"{show_share(share)} of the wall time"
    times = "once" if count == 1 else f"{count} times"
    claim = f"The run began again {times}: {show_ms(seconds * 1e3)} lost{again}, {part}."
    evidence: Evidence = {
        "restarts": float(count),
        "seconds": seconds,
        "lost_steps": wall.lost_steps,
        "lost_s": wall.lost_s,
        "share": share,
    }
    levels = Levels(0.0, limits.pause_warning_share, limits.pause_critical_share)
    return levels.found(share, claim, evidence)


def slower_run(context: RuleContext) -> Found | None:
    log, wall, limits = context.profile.log, context.wall, context.limits
    if log is None or wall is None or not limits.run_drift <= 1.0 + wall.drift <= limits.run_drift_most:
        return None
    share = wall.drift_s / wall.goodput.wall_s
    if share < limits.run_drift_share:
        return None
    evidence: Evidence = {"drift": wall.drift, "seconds": wall.drift_s, "share": share}
    how = f"Steps get {show_share(wall.drift)} slower over the run"
    if wall.level_changes:
        how += f", most of it from step {wall.level_changes[0]:,.0f} on"
        evidence["first_change"] = wall.level_changes[0]
    claim = f"{how}: {show_ms(wall.drift_s * 1e3)}, {show_share(share)} of the wall time."
    return Found(
        "warning" if 1.0 + wall.drift >= limits.run_drift_warning else "info", claim, evidence, share
    )


def slow_start(context: RuleContext) -> Found | None:
    wall, limits = context.wall, context.limits
    if wall is None or wall.goodput.wall_s < limits.long_run_s:
        return None
    share = wall.goodput.startup + wall.goodput.compile
    seconds = share * wall.goodput.wall_s
    levels = Levels(limits.pause_info_share, limits.pause_warning_share, limits.pause_critical_share)
    claim = f"Start-up and compilation take {show_ms(seconds * 1e3)}, {show_share(share)} of the wall time."
    return levels.found(share, claim, {"seconds": seconds, "share": share})


RULES = (
    Rule(
        name="slow-checkpoints",
        find=slow_checkpoints,
        sees="Training pauses to save checkpoints.",
        evidence="count, length, interval in steps, share of the wall time",
        fix="Save asynchronously, to fast local storage first, or less often.",
        fix_pytorch="Save asynchronously (torch.distributed.checkpoint.async_save; async-save in "
        "Megatron-LM, checkpoint.async_mode in torchtitan), to local disks first, or less often.",
        fix_jax="Use Orbax's AsyncCheckpointer (async_checkpointing in MaxText), or save less often.",
        wrong_when="an evaluation ran at the same step, and the log does not separate them",
        check="Steps after a checkpoint are as fast as others.",
        worth=Worth(ALL_ACCOUNTS, 0.8, "asynchronous saving leaves the copy to host memory"),
        sources="ML Productivity Goodput",
    ),
    Rule(
        name="long-evaluations",
        find=long_evaluations,
        sees="Training pauses to evaluate.",
        evidence="count, length, interval in steps, share of the wall time",
        fix="Evaluate less often, on fewer batches, with a larger batch, or in a separate job.",
        wrong_when="evaluation is what the run is for",
        check="The evaluation's share of the wall time comes down.",
        worth=Worth(ALL_ACCOUNTS, 0.6, "half as many evaluations on fewer batches say as much"),
        sources="ML Productivity Goodput",
    ),
    Rule(
        name="recurring-slow-steps",
        find=recurring_slow_steps,
        sees="Some step lines are late, and the log does not say why.",
        evidence="count, delay, interval in steps, share of the wall time",
        fix="At a fixed interval: logging, garbage collection (gc.disable, gc.collect at a fixed "
        "step) or the end of a data shard; irregular: input, storage or a neighbour.",
        wrong_when="steps are of several kinds by design",
        check="The late steps are as fast as the others.",
        worth=Worth(ALL_ACCOUNTS, 0.7, "what recurs can mostly be moved or made asynchronous"),
        explains=("unsteady-steps",),
        sources="ML Productivity Goodput",
    ),
    Rule(
        name="run-restarts",
        find=restarts,
        sees="The run crashed and resumed, possibly repeating steps.",
        evidence="count, time until it resumed, repeated steps",
        fix="Save checkpoints more often than runs fail, asynchronously, and restart automatically; "
        "look for the cause just before the gap.",
        wrong_when="another run was appended to the log",
        check="The time from the last step to the next one is short.",
        worth=Worth(ALL_ACCOUNTS, 0.5, "restarts get shorter before they get rarer"),
        sources="ML Productivity Goodput",
    ),
    Rule(
        name="slower-run",
        find=slower_run,
        sees="Steps get slower over the run, gradually or from some step on.",
        evidence="slowdown from start to end, its cost, where it changed",
        fix="Look for what grows or heats up: memory fragmentation, kept tensors, longer sequences, clocks; "
        "compare a trace of the beginning with one of the end.",
        wrong_when="batch or sequence grow by a schedule that the log does not print",
        check="The last tenth of the steps takes as long as the first.",
        worth=Worth(ALL_ACCOUNTS, 0.8, "the beginning shows what a step could take"),
        explains=("drifting-steps",),
        sources="ML Productivity Goodput",
    ),
    Rule(
        name="slow-start",
        find=slow_start,
        sees="A long run takes long to reach full speed.",
        evidence="time before the first step, warm-up and compilation",
        fix="Cache compilation (TORCHINDUCTOR_FX_GRAPH_CACHE, JAX's compilation cache) and prepared "
        "data; load weights from local disks.",
        wrong_when="the run was stopped early, or is a benchmark",
        check="The first step comes sooner after the start.",
        worth=Worth(ALL_ACCOUNTS, 0.5, "caches spare most of compilation"),
        sources="ML Productivity Goodput",
    ),
)
