"""Rules about the optimizer: one tensor at a time, or a large share of the step."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.model.finding import Severity
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import show_count, show_share

_AREA = "optimizer"
# Those that torch.optim has a fused form of, and those that work on one matrix after the other by nature.
_FUSED_IN_PYTORCH = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_MATRIX_BY_MATRIX = frozenset({"Muon", "NorMuon", "DistMuon", "Shampoo", "DistributedShampoo", "SOAP"})
_BY_HAND = (
    "Update tensors of one shape together: torch._foreach_ forms, stacked tensors, or a compiled update."
)


@rule(
    name="single-tensor-optimizer",
    area=_AREA,
    account="compute+idle_host",
    sees="The optimizer updates one tensor at a time, with several small kernels for each.",
    evidence="kernels per step in the optimizer, share of its time in many-tensor kernels, share of "
    "the step from "
    "its first to its last kernel",
    fix={
        "general": "Update all tensors in a few kernels (a fused optimizer).",
        "pytorch": "Construct the optimizer with fused=True (or foreach=True).",
        "jax": "Put the update under the same jit as the step; optax then fuses it.",
    },
    wrong_when="an optimizer works on matrices one by one by its nature (Muon, Shampoo)",
    check="The optimizer launches a few dozen kernels.",
    realistic=0.7,
    because="the update still has to read and write all of its state once",
    explains=(
        "heavy-optimizer",
        "short-kernels",
        "launch-gaps",
        "zero-grad-fills",
        "elementwise-chains",
        "fragmented-elementwise",
        "host-stall",
    ),
    sources="PM-06, HF",
)
def single_tensor_optimizer(context: RuleContext, limits: Limits) -> Found | None:
    """Report an optimizer that goes tensor by tensor."""
    done = context.activity.optimizer
    if done is None or done.kernels < limits.optimizer_kernels:
        return None
    share = context.step_share(done.span_ms)
    severity = severity_of(share, limits, "optimizer")
    if severity is None or done.multi_tensor_share > limits.many_tensor_share or done.fused:
        return None
    mean_us = context.mean_ms(done.ms) / done.kernels * 1000.0
    if mean_us > limits.optimizer_kernel_us or done.name in _MATRIX_BY_MATRIX:
        return None
    return Found(
        severity=severity,
        claim=f"The optimizer goes tensor by tensor: {show_count(round(done.kernels))} kernels of "
        f"{mean_us:.1f} µs "
        f"take {show_share(share)} of the step.",
        evidence={
            "kernels": done.kernels,
            "mean_us": mean_us,
            "many_tensor_share": done.multi_tensor_share,
            "share": share,
            "idle_share": context.step_share(done.span_ms - done.ms),
        },
        share=share,
        remedy=None if done.name is None or done.name in _FUSED_IN_PYTORCH else _BY_HAND,
    )


@rule(
    name="heavy-optimizer",
    area=_AREA,
    account="compute",
    sees="The optimizer takes a large share of the step.",
    evidence="share of the step in the optimizer, whether its kernel is fused",
    fix={
        "general": "Make the update rarer or lighter: gradient accumulation, a fused or 8-bit "
        "optimizer, sharded state.",
        "pytorch": "fused=True if it is not; then gradient accumulation, an 8-bit optimizer, or "
        "sharding its state (FSDP, "
        "ZeRO-1).",
    },
    wrong_when="the model is huge against the batch: then it is the batch that is small",
    check="The optimizer's phase shrinks.",
    realistic=0.4,
    because="a fused update still reads and writes all of its state once",
    sources="HF, PM-06",
)
def heavy_optimizer(context: RuleContext, limits: Limits) -> Found | None:
    """Report an optimizer that takes long."""
    done = context.activity.optimizer
    share = context.busy_share(done.ms) if done else _share_of_phase(context)
    if share < limits.optimizer_warning_share:
        return None
    severity: Severity = "warning" if share >= limits.optimizer_critical_share else "info"
    claim = f"The optimizer takes {show_share(share)} of the step."
    evidence: dict[str, float | str] = {"share": share}
    if done is not None:
        evidence["fused"] = "yes" if done.fused else "no"
    return Found(severity=severity, claim=claim, evidence=evidence, share=share)


def _share_of_phase(context: RuleContext) -> float:
    """Return the optimizer's phase as a share of the step, of a step profile or of a run on the processor."""
    ms = context.phases.by_kind_ms.get(PhaseKind.OPTIMIZER, 0.0)
    return context.phase_share(PhaseKind.OPTIMIZER) or context.step_share(ms)


@rule(
    name="zero-grad-fills",
    area=_AREA,
    account="compute+idle_host",
    sees="Gradients are set to zero instead of being dropped.",
    evidence="fills per step in zero_grad, share of the step in fill kernels",
    fix={
        "general": "Drop gradients instead of zeroing them.",
        "pytorch": "optimizer.zero_grad(set_to_none=True), the default since PyTorch 2.0.",
    },
    wrong_when="gradients are accumulated into views that must stay (flat buffers)",
    check="No fills in zero_grad.",
    realistic=0.8,
    because="the first backward then writes instead of adding",
    sources="PM-07, TG",
)
def zero_grad_fills(context: RuleContext, limits: Limits) -> Found | None:
    """Report gradients that are zeroed."""
    fills = context.activity.marks.get("zero_fill", 0.0)
    share = context.busy_share(context.activity.kernel_group_ms.get("fill", 0.0))
    if fills < limits.copies_per_step or share < limits.fill_info_share:
        return None
    claim = f"zero_grad fills {show_count(round(fills))} gradients with zeros in each step."
    return Found(severity="info", claim=claim, evidence={"fills": fills, "share": share}, share=share)


RULES = (single_tensor_optimizer, heavy_optimizer, zero_grad_fills)
