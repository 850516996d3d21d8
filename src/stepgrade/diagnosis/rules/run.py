"""Rules about the run as a whole: its layers and passes, its pauses, how steady its steps are."""

from __future__ import annotations

from functools import partial

from stepgrade.contract.scorecard import FAST_BACKWARD_ADVICE
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rule import Evidence, Found, Remedy, Rule, Worth
from stepgrade.model import RECORDER
from stepgrade.model.ledger import ALL_ACCOUNTS
from stepgrade.model.notes import has_code
from stepgrade.model.scorecard import Severity
from stepgrade.model.step_log import PauseKind
from stepgrade.scoring.goodput import WallLedger, period_of
from stepgrade.scoring.phases import PhaseKind, kind_of
from stepgrade.statistics import mean, median, quantile
from stepgrade.units import how_often, show_count, show_ms, show_ratio, show_share

_PRODUCTS = frozenset({"gemm", "convolution", "attention"})
_SKIPPED = "Check that no layer skips its backward pass: NaN gradients, frozen parts."
_FAR_LONGER = 2.0  # times the mean: the longest pause is shown as well
_BUSY = "Other programs were using the cores."
_ON_A_QUIET_MACHINE = "Record again on a quiet machine, to separate the training from other programs."
layers_rule = partial(Rule, area="layers")
goodput_rule = partial(Rule, area="goodput", levels="pause", sources="ML Productivity Goodput")
spread_rule = partial(Rule, area="spread", levels="spread")


@layers_rule(
    sees="One layer is clearly slower than others of its kind.",
    evidence="the layer, its direction and time, the median",
    fix="Compare this layer's shapes and kernels with the others'.",
    wrong_when="it differs by design (first, last, global attention)",
    check="The layer is as fast as the median layer.",
    worth=Worth("compute", 0.7, "the other layers show what is possible"),
    explains=("one-hot-operation",),
    levels="layer",
    sources="modified z-score",
)
def slow_layer(context: RuleContext) -> Found | None:
    if not context.slow_layers:
        return None
    slow = context.slow_layers[0]
    passes = [layer for layer in context.slow_layers if layer.layer == slow.layer]
    share = context.times.share(sum(layer.ms - layer.median_ms for layer in passes)) or 0.0
    slow_ms, usual_ms = (context.times.typical(ms) or ms for ms in (slow.ms, slow.median_ms))
    others = len({layer.layer for layer in context.slow_layers}) - 1
    more = f" {others} more layer{'s stand' if others > 1 else ' stands'} out." if others else ""
    return Found(
        f"The {slow.direction} pass of layer {slow.layer} takes {show_ratio(slow.ms / slow.median_ms)} the "
        f"median layer's time ({show_ms(slow_ms)} instead of {show_ms(usual_ms)}).{more}",
        {
            "layer": float(slow.layer),
            "direction": slow.direction,
            "total_ms": context.profile.total(slow.ms),
            "median_total_ms": context.profile.total(slow.median_ms),
        },
        share,
        severity=context.severity("layer", share) or "info",
        remedy=f"Look at layer {slow.layer}'s {slow.direction} pass: shapes, kernels, work only it does.",
        check=f"Layer {slow.layer} is as fast as the median layer.",
    )


@layers_rule(
    sees="Backward passes compute gradients of weights that no optimizer uses.",
    evidence="share of the gradients that are dropped, share of the backward passes",
    levels="unused",
    fix="Cut the graph before weights that this loss does not train.",
    fix_pytorch="Call detach() on the output of a network that this loss does not train, or run it under "
    "torch.no_grad(); set requires_grad_(False) on weights that are only passed through.",
    wrong_when="gradients are looked at, or a step was skipped on purpose",
    check="The backward phase shrinks.",
    worth=Worth("compute", 0.5, "weights that are passed through still need the gradient of their input"),
    explains=("slow-backward", "slow-elementwise", "elementwise-chains"),
    sources="ours: PyTorch's DCGAN tutorial detaches the generator",
)
def unused_gradients(context: RuleContext) -> Found | None:
    dropped = context.activity.marks.get("unused_gradients", 0.0)
    if not dropped:
        return None
    share = dropped * context.phase_share(PhaseKind.BACKWARD)
    claim = (
        f"{show_share(dropped, 0)} of the gradients are dropped before an optimizer uses them: up to "
        f"{show_share(share)} of the step computes them."
    )
    return Found(claim, {"dropped_share": dropped, "share": share}, share)


