"""Rules about layers and passes: one that stands out, forward done again, a backward that is too fast."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.contract.scorecard import FAST_BACKWARD_ADVICE
from stepgrade.diagnosis.advice import is_full
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.model.finding import Severity
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import how_often, show_count, show_ms, show_ratio, show_share

_AREA = "layers"
_SKIPPED = "Check that no layer's backward is skipped: NaN gradients, frozen parts."


@rule(
    name="slow-layer",
    area=_AREA,
    account="compute",
    sees="One layer takes clearly longer than its sisters.",
    evidence="the layer, its direction, its time and the median layer's",
    fix={"general": "Look at the layer: its shapes, its kernels, work only it does."},
    wrong_when="the layer is another kind by design (a first, a last, every fourth with global attention)",
    check="The layer comes back to the median of the layers.",
    realistic=0.7,
    because="its sisters show what it could take",
    explains=("one-hot-operation",),
    sources="Iglewicz and Hoaglin's modified z-score",
)
def slow_layer(context: RuleContext, limits: Limits) -> Found | None:
    """Report the layer that loses the most time against the median, and how many others do."""
    if not context.slow_layers:
        return None
    slow = context.slow_layers[0]
    both = [one for one in context.slow_layers if one.layer == slow.layer]
    share = context.share_of_step(sum(one.total_ms - one.median_ms for one in both)) or 0.0
    slow_ms, usual_ms = (context.times.per_step(ms) or ms for ms in (slow.total_ms, slow.median_ms))
    others = len({one.layer for one in context.slow_layers}) - 1
    more = f" {others} more layer{'s stand' if others > 1 else ' stands'} out." if others else ""
    return Found(
        severity=severity_of(share, limits, "layer") or "info",
        claim=f"Layer {slow.layer}'s {slow.direction} takes {show_ratio(slow.total_ms / slow.median_ms)} the "
        f"median layer's ({show_ms(slow_ms)}, not {show_ms(usual_ms)}).{more}",
        evidence={
            "layer": float(slow.layer),
            "direction": slow.direction,
            "total_ms": slow.total_ms,
            "median_total_ms": slow.median_ms,
        },
        share=share,
        remedy=f"Look at layer {slow.layer}'s {slow.direction}: its shapes, its kernels, work only it does.",
        check=f"Layer {slow.layer} comes back to the median of the layers.",
    )


@rule(
    name="recomputed-forward",
    area=_AREA,
    account="compute",
    sees="Forward work is done again in the backward pass (activation checkpointing).",
    evidence="milliseconds a step done again, how full the memory is",
    fix={
        "general": "If memory has room, checkpoint fewer layers or only the cheap parts.",
        "pytorch": "If memory has room, checkpoint every second block, or use selective checkpointing.",
    },
    wrong_when="memory is full: recomputing is then what lets the batch fit",
    check="Less is done again, and memory stays below its size.",
    realistic=0.5,
    because="memory usually has room for part of it",
    sources="AL-08, HF, GPF-21",
)
def recomputed_forward(context: RuleContext, limits: Limits) -> Found | None:
    """Report forward work done twice."""
    again = context.activity.recompute_ms
    share = context.busy_share(again)
    if share < limits.recompute_info_share or is_full(context):
        return None
    claim = f"{show_ms(again)} a step are forward work done again in the backward pass."
    return Found(severity="info", claim=claim, evidence={"again_ms": again, "share": share}, share=share)


@rule(
    name="fast-backward",
    area=_AREA,
    sees="Backward takes less time than forward, which a healthy training step does not.",
    evidence="backward over forward",
    fix={"general": _SKIPPED, "reference": FAST_BACKWARD_ADVICE},
    wrong_when="most of the model is frozen, or the forward pass holds work that needs no gradient",
    check="Backward over forward is above 1, and the loss still falls.",
    sources="REF-05",
)
def fast_backward(context: RuleContext, limits: Limits) -> Found | None:
    """Report a backward pass that is shorter than the forward pass."""
    if context.ratio is None or not 0.0 < context.ratio < 1.0 or _is_slow_forward(context):
        return None
    claim = f"Backward takes {show_ratio(context.ratio)} the time of forward; about 2x is usual."
    # On a device that hardly works, kernels of a few microseconds say little about the passes.
    hardly = context.on_device and context.account("compute") < limits.idle_device_share
    return Found(
        severity="info" if hardly else "warning",
        claim=claim,
        evidence={"backward_over_forward": context.ratio},
    )


def _is_slow_forward(context: RuleContext) -> bool:
    """Tell whether backward is shorter only because a layer's forward stands out."""
    layers = context.profile.layers
    forward = sum(one.fwd_total_ms or 0.0 for one in layers)
    backward = sum(one.bwd_total_ms or 0.0 for one in layers)
    excess = sum(one.total_ms - one.median_ms for one in context.slow_layers if one.direction == "forward")
    return excess > 0.0 and backward >= forward - excess


