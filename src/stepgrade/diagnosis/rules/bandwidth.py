"""Rules about work that memory limits: the optimizer, elementwise chains, losses, copies on the device."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import NamedTuple

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rule import Evidence, Found, Remedy, Rule, Worth, on_amd
from stepgrade.model.activity import OptimizerTally
from stepgrade.naming.work_class import RANDOM
from stepgrade.patterns import regex
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import show_count, show_share

# Optimizers that torch.optim can fuse, and optimizers that update one matrix at a time by design.
_FUSED_IN_PYTORCH = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_MATRIX_BY_MATRIX = frozenset({"Muon", "NorMuon", "DistMuon", "Shampoo", "DistributedShampoo", "SOAP"})
_BY_HAND = (
    "Update tensors of one shape together: torch._foreach_ functions, stacked tensors or torch.compile."
)
_LOOKUPS = ("aten::embedding", "aten::index_select")
_LOOKUP = regex(r"(?P<rows>\d+)x(?P<width>\d+)(?: \w+)?, (?P<indices>\d[\dx]*)(?:,| |$)")
_FILLS = ("aten::fill_", "aten::zero_")
_FEW_OPERATIONS = 5  # among fewer, some operation always dominates
_LOSS_WORDS = ("log_softmax", "nll_loss", "cross_entropy", "crossentropy")
_ARITHMETIC = frozenset({"gemm", "attention", "convolution", "communication"})
_FUSED_AWAY = 0.67  # of the time: fusing three operations into one saves two passes over memory
# Reads of a value have their own rule, and filling a tensor copies nothing.
_NO_COPIES = frozenset(
    f"aten::{name}"
    for name in ("item", "_local_scalar_dense", "fill_", "zero_", "zeros", "zeros_like", "new_zeros")
)
# Writing a cache of keys and values, and casting to what products multiply in, are work of their own.
_NEEDED_COPIES = regex(
    r"kv_?(cache|buffer)|reshape_and_cache|concat_and_cache|store_kvcache|cast_(and_)?transpose"
    r"|transpose_(and_)?cast|per_(channel|token|block|tensor)_cast|quant|fp8|float8",
    re.IGNORECASE,
)
optimizer_rule = partial(Rule, area="optimizer", levels="optimizer")
elementwise_rule = partial(Rule, area="elementwise", levels="elementwise")
layout_rule = partial(Rule, area="layout", levels="layout")


@optimizer_rule(
    sees="The optimizer updates one tensor at a time, with several small kernels each.",
    evidence="kernels per step, time share of multi-tensor kernels, share from first to last",
    fix="Update all tensors in a few kernels (a fused optimizer).",
    fix_pytorch="Construct the optimizer with fused=True (or foreach=True).",
    fix_jax="Put the update under the same jit as the step, so that XLA fuses it.",
    wrong_when="the optimizer works on single matrices by design (Muon, Shampoo)",
    check="The optimizer launches a few dozen kernels.",
    worth=Worth("compute+idle_host", 0.7, "the update still reads and writes its whole state once"),
    explains=(
        "heavy-optimizer",
        "short-kernels",
        "launch-gaps",
        "zero-grad-fills",
        "elementwise-chains",
        "fragmented-elementwise",
        "host-stall",
    ),
    sources="PM, HF",
    needs="activity.optimizer",
)
def single_tensor_optimizer(context: RuleContext, seen: OptimizerTally) -> Found | None:
    limits = context.limits
    if seen.kernels < limits.optimizer_kernels:
        return None
    if seen.multi_tensor_share > limits.many_tensor_share or seen.fused:
        return None
    mean_us = context.mean_ms(seen.ms) / seen.kernels * 1000.0
    if mean_us > limits.optimizer_kernel_us or seen.name in _MATRIX_BY_MATRIX:
        return None
    share = context.step_share(seen.span_ms)
    return Found(
        f"The optimizer updates one tensor at a time: {show_count(round(seen.kernels))} kernels of "
        f"{mean_us:.1f} µs take {show_share(share)} of the step.",
        {
            "kernels": seen.kernels,
            "mean_us": mean_us,
            "many_tensor_share": seen.multi_tensor_share,
            "share": share,
            "idle_share": context.step_share(seen.span_ms - seen.ms),
        },
        share,
        remedy=None if seen.name is None or seen.name in _FUSED_IN_PYTORCH else _BY_HAND,
    )


@optimizer_rule(
    sees="The optimizer takes a large share of the step.",
    evidence="share, whether it is fused",
    fix="Update less often or cheaper: gradient accumulation, a fused or 8-bit optimizer, sharded state.",
    fix_pytorch="Set fused=True. Try gradient accumulation or an 8-bit optimizer. Shard its state (FSDP, "
    "ZeRO-1).",
    wrong_when="the batch is small for the model",
    check="The optimizer's phase shrinks.",
    worth=Worth("compute", 0.4, "a fused update still reads and writes its whole state once", "optimizer"),
    sources="HF, PM",
)
def heavy_optimizer(context: RuleContext) -> Found | None:
    seen, limits, kind = context.activity.optimizer, context.limits, PhaseKind.OPTIMIZER
    if seen is not None:
        share = context.busy_share(seen.ms)
    else:
        share = context.phase_share(kind) or context.step_share(context.phases.by_kind_ms.get(kind, 0.0))
    claim = f"The optimizer takes {show_share(share)} of the step."
    evidence: Evidence = {"share": share, "fused": None if seen is None else "yes" if seen.fused else "no"}
    if share < limits.optimizer_warning_share:
        return None
    # Every step needs its optimizer: this is a level less severe than other work. On a processor a small
    # model's optimizer takes much of the step even when nothing is wrong.
    calls = sum(part.calls for part in context.activity.parts if part.direction == "optimizer")
    is_small = context.activity.driver == "host" and calls < limits.optimizer_calls
    is_heavy = share >= limits.optimizer_critical_share and not is_small
    return Found(claim, evidence, share, "warning" if is_heavy else "info")


zero_grad_fills = optimizer_rule(
    sees="Gradients are zeroed instead of dropped.",
    evidence="fills per step in zero_grad, share",
    fix="Drop gradients instead of zeroing them.",
    fix_pytorch="Call optimizer.zero_grad(set_to_none=True), the default since PyTorch 2.0.",
    wrong_when="gradients are views into flat buffers, which must stay",
    check="No fills in zero_grad.",
    worth=Worth("compute+idle_host", 0.8, "the first backward pass then writes instead of adding"),
    sources="PM, TG",
    claim="zero_grad fills {fills} gradients with zeros every step.",
    figures={"fills": "zero_fills", "share": "fill_share"},
    least={"fills": "copies_per_step", "share": "fill_info_share"},
    severity="info",
)


@elementwise_rule(
    sees="Unfused elementwise operations and reductions take much of the step.",
    evidence="share of such operations, kernels per step",
    fix="Fuse chains of elementwise operations.",
    fix_pytorch="Fuse operations with torch.compile, or use fused kernels for the longest (norms, "
    "activations, rotary embedding).",
    fix_jax="Put the chain under one jit, so that XLA fuses it.",
    wrong_when="they are already fused",
    check="Fewer elementwise kernels, and their share shrinks.",
    worth=Worth(
        "compute",
        0.5,
        "fusing n operations saves up to n - 1 of n passes over memory; two thirds is usual",
        "elementwise",
    ),
    explains=("fragmented-elementwise", "hand-written-norm", "slow-elementwise"),
    sources="XP, ME, TG",
)
def elementwise_chains(context: RuleContext) -> Found | None:
    if context.is_compiled or not context.profile.activity:
        return None
    kinds = ("elementwise", "reduction")
    # The optimizer has its own rules.
    optimizer_ms = sum(
        part.ms
        for part in context.activity.parts
        if part.direction == "optimizer" and part.work_class in kinds
    )
    # XLA has already fused what it calls a fusion.
    fused_ms = sum(
        op.ms or 0.0 for op in context.operations if op.kind in kinds and op.name.endswith("fusion")
    )
    share = max(0.0, context.class_share(*kinds) - context.busy_share(optimizer_ms + fused_ms))
    claim = f"Unfused elementwise operations and reductions take {show_share(share)} of the step."
    kernels = sum(context.activity.class_kernels.get(kind, 0.0) for kind in kinds)
    return Found(claim, {"share": share, "kernels": kernels}, share, gain=share * _FUSED_AWAY)


fragmented_elementwise = elementwise_rule(
    sees="A step launches more than a thousand elementwise kernels.",
    evidence="elementwise kernels per step, share",
    fix="Fuse elementwise operations, or handle many tensors in one kernel.",
    fix_pytorch="Use torch.compile, or the torch._foreach_ functions for lists of tensors.",
    wrong_when="the device is always busy",
    check="Fewer elementwise kernels per step.",
    worth=Worth("compute+idle_host", 0.5, "fusing removes launches and passes over memory"),
    sources="TL",
    claim="Each step launches {kernels} elementwise kernels.",
    figures={"kernels": "elementwise_kernels", "share": "elementwise_share"},
    least={"kernels": "elementwise_launches", "share": "fill_info_share"},
    severity="info",
    saved=_FUSED_AWAY,
)


@elementwise_rule(
    sees="A simple elementwise operation reaches less than half the memory bandwidth.",
    evidence="share of the bandwidth, share",
    fix="Check its sizes and strides: broadcasting, transposed or unaligned inputs, or too little work.",
    wrong_when="tensors stay in cache, or the launch dominates",
    check="The operation reaches 70 % of the bandwidth.",
    worth=Worth("compute", 0.5, "streaming kernels reach 70 to 90 % of the bandwidth", "elementwise"),
    sources="TL",
)
def slow_elementwise(context: RuleContext) -> Found | None:
    slow = [
        op
        for op in context.operations
        if op.kind == "elementwise"
        and op.roof_share is not None
        and op.roof_share < context.limits.streaming_share
    ]
    share = context.operations_share(slow)
    if not slow or share < context.limits.norm_share:
        return None
    longest, reached = slow[0], slow[0].roof_share or 0.0
    claim = (
        f"{longest.name} reaches {show_share(reached, 0)} of the memory bandwidth; such operations take "
        f"{show_share(share)} of the step."
    )
    return Found(
        claim,
        {"operation": longest.name, "reached": reached, "share": share},
        share * (1.0 - reached),
        severity="info",
    )


hand_written_norm = elementwise_rule(
    sees="A norm runs as single operations (pow, mean, rsqrt, mul) instead of one kernel.",
    evidence="rsqrt and mean calls per step, no norm kernels",
    fix="Use a fused norm kernel.",
    fix_pytorch="Use torch.nn.RMSNorm or torch.nn.functional.rms_norm, or compile the block.",
    wrong_when="rsqrt is used for something else (an optimizer)",
    check="No rsqrt calls in the forward pass.",
    worth=Worth(
        "compute", 0.5, "one kernel reads the input once, five kernels five times", "elementwise+reduction"
    ),
    sources="TL",
    claim="{calls} norms a step run as single operations.",
    figures={"calls": "unfused_norms", "elementwise_share": "pointwise_share"},
    least={"elementwise_share": "norm_share"},
    severity="info",
    saved=0.5,
)


@elementwise_rule(
    sees="The loss over the vocabulary takes part of the step.",
    evidence="its share",
    levels="loss",
    fix="Use a fused cross entropy that never writes all logits.",
    fix_pytorch="Use a fused linear cross entropy (Liger Kernel, Cut Cross-Entropy), or compile the loss.",
    wrong_when="the logits are needed elsewhere",
    check="log_softmax is no longer a hotspot, and the step needs less memory.",
    worth=Worth("compute", 0.5, "most of the time moves the logits"),
    sources="GPF",
)
def unfused_loss(context: RuleContext) -> Found | None:
    ops = [
        op
        for op in context.operations
        if any(word in op.name for word in _LOSS_WORDS) and "binary" not in op.name
    ]
    if not ops or context.is_compiled:
        return None
    share, limits = context.operations_share(ops), context.limits
    # With few classes the logits are small and not worth a special kernel.
    sizes = [op.bytes / op.calls for op in ops if op.bytes and op.calls]
    if max(sizes, default=limits.large_tensor_bytes) < limits.large_tensor_bytes:
        return None
    sides = [max(gemm.m, gemm.n, gemm.k) for gemm in context.activity.gemms]
    if max(sides, default=limits.vocabulary_classes) < limits.vocabulary_classes:
        return None
    if not sides and not any(context.is_large(op) for op in ops):
        return None
    claim = f"The loss over the vocabulary takes {show_share(share)} of the step."
    return Found(claim, {"operation": ops[0].name, "share": share}, share)


@elementwise_rule(
    sees="On a CPU: random numbers take part of the step.",
    evidence="the operations, calls per step, share",
    levels="random",
    fix="Draw fewer random numbers: reuse them, draw them ahead of the step, or use a cheaper generator.",
    fix_pytorch="Draw them in one call, or ahead of time in DataLoader workers; uniform numbers cost less "
    "than normal ones, and on a CPU numpy's generators less than torch's.",
    wrong_when="the model needs the noise, as in diffusion",
    check="The operations drop down the hotspots.",
    worth=Worth("compute", 0.6, "every step needs some of the numbers"),
    explains=("one-hot-operation", "elementwise-chains"),
    sources="TG",
)
def random_numbers(context: RuleContext) -> Found | None:
    ops = [op for op in context.operations if RANDOM.match(op.name)]
    if context.activity.driver != "host" or not ops:
        return None
    # The model needs the numbers that dropout draws.
    share = context.busy_share(max(0.0, sum(op.ms or 0.0 for op in ops) - context.activity.dropout_ms))
    claim = f"Drawing random numbers takes {show_share(share)} of the step, most of it in {ops[0].name}."
    lines = context.activity.lines.get("random", ())
    evidence: Evidence = {
        "operation": ops[0].name,
        "calls": sum(op.calls or 0.0 for op in ops),
        "share": share,
    }
    return Found(claim, evidence, share, line=lines[0] if lines else None)


@elementwise_rule(
    sees="A large embedding gets a gradient for every row, of which a batch touches few.",
    evidence="rows of the table, rows that are looked up, share in its gradient and update",
    levels="optimizer",
    fix="Use sparse gradients for the embedding: only rows that were looked up are updated.",
    fix_pytorch="Embedding(sparse=True) with SparseAdam, SGD or Adagrad for that table alone; FBGEMM's fused "
    "tables for recommenders.",
    wrong_when="the table is tied to the output layer, or the optimizer's momentum must reach all rows",
    check="embedding_dense_backward is gone, and the optimizer's phase shrinks.",
    worth=Worth("compute", 0.8, "the update then costs as much as the rows that were looked up"),
    explains=(
        *("heavy-embedding", "heavy-optimizer", "single-tensor-optimizer", "slow-elementwise"),
        *("elementwise-chains", "one-hot-operation", "device-copies", "zero-grad-fills", "slow-backward"),
    ),
    sources="ours: PyTorch's Embedding(sparse=True)",
)
def dense_embedding_gradients(context: RuleContext) -> Found | None:
    lookups = [row for op in context.operations if op.name in _LOOKUPS for row in op.shapes]
    tables = [table for row in lookups if (table := _Table.of(row.shape))]
    table = max(tables, key=lambda table: table.elements, default=None)
    if table is None or table.looked_up >= context.limits.dense_rows_share * table.rows:
        return None
    if 4.0 * table.elements < context.limits.large_tensor_bytes:
        return None
    backward_ms = sum(
        op.ms or 0.0 for op in context.operations if op.name == "aten::embedding_dense_backward"
    )
    if not backward_ms:
        return None
    backward_ms += sum(
        row.ms
        for op in context.operations
        if op.name in _FILLS
        for row in op.shapes
        if (row.shape or "").startswith(f"{table.rows}x{table.width} ")
    )
    weights = sum(gemm.k * gemm.n for gemm in context.activity.gemms if gemm.batch == 1)
    of_weights = table.elements / (table.elements + weights)
    update = context.phase_share(PhaseKind.OPTIMIZER) * of_weights
    share = min(1.0, context.busy_share(backward_ms) + update)
    claim = (
        f"An embedding of {show_count(table.rows)} rows gets a dense gradient, of which a step looks up "
        f"{show_count(table.looked_up)} rows at most: making it and updating all rows takes "
        f"{show_share(share)} of the step."
    )
    evidence: Evidence = {"rows": float(table.rows), "looked_up": float(table.looked_up), "share": share}
    return Found(claim, evidence, share)


class _Table(NamedTuple):
    """An embedding, and how many of its rows a call looks up at most."""

    rows: int
    width: int
    looked_up: int

    @property
    def elements(self) -> int:
        return self.rows * self.width

    @staticmethod
    def of(shape: str | None) -> _Table | None:
        """Return the table of a lookup by the shapes of its inputs, as 400000x64, 256x20; None for others."""
        match = _LOOKUP.match(shape or "")
        if match is None:
            return None
        indices = math.prod(int(size) for size in match["indices"].split("x"))
        return _Table(int(match["rows"]), int(match["width"]), indices)


heavy_embedding = elementwise_rule(
    sees="Embedding lookups or their gradients take part of the step.",
    evidence="their share",
    fix="Use a sparse or fused embedding update, and sort or deduplicate indices.",
    fix_pytorch="Embedding(sparse=True) with SparseAdam, or FBGEMM's fused tables for recommenders.",
    fix_where=(
        Remedy(
            "with FBGEMM's tables",
            lambda context: context.uses("fbgemm"),
            "The tables are already fused: cache hot rows, store rows in fewer bits, or balance the tables "
            "better across ranks.",
        ),
    ),
    wrong_when="the model is a recommender",
    check="The backward pass of the embedding shrinks.",
    worth=Worth("compute", 0.3, "the rows still have to be read and written", "embedding"),
    sources="XP",
    claim="Embedding lookups and their gradients take {share} of the step.",
    figures={"share": "embedding_share"},
    least={"share": "shuffle_info_share"},
    severity="info",
)


@elementwise_rule(
    sees="Gathers, scatters and sorts take part of the step.",
    evidence="their share, the longest",
    levels="shuffle",
    fix="Sort or pack once instead of gathering often; use kernels that take indices (grouped products).",
    wrong_when="a mixture of experts is already packed",
    check="Indexing shrinks in the hotspots.",
    worth=Worth("compute", 0.3, "the model needs some of the movement", "indexing"),
    sources="XP",
)
def data_shuffling(context: RuleContext) -> Found | None:
    share = context.class_share("indexing")
    longest = next((op.name for op in context.operations if op.kind == "indexing"), "indexing")
    claim = f"Gathers, scatters and sorts take {show_share(share)} of the step, most of it in {longest}."
    return Found(claim, {"share": share, "operation": longest}, share)


@elementwise_rule(
    sees="One operation other than a matrix product, convolution or attention takes half the step.",
    evidence="its name, share, calls per step",
    fix="Look at this operation first: its sizes, its kernel, whether it is needed at all.",
    wrong_when="a fused kernel does most of the model's work",
    check="The operation drops down the hotspots.",
    worth=Worth("compute", 0.3, "nothing is known about how fast it could be"),
    sources="NAI",
)
def one_hot_operation(context: RuleContext) -> Found | None:
    top = next((op for op in context.operations if op.ms), None)
    if top is None or top.kind is None or top.kind in _ARITHMETIC or not context.profile.activity:
        return None
    share = context.busy_share(top.ms or 0.0)
    if share < context.limits.hotspot_share or len(context.operations) < _FEW_OPERATIONS:
        return None
    claim = f"{top.name} alone takes {show_share(share)} of the step."
    return Found(claim, {"operation": top.name, "share": share}, share, severity="info")


layout_conversions = layout_rule(
    sees="Kernels convert layouts (NCHW and NHWC) around convolutions.",
    evidence="share in conversions",
    fix="Keep activations and weights in the layout that the convolutions prefer.",
    fix_pytorch="Call .to(memory_format=torch.channels_last) on the model and its inputs.",
    fix_where=(
        on_amd(
            "Set PYTORCH_MIOPEN_SUGGEST_NHWC=1, without which MIOpen converts, and call "
            ".to(memory_format=torch.channels_last) on the model and its inputs.",
        ),
    ),
    wrong_when="the conversion is part of a faster algorithm",
    check="No nchwToNhwc kernels in the trace.",
    worth=Worth("compute", 0.8, "the conversions disappear; the convolutions stay the same"),
    explains=("device-copies",),
    sources="TL, TG",
    claim="Converting tensors between layouts takes {share} of the step.",
    figures={"share": "layout_share"},
)


@layout_rule(
    sees="Copies on the device (contiguous, casts, concatenation) take part of the step.",
    evidence="share, the longest operation",
    fix="Avoid making tensors contiguous, casting and concatenating: write in place, keep one dtype.",
    fix_pytorch="Look for .contiguous(), .to(dtype), torch.cat and transposes; under autocast keep "
    "weights in bf16.",
    wrong_when="the copy feeds a kernel that is much faster on contiguous input (skipped in compiled runs)",
    check="Copies shrink in the hotspots.",
    worth=Worth("compute", 0.6, "some copies are cheaper than the alternative", "copy"),
    sources="TL",
)
def device_copies(context: RuleContext) -> Found | None:
    if context.is_compiled:  # generated kernels do more than copy
        return None
    named = [op for op in context.operations if op.kind == "copy" and op.name not in _NO_COPIES]
    copies = [op for op in named if not _NEEDED_COPIES.search(op.name, 0, 250)]
    needed_ms = sum(op.ms or 0.0 for op in named if op not in copies)
    # `parts` has no copies between host and device; on a processor small copies stay in the cache.
    copies_ms = sum(part.ms for part in context.activity.parts if part.work_class == "copy")
    share = context.busy_share(max(0.0, copies_ms - needed_ms))
    if context.activity.driver == "host":
        share = min(context.class_share("copy"), context.operations_share(copies))
    longest = copies[0].name if copies else "copies"
    where = "in memory" if context.activity.driver == "host" else "on the device"
    claim = f"Copies {where} take {show_share(share)} of the step, most of it in {longest}."
    return Found(claim, {"share": share, "operation": longest}, share)