recomputed_forward = layers_rule(
    sees="The backward pass repeats forward work (activation checkpointing).",
    evidence="repeated time per step, how full memory is",
    fix="If memory has room, checkpoint fewer layers, or only the cheap parts.",
    fix_pytorch="If memory has room, checkpoint every second block, or use selective checkpointing.",
    fix_jax="If memory has room, give jax.checkpoint a policy that saves the products "
    "(jax.checkpoint_policies.dots_saveable), or drop it in some layers.",
    wrong_when="the batch only fits because of it",
    check="Less is repeated, and the step still fits in memory.",
    worth=Worth("compute", 0.5, "memory usually has room for some of the activations"),
    sources="AL, HF, GPF",
    claim="{again_ms} a step is forward work repeated in the backward pass.",
    figures={"again_ms": "recompute_ms", "share": "recompute_share"},
    least={"share": "recompute_info_share"},
    severity="info",
)


@layers_rule(
    sees="Backward is faster than forward, which is unusual.",
    evidence="backward over forward",
    fix=_SKIPPED,
    fix_reference=FAST_BACKWARD_ADVICE,
    wrong_when="most of the model is frozen, or forward includes work without gradients",
    check="Backward over forward is above 1, and the loss still falls.",
    sources="REF",
    needs="ratio",
)
def fast_backward(context: RuleContext, ratio: float) -> Found | None:
    if not 0.0 < ratio < 1.0:
        return None
    # One unusually slow forward layer can make backward look short.
    layers = context.profile.layers
    forward_ms = sum(layer.fwd_ms or 0.0 for layer in layers)
    backward_ms = sum(layer.bwd_ms or 0.0 for layer in layers)
    excess_ms = sum(
        layer.ms - layer.median_ms for layer in context.slow_layers if layer.direction == "forward"
    )
    if excess_ms > 0.0 and backward_ms >= forward_ms - excess_ms:
        return None
    products = {
        direction: sum(
            part.calls
            for part in context.activity.parts
            if part.direction == direction and part.work_class in _PRODUCTS
        )
        for direction in ("forward", "backward")
    }
    # Each forward product causes about two backward products, or one if its weights are frozen.
    if products["backward"] > context.limits.backward_products * products["forward"] > 0.0:
        return None
    claim = f"Backward takes {show_ratio(ratio)} the time of forward; about 2x is usual."
    # A trace shows skipped work by its counts; times alone prove little there, or on a shared processor.
    samples = {kind_of(phase.name): phase.samples_ms for phase in context.profile.phases}
    passes = zip(samples.get(PhaseKind.FORWARD, ()), samples.get(PhaseKind.BACKWARD, ()), strict=False)
    ratios = sorted(backward / forward for forward, backward in passes if forward > 0.0)
    is_sure = len(ratios) < 2 or quantile(ratios, 0.9) < 1.0
    is_timed_only = context.profile.activity is None and context.profile.source.producer != RECORDER
    evidence: Evidence = {"backward_over_forward": ratio}
    return Found(claim, evidence, severity="warning" if is_sure and is_timed_only else "info")


@layers_rule(
    sees="Without recomputation, backward takes far more than twice as long as forward.",
    evidence="backward over forward, share beyond twice forward",
    fix="Look at the longest backward operations: scatter-adds, unfused attention, double casts.",
    wrong_when="forward does only part of the work, as with frozen caches",
    check="Backward over forward is near 2.",
    worth=Worth("compute", 0.3, "the cause is not known yet"),
    sources="GPF",
    needs="ratio",
)
def slow_backward(context: RuleContext, ratio: float) -> Found | None:
    backward_ms = context.phases.by_kind_ms.get(PhaseKind.BACKWARD, 0.0)
    if ratio < context.limits.slow_backward_ratio or context.activity.recompute_ms:
        return None
    share = context.step_share(backward_ms) * (1.0 - 2.0 / ratio)
    claim = f"Backward takes {show_ratio(ratio)} the time of forward; about 2x is usual."
    return Found(claim, {"backward_over_forward": ratio}, share, severity="info")


