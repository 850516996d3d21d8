"""Rules about copies within the device: layouts converted back and forth, tensors made contiguous."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.advice import is_compiled
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.units import show_share

_AREA = "layout"


@rule(
    name="layout-conversions",
    area=_AREA,
    account="compute",
    sees="Kernels convert tensors between layouts (NCHW and NHWC) around convolutions.",
    evidence="share of the step in conversion kernels",
    fix={
        "general": "Keep activations and weights in the layout that the convolutions want.",
        "pytorch": "model.to(memory_format=torch.channels_last), and the inputs as well.",
    },
    wrong_when="a library converts inside of a faster algorithm",
    check="No nchwToNhwc kernels in the trace.",
    realistic=0.8,
    because="the conversions go away; the convolutions stay as they are",
    explains=("device-copies",),
    sources="TL-09, TG",
)
def layout_conversions(context: RuleContext, limits: Limits) -> Found | None:
    """Report conversions between layouts."""
    share = context.busy_share(context.activity.kernel_group_ms.get("layout", 0.0))
    severity = severity_of(share, limits, "layout")
    if severity is None:
        return None
    claim = f"Converting tensors between layouts takes {show_share(share)} of the step."
    return Found(severity=severity, claim=claim, evidence={"share": share}, share=share)


@rule(
    name="device-copies",
    area=_AREA,
    account="compute",
    sees="Copies within the device (contiguous, casts, concatenation) take a share of the step.",
    evidence="share of the step in copies within the device, the operation with most of it",
    fix={
        "general": "Avoid making tensors contiguous, casting and concatenating: write into place, "
        "keep one dtype.",
        "pytorch": "Look for .contiguous(), .to(dtype), torch.cat and transposes; under autocast "
        "keep weights in bf16.",
    },
    wrong_when="the copy feeds a kernel that is much faster on contiguous input; compiled runs are left out",
    check="Copies shrink in the hotspots.",
    realistic=0.6,
    because="some copies are cheaper than what they replace",
    sources="TL-09, TL-10",
)
def device_copies(context: RuleContext, limits: Limits) -> Found | None:
    """Report copies that stay on the device."""
    if is_compiled(context):  # a generated kernel that copies does more than that
        return None
    copied_ms = sum(one.ms for one in context.activity.parts if one.work_class == "copy")
    share = context.busy_share(copied_ms)
    severity = severity_of(share, limits, "layout")
    if severity is None:
        return None
    longest = next((op.name for op in context.operations if op.kind == "copy"), "copies")
    claim = f"Copies within the device take {show_share(share)} of the step, {longest} most."
    return Found(severity=severity, claim=claim, evidence={"share": share, "operation": longest}, share=share)


RULES = (layout_conversions, device_copies)
