"""Rules about attention: written out in parts, or below what its length allows."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.model.scorecard import Operation
from stepgrade.units import show_count, show_share

_AREA = "attention"
_GENERAL = "Use a fused attention kernel (FlashAttention or the like)."
_BECAUSE = "fused kernels measured 2 to 4 times faster, as the scores never reach memory"


def _parts(context: RuleContext) -> tuple[list[Operation], list[Operation]]:
    """Return the softmax of the scores and the batched products around it."""
    ops = [op for op in context.operations if op.ms]
    softmax = [
        op for op in ops if "softmax" in op.name and "log_softmax" not in op.name and op.kind == "softmax"
    ]
    products = [op for op in ops if op.name in {"aten::bmm", "aten::baddbmm"}]
    return softmax, products


@rule(
    name="unfused-attention",
    area=_AREA,
    account="compute",
    sees="Attention is written out: a batched product, a softmax, another product, each through memory.",
    evidence="softmax and batched products per step, their time, no fused attention kernel",
    fix={
        "general": _GENERAL,
        "pytorch": "Call torch.nn.functional.scaled_dot_product_attention, or load the model with "
        'attn_implementation="sdpa".',
        "jax": "Use jax.nn.dot_product_attention with implementation='cudnn'.",
    },
    wrong_when="the scores themselves are needed, as for showing attention maps",
    check="A flash or fmha kernel is in the hotspots and the softmax is gone.",
    realistic=0.6,
    because=_BECAUSE,
    explains=("memory-bound-gemm", "one-hot-operation"),
    sources="GPF-13, TL-07",
)
def unfused_attention(context: RuleContext, limits: Limits) -> Found | None:
    """Report attention in parts."""
    softmax, products = _parts(context)
    if not softmax or not products or not context.profile.activity:
        return None
    if context.class_share("attention") > limits.fused_attention_share:
        return None
    share = context.busy_share(sum(op.ms or 0.0 for op in (*softmax, *products)))
    severity = severity_of(share, limits, "attention")
    calls = (sum(op.calls or 0.0 for op in softmax), sum(op.calls or 0.0 for op in products))
    if severity is None or calls[1] < 2 * min(op.calls or 1.0 for op in softmax):
        return None
    return Found(
        severity=severity,
        claim=f"Attention is written out: {show_count(round(calls[0]))} softmax and "
        f"{show_count(round(calls[1]))} "
        f"batched products take {show_share(share)} of the step.",
        evidence={"softmax_calls": calls[0], "product_calls": calls[1], "share": share},
        share=share,
    )


@rule(
    name="math-attention",
    area=_AREA,
    account="compute",
    sees="PyTorch fell back to the unfused attention: its fused kernels do not take these inputs.",
    evidence="calls of _scaled_dot_product_attention_math per step, the time of softmax and batched products",
    fix={
        "general": _GENERAL,
        "pytorch": "Wrap the call in sdpa_kernel(SDPBackend.FLASH_ATTENTION): the error says why it "
        "does not fit "
        "(32-bit inputs, an explicit mask, the size of a head, dropout).",
    },
    wrong_when="the sequences are so short that the fallback is as fast",
    check="_scaled_dot_product_flash_attention is in the trace.",
    realistic=0.6,
    because=_BECAUSE,
    explains=("unfused-attention", "one-hot-operation"),
    sources="GPF-13",
)
def math_attention(context: RuleContext, limits: Limits) -> Found | None:
    """Report PyTorch's fallback."""
    calls = context.activity.marks.get("sdpa_math", 0.0)
    softmax, products = _parts(context)
    share = context.busy_share(sum(op.ms or 0.0 for op in (*softmax, *products)))
    severity = severity_of(share, limits, "attention")
    if not calls or severity is None:
        return None
    claim = (
        f"{show_count(round(calls))} attention calls a step fall back to the unfused form: "
        f"{show_share(share)} of the step."
    )
    return Found(severity=severity, claim=claim, evidence={"calls": calls, "share": share}, share=share)


@rule(
    name="slow-attention",
    area=_AREA,
    account="compute",
    sees="Fused attention reaches less of the peak than is usual at its sequence length.",
    evidence="FLOP/s reached as a share of the peak, sequence length, share of the step",
    fix={
        "general": "Look at the size of a head, the mask and the precision: multiples of 64 in 16 "
        "bits are fastest."
    },
    wrong_when="the texts are short inside of long padded sequences: the FLOPs counted are then not done",
    check="Attention reaches its band.",
    realistic=0.5,
    because="bands are what others reach, not what this shape can",
    sources="TL-07",
)
def slow_attention(context: RuleContext, limits: Limits) -> Found | None:
    """Report attention below its band."""
    length = context.activity.sequence
    known = [
        op for op in context.operations if op.kind == "attention" and op.roof_share is not None and op.ms
    ]
    time_ms = sum(op.ms or 0.0 for op in known)
    share = context.busy_share(time_ms)
    if length is None or share < limits.attention_warning_share:
        return None
    reached = sum((op.roof_share or 0.0) * (op.ms or 0.0) for op in known) / time_ms
    usual = _usual_peak(length, limits)
    if reached >= usual:
        return None
    claim = (
        f"Attention reaches {show_share(reached, 0)} of the peak; {show_share(usual, 0)} is "
        f"usual at {length} tokens."
    )
    evidence: dict[str, float | str] = {
        "reached": reached,
        "usual": usual,
        "share": share,
        "tokens": float(length),
    }
    return Found(severity="info", claim=claim, evidence=evidence, share=share * (1.0 - reached / usual))


def _usual_peak(length: int, limits: Limits) -> float:
    """Return what attention of this sequence length reaches of the peak at least."""
    bands = (
        (512, limits.attention_512_peak),
        (1024, limits.attention_1024_peak),
        (2048, limits.attention_2048_peak),
    )
    return next((low for most, low in bands if length <= most), limits.attention_long_peak)


RULES = (math_attention, unfused_attention, slow_attention)