@layers_rule(
    sees="Some steps lack the backward pass or optimizer of others.",
    evidence="number of such steps",
    fix="Check the loss of these steps: many loops skip a step if it is NaN or infinite.",
    fix_pytorch="Check the loss of these steps and the GradScaler, which skips updates with "
    "infinite gradients; bf16 needs no scaler.",
    wrong_when="gradients are accumulated over several micro-steps",
    check="Every step has a backward pass and an update.",
    sources="REF",
)
def skipped_steps(context: RuleContext) -> Found | None:
    count, part = context.activity.skipped_steps, context.activity.skipped_part
    if not count or part is None:
        return None
    steps = max(context.profile.steps or count, count)
    return Found(
        f"{show_count(count)} of {show_count(steps)} steps have no {part}.",
        {"steps": float(count), "part": part},
        severity="warning" if part == "backward pass" else "info",
    )


@layers_rule(
    sees="An optimizer runs without a backward pass.",
    evidence="optimizer calls per step, time of backward",
    fix=_SKIPPED,
    wrong_when="backward is in a compiled graph without names",
    check="Backward takes about twice as long as forward.",
    sources="REF",
)
def no_backward(context: RuleContext) -> Found | None:
    updates = context.activity.marks.get("optimizer_step", 0.0)
    kernels, ms = context.activity.kernels, context.phases.by_kind_ms
    if kernels is not None and kernels.graph_share > 0.0:  # graphs do not show passes
        return None
    if not updates or not ms.get(PhaseKind.FORWARD) or ms.get(PhaseKind.BACKWARD):
        return None
    claim = f"The optimizer runs {how_often(updates)} but no backward pass was seen."
    return Found(claim, {"updates": updates, "share": show_share(0.0)}, severity="warning")


def _pauses(kind: PauseKind, claim: str, context: RuleContext) -> Found | None:
    """Return the pauses of one kind; the claim may name how often, how long and what they cost."""
    log, wall = context.profile.log, context.wall
    pauses = wall.of(kind) if wall is not None else ()
    if log is None or wall is None or not pauses:
        return None
    seconds, wall_s = [pause.seconds for pause in pauses], wall.goodput.wall_s
    share, mean_s, most_s = sum(seconds) / wall_s, mean(seconds), max(seconds)
    often, apart_s = "once" if len(pauses) == 1 else f"{show_count(len(pauses))} times", None
    period = period_of([pause.step for pause in pauses], median(log.count))
    if period is not None and period <= median(log.count):
        period = None  # one line after the other
    if period is not None:
        apart_s = wall_s * period / max(sum(log.count), 1.0)
        often = f"every {show_count(round(period))} steps (about {show_ms(apart_s * 1e3)})"
    words = {
        "often": often,
        "length": show_ms(mean_s * 1e3) + ("" if len(pauses) == 1 else " each"),
        "delay": show_ms(mean_s * 1e3)
        + (f" ({show_ms(most_s * 1e3)} at most)" if most_s > _FAR_LONGER * mean_s else ""),
        "cost": f"{show_share(share)} of the wall time",
    }
    evidence: Evidence = {
        "pauses": float(len(pauses)),
        "seconds": sum(seconds),
        "mean_s": mean_s,
        "median_s": median(seconds),
        "wall_s": wall_s,
        "every_steps": period,
        "every_s": apart_s,
        "share": share,
    }
    return Found(claim.format(**words), evidence, share)


slow_checkpoints = goodput_rule(
    sees="Training pauses to save checkpoints.",
    evidence="count, length, interval in steps, share of the wall time",
    fix="Save asynchronously, to fast local storage first, or less often.",
    fix_pytorch="Save asynchronously (torch.distributed.checkpoint.async_save; async-save in "
    "Megatron-LM, checkpoint.async_mode in torchtitan), to local disks first, or less often.",
    fix_jax="Use Orbax's AsyncCheckpointer (async_checkpointing in MaxText), or save less often.",
    wrong_when="an evaluation ran at the same step and the log does not separate the two",
    check="Steps after a checkpoint are as fast as the others.",
    worth=Worth(ALL_ACCOUNTS, 0.8, "asynchronous saving leaves only the copy to host memory"),
    find=partial(_pauses, "checkpoint", "Checkpoints paused training {often}, for {length}: {cost}."),
)


