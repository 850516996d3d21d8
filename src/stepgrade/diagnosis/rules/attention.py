"""Rules about attention: made of separate operations, or slower than its length allows."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, Levels, Rule, Worth
from stepgrade.model.operations import Operation
from stepgrade.units import show_count, show_share

_GENERAL = "Use a fused attention kernel. FlashAttention is one."
_BECAUSE = "fused kernels measured 2 to 4 times faster, as the scores never reach memory"


def _levels(limits: Limits) -> Levels:
    return Levels(
        limits.attention_info_share, limits.attention_warning_share, limits.attention_critical_share
    )


def _parts(context: RuleContext) -> tuple[list[Operation], list[Operation], float]:
    """Return the softmax of the scores, the batched products around it, and their share of the step."""
    ops = [op for op in context.operations if op.ms]
    softmax = [
        op for op in ops if op.kind == "softmax" and "softmax" in op.name and "log_softmax" not in op.name
    ]
    products = [op for op in ops if op.name in {"aten::bmm", "aten::baddbmm"}]
    return softmax, products, context.busy_share(sum(op.ms or 0.0 for op in (*softmax, *products)))


def unfused_attention(context: RuleContext) -> Found | None:
    softmax, products, share = _parts(context)
    if not softmax or not products or not context.profile.activity:
        return None
    if context.class_share("attention") > context.limits.fused_attention_share:
        return None
    softmax_calls, product_calls = (sum(op.calls or 0.0 for op in ops) for ops in (softmax, products))
    if product_calls < 2 * min(op.calls or 1.0 for op in softmax):
        return None
    claim = (
        f"Attention is not fused: {show_count(round(softmax_calls))} softmax and "
        f"{show_count(round(product_calls))} batched products take {show_share(share)} of the step."
    )
    return _levels(context.limits).found(
        share, claim, {"softmax_calls": softmax_calls, "product_calls": product_calls, "share": share}
    )


def math_attention(context: RuleContext) -> Found | None:
    calls = context.activity.marks.get("sdpa_math", 0.0)
    if not calls:
        return None
    _, _, share = _parts(context)
    claim = (
        f"{show_count(round(calls))} attention calls a step fall back to the unfused form: "
        f"{show_share(share)} of the step."
    )
    return _levels(context.limits).found(share, claim, {"calls": calls, "share": share})


def slow_attention(context: RuleContext) -> Found | None:
    length, limits = context.activity.sequence, context.limits
    known = [
        op for op in context.operations if op.kind == "attention" and op.roof_share is not None and op.ms
    ]
    total_ms = sum(op.ms or 0.0 for op in known)
    share = context.busy_share(total_ms)
    if length is None or share < limits.attention_warning_share:
        return None
    reached = sum((op.roof_share or 0.0) * (op.ms or 0.0) for op in known) / total_ms
    bands = (
        (512, limits.attention_512_peak),
        (1024, limits.attention_1024_peak),
        (2048, limits.attention_2048_peak),
    )
    usual = next((low for most, low in bands if length <= most), limits.attention_long_peak)
    if reached >= usual:
        return None
    claim = (
        f"Attention reaches {show_share(reached, 0)} of the peak; {show_share(usual, 0)} is usual at "
        f"{length} tokens."
    )
    return Found(
        "info",
        claim,
        {"reached": reached, "usual": usual, "share": share, "tokens": float(length)},
        share=share * (1.0 - reached / usual),
    )


RULES = (
    Rule(
        name="math-attention",
        find=math_attention,
        sees="PyTorch fell back to unfused attention: its fused kernels do not accept these inputs.",
        evidence="_scaled_dot_product_attention_math calls per step, time of softmax and batched products",
        fix=_GENERAL,
        fix_pytorch="Wrap the call in sdpa_kernel(SDPBackend.FLASH_ATTENTION): the error says why it does "
        "not fit (32-bit inputs, an explicit mask, the size of a head, dropout).",
        wrong_when="the sequences are so short that the fallback is as fast",
        check="_scaled_dot_product_flash_attention is in the trace.",
        worth=Worth("compute", 0.6, _BECAUSE),
        explains=("unfused-attention", "one-hot-operation"),
        sources="GPF",
    ),
    Rule(
        name="unfused-attention",
        find=unfused_attention,
        sees="Attention is separate operations (product, softmax, product) through memory.",
        evidence="softmax and batched products per step, their time, no fused kernel",
        fix=_GENERAL,
        fix_pytorch="Call torch.nn.functional.scaled_dot_product_attention, or load the model with "
        'attn_implementation="sdpa".',
        fix_jax="Use jax.nn.dot_product_attention with implementation='cudnn'.",
        wrong_when="the scores are needed, as for attention maps",
        check="A flash or fmha kernel is in the hotspots and the softmax is gone.",
        worth=Worth("compute", 0.6, _BECAUSE),
        explains=("memory-bound-gemm", "one-hot-operation"),
        sources="GPF, TL",
    ),
    Rule(
        name="slow-attention",
        find=slow_attention,
        sees="Fused attention reaches less of the peak than usual at its sequence length.",
        evidence="share of the peak, sequence length, share of the step",
        fix="Look at the size of a head, the mask and the precision: multiples of 64 in 16 bits are fastest.",
        wrong_when="texts are short within padded sequences: the counted FLOPs are not done",
        check="Attention reaches its band.",
        worth=Worth("compute", 0.5, "bands are what others reach, not what this shape can"),
        sources="TL",
    ),
)
