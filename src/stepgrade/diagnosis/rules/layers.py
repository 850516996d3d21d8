"""Rules about layers and passes: one that stands out, forward done again, a backward that is too fast."""

from __future__ import annotations

from stepgrade.contract.scorecard import FAST_BACKWARD_ADVICE
from stepgrade.diagnosis.advice import is_full
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Rule, Worth
from stepgrade.model import RECORDER
from stepgrade.scoring.phases import PhaseKind, kind_of
from stepgrade.statistics import quantile
from stepgrade.units import how_often, show_count, show_ms, show_ratio, show_share

_PRODUCTS = frozenset({"gemm", "convolution", "attention"})
_SKIPPED = "Check that no layer's backward is skipped: NaN gradients, frozen parts."


def slow_layer(context: RuleContext) -> Found | None:
    if not context.slow_layers:
        return None
    slow, limits = context.slow_layers[0], context.limits
    passes = [layer for layer in context.slow_layers if layer.layer == slow.layer]
    share = context.times.share(sum(layer.ms - layer.median_ms for layer in passes)) or 0.0
    slow_ms, usual_ms = (context.times.typical(ms) or ms for ms in (slow.ms, slow.median_ms))
    levels = Levels(limits.layer_info_share, limits.layer_warning_share, limits.layer_critical_share)
    others = len({layer.layer for layer in context.slow_layers}) - 1
    more = f" {others} more layer{'s stand' if others > 1 else ' stands'} out." if others else ""
    return Found(
        severity=levels.severity(share) or "info",
        claim=f"Layer {slow.layer}'s {slow.direction} takes {show_ratio(slow.ms / slow.median_ms)} the "
        f"median layer's ({show_ms(slow_ms)}, not {show_ms(usual_ms)}).{more}",
        evidence={
            "layer": float(slow.layer),
            "direction": slow.direction,
            "total_ms": context.profile.total(slow.ms),
            "median_total_ms": context.profile.total(slow.median_ms),
        },
        share=share,
        remedy=f"Look at layer {slow.layer}'s {slow.direction}: its shapes, its kernels, work only it does.",
        check=f"Layer {slow.layer} comes back to the median of the layers.",
    )


def recomputed_forward(context: RuleContext) -> Found | None:
    again_ms = context.activity.recompute_ms
    share = context.busy_share(again_ms)
    if share < context.limits.recompute_info_share or is_full(context):
        return None
    claim = f"{show_ms(again_ms)} a step are forward work done again in the backward pass."
    return Found("info", claim, {"again_ms": again_ms, "share": share}, share=share)


def fast_backward(context: RuleContext) -> Found | None:
    limits = context.limits
    if context.ratio is None or not 0.0 < context.ratio < 1.0:
        return None
    # Backward may be shorter only because a layer's forward stands out.
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
    # Each product of the forward pass brings about two in the backward pass, one where weights are frozen.
    if products["backward"] > limits.backward_products * products["forward"] > 0.0:
        return None
    claim = f"Backward takes {show_ratio(context.ratio)} the time of forward; about 2x is usual."
    # A trace shows by count what was skipped: time alone is doubtful there, and on a processor, where other
    # programs run as well.
    samples = {kind_of(phase.name): phase.samples_ms for phase in context.profile.phases}
    passes = zip(samples.get(PhaseKind.FORWARD, ()), samples.get(PhaseKind.BACKWARD, ()), strict=False)
    ratios = sorted(backward / forward for forward, backward in passes if forward > 0.0)
    is_sure = len(ratios) < 2 or quantile(ratios, 0.9) < 1.0
    is_timed_only = context.profile.activity is None and context.profile.source.producer != RECORDER
    evidence: Evidence = {"backward_over_forward": context.ratio}
    return Found(severity="warning" if is_sure and is_timed_only else "info", claim=claim, evidence=evidence)


def slow_backward(context: RuleContext) -> Found | None:
    ratio, backward_ms = context.ratio, context.phases.by_kind_ms.get(PhaseKind.BACKWARD, 0.0)
    if ratio is None or ratio < context.limits.slow_backward_ratio or context.activity.recompute_ms:
        return None
    share = context.step_share(backward_ms) * (1.0 - 2.0 / ratio)
    claim = f"Backward takes {show_ratio(ratio)} the time of forward; about 2x is usual."
    return Found("info", claim, {"backward_over_forward": ratio}, share=share)