long_evaluations = goodput_rule(
    sees="Training pauses to evaluate.",
    evidence="count, length, interval in steps, share of the wall time",
    fix="Evaluate less often, on fewer batches, with a larger batch, or in a separate job.",
    wrong_when="the run is meant to evaluate",
    check="Evaluation takes a smaller share of the wall time.",
    worth=Worth(ALL_ACCOUNTS, 0.6, "half as many evaluations on fewer batches are as informative"),
    find=partial(_pauses, "evaluation", "Evaluation paused training {often}, for {length}: {cost}."),
)


recurring_slow_steps = goodput_rule(
    sees="Some step lines are late, and the log does not say why.",
    evidence="count, delay, interval in steps, share of the wall time",
    fix="If regular: check logging, garbage collection (gc.disable, gc.collect every N steps) and the ends "
    "of data shards; if irregular: input, storage and other jobs on the machine.",
    wrong_when="steps differ by design",
    check="The late steps are as fast as the others.",
    worth=Worth(ALL_ACCOUNTS, 0.7, "most recurring work can be moved or made asynchronous"),
    explains=("unsteady-steps",),
    find=partial(
        _pauses, "stall", "Steps are late {often}, by {delay}, and the log does not say why: {cost}."
    ),
)


@goodput_rule(
    sees="The run crashed and resumed, possibly repeating steps.",
    evidence="count, time until it resumed, repeated steps",
    fix="Save checkpoints asynchronously and more often than runs fail, and restart automatically; look "
    "for the cause just before the gap.",
    wrong_when="another run was appended to the log",
    check="The gap between the last step and the next is short.",
    worth=Worth(ALL_ACCOUNTS, 0.5, "restarts get shorter before they get rarer"),
    needs="wall",
)
def run_restarts(context: RuleContext, wall: WallLedger) -> Found | None:
    log = context.profile.log
    if log is None or len(log.attempts) < 2:
        return None
    share, count = wall.goodput.restart, len(log.attempts) - 1
    seconds = share * wall.goodput.wall_s
    repeated = f", {show_count(round(wall.lost_steps))} steps repeated" if wall.lost_steps else ""
    times = "once" if count == 1 else f"{count} times"
    claim = (
        f"The run restarted {times}: {show_ms(seconds * 1e3)} lost{repeated}, {show_share(share)} of the "
        "wall time."
    )
    evidence: Evidence = {
        "restarts": float(count),
        "seconds": seconds,
        "lost_steps": wall.lost_steps,
        "lost_s": wall.lost_s,
        "share": share,
    }
    return Found(claim, evidence, share, context.severity("pause", share) or "info")


@goodput_rule(
    sees="Steps get slower over the run, gradually or from some step on.",
    evidence="slowdown from start to end, its cost, where it changed",
    fix="Look for what grows or heats up: memory fragmentation, kept tensors, longer sequences, clocks; "
    "compare a trace from the start with one from the end.",
    wrong_when="batch or sequence length grow on a schedule that the log does not show",
    check="The last tenth of the steps is as fast as the first.",
    worth=Worth(ALL_ACCOUNTS, 0.8, "the start of the run shows what is possible"),
    explains=("drifting-steps",),
    needs="wall",
)
def slower_run(context: RuleContext, wall: WallLedger) -> Found | None:
    limits = context.limits
    if not limits.run_drift <= 1.0 + wall.drift <= limits.run_drift_most:
        return None
    share = wall.drift_s / wall.goodput.wall_s
    if share < limits.run_drift_share:
        return None
    first = wall.level_changes[0] if wall.level_changes else None
    since = "" if first is None else f", most of it from step {first:,.0f} on"
    claim = (
        f"Steps get {show_share(wall.drift)} slower over the run{since}, which costs "
        f"{show_ms(wall.drift_s * 1e3)}, {show_share(share)} of the wall time."
    )
    severity: Severity = "warning" if 1.0 + wall.drift >= limits.run_drift_warning else "info"
    evidence: Evidence = {
        "drift": wall.drift,
        "seconds": wall.drift_s,
        "share": share,
        "first_change": first,
    }
    return Found(claim, evidence, share, severity)


