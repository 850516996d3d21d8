"""Rules about work that moves memory: elementwise chains, norms, losses, gathers."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Remedy, Rule, Worth
from stepgrade.naming.work_class import RANDOM
from stepgrade.units import show_count, show_share

_FEW_OPERATIONS = 5  # among fewer, one is always the longest
_LOSS_WORDS = ("log_softmax", "nll_loss", "cross_entropy", "crossentropy")
_ARITHMETIC = frozenset({"gemm", "attention", "convolution", "communication"})
_FUSED_AWAY = 0.67  # of the time: fusing three operations into one saves two trips through memory


def elementwise_chains(context: RuleContext) -> Found | None:
    """Report elementwise work that a compiler would fuse; the optimizer's has its own rules."""
    if context.is_compiled or not context.profile.activity:
        return None
    kinds, limits = ("elementwise", "reduction"), context.limits
    optimizer_ms = sum(
        part.ms
        for part in context.activity.parts
        if part.direction == "optimizer" and part.work_class in kinds
    )
    # XLA has fused what is called a fusion: nothing is left to fuse there.
    fused_ms = sum(
        op.ms or 0.0 for op in context.operations if op.kind in kinds and op.name.endswith("fusion")
    )
    share = max(0.0, context.class_share(*kinds) - context.busy_share(optimizer_ms + fused_ms))
    levels = Levels(
        limits.elementwise_info_share, limits.elementwise_warning_share, limits.elementwise_critical_share
    )
    claim = f"Unfused elementwise operations and reductions take {show_share(share)} of the step."
    kernels = sum(context.activity.class_kernels.get(kind, 0.0) for kind in kinds)
    return levels.found(share, claim, {"share": share, "kernels": kernels}, gain=share * _FUSED_AWAY)


def fragmented_elementwise(context: RuleContext) -> Found | None:
    count = context.activity.class_kernels.get("elementwise", 0.0)
    share = context.class_share("elementwise")
    if count < context.limits.elementwise_launches or share < context.limits.fill_info_share:
        return None
    claim = f"{show_count(round(count))} elementwise kernels are launched in a step."
    return Found("info", claim, {"kernels": count, "share": share}, share=share * _FUSED_AWAY)


def slow_elementwise(context: RuleContext) -> Found | None:
    slow = [
        op
        for op in context.operations
        if op.kind == "elementwise"
        and op.roof_share is not None
        and op.roof_share < context.limits.streaming_share
    ]
    share = context.busy_share(sum(op.ms or 0.0 for op in slow))
    if not slow or share < context.limits.norm_share:
        return None
    longest, reached = slow[0], slow[0].roof_share or 0.0
    claim = (
        f"{longest.name} reaches {show_share(reached, 0)} of the memory's bandwidth; such operations take "
        f"{show_share(share)} of the step."
    )
    return Found(
        "info",
        claim,
        {"operation": longest.name, "reached": reached, "share": share},
        share=share * (1.0 - reached),
    )


def hand_written_norm(context: RuleContext) -> Found | None:
    marks = context.activity.marks
    calls = min(marks.get("rsqrt", 0.0), marks.get("mean", 0.0))
    share = context.class_share("elementwise", "reduction")
    if calls < 4.0 or share < context.limits.norm_share:
        return None
    if context.class_share("norm") > 0.0 or context.is_compiled:
        return None
    claim = f"{show_count(round(calls))} norms a step are made of single operations."
    return Found("info", claim, {"calls": calls, "elementwise_share": share}, share=share / 2)


def unfused_loss(context: RuleContext) -> Found | None:
    ops = [
        op
        for op in context.operations
        if any(word in op.name for word in _LOSS_WORDS) and "binary" not in op.name  # one class each
    ]
    if not ops or context.is_compiled:
        return None
    share, limits = context.busy_share(sum(op.ms or 0.0 for op in ops)), context.limits
    # Of a few classes the logits are small: what they take is not worth a kernel of its own.
    sizes = [op.bytes / op.calls for op in ops if op.bytes and op.calls]
    if max(sizes, default=limits.large_tensor_bytes) < limits.large_tensor_bytes:
        return None
    sides = [max(gemm.m, gemm.n, gemm.k) for gemm in context.activity.gemms]
    if max(sides, default=limits.vocabulary_classes) < limits.vocabulary_classes:
        return None
    if not sides and not any(context.is_large(op) for op in ops):
        return None
    claim = f"The loss over the vocabulary takes {show_share(share)} of the step."
    levels = Levels(limits.loss_info_share, limits.loss_warning_share, limits.loss_critical_share)
    return levels.found(share, claim, {"operation": ops[0].name, "share": share})


