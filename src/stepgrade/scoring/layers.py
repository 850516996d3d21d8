"""Layers: forward and backward, their ratio, and the ones that stand out."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.config.limits import Limits
from stepgrade.contract import LayerSummary, PerLayerData
from stepgrade.contract.scorecard import add_up, layer_summary, longest_operation
from stepgrade.model import RECORDER, LayerTime, Note, Profile
from stepgrade.model.scorecard import LayerStep
from stepgrade.scoring.phases import PhaseKind, PhasesOfStep
from stepgrade.scoring.step_times import step_ms_of
from stepgrade.statistics import median
from stepgrade.units import show_ratio

Direction = Literal["forward", "backward"]
# Makes the median absolute deviation of normal noise its standard deviation.
_MAD_TO_SIGMA = 1.4826


class SlowLayer(Struct, frozen=True, kw_only=True):
    """One layer that takes clearly longer than the others, in totals over the profiled steps."""

    layer: int
    direction: Direction
    total_ms: float
    median_ms: float


def layer_summaries(profile: Profile) -> tuple[LayerSummary, ...]:
    """Return the layers in totals over all steps, as contract v1 lists them (`""` for no operation)."""
    return tuple(
        layer_summary(
            PerLayerData(
                layer=layer.layer,
                fwd_ms=layer.fwd_total_ms,
                bwd_ms=layer.bwd_total_ms,
                ops=layer.ops_total_ms,
            )
        )
        for layer in profile.layers
        if layer.fwd_total_ms is not None and layer.bwd_total_ms is not None
    )


def layers_of_step(profile: Profile, slow: tuple[SlowLayer, ...] = ()) -> tuple[LayerStep, ...]:
    """Return the layers of one step, the slow ones marked; nothing when the number of steps is not known."""
    steps = _typical_steps(profile)
    if not steps:
        return ()
    return tuple(
        LayerStep(
            layer=layer.layer,
            name=layer.name,
            recompute_ms=_divided(layer.recompute_total_ms, steps),
            fwd_ms=_divided(layer.fwd_total_ms, steps),
            bwd_ms=_divided(layer.bwd_total_ms, steps),
            ops={name: ms / steps for name, ms in layer.ops_total_ms.items()},
            ratio=_ratio(layer),
            top_op=longest_operation(layer.ops_total_ms)[0] or None,
            top_op_share=_top_share(layer),
            slow=tuple(one.direction for one in slow if one.layer == layer.layer),
        )
        for layer in profile.layers
    )


def _typical_steps(profile: Profile) -> float | None:
    """Return how many steps of the typical length the time of all makes: so layers fit into the phases."""
    typical_ms = step_ms_of(profile)
    if not (profile.steps and profile.mean_step_ms and typical_ms):
        return profile.steps
    return profile.steps * profile.mean_step_ms / typical_ms


def _ratio(layer: LayerTime) -> float | None:
    forward, backward = layer.fwd_total_ms, layer.bwd_total_ms
    return backward / forward if forward and backward is not None else None


def _top_share(layer: LayerTime) -> float | None:
    total = add_up(layer.ops_total_ms.values())
    return longest_operation(layer.ops_total_ms)[1] / total if total > 0.0 else None


def backward_forward_ratio(profile: Profile, phases: PhasesOfStep) -> tuple[float | None, tuple[Note, ...]]:
    """Return all backward time over all forward time, of the layers or else of the phases, with notes."""
    ratio = _layers_ratio(profile)
    if ratio is not None:
        return ratio, _mean_of_ratios_note(profile, ratio)
    forward, backward = (phases.by_kind_ms.get(kind, 0.0) for kind in (PhaseKind.FORWARD, PhaseKind.BACKWARD))
    if forward > 0.0 and backward > 0.0:
        text = "backward over forward is taken from the phases: the profile has no layers"
        return backward / forward, (Note("ratio_from_phases", text),)
    return None, ()


def slow_layers(profile: Profile, limits: Limits) -> tuple[SlowLayer, ...]:
    """Return the layers whose forward or backward stands out from the median, slowest first."""
    found = _outliers(profile, "forward", limits) + _outliers(profile, "backward", limits)
    return tuple(sorted(found, key=lambda slow: slow.median_ms - slow.total_ms))


def _divided(total_ms: float | None, steps: float) -> float | None:
    return None if total_ms is None else total_ms / steps


def _layers_ratio(profile: Profile) -> float | None:
    both = [layer for layer in profile.layers if layer.fwd_total_ms and layer.bwd_total_ms is not None]
    forward = add_up(layer.fwd_total_ms or 0.0 for layer in both)
    backward = add_up(layer.bwd_total_ms or 0.0 for layer in both)
    return backward / forward if forward > 0.0 and backward > 0.0 else None


def _mean_of_ratios_note(profile: Profile, ratio: float) -> tuple[Note, ...]:
    ratios = [layer.ratio for layer in layer_summaries(profile) if layer.ratio]
    mean = add_up(ratios) / len(ratios) if ratios else 0.0
    if abs(mean - ratio) < 0.005 or profile.source.producer == RECORDER:
        return ()
    note = (
        f"backward over forward is {show_ratio(ratio)}, all backward time over all forward time; "
        f"contract v1 averages the layers' ratios and says {show_ratio(mean)}"
    )
    return (Note("v1_ratio", note),)


def _outliers(profile: Profile, direction: Direction, limits: Limits) -> list[SlowLayer]:
    totals = {
        layer.layer: ms
        for layer in profile.layers
        if (ms := layer.fwd_total_ms if direction == "forward" else layer.bwd_total_ms) is not None
    }
    if len(totals) < limits.outlier_least_layers:
        return []
    middle = median(totals.values())
    if not middle > 0.0:  # most layers do nothing, as frozen ones do backward: the others are not slow
        return []
    spread = _MAD_TO_SIGMA * median(abs(ms - middle) for ms in totals.values())
    bound = max(middle + limits.outlier_score * spread, middle * limits.outlier_ratio)
    return [
        SlowLayer(layer=layer, direction=direction, total_ms=ms, median_ms=middle)
        for layer, ms in totals.items()
        if ms > bound
    ]
