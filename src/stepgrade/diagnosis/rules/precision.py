"""Rules about precision: matrix products that run in more bits than they need."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, Rule, Worth
from stepgrade.scoring.runtime import Runtime
from stepgrade.units import show_share

_USUAL_GAIN = 2.0  # between neighbouring precisions, where the device's figures are not known


def _mixed(context: RuleContext, dtype: str) -> str | None:
    """Return how PyTorch runs products in the precision, in the words of the device's own platform."""
    if context.runtime is not Runtime.PYTORCH:
        return None
    place = {"rocm": "cuda", None: "cuda"}.get(context.platform, context.platform)
    least = " At least torch.set_float32_matmul_precision('high'), which turns tf32 on."
    if dtype == "bf16":
        return f"torch.autocast('{place}', dtype=torch.bfloat16) for the forward pass.{least}"
    scaled = "; train with a GradScaler" if context.work != "inference" else ""
    return f"torch.autocast('{place}', dtype=torch.float16) for the forward pass{scaled}.{least}"


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
    share = context.busy_share(fp32_ms)
    # None where the catalogue knows of no 16-bit precision that the device has.
    then = next((dtype for dtype in ("bf16", "fp16") if context.can_compute_in(dtype) is not False), None)
    if not context.on_device or then is None or share < limits.precision_info_share:
        return None
    gain = share * _saved_part(context, "fp32", then)
    part = fp32_ms / sum(by_dtype.values())
    convolves = context.class_share("convolution") > context.class_share("gemm", "attention")
    what = "convolutions" if convolves else "matrix products"
    return Found(
        severity="warning" if gain >= limits.precision_warning_share / 2 else "info",
        claim=f"{show_share(part, 0)} of the time of {what} is in fp32, {show_share(share)} of the step.",
        evidence={"fp32_ms": fp32_ms, "fp32_share": share, "of_matmuls": part},
        share=gain,
        remedy=_mixed(context, then),
    )


def tf32_matmuls(context: RuleContext) -> Found | None:
    share = context.busy_share(context.activity.matmul_dtype_ms.get("tf32", 0.0))
    if share < context.limits.precision_warning_share or context.can_compute_in("bf16") is False:
        return None
    claim = f"Matrix products in tf32 take {show_share(share)} of the step; bf16 has twice the peak."
    gain = share * _saved_part(context, "tf32", "bf16")
    remedy = _mixed(context, "bf16")
    return Found(
        "info", claim, {"tf32_share": share}, share=gain, remedy=remedy and remedy.split(". ")[0] + "."
    )


def fp16_beside_bf16(context: RuleContext) -> Found | None:
    by_dtype, scaler_calls = context.activity.matmul_dtype_ms, context.activity.marks.get("loss_scale", 0.0)
    if not by_dtype or max(by_dtype, key=by_dtype.__getitem__) != "fp16":
        return None
    if not scaler_calls or not context.can_compute_in("bf16"):
        return None
    claim = "Products run in fp16 with loss scaling, on a device that has bf16 at the same speed."
    return Found("info", claim, {"scaler_calls": scaler_calls})


RULES = (
    Rule(
        name="fp32-matmuls",
        find=fp32_matmuls,
        sees="Matrix products run in 32 bits, without tensor cores.",
        evidence="milliseconds and share of the step in 32-bit products, the device's peak rates",
        fix="Run matrix products in 16 bits (mixed precision).",
        fix_pytorch="torch.autocast('cuda', dtype=torch.bfloat16) for the forward pass; float16 with a "
        "GradScaler where the device has no bf16; at least torch.set_float32_matmul_precision('high') where "
        "it has tf32.",
        fix_jax="Cast to bfloat16, or jax.default_matmul_precision('tensorfloat32').",
        wrong_when="the model needs 32 bits there, or the device has no tensor cores",
        check="The kernels' names say 16 bits, and the products take less than half the time.",
        worth=Worth(
            "compute",
            0.6,
            "Hugging Face measured up to 3 times from tf32; memory-bound products gain only their bytes",
        ),
        explains=("tf32-matmuls", "slow-gemm", "slow-attention"),
        sources="PM, TBP, DL, XP, NAI, AL",
    ),
    Rule(
        name="tf32-matmuls",
        find=tf32_matmuls,
        sees="Matrix products run in tf32; 16 bits are twice as fast and move half the bytes.",
        evidence="share of the step in tf32 products",
        fix="Mixed precision with bfloat16.",
        fix_pytorch="torch.autocast('cuda', dtype=torch.bfloat16) for the forward pass.",
        wrong_when="the model does not converge in 16 bits",
        check="The kernels' names say bf16.",
        worth=Worth("compute", 0.5, "the peak doubles; small products do not reach it"),
        sources="XP, HF",
    ),
    Rule(
        name="fp16-beside-bf16",
        find=fp16_beside_bf16,
        sees="Products use fp16 with loss scaling on a device with equally fast bf16.",
        evidence="precision of the products, loss scaler calls per step",
        fix="Use bfloat16: the same speed, no loss scaling, no skipped steps.",
        fix_pytorch="torch.autocast('cuda', dtype=torch.bfloat16) and no GradScaler.",
        wrong_when="the weights are published for fp16, or its extra digits matter",
        check="No loss scaler in the trace.",
        sources="AL",
    ),
)