def random_numbers(context: RuleContext) -> Found | None:
    """Report random numbers on a processor, which makes them one by one; those of dropout are the model's."""
    if context.activity.driver != "host":
        return None
    ops = [op for op in context.operations if RANDOM.match(op.name)]
    own_ms = sum(op.ms or 0.0 for op in ops) - context.activity.dropout_ms
    share, limits = context.busy_share(max(0.0, own_ms)), context.limits
    if not ops:
        return None
    claim = f"Making random numbers takes {show_share(share)} of the step, {ops[0].name} the most."
    levels = Levels(limits.random_info_share, limits.random_warning_share, limits.random_critical_share)
    lines = context.activity.lines.get("random", ())
    evidence: Evidence = {
        "operation": ops[0].name,
        "calls": sum(op.calls or 0.0 for op in ops),
        "share": share,
    }
    return levels.found(share, claim, evidence, line=lines[0] if lines else None)


def heavy_embedding(context: RuleContext) -> Found | None:
    share = context.class_share("embedding")
    if share < context.limits.shuffle_info_share:
        return None
    claim = f"Embedding lookups and their gradients take {show_share(share)} of the step."
    return Found("info", claim, {"share": share}, share=share)


def data_shuffling(context: RuleContext) -> Found | None:
    share, limits = context.class_share("indexing"), context.limits
    longest = next((op.name for op in context.operations if op.kind == "indexing"), "indexing")
    claim = f"Gathers, scatters and sorts take {show_share(share)} of the step, {longest} the most."
    levels = Levels(limits.shuffle_info_share, limits.shuffle_warning_share, limits.shuffle_critical_share)
    return levels.found(share, claim, {"share": share, "operation": longest})


def one_hot_operation(context: RuleContext) -> Found | None:
    top = next((op for op in context.operations if op.ms), None)
    if top is None or top.kind is None or top.kind in _ARITHMETIC or not context.profile.activity:
        return None
    share = context.busy_share(top.ms or 0.0)
    if share < context.limits.hotspot_share or len(context.operations) < _FEW_OPERATIONS:
        return None
    claim = f"{top.name} alone takes {show_share(share)} of the step."
    return Found("info", claim, {"operation": top.name, "share": share}, share=share)


