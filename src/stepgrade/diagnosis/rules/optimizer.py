"""Rules about the optimizer: one tensor at a time, or a large share of the step."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Rule, Worth
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import show_count, show_share

# Those that torch.optim has a fused form of, and those that work on one matrix after the other by nature.
_FUSED_IN_PYTORCH = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_MATRIX_BY_MATRIX = frozenset({"Muon", "NorMuon", "DistMuon", "Shampoo", "DistributedShampoo", "SOAP"})
_BY_HAND = (
    "Update tensors of one shape together: torch._foreach_ forms, stacked tensors, or a compiled update."
)


def single_tensor_optimizer(context: RuleContext) -> Found | None:
    seen, limits = context.activity.optimizer, context.limits
    if seen is None or seen.kernels < limits.optimizer_kernels:
        return None
    if seen.multi_tensor_share > limits.many_tensor_share or seen.fused:
        return None
    mean_us = context.mean_ms(seen.ms) / seen.kernels * 1000.0
    if mean_us > limits.optimizer_kernel_us or seen.name in _MATRIX_BY_MATRIX:
        return None
    share = context.step_share(seen.span_ms)
    levels = Levels(
        limits.optimizer_info_share, limits.optimizer_warning_share, limits.optimizer_critical_share
    )
    return levels.found(
        share,
        f"The optimizer updates one tensor at a time: {show_count(round(seen.kernels))} kernels of "
        f"{mean_us:.1f} µs take {show_share(share)} of the step.",
        {
            "kernels": seen.kernels,
            "mean_us": mean_us,
            "many_tensor_share": seen.multi_tensor_share,
            "share": share,
            "idle_share": context.step_share(seen.span_ms - seen.ms),
        },
        remedy=None if seen.name is None or seen.name in _FUSED_IN_PYTORCH else _BY_HAND,
    )


def heavy_optimizer(context: RuleContext) -> Found | None:
    """Report an optimizer that takes long; where no kernel was seen, by its phase."""
    seen, limits, kind = context.activity.optimizer, context.limits, PhaseKind.OPTIMIZER
    if seen is not None:
        share = context.busy_share(seen.ms)
    else:
        share = context.phase_share(kind) or context.step_share(context.phases.by_kind_ms.get(kind, 0.0))
    claim = f"The optimizer takes {show_share(share)} of the step."
    evidence: Evidence = {"share": share}
    if seen is not None:
        evidence["fused"] = "yes" if seen.fused else "no"
    # One level lower than others: an optimizer has to take its time.
    levels = Levels(limits.optimizer_warning_share, limits.optimizer_critical_share)
    calls = sum(part.calls for part in context.activity.parts if part.direction == "optimizer")
    if context.activity.driver == "host" and calls < limits.optimizer_calls and levels.severity(share):
        return Found("info", claim, evidence, share)  # of a small batch it is much even when all is well
    return levels.found(share, claim, evidence)


def zero_grad_fills(context: RuleContext) -> Found | None:
    fills = context.activity.marks.get("zero_fill", 0.0)
    share = context.busy_share(context.activity.kernel_group_ms.get("fill", 0.0))
    if fills < context.limits.copies_per_step or share < context.limits.fill_info_share:
        return None
    claim = f"zero_grad fills {show_count(round(fills))} gradients with zeros in each step."
    return Found("info", claim, {"fills": fills, "share": share}, share=share)


RULES = (
    Rule(
        name="single-tensor-optimizer",
        find=single_tensor_optimizer,
        sees="The optimizer updates one tensor at a time, with several small kernels each.",
        evidence="kernels per step, time share of multi-tensor kernels, share of the step from first to last",
        fix="Update all tensors in a few kernels (a fused optimizer).",
        fix_pytorch="Construct the optimizer with fused=True (or foreach=True).",
        fix_jax="Put the update under the same jit as the step; optax then fuses it.",
        wrong_when="the optimizer works on single matrices by nature (Muon, Shampoo)",
        check="The optimizer launches a few dozen kernels.",
        worth=Worth("compute+idle_host", 0.7, "the update still has to read and write all of its state once"),
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
    ),
    Rule(
        name="heavy-optimizer",
        find=heavy_optimizer,
        sees="The optimizer takes a large share of the step.",
        evidence="share of the step, whether its kernel is fused",
        fix="Make the update rarer or lighter: gradient accumulation, a fused or 8-bit optimizer, sharded "
        "state.",
        fix_pytorch="fused=True if it is not; then gradient accumulation, an 8-bit optimizer, or sharding "
        "its state (FSDP, ZeRO-1).",
        wrong_when="the batch is small for the model",
        check="The optimizer's phase shrinks.",
        worth=Worth("compute", 0.4, "a fused update still reads and writes all of its state once"),
        sources="HF, PM",
    ),
    Rule(
        name="zero-grad-fills",
        find=zero_grad_fills,
        sees="Gradients are zeroed instead of dropped.",
        evidence="fills per step in zero_grad, share of the step",
        fix="Drop gradients instead of zeroing them.",
        fix_pytorch="optimizer.zero_grad(set_to_none=True), the default since PyTorch 2.0.",
        wrong_when="gradients are views that must stay (flat buffers)",
        check="No fills in zero_grad.",
        worth=Worth("compute+idle_host", 0.8, "the first backward then writes instead of adding"),
        sources="PM, TG",
    ),
)
