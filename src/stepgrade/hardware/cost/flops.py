"""FLOPs per token: what the model needs (MFU) and what the device does (HFU).

A weight costs a token 2 FLOPs forward, 2 for the gradient of its input, 2 for its own gradient.
Attention has no weights: scores and values cost 4 x width x span forward and twice that backward,
where the span is the sequence length, or half of it with a causal mask.
"""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.conventions import Convention
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.models.shape import ModelShape


class AttentionKind(Struct, frozen=True, kw_only=True):
    """`layers` layers of one attention width, with a window where they have one."""

    layers: int
    width: float
    window: int | None = None


class Counts(Struct, frozen=True, kw_only=True):
    """The numbers of a model that the conventions differ about; N is what one token meets."""

    active: float
    matmul: float
    head: float
    lookup: float
    positions: float
    hidden: int
    attention: tuple[AttentionKind, ...]
    adapters: float = 0.0
    total: float | None = None


class Flops(Struct, frozen=True, kw_only=True):
    """FLOPs per trained token by one convention; `hardware` adds what is computed twice."""

    convention: str
    model: float
    hardware: float
    weights: float
    attention: float


def count(shape: ModelShape, plan: Plan) -> Counts:
    """Return the counts of a model under a plan; adapters are 0 unless only they are trained."""
    adapters = shape.adapters(plan.rank, plan.lora_targets, active=True) if plan.is_frozen else 0
    kinds = [AttentionKind(layers=k.count, width=k.score_width, window=k.window) for k in shape.layers]
    return Counts(
        active=shape.active_parameters,
        matmul=shape.matmul_weights,
        head=shape.head,
        lookup=0 if shape.tied else shape.head,
        positions=shape.positions,
        hidden=shape.hidden,
        attention=tuple(kinds),
        adapters=adapters,
        total=shape.parameters,
    )


def flops_per_token(counts: Counts, plan: Plan, convention: Convention) -> Flops:
    """Return a token's FLOPs by `convention`, forward and backward."""
    weights = {
        "matmul": counts.matmul,
        "all": counts.active,
        "without_lookup": counts.active - counts.lookup,
        "without_positions": counts.active - counts.positions,
    }[convention.weights]
    # 12 x width x span over all layers: forward 4, backward 8.
    attention, seq = 0.0, plan.packed_seq or plan.seq
    if convention.attention is not None:
        by_hidden = convention.attention == "hidden"
        attention = sum(
            12
            * kind.layers
            * (counts.hidden if by_hidden else kind.width)
            * attended_span(seq, causal=convention.causal, window=kind.window)
            for kind in counts.attention
        )
    if not plan.is_frozen:
        model = 6 * weights + attention
    elif convention.frozen == "scaled":
        model = (2 + counts.adapters / (counts.total or counts.active)) / 3 * (6 * weights + attention)
    else:
        model = 4 * weights + attention + 6 * counts.adapters
    recomputed = 0.0
    if plan.checkpointing == "selective":
        recomputed = attention / 3
    elif plan.checkpointing == "op":
        # Of q, k, v, o, gate, up and down every second is computed again: about a third of the layers.
        recomputed = 2 * (weights - counts.head) / 3
    elif plan.checkpointing in ("full", "every-second"):
        again = weights - counts.head if convention.recompute == "layers" else weights
        recomputed = (2 * again + attention / 3) * plan.recomputed_share
    return Flops(
        convention=convention.name,
        model=model,
        hardware=model + recomputed,
        weights=model - attention,
        attention=attention,
    )


def attended_span(seq: float, *, causal: bool, window: int | None = None) -> float:
    """Return how many positions a token's scores are counted for, on average over the sequence."""
    if not causal:
        return seq
    if window is None or seq <= window:
        return seq / 2
    return window - window * window / (2 * seq)