@rule(
    name="slow-backward",
    area=_AREA,
    account="compute",
    sees="Backward takes far more than twice the time of forward, and nothing is recomputed.",
    evidence="backward over forward, share of the step that is more than twice forward",
    fix={
        "general": "Look at the longest backward operations: scatter-adds, unfused attention, double casts."
    },
    wrong_when="forward holds only a part of the work, as with frozen caches",
    check="Backward over forward is near 2.",
    realistic=0.3,
    because="what makes it slow is not known yet",
    explains=(),
    sources="GPF-21",
)
def slow_backward(context: RuleContext, limits: Limits) -> Found | None:
    """Report a backward pass that is out of proportion."""
    ratio, ms = context.ratio, context.phases.by_kind_ms.get(PhaseKind.BACKWARD, 0.0)
    if ratio is None or ratio < limits.slow_backward_ratio or context.activity.recompute_ms:
        return None
    share = context.step_share(ms) * (1.0 - 2.0 / ratio)
    claim = f"Backward takes {show_ratio(ratio)} the time of forward; about 2x is usual."
    return Found(severity="info", claim=claim, evidence={"backward_over_forward": ratio}, share=share)


@rule(
    name="skipped-steps",
    area=_AREA,
    sees="Some steps have no backward pass or no optimizer while others have.",
    evidence="how many of the steady steps lack it",
    fix={
        "general": "Check the loss of those steps: NaN or infinity makes loops skip the rest of a step.",
        "pytorch": "Check those steps' loss and GradScaler's scale: infinite gradients make it skip "
        "the update; bf16 needs "
        "no scaler.",
    },
    wrong_when="gradients are accumulated: only the last micro-step has an optimizer",
    check="Every step has its backward pass and its update.",
    sources="REF-05, REF-06",
)
def skipped_steps(context: RuleContext, limits: Limits) -> Found | None:  # noqa: ARG001  one is enough
    """Report steps without a part that others have."""
    count, part = context.activity.skipped_steps, context.activity.skipped_part
    if not count or part is None:
        return None
    severity: Severity = "warning" if part == "backward pass" else "info"
    steps = context.profile.steps or count
    claim = f"{show_count(count)} of {show_count(max(steps, count))} steps have no {part}."
    return Found(severity=severity, claim=claim, evidence={"steps": float(count), "part": part})


@rule(
    name="no-backward",
    area=_AREA,
    sees="An optimizer runs but no backward pass was seen.",
    evidence="optimizer calls per step, milliseconds of backward",
    fix={"general": _SKIPPED},
    wrong_when="the backward pass is part of one compiled graph whose pieces carry no names",
    check="The backward pass takes about twice the forward's time.",
    sources="REF-05, REF-06",
)
def no_backward(context: RuleContext, limits: Limits) -> Found | None:  # noqa: ARG001  the limit is zero
    """Report training without a backward pass."""
    updates = context.activity.marks.get("optimizer_step", 0.0)
    kernels, ms = context.activity.kernels, context.phases.by_kind_ms
    if kernels is not None and kernels.graph_share > 0.0:  # a graph does not say which pass a kernel is of
        return None
    if not updates or not ms.get(PhaseKind.FORWARD) or ms.get(PhaseKind.BACKWARD):
        return None
    claim = f"The optimizer runs {how_often(updates)} but no backward pass was seen."
    return Found(severity="warning", claim=claim, evidence={"updates": updates, "share": show_share(0.0)})


RULES = (slow_layer, recomputed_forward, fast_backward, slow_backward, skipped_steps, no_backward)
