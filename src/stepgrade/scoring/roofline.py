"""The roofline: FLOPs for each byte that an operation moves, how fast they go, and what the device allows."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from stepgrade.hardware import Target
from stepgrade.model.ceiling import Roof
from stepgrade.model.scorecard import Operation, Scorecard


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


def roofs_of(target: Target) -> tuple[Roof, ...]:
    """Return the device's arithmetic and memory rates: stated ones, then achievable and measured ones."""
    return (*target.figures.compute(target.dtype), *target.figures.bandwidth())


def roofline_of(card: Scorecard) -> Roofline | None:
    """Place the operations of a card under its roofs; None when no operation's FLOPs and bytes are known."""
    known = [op for op in card.operations if op.ms and op.flops and op.bytes]
    if not known:
        return None
    compute, memory = (_stated(card.roofs, kind) for kind in ("compute", "memory"))
    whole_ms = sum(op.ms or 0.0 for op in card.operations)
    return Roofline(
        roofs=card.roofs,
        points=tuple(_point(op.name, op.kind, op.ms or 0.0, (op,), compute, memory) for op in known),
        run=_point("the whole step", None, card.step_time_ms, known, compute, memory)
        if card.step_time_ms
        else None,
        known_share=sum(op.ms or 0.0 for op in known) / whole_ms if whole_ms else None,
        ridge=compute / memory if compute and memory else None,
    )


def _stated(roofs: tuple[Roof, ...], kind: str) -> float | None:
    return next((roof.per_s for roof in roofs if roof.kind == kind and roof.basis != "measured"), None)


def _point(
    name: str,
    kind: str | None,
    ms: float,
    ops: Iterable[Operation],
    compute: float | None,
    memory: float | None,
) -> RoofPoint:
    work, moved = 0.0, 0.0
    for op in ops:
        work, moved = work + (op.flops or 0.0), moved + (op.bytes or 0.0)
    density, rate = work / moved, work / ms * 1000.0
    allowed = _lowest({"compute": compute, "memory": memory * density if memory else None})
    return RoofPoint(
        name=name,
        kind=kind,
        ms=ms,
        flops_per_byte=density,
        flops_s=rate,
        roof_share=rate / allowed[1] if allowed and compute and memory else None,
        limit=allowed[0] if allowed and compute and memory else None,
    )


def _lowest(rates: dict[str, float | None]) -> tuple[str, float] | None:
    known = [(name, rate) for name, rate in rates.items() if rate is not None]
    return min(known, key=lambda pair: pair[1], default=None)