RULES = (
    Rule(
        name="elementwise-chains",
        find=elementwise_chains,
        sees="Unfused elementwise operations and reductions take much of the step.",
        evidence="share of the step in elementwise, reduction and norm operations, kernels per step",
        fix="Fuse chains of elementwise operations.",
        fix_pytorch="torch.compile fuses them; or fused kernels for the longest (norms, activations, rotary "
        "embedding).",
        fix_jax="Put the chain under one jit: XLA fuses it.",
        wrong_when="they are fused already, and the rest is needed traffic",
        check="Fewer elementwise kernels, and their share shrinks.",
        worth=Worth(
            "compute",
            0.5,
            "fusing n operations saves up to n - 1 of n trips through memory; two thirds is usual",
        ),
        explains=("fragmented-elementwise", "hand-written-norm", "slow-elementwise"),
        sources="XP, ME, TG",
    ),
    Rule(
        name="fragmented-elementwise",
        find=fragmented_elementwise,
        sees="A step launches more than a thousand elementwise kernels.",
        evidence="elementwise kernels per step, share of the step",
        fix="Fuse elementwise operations, or handle many tensors in one kernel.",
        fix_pytorch="torch.compile, or the torch._foreach_ forms for lists of tensors.",
        wrong_when="the device is busy anyway",
        check="Fewer elementwise kernels per step.",
        worth=Worth("compute+idle_host", 0.5, "fusing removes launches and trips through memory"),
        sources="TL",
    ),
    Rule(
        name="slow-elementwise",
        find=slow_elementwise,
        sees="A simple elementwise operation reaches less than half of the memory bandwidth.",
        evidence="share of the bandwidth, share of the step",
        fix="Look at its sizes and strides: broadcasting, transposed or unaligned inputs, or too little "
        "work.",
        wrong_when="tensors stay in cache, or the launch dominates",
        check="The operation reaches 70 % of the bandwidth.",
        worth=Worth("compute", 0.5, "streaming kernels reach 70 to 90 % of the bandwidth"),
        sources="TL",
    ),
    Rule(
        name="hand-written-norm",
        find=hand_written_norm,
        sees="A norm is single operations (pow, mean, rsqrt, mul) instead of one kernel.",
        evidence="rsqrt and mean calls per step, no norm kernels",
        fix="Use a fused norm kernel.",
        fix_pytorch="torch.nn.RMSNorm or torch.nn.functional.rms_norm, or compile the block.",
        wrong_when="rsqrt is used for something else (an optimizer)",
        check="No rsqrt calls in the forward pass.",
        worth=Worth("compute", 0.5, "one kernel instead of five reads the input once"),
        sources="TL",
    ),
    Rule(
        name="unfused-loss",
        find=unfused_loss,
        sees="The loss over the vocabulary (log_softmax, nll_loss) takes part of the step.",
        evidence="share of the step in the loss",
        fix="Use a fused cross entropy that never writes all logits.",
        fix_pytorch="A fused linear cross entropy (Liger Kernel, Cut Cross-Entropy), or compile the loss.",
        wrong_when="the logits are needed elsewhere",
        check="log_softmax leaves the hotspots and memory shrinks.",
        worth=Worth("compute", 0.5, "the logits' bytes are most of it"),
        sources="GPF",
    ),
    Rule(
        name="random-numbers",
        find=random_numbers,
        sees="Without an accelerator: random numbers take part of the step.",
        evidence="the operations, calls per step, share of the step",
        fix="Make fewer random numbers: once and reused, ahead of the step, or with a cheaper generator.",
        fix_pytorch="Draw what is needed in one call, or ahead in a DataLoader's workers; uniform numbers "
        "cost less than normal ones, and numpy's generators less than torch's on a processor.",
        wrong_when="the noise is the model's own, as in diffusion",
        check="The operations leave the top of the hotspots.",
        worth=Worth("compute", 0.6, "some of the numbers are needed in every step"),
        explains=("one-hot-operation", "elementwise-chains"),
        sources="TG",
    ),
    Rule(
        name="heavy-embedding",
        find=heavy_embedding,
        sees="Embedding lookups or their gradients take part of the step.",
        evidence="share of the step in embedding operations",
        fix="Use a sparse or fused embedding update, and sort or deduplicate indices.",
        fix_pytorch="Embedding(sparse=True) with SparseAdam, or FBGEMM's fused tables for recommenders.",
        fix_where=(
            Remedy(
                "with FBGEMM's tables",
                lambda context: context.uses("fbgemm"),
                "The tables are fused already: cache their hot rows, keep rows in fewer bits, or balance "
                "them better over the ranks.",
            ),
        ),
        wrong_when="the model is a recommender",
        check="The embedding's backward shrinks.",
        worth=Worth("compute", 0.3, "the rows still have to be read and written"),
        sources="XP",
    ),
    Rule(
        name="data-shuffling",
        find=data_shuffling,
        sees="Gathers, scatters and sorts take part of the step.",
        evidence="share of the step in indexing operations, the longest",
        fix="Sort or pack once instead of gathering often; use kernels that take indices (grouped products).",
        wrong_when="routing is the model's nature (mixture of experts) and already packed",
        check="Indexing shrinks in the hotspots.",
        worth=Worth("compute", 0.3, "some of the movement is the model's own"),
        sources="XP",
    ),
    Rule(
        name="one-hot-operation",
        find=one_hot_operation,
        sees="One operation other than a matrix product, convolution or attention takes half of the step.",
        evidence="its name, share of the step, calls per step",
        fix="Look at that operation first: its sizes, its kernel, whether it is needed at all.",
        wrong_when="it is a fused kernel with most of the model's work",
        check="The operation leaves the top of the hotspots.",
        worth=Worth("compute", 0.3, "nothing is known about how fast it could be"),
        sources="NAI",
    ),
)