def skipped_steps(context: RuleContext) -> Found | None:
    count, part = context.activity.skipped_steps, context.activity.skipped_part
    if not count or part is None:
        return None
    steps = max(context.profile.steps or count, count)
    return Found(
        severity="warning" if part == "backward pass" else "info",
        claim=f"{show_count(count)} of {show_count(steps)} steps have no {part}.",
        evidence={"steps": float(count), "part": part},
    )


def no_backward(context: RuleContext) -> Found | None:
    updates = context.activity.marks.get("optimizer_step", 0.0)
    kernels, ms = context.activity.kernels, context.phases.by_kind_ms
    if kernels is not None and kernels.graph_share > 0.0:  # a graph does not say which pass a kernel is of
        return None
    if not updates or not ms.get(PhaseKind.FORWARD) or ms.get(PhaseKind.BACKWARD):
        return None
    claim = f"The optimizer runs {how_often(updates)} but no backward pass was seen."
    return Found("warning", claim, {"updates": updates, "share": show_share(0.0)})


RULES = (
    Rule(
        name="slow-layer",
        find=slow_layer,
        sees="One layer is clearly slower than others of its kind.",
        evidence="the layer, direction, its time and the median's",
        fix="Look at the layer: its shapes, its kernels, work only it does.",
        wrong_when="the layer differs by design (first, last, every fourth with global attention)",
        check="The layer comes back to the median of the layers.",
        worth=Worth("compute", 0.7, "the other layers show what it could take"),
        explains=("one-hot-operation",),
        sources="Iglewicz and Hoaglin's modified z-score",
    ),
    Rule(
        name="recomputed-forward",
        find=recomputed_forward,
        sees="Forward work is repeated in the backward pass (activation checkpointing).",
        evidence="repeated milliseconds per step, how full the memory is",
        fix="If memory has room, checkpoint fewer layers or only the cheap parts.",
        fix_pytorch="If memory has room, checkpoint every second block, or use selective checkpointing.",
        fix_jax="If memory has room, give jax.checkpoint a policy that keeps the products "
        "(jax.checkpoint_policies.dots_saveable), or leave it out in some layers.",
        wrong_when="memory is full, and recomputing lets the batch fit",
        check="Less is repeated, and memory stays below its size.",
        worth=Worth("compute", 0.5, "memory usually has room for part of it"),
        sources="AL, HF, GPF",
    ),
    Rule(
        name="fast-backward",
        find=fast_backward,
        sees="Backward takes less time than forward, which is unusual for training.",
        evidence="backward over forward",
        fix=_SKIPPED,
        fix_reference=FAST_BACKWARD_ADVICE,
        wrong_when="most of the model is frozen, or forward has work without gradients",
        check="Backward over forward is above 1, and the loss still falls.",
        sources="REF",
    ),
    Rule(
        name="slow-backward",
        find=slow_backward,
        sees="Backward takes far more than twice the time of forward, without recomputation.",
        evidence="backward over forward, share of the step beyond twice forward",
        fix="Look at the longest backward operations: scatter-adds, unfused attention, double casts.",
        wrong_when="forward does only part of the work, as with frozen caches",
        check="Backward over forward is near 2.",
        worth=Worth("compute", 0.3, "what makes it slow is not known yet"),
        sources="GPF",
    ),
    Rule(
        name="skipped-steps",
        find=skipped_steps,
        sees="Some steps have no backward pass or optimizer while others have.",
        evidence="how many steady steps lack it",
        fix="Check the loss of those steps: NaN or infinity makes loops skip the rest of a step.",
        fix_pytorch="Check those steps' loss and GradScaler's scale: infinite gradients make it skip the "
        "update; bf16 needs no scaler.",
        wrong_when="gradients are accumulated: only the last micro-step has an optimizer",
        check="Every step has its backward pass and its update.",
        sources="REF",
    ),
    Rule(
        name="no-backward",
        find=no_backward,
        sees="An optimizer runs but no backward pass was seen.",
        evidence="optimizer calls per step, milliseconds of backward",
        fix=_SKIPPED,
        wrong_when="backward is in a compiled graph without names",
        check="The backward pass takes about twice the forward's time.",
        sources="REF",
    ),
)
