"""Rules about precision: matrix products that run in more bits than they need."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, Rule, Worth
from stepgrade.scoring.runtime import Runtime
from stepgrade.units import show_share

_TENSOR_CORES, _BF16 = 7.0, 8.0  # compute capabilities of NVIDIA's devices
_FP16 = (
    "torch.autocast('cuda', dtype=torch.float16) with a GradScaler for the forward pass: this device has "
    "tensor cores for fp16, but no bf16 and no tf32."
)
_USUAL_GAIN = 2.0  # between neighbouring precisions, where the device's figures are not known


def _capability(context: RuleContext) -> float | None:
    """Return NVIDIA's compute capability as a number; None for other devices and where it is not known."""
    seen = context.profile.device
    if seen is not None and seen.name and ("AMD" in seen.name or "MI" in seen.name.split(" ")[-1]):
        return None
    try:
        return float(context.activity.capability or "")
    except ValueError:
        return None


def _saved_part(context: RuleContext, now: str, then: str) -> float:
    """Return the part of the time that the device's peak saves in another precision."""
    figures = context.target.figures
    before, after = figures.compute(now), figures.compute(then)
    faster = _USUAL_GAIN
    if before and after and figures.peak_tflops is None and before[0].per_s and after[0].per_s:
        faster = max(1.0, after[0].per_s / before[0].per_s)
    return 1.0 - 1.0 / faster


def fp32_matmuls(context: RuleContext) -> Found | None:
    by_dtype, limits = context.activity.matmul_dtype_ms, context.limits
    fp32_ms = by_dtype.get("fp32", 0.0)
    share, capability = context.busy_share(fp32_ms), _capability(context)
    if not context.on_device or share < limits.precision_info_share:
        return None
    if capability and capability < _TENSOR_CORES:
        return None
    then = "bf16" if capability is None or capability >= _BF16 else "fp16"
    gain = share * _saved_part(context, "fp32", then)
    part = fp32_ms / sum(by_dtype.values())
    convolves = context.class_share("convolution") > context.class_share("gemm", "attention")
    what = "convolutions" if convolves else "matrix products"
    return Found(
        severity="warning" if gain >= limits.precision_warning_share / 2 else "info",
        claim=f"{show_share(part, 0)} of the time of {what} is in fp32, {show_share(share)} of the step.",
        evidence={"fp32_ms": fp32_ms, "fp32_share": share, "of_matmuls": part},
        share=gain,
        remedy=_FP16 if context.runtime is Runtime.PYTORCH and then == "fp16" else None,
    )


def tf32_matmuls(context: RuleContext) -> Found | None:
    share = context.busy_share(context.activity.matmul_dtype_ms.get("tf32", 0.0))
    if share < context.limits.precision_warning_share:
        return None
    claim = f"Matrix products in tf32 take {show_share(share)} of the step; bf16 has twice the peak."
    gain = share * _saved_part(context, "tf32", "bf16")
    return Found("info", claim, {"tf32_share": share}, share=gain)


def fp16_beside_bf16(context: RuleContext) -> Found | None:
    by_dtype, scaler_calls = context.activity.matmul_dtype_ms, context.activity.marks.get("loss_scale", 0.0)
    capability = _capability(context)
    if not by_dtype or max(by_dtype, key=by_dtype.__getitem__) != "fp16":
        return None
    if not scaler_calls or capability is None or capability < _BF16:
        return None
    claim = "Products run in fp16 with loss scaling, on a device that has bf16 at the same speed."
    return Found("info", claim, {"capability": capability, "scaler_calls": scaler_calls})


RULES = (
    Rule(
        name="fp32-matmuls",
        find=fp32_matmuls,
        sees="Matrix products run in 32 bits and do not use the tensor cores.",
        evidence="milliseconds and share of the step in 32-bit products, peak rates of the device",
        fix="Run matrix products in bfloat16 (mixed precision), or at least in tf32.",
        fix_pytorch="torch.autocast('cuda', dtype=torch.bfloat16) for the forward pass; at least "
        "torch.set_float32_matmul_precision('high'), which turns tf32 on.",
        fix_jax="Cast to bfloat16, or jax.default_matmul_precision('tensorfloat32').",
        wrong_when="the model needs 32 bits there, or the device has no tensor cores",
        check="The kernels' names say bf16, and the products take less than half the time.",
        worth=Worth(
            "compute",
            0.6,
            "Hugging Face measured up to 3 times from tf32; memory-bound products gain only their bytes",
        ),
        explains=("tf32-matmuls", "slow-gemm", "slow-attention"),
        sources="PM-04, TBP-02, DL-03, XP-12, NAI-08, AL-06",
    ),
    Rule(
        name="tf32-matmuls",
        find=tf32_matmuls,
        sees="Matrix products run in tf32; 16 bits would be twice as fast and move half the bytes.",
        evidence="share of the step in tf32 products",
        fix="Mixed precision with bfloat16.",
        fix_pytorch="torch.autocast('cuda', dtype=torch.bfloat16) for the forward pass.",
        wrong_when="the model does not converge in 16 bits",
        check="The kernels' names say bf16.",
        worth=Worth("compute", 0.5, "the peak doubles; small products do not reach it"),
        sources="XP-12, HF",
    ),
    Rule(
        name="fp16-beside-bf16",
        find=fp16_beside_bf16,
        sees="Products run in fp16 with loss scaling on a device that has bf16 at the same speed.",
        evidence="precision of the products, calls of the loss scaler per step, the device's capability",
        fix="Use bfloat16: the same speed, no loss scaling, no skipped steps.",
        fix_pytorch="torch.autocast('cuda', dtype=torch.bfloat16) and no GradScaler.",
        wrong_when="the weights are published for fp16, or the extra digits of fp16 matter",
        check="No loss scaler in the trace.",
        sources="AL-05",
    ),
)