slow_start = goodput_rule(
    sees="A long run takes long to reach full speed.",
    evidence="time before the first step, warm-up and compilation",
    fix="Cache compilation (TORCHINDUCTOR_FX_GRAPH_CACHE, JAX's compilation cache) and prepared "
    "data; load weights from local disks.",
    wrong_when="the run was stopped early, or is a benchmark",
    check="The first step starts sooner.",
    worth=Worth(ALL_ACCOUNTS, 0.5, "caches avoid most of the compilation"),
    claim="Start-up and compilation take {seconds}, {share} of the wall time.",
    figures={"seconds": "starting_s", "share": "starting_share"},
)


_RL_REMEDIES = {
    "rollout": "Give generation more devices or a smaller tensor-parallel size, cap the response length (the "
    "longest responses decide), and generate the next batch while this one trains.",
    "reference": "Raise the micro-batch of the log-probability passes, reuse those of the rollout engine, or "
    "drop the reference model where the KL term is off.",
    "reward": "Score responses as they arrive, in more workers, and not after the last one.",
    "advantage": "Compute advantages on the device, in one batch.",
    "update": "Raise the micro-batch of the update, pack sequences, and checkpoint fewer activations.",
    "environment": "Run many environments at once, in processes of their own (gymnasium's vector "
    "environments), or a faster simulator.",
    "weight sync": "Send the weights in larger buckets and in the rollout engine's layout, and keep both "
    "engines on the same devices.",
    "idle": "Look for what runs between the engines: data transfer, offloading, logging.",
}


_ACT_ON_MANY = (
    "Act on many environments with one forward pass, under torch.inference_mode(); a batch of one "
    "observation costs nearly as much as one of many."
)


_RL_PARTS = {
    "environment": "The environment takes",
    "rollout": "The rollout takes",
    "reference": "Computing log-probabilities takes",
    "reward": "Scoring takes",
    "advantage": "Computing advantages takes",
    "update": "The update takes",
    "weight sync": "Sending weights to the rollout engine takes",
    "idle": "Work between the engines takes",
}


@goodput_rule(
    sees="One part of reinforcement learning takes most of a step.",
    evidence="the part, its time, its share of the step",
    fix="Speed up the longest part, or run it beside the others.",
    fix_where=(
        *(
            Remedy(part, lambda context, part=part: _longest_part(context) == part, text)  # type: ignore[misc]
            for part, text in _RL_REMEDIES.items()
        ),
    ),
    wrong_when="the engines run at the same time on devices of their own",
    check="The part takes a smaller share of the step.",
    worth=Worth(ALL_ACCOUNTS, 0.3, "part of it can run beside the rest"),
    explains=("unsteady-steps", "host-phases", "host-stall", "python-overhead"),
)
def longest_rl_part(context: RuleContext) -> Found | None:
    part = _longest_part(context)
    if part is None:
        return None
    phase = context.phases.shares[part]
    share = phase.share or 0.0
    if share < context.limits.rl_part_share:
        return None
    of_step = f"{show_ms(phase.ms)} of a step of {show_ms(context.times.typical_ms)}, {show_share(share)}"
    claim = f"{_RL_PARTS[part]} {of_step}."
    acts = context.profile.source.producer == RECORDER and part == "rollout"
    evidence: Evidence = {"part": part, "ms": phase.ms, "share": share}
    return Found(claim, evidence, share, severity="warning", remedy=_ACT_ON_MANY if acts else None)


def _longest_part(context: RuleContext) -> str | None:
    """Return the longest part of a step of RL post-training; None for any other run."""
    parts = context.phases.shares
    if "rollout" not in parts:
        return None
    if context.profile.source.producer == RECORDER:  # the update's own parts have other rules
        parts = {name: parts[name] for name in ("rollout", "environment") if name in parts}
    elif context.profile.log is None:
        return None
    return max(parts, key=lambda name: parts[name].ms or 0.0)


def _was_held_up(context: RuleContext) -> bool:
    """Return whether our recorder saw other programs slow the training down."""
    return context.held_up is not None or has_code(context.profile.notes, "busy_machine")


def _is_uneven(context: RuleContext) -> bool:
    """Return whether our recorder saw steps of different size."""
    return has_code(context.profile.notes, "uneven_steps")


