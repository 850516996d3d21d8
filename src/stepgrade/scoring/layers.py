"""Layers: forward and backward, their ratio, and the ones that stand out."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, structs

from stepgrade.config.limits import Limits
from stepgrade.contract import LayerSummary, PerLayerData
from stepgrade.contract.scorecard import add_up, layer_summary, longest_operation
from stepgrade.model import RECORDER, Note, Profile
from stepgrade.model.operations import LayerStep, ModuleStep
from stepgrade.patterns import regex
from stepgrade.scoring.phases import PhaseKind, PhasesOfStep
from stepgrade.scoring.step_times import RunTimes
from stepgrade.statistics import median, median_and_spread
from stepgrade.units import show_ratio

# Less of the step than this is narrower than a dot on most screens.
LEAST_MODULE_SHARE = 0.0005
MODULE_OPS_KEPT = 6
MODULE_KERNELS_KEPT = 3
Direction = Literal["forward", "backward"]

_SINGLE_PRODUCT = regex(r"(Lazy)?(Linear|Bilinear|Conv(Transpose)?[123]d|Embedding(Bag)?)_\d+$")


class SlowLayer(Struct, frozen=True, kw_only=True):
    """One layer that takes clearly longer than the others, in the mean step."""

    layer: int
    direction: Direction
    ms: float
    median_ms: float


def layer_summaries(profile: Profile) -> tuple[LayerSummary, ...]:
    """Return the layers in totals over all steps, as contract v1 lists them (`""` for no operation)."""
    return tuple(
        layer_summary(
            PerLayerData(
                layer=layer.layer,
                fwd_ms=profile.total(layer.fwd_ms),
                bwd_ms=profile.total(layer.bwd_ms),
                ops={name: profile.total(ms) for name, ms in layer.ops.items()},
            )
        )
        for layer in profile.layers
        if layer.fwd_ms is not None and layer.bwd_ms is not None
    )


def layers_of_step(
    profile: Profile, times: RunTimes, slow: tuple[SlowLayer, ...] = ()
) -> tuple[LayerStep, ...]:
    """Return the layers of the typical step, the slow ones marked; none without a number of steps."""
    if not times.steps:
        return ()
    found = []
    for layer in profile.layers:
        forward, backward, recompute = (
            None if ms is None else times.typical(ms)
            for ms in (layer.fwd_ms, layer.bwd_ms, layer.recompute_ms)
        )
        ops_ms = add_up(layer.ops.values())
        top_op, top_op_ms = longest_operation(layer.ops)
        has_ratio = layer.fwd_ms and layer.bwd_ms is not None
        found.append(
            structs.replace(
                layer,
                fwd_ms=forward,
                bwd_ms=backward,
                recompute_ms=recompute,
                ops={name: ms * times.scale for name, ms in layer.ops.items()},
                ratio=(layer.bwd_ms or 0.0) / (layer.fwd_ms or 1.0) if has_ratio else None,
                top_op=top_op or None,
                top_op_share=top_op_ms / ops_ms if ops_ms > 0.0 else None,
                slow=tuple(found.direction for found in slow if found.layer == layer.layer),
                fwd_samples_ms=(),
                bwd_samples_ms=(),
            )
        )
    return tuple(found)


def backward_forward_ratio(
    profile: Profile, phases: PhasesOfStep, summaries: tuple[LayerSummary, ...]
) -> tuple[float | None, Note | None]:
    """Return all backward over all forward time, of the layers or else of the phases, and a note on it."""
    both = [layer for layer in profile.layers if layer.fwd_ms and layer.bwd_ms is not None]
    forward = add_up(layer.fwd_ms or 0.0 for layer in both)
    backward = add_up(layer.bwd_ms or 0.0 for layer in both)
    if forward > 0.0 and backward > 0.0:
        ratio, ratios = backward / forward, [layer.ratio for layer in summaries if layer.ratio]
        mean = add_up(ratios) / len(ratios) if ratios else 0.0
        if abs(mean - ratio) < 0.005 or profile.source.producer == RECORDER:
            return ratio, None
        text = (
            f"backward over forward is {show_ratio(ratio)}, all backward time over all forward time; "
            f"contract v1 averages the layers' ratios and says {show_ratio(mean)}"
        )
        return ratio, Note("v1_ratio", text)
    forward, backward = (phases.by_kind_ms.get(kind, 0.0) for kind in (PhaseKind.FORWARD, PhaseKind.BACKWARD))
    if forward > 0.0 and backward > 0.0:
        text = "backward over forward is taken from the phases: the profile has no layers"
        return backward / forward, Note("ratio_from_phases", text)
    return None, None


def slow_layers(profile: Profile, limits: Limits) -> tuple[SlowLayer, ...]:
    """Return the layers whose forward or backward stands out from the median, slowest first."""
    found = _outliers(profile, "forward", limits) + _outliers(profile, "backward", limits)
    return tuple(sorted(found, key=lambda slow: slow.median_ms - slow.ms))


def _outliers(profile: Profile, direction: Direction, limits: Limits) -> list[SlowLayer]:
    ms_of = {
        layer.layer: ms
        for layer in profile.layers
        if (ms := layer.fwd_ms if direction == "forward" else layer.bwd_ms) is not None
    }
    if len(ms_of) < limits.outlier_least_layers:
        return []
    middle, spread = median_and_spread(ms_of.values())
    if not middle > 0.0:  # most layers do nothing, as frozen ones do backward: the others are not slow
        return []
    bound = max(middle + limits.outlier_score * spread, middle * limits.outlier_ratio)
    return [
        SlowLayer(layer=layer, direction=direction, ms=ms, median_ms=middle)
        for layer, ms in ms_of.items()
        if ms > bound and is_always_slow(profile, layer, direction, limits)
    ]


def is_always_slow(profile: Profile, number: int, direction: Direction, limits: Limits) -> bool:
    """Return whether a layer of the same kind stands out in nearly every step, not in a few disturbed ones.

    A processor's times are disturbed so often that one or two steps prove nothing.
    """
    # Single products are of any size: the first and the last of a model are larger than those between.
    name = next((layer.name for layer in profile.layers if layer.layer == number), None)
    if name is not None and _SINGLE_PRODUCT.match(name):
        return False
    # What calls other operations than most layers do is another kind of layer, not a slow one.
    names = {layer.layer: set(layer.ops) for layer in profile.layers}
    shared = [
        len(own & names[number]) / max(1, len(own | names[number]))
        for other, own in names.items()
        if other != number
    ]
    if names[number] and median(shared) < limits.outlier_same_operations:
        return False
    samples = {
        layer.layer: layer.fwd_samples_ms if direction == "forward" else layer.bwd_samples_ms
        for layer in profile.layers
    }
    steps = len(samples[number])
    if (
        profile.activity is not None
        and profile.activity.driver == "host"
        and steps < limits.outlier_least_steps
    ):
        return False
    slow = 0
    for step in range(steps):
        usual = median(times[step] for times in samples.values() if len(times) > step)
        slow += samples[number][step] > limits.outlier_ratio * usual
    return slow >= limits.outlier_steps_share * steps


def modules_of_step(profile: Profile, times: RunTimes) -> tuple[ModuleStep, ...]:
    """Return the modules of the typical step that take part of it worth a mark on a screen."""
    found: list[ModuleStep] = []
    indices: dict[int, int] = {}
    for index, module in enumerate(profile.modules if times.steps else ()):
        share = times.share(module.fwd_ms + module.bwd_ms + module.recompute_ms)
        is_kept = module.parent is None or module.parent in indices
        if share is None or share < LEAST_MODULE_SHARE or not is_kept:
            continue
        indices[index] = len(found)
        ops = _longest(module.ops, MODULE_OPS_KEPT, times)
        kernels = {name: _longest(module.kernels.get(name, {}), MODULE_KERNELS_KEPT, times) for name in ops}
        found.append(
            structs.replace(
                module,
                parent=None if module.parent is None else indices[module.parent],
                fwd_ms=module.fwd_ms * times.scale,
                bwd_ms=module.bwd_ms * times.scale,
                recompute_ms=module.recompute_ms * times.scale,
                share=share,
                ops=ops,
                kernels={name: longest for name, longest in kernels.items() if longest},
            )
        )
    return tuple(found)


def _longest(parts_ms: dict[str, float], most: int, times: RunTimes) -> dict[str, float]:
    """Return the longest parts that are worth a mark, with their time in the typical step."""
    longest = sorted(parts_ms.items(), key=lambda item: (-item[1], item[0]))[:most]
    return {name: ms * times.scale for name, ms in longest if (times.share(ms) or 0.0) >= LEAST_MODULE_SHARE}
