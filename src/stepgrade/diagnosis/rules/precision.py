"""Rules about precision: matrix products that run in more bits than they need."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule
from stepgrade.scoring.runtime import Runtime
from stepgrade.units import show_share

_AREA = "precision"
_TENSOR_CORES, _TF32, _BF16 = 7.0, 8.0, 8.0  # compute capabilities of NVIDIA's devices
_FP16 = (
    "torch.autocast('cuda', dtype=torch.float16) with a GradScaler for the forward pass: this "
    "device has tensor "
    "cores for fp16, but no bf16 and no tf32."
)
_USUAL_GAIN = 2.0  # between neighbouring precisions, where the device's figures are not known


def capability(context: RuleContext) -> float | None:
    """Return NVIDIA's compute capability as a number; None for other devices and where it is not known."""
    seen = context.profile.device
    if seen is not None and seen.name and ("AMD" in seen.name or "MI" in seen.name.split(" ")[-1]):
        return None
    try:
        return float(context.activity.capability or "")
    except ValueError:
        return None


def _rate(context: RuleContext, dtype: str) -> float | None:
    rates = context.target.figures.compute(dtype)
    return rates[0].per_s if rates and context.target.figures.peak_tflops is None else None


def speed_up(context: RuleContext, now: str, then: str) -> float:
    """Return how many times faster the device's peak is in another precision."""
    before, after = _rate(context, now), _rate(context, then)
    return max(1.0, after / before) if before and after else _USUAL_GAIN


@rule(
    name="fp32-matmuls",
    area=_AREA,
    account="compute",
    sees="Matrix products run in 32 bits, beside the tensor cores.",
    evidence="milliseconds and share of the step in 32-bit products, peak rates of the device",
    fix={
        "general": "Run matrix products in bfloat16 (mixed precision), or at least in tf32.",
        "pytorch": "torch.autocast('cuda', dtype=torch.bfloat16) for the forward pass; at least "
        "torch.set_float32_matmul_precision('high'), which turns tf32 on.",
        "jax": "Cast to bfloat16, or jax.default_matmul_precision('tensorfloat32').",
    },
    wrong_when="the model needs 32 bits there, or the device has no tensor cores",
    check="The kernels' names say bf16, and the products take less than half the time.",
    realistic=0.6,
    because="Hugging Face measured up to 3 times from tf32; memory-bound products gain only their bytes",
    explains=("tf32-matmuls", "slow-gemm", "slow-attention"),
    sources="PM-04, TBP-02, DL-03, XP-12, NAI-08, AL-06",
)
def fp32_matmuls(context: RuleContext, limits: Limits) -> Found | None:
    """Report 32-bit products on a device that has something faster."""
    by_dtype = context.activity.matmul_dtype_ms
    slow_ms = by_dtype.get("fp32", 0.0)
    share = context.busy_share(slow_ms)
    version = capability(context)
    if not context.on_device or share < limits.precision_info_share or (version and version < _TENSOR_CORES):
        return None
    then = "bf16" if version is None or version >= _BF16 else "fp16"
    gain = 1.0 - 1.0 / speed_up(context, "fp32", then)
    part = slow_ms / sum(by_dtype.values())
    return Found(
        severity="warning" if share * gain >= limits.precision_warning_share / 2 else "info",
        claim=f"{show_share(part, 0)} of the time of {_what(context)} is in fp32, {show_share(share)} of the "
        "step.",
        evidence={"fp32_ms": slow_ms, "fp32_share": share, "of_matmuls": part},
        share=share * gain,
        remedy=_FP16 if context.runtime is Runtime.PYTORCH and then == "fp16" else None,
    )


def _what(context: RuleContext) -> str:
    """Return what most of the arithmetic is."""
    turned = context.class_share("convolution") > context.class_share("gemm", "attention")
    return "convolutions" if turned else "matrix products"


@rule(
    name="tf32-matmuls",
    area=_AREA,
    account="compute",
    sees="Matrix products run in tf32; 16 bits would be twice as fast and move half the bytes.",
    evidence="share of the step in tf32 products",
    fix={
        "general": "Mixed precision with bfloat16.",
        "pytorch": "torch.autocast('cuda', dtype=torch.bfloat16) for the forward pass.",
    },
    wrong_when="the model does not converge in 16 bits",
    check="The kernels' names say bf16.",
    realistic=0.5,
    because="the peak doubles; small products do not reach it",
    sources="XP-12, HF",
)
def tf32_matmuls(context: RuleContext, limits: Limits) -> Found | None:
    """Report tf32 as a step on the way."""
    slow_ms = context.activity.matmul_dtype_ms.get("tf32", 0.0)
    share = context.busy_share(slow_ms)
    if share < limits.precision_warning_share:
        return None
    gain = 1.0 - 1.0 / speed_up(context, "tf32", "bf16")
    claim = f"Matrix products in tf32 take {show_share(share)} of the step; bf16 has twice the peak."
    return Found(severity="info", claim=claim, evidence={"tf32_share": share}, share=share * gain)


@rule(
    name="fp16-beside-bf16",
    area=_AREA,
    sees="Products run in fp16 with loss scaling on a device that has bf16 at the same speed.",
    evidence="precision of the products, calls of the loss scaler per step, the device's capability",
    fix={
        "general": "Use bfloat16: the same speed, no loss scaling, no skipped steps.",
        "pytorch": "torch.autocast('cuda', dtype=torch.bfloat16) and no GradScaler.",
    },
    wrong_when="the weights are published for fp16, or the extra digits of fp16 matter",
    check="No loss scaler in the trace.",
    sources="AL-05",
)
def fp16_beside_bf16(context: RuleContext, limits: Limits) -> Found | None:  # noqa: ARG001  there is no threshold
    """Report fp16 where bf16 is to be had."""
    by_dtype = context.activity.matmul_dtype_ms
    version, scales = capability(context), context.activity.marks.get("loss_scale", 0.0)
    if not by_dtype or max(by_dtype, key=lambda one: by_dtype[one]) != "fp16":
        return None
    if not scales or version is None or version < _BF16:
        return None
    claim = "Products run in fp16 with loss scaling, on a device that has bf16 at the same speed."
    return Found(severity="info", claim=claim, evidence={"capability": version, "scaler_calls": scales})


RULES = (fp32_matmuls, tf32_matmuls, fp16_beside_bf16)