def have_one_cause(context: RuleContext) -> bool:
    """Return whether the same operation, or the time outside of operations, makes most long steps long.

    Other programs on the processor slow down the whole step, or a different operation each time.
    """
    samples, limits = context.profile.samples_ms, context.limits
    usual_ms = median(samples)
    parts = {
        op.name: op.samples_ms for op in context.profile.operations if len(op.samples_ms) == len(samples)
    }
    if not parts:
        return True
    parts[""] = tuple(ms - sum(part[index] for part in parts.values()) for index, ms in enumerate(samples))
    usual = {name: median(times) for name, times in parts.items()}
    longest: dict[str, int] = {}
    long = [index for index, ms in enumerate(samples) if ms > limits.spread_ratio * usual_ms]
    for index in long:
        name = max(parts, key=lambda name: parts[name][index] - usual[name])
        if parts[name][index] - usual[name] >= limits.spread_same_cause * (samples[index] - usual_ms):
            longest[name] = longest.get(name, 0) + 1
    most = max(longest.values(), default=0)
    return most > 1 and most > limits.spread_same_cause * len(long)


@spread_rule(
    sees="A few steps take far longer than the median and raise the mean.",
    evidence="how many, the longest, the median, what the mean loses",
    fix="Find what else these steps do: logging, checkpoints, evaluation, garbage collection, recompiling.",
    wrong_when="steps differ by design, or the machine was busy and nothing recorded it",
    check="The mean step is as fast as the median step.",
    worth=Worth(ALL_ACCOUNTS, 0.7, "most rare work can be made asynchronous"),
    sources="GPF, NAI, SM, ME",
)
def unsteady_steps(context: RuleContext) -> Found | None:
    samples, limits = context.profile.samples_ms, context.limits
    if len(samples) < limits.spread_least_steps or _is_uneven(context):
        return None
    usual_ms, mean_ms = median(samples), sum(samples) / len(samples)
    long = [ms for ms in samples if ms > limits.spread_ratio * usual_ms]
    if not long:
        return None
    share = max(0.0, 1.0 - usual_ms / mean_ms) if mean_ms else 0.0
    longest = f"takes {show_ms(long[0])}" if len(long) == 1 else f"take up to {show_ms(max(long))}"
    claim = (
        f"{show_count(len(long))} of {len(samples)} steps {longest}; the median step takes "
        f"{show_ms(usual_ms)}. That costs {show_share(share)} of the time."
    )
    evidence: Evidence = {
        "steps": float(len(long)),
        "longest_ms": max(long),
        "median_ms": usual_ms,
        "lost_share": share,
    }
    severity = context.severity("spread", share)
    if severity is not None and _was_held_up(context):
        return Found(f"{claim} {_BUSY}", evidence, severity="info", remedy=_ON_A_QUIET_MACHINE)
    if severity is not None and context.activity.driver == "host" and not have_one_cause(context):
        severity = "info"
    return Found(claim, evidence, share, severity)


@spread_rule(
    sees="Later steps are slower than earlier steps.",
    evidence="the median of each half",
    fix="Look for what grows: memory fragmentation, lists of losses, sequence length; check heat and clocks.",
    wrong_when="later batches are larger",
    check="Both halves are equally fast.",
    worth=Worth(ALL_ACCOUNTS, 0.8, "the first half shows what is possible"),
    sources="GPF, TML",
)
def drifting_steps(context: RuleContext) -> Found | None:
    samples, limits = context.profile.samples_ms, context.limits
    if len(samples) < limits.drift_least_steps or _is_uneven(context):
        return None
    half = len(samples) // 2
    early_ms, late_ms = median(samples[:half]), median(samples[half:])
    slower = sum(ms > early_ms for ms in samples[half:]) / (len(samples) - half)
    if late_ms < limits.drift_ratio * early_ms or slower < limits.drift_steps_share:
        return None
    claim = f"Later steps take {show_ms(late_ms)}, earlier steps {show_ms(early_ms)}."
    evidence: Evidence = {"early_ms": early_ms, "late_ms": late_ms}
    if _was_held_up(context):
        return Found(f"{claim} {_BUSY}", evidence, severity="info", remedy=_ON_A_QUIET_MACHINE)
    return Found(claim, evidence, (1.0 - early_ms / late_ms) / 2, severity="warning")
