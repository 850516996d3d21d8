"""The roofline: FLOPs for each byte that an operation moves, how fast they go, and what the device allows."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.model.ceiling import Roof
from stepgrade.model.scorecard import Scorecard


class RoofPoint(Struct, frozen=True, kw_only=True):
    """One operation, or the whole run, under the roofs."""

    name: str
    kind: str | None
    ms: float
    flops_per_byte: float
    flops_s: float
    roof_share: float | None  # of what the stated roofs allow at this many FLOPs per byte
    limit: str | None  # the roof above it: compute or memory


class Roofline(Struct, frozen=True, kw_only=True):
    """The operations whose FLOPs and bytes are known, longest first, and the run as a whole."""

    roofs: tuple[Roof, ...]
    points: tuple[RoofPoint, ...]
    run: RoofPoint | None
    known_share: float | None  # of the operations' time, how much has FLOPs and bytes known
    ridge: float | None  # FLOPs per byte where the stated roofs meet


def roofline_of(card: Scorecard) -> Roofline | None:
    """Place the operations of a card under its roofs; None when no operation's FLOPs and bytes are known."""
    known = [op for op in card.operations if op.ms and op.flops and op.bytes]
    if not known:
        return None
    compute, memory = (
        next((roof.per_s for roof in card.roofs if roof.kind == kind and roof.basis != "measured"), None)
        for kind in ("compute", "memory")
    )

    run = None
    if card.step_time_ms:
        flops, moved = sum(op.flops or 0.0 for op in known), sum(op.bytes or 0.0 for op in known)
        density, flops_s = flops / moved, flops / card.step_time_ms * 1000.0
        allowed = min(compute, memory * density) if compute and memory else None
        run = RoofPoint(
            name="the whole step",
            kind=None,
            ms=card.step_time_ms,
            flops_per_byte=density,
            flops_s=flops_s,
            roof_share=flops_s / allowed if allowed else None,
            limit=None if allowed is None else "compute" if allowed == compute else "memory",
        )
    whole_ms = sum(op.ms or 0.0 for op in card.operations)
    return Roofline(
        roofs=card.roofs,
        points=tuple(
            RoofPoint(
                name=op.name,
                kind=op.kind,
                ms=op.ms or 0.0,
                flops_per_byte=(op.flops or 0.0) / (op.bytes or 1.0),
                flops_s=op.flops_per_s or (op.flops or 0.0) / (op.ms or 1.0) * 1000.0,
                roof_share=op.roof_share,
                limit=op.roof,
            )
            for op in known
        ),
        run=run,
        known_share=sum(op.ms or 0.0 for op in known) / whole_ms if whole_ms else None,
        ridge=compute / memory if compute and memory else None,
    )
