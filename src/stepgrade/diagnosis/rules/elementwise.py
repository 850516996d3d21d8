"""Rules about work that moves memory: elementwise chains, norms, losses, gathers."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.advice import is_compiled
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.units import show_count, show_share

_AREA = "elementwise"
_FEW_OPERATIONS = 5  # among fewer, one is always the longest
_LOSS_WORDS = ("log_softmax", "nll_loss", "cross_entropy", "crossentropy")
_ARITHMETIC = frozenset({"gemm", "attention", "convolution", "communication"})


@rule(
    name="elementwise-chains",
    area=_AREA,
    account="compute",
    sees="Unfused elementwise operations and reductions, each reading and writing memory, take much "
    "of the step.",
    evidence="share of the step in elementwise, reduction and norm operations, kernels per step",
    fix={
        "general": "Fuse chains of elementwise operations.",
        "pytorch": "torch.compile fuses them; or fused kernels for the longest (norms, activations, "
        "rotary embedding).",
        "jax": "Put the chain under one jit: XLA fuses it.",
    },
    wrong_when="the chains are already fused and what is left is the traffic that the model needs",
    check="Fewer elementwise kernels, and their share shrinks.",
    realistic=0.5,
    because="fusing n operations saves up to n - 1 of n trips through memory; two thirds is usual",
    explains=("fragmented-elementwise", "hand-written-norm", "slow-elementwise"),
    sources="XP-14, ME-01, TG",
)
def elementwise_chains(context: RuleContext, limits: Limits) -> Found | None:
    """Report elementwise work that a compiler would fuse."""
    share = _outside_optimizer(context)
    severity = severity_of(share, limits, "elementwise")
    if severity is None or is_compiled(context) or not context.profile.activity:
        return None
    count = sum(context.activity.class_kernels.get(kind, 0.0) for kind in ("elementwise", "reduction"))
    claim = f"Unfused elementwise operations and reductions take {show_share(share)} of the step."
    return Found(
        severity=severity, claim=claim, evidence={"share": share, "kernels": count}, share=share * 0.67
    )


def _outside_optimizer(context: RuleContext) -> float:
    """Return the share of the step in such operations outside of the optimizer, which has its own rules."""
    updating = [
        one.ms
        for one in context.activity.parts
        if one.direction == "optimizer" and one.work_class in ("elementwise", "reduction")
    ]
    return max(0.0, context.class_share("elementwise", "reduction") - context.busy_share(sum(updating)))


@rule(
    name="fragmented-elementwise",
    area=_AREA,
    account="compute+idle_host",
    sees="More than a thousand elementwise kernels are launched in a step.",
    evidence="elementwise kernels per step, share of the step",
    fix={
        "general": "Fuse elementwise operations, or handle many tensors in one kernel.",
        "pytorch": "torch.compile, or the torch._foreach_ forms for lists of tensors.",
    },
    wrong_when="the device is busy all the same",
    check="Fewer elementwise kernels per step.",
    realistic=0.5,
    because="fusing removes launches and trips through memory",
    sources="TL-04",
)
def fragmented_elementwise(context: RuleContext, limits: Limits) -> Found | None:
    """Report elementwise kernels in great number."""
    count = context.activity.class_kernels.get("elementwise", 0.0)
    share = context.class_share("elementwise")
    if count < limits.elementwise_launches or share < limits.fill_info_share:
        return None
    claim = f"{show_count(round(count))} elementwise kernels are launched in a step."
    return Found(
        severity="info", claim=claim, evidence={"kernels": count, "share": share}, share=share * 0.67
    )


@rule(
    name="slow-elementwise",
    area=_AREA,
    account="compute",
    sees="A simple elementwise operation reaches less than half of the memory's bandwidth.",
    evidence="bytes per second as a share of the bandwidth, share of the step",
    fix={
        "general": "Look at its sizes and strides: broadcasting, transposed or unaligned inputs, or "
        "too little work."
    },
    wrong_when="the tensors are so small that they stay in cache, or the launch dominates",
    check="The operation reaches 70 % of the bandwidth.",
    realistic=0.5,
    because="streaming kernels reach 70 to 90 % of the bandwidth",
    sources="TL-11",
)
def slow_elementwise(context: RuleContext, limits: Limits) -> Found | None:
    """Report elementwise operations below the bandwidth."""
    slow = [
        op
        for op in context.operations
        if op.kind == "elementwise" and op.roof_share is not None and op.roof_share < limits.streaming_share
    ]
    share = context.busy_share(sum(op.ms or 0.0 for op in slow))
    if share < limits.norm_share:
        return None
    longest = slow[0]
    reached = longest.roof_share or 0.0
    claim = (
        f"{longest.name} reaches {show_share(reached, 0)} of the memory's bandwidth; such "
        f"operations take {show_share(share)} of the step."
    )
    evidence: dict[str, float | str] = {"operation": longest.name, "reached": reached, "share": share}
    return Found(severity="info", claim=claim, evidence=evidence, share=share * (1.0 - reached))


@rule(
    name="hand-written-norm",
    area=_AREA,
    account="compute",
    sees="A norm is written out of single operations (pow, mean, rsqrt, mul) instead of one kernel.",
    evidence="rsqrt and mean calls per step, no norm kernels",
    fix={
        "general": "Use a fused norm kernel.",
        "pytorch": "torch.nn.RMSNorm or torch.nn.functional.rms_norm, or compile the block.",
    },
    wrong_when="rsqrt is used for something else (an optimizer)",
    check="No rsqrt calls in the forward pass.",
    realistic=0.5,
    because="one kernel instead of five reads the input once",
    sources="TL-12, TL-13",
)
def hand_written_norm(context: RuleContext, limits: Limits) -> Found | None:
    """Report norms made of single operations."""
    marks = context.activity.marks
    calls = min(marks.get("rsqrt", 0.0), marks.get("mean", 0.0))
    share = context.class_share("elementwise", "reduction")
    if calls < 4.0 or context.class_share("norm") > 0.0 or is_compiled(context) or share < limits.norm_share:
        return None
    claim = f"{show_count(round(calls))} norms a step are written out of single operations."
    return Found(
        severity="info", claim=claim, evidence={"calls": calls, "elementwise_share": share}, share=share / 2
    )


@rule(
    name="unfused-loss",
    area=_AREA,
    account="compute",
    sees="The loss over the vocabulary (log_softmax, nll_loss) takes a share of the step.",
    evidence="share of the step in the loss's operations",
    fix={
        "general": "Use a fused cross entropy that never writes all logits.",
        "pytorch": "A fused linear cross entropy (Liger Kernel, Cut Cross-Entropy), or compile the loss.",
    },
    wrong_when="the logits are needed for something else",
    check="log_softmax leaves the hotspots and memory shrinks.",
    realistic=0.5,
    because="the logits' bytes are most of it",
    sources="GPF-13",
)
def unfused_loss(context: RuleContext, limits: Limits) -> Found | None:
    """Report a loss that goes through memory."""
    ops = [op for op in context.operations if any(word in op.name for word in _LOSS_WORDS)]
    share = context.busy_share(sum(op.ms or 0.0 for op in ops))
    severity = severity_of(share, limits, "loss")
    if severity is None or is_compiled(context):
        return None
    claim = f"The loss over the vocabulary takes {show_share(share)} of the step."
    return Found(
        severity=severity, claim=claim, evidence={"operation": ops[0].name, "share": share}, share=share
    )


@rule(
    name="heavy-embedding",
    area=_AREA,
    account="compute",
    sees="Embedding lookups or their gradients take a share of the step.",
    evidence="share of the step in embedding operations",
    fix={
        "general": "Use a sparse or fused embedding update, and sort or deduplicate indices.",
        "pytorch": "Embedding(sparse=True) with SparseAdam, or FBGEMM's fused tables for recommenders.",
    },
    wrong_when="the model is a recommender: tables are its work",
    check="The embedding's backward shrinks.",
    realistic=0.3,
    because="the rows still have to be read and written",
    sources="XP-15",
)
def heavy_embedding(context: RuleContext, limits: Limits) -> Found | None:
    """Report embeddings that take long."""
    share = context.class_share("embedding")
    if share < limits.shuffle_info_share:
        return None
    claim = f"Embedding lookups and their gradients take {show_share(share)} of the step."
    return Found(severity="info", claim=claim, evidence={"share": share}, share=share)


@rule(
    name="data-shuffling",
    area=_AREA,
    account="compute",
    sees="Gathers, scatters and sorts take a share of the step.",
    evidence="share of the step in indexing operations, the longest of them",
    fix={
        "general": "Sort or pack once instead of gathering often; use kernels that take indices "
        "(grouped products)."
    },
    wrong_when="routing is the model's nature (mixture of experts) and already packed",
    check="Indexing shrinks in the hotspots.",
    realistic=0.3,
    because="some of the movement is the model's own",
    sources="XP-15",
)
def data_shuffling(context: RuleContext, limits: Limits) -> Found | None:
    """Report indexing that takes long."""
    share = context.class_share("indexing")
    severity = severity_of(share, limits, "shuffle")
    if severity is None:
        return None
    longest = next(op.name for op in context.operations if op.kind == "indexing")
    claim = f"Gathers, scatters and sorts take {show_share(share)} of the step, {longest} most."
    return Found(severity=severity, claim=claim, evidence={"share": share, "operation": longest}, share=share)


@rule(
    name="one-hot-operation",
    area=_AREA,
    account="compute",
    sees="One operation that is no matrix product, convolution or attention takes half of the step's work.",
    evidence="its name, share of the step, calls per step",
    fix={"general": "Look at that operation first: its sizes, its kernel, whether it is needed at all."},
    wrong_when="it is a fused kernel that holds most of the model",
    check="The operation leaves the top of the hotspots.",
    realistic=0.3,
    because="nothing is known about how fast it could be",
    sources="NAI-07",
)
def one_hot_operation(context: RuleContext, limits: Limits) -> Found | None:
    """Report a single operation that dominates."""
    top = next((op for op in context.operations if op.ms), None)
    if top is None or top.kind is None or top.kind in _ARITHMETIC or not context.profile.activity:
        return None
    share = context.busy_share(top.ms or 0.0)
    if share < limits.hotspot_share or len(context.operations) < _FEW_OPERATIONS:
        return None
    claim = f"{top.name} alone takes {show_share(share)} of the step."
    return Found(severity="info", claim=claim, evidence={"operation": top.name, "share": share}, share=share)


RULES = (
    elementwise_chains,
    fragmented_elementwise,
    slow_elementwise,
    hand_written_norm,
    unfused_loss,
    heavy_embedding,
    data_shuffling,
    one_hot_operation,
)
