"""Rules about copies within the device: layouts converted back and forth, tensors made contiguous."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, Levels, Remedy, Rule, Worth
from stepgrade.units import show_share

# A value that is read has its own rule; a tensor that is filled was not copied.
_NO_COPIES = frozenset(
    f"aten::{name}"
    for name in ("item", "_local_scalar_dense", "fill_", "zero_", "zeros", "zeros_like", "new_zeros")
)


def _levels(limits: Limits) -> Levels:
    return Levels(limits.layout_info_share, limits.layout_warning_share, limits.layout_critical_share)


def layout_conversions(context: RuleContext) -> Found | None:
    share = context.busy_share(context.activity.kernel_group_ms.get("layout", 0.0))
    claim = f"Converting tensors between layouts takes {show_share(share)} of the step."
    return _levels(context.limits).found(share, claim, {"share": share})


def device_copies(context: RuleContext) -> Found | None:
    if context.is_compiled:  # a generated kernel that copies does more than that
        return None
    copies = [op for op in context.operations if op.kind == "copy" and op.name not in _NO_COPIES]
    # Parts leave copies between host and device out; a processor has none, and small ones stay in its cache.
    share = context.busy_share(sum(part.ms for part in context.activity.parts if part.work_class == "copy"))
    if context.activity.driver == "host":
        share = min(context.class_share("copy"), context.busy_share(sum(op.ms or 0.0 for op in copies)))
    longest = copies[0].name if copies else "copies"
    place = "memory" if context.activity.driver == "host" else "the device"
    claim = f"Copies within {place} take {show_share(share)} of the step, {longest} the most."
    return _levels(context.limits).found(share, claim, {"share": share, "operation": longest})


RULES = (
    Rule(
        name="layout-conversions",
        find=layout_conversions,
        sees="Kernels convert layouts (NCHW and NHWC) around convolutions.",
        evidence="share of the step in conversions",
        fix="Keep activations and weights in the layout that the convolutions want.",
        fix_pytorch="model.to(memory_format=torch.channels_last), and the inputs as well.",
        fix_where=(
            Remedy(
                "on AMD's devices",
                lambda context: context.platform == "rocm",
                "With PYTORCH_MIOPEN_SUGGEST_NHWC=1, without which MIOpen converts, keep the model and its "
                "inputs in memory_format=torch.channels_last.",
            ),
        ),
        wrong_when="a library converts inside a faster algorithm",
        check="No nchwToNhwc kernels in the trace.",
        worth=Worth("compute", 0.8, "the conversions go away; the convolutions stay as they are"),
        explains=("device-copies",),
        sources="TL, TG",
    ),
    Rule(
        name="device-copies",
        find=device_copies,
        sees="Copies within the device (contiguous, casts, concatenation) take part of the step.",
        evidence="share of the step, the operation with most of it",
        fix="Avoid making tensors contiguous, casting and concatenating: write into place, keep one dtype.",
        fix_pytorch="Look for .contiguous(), .to(dtype), torch.cat and transposes; under autocast keep "
        "weights in bf16.",
        wrong_when="the copy feeds a kernel that is much faster on contiguous input; compiled runs are "
        "exempt",
        check="Copies shrink in the hotspots.",
        worth=Worth("compute", 0.6, "some copies are cheaper than what they replace"),
        sources="TL",
    ),
)
