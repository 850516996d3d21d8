"""The roofline plot: operations as dots under the roofs of the device, both axes by powers of ten."""

from __future__ import annotations

import math
from typing import Any

from stepgrade.model.ceiling import Roof
from stepgrade.report.figures import RooflineChart
from stepgrade.report.html.plot import Line, Mark, Scale, Tick, decades
from stepgrade.report.names import shortened
from stepgrade.report.words import BASES, ROOFS, joined
from stepgrade.scoring.roofline import Roofline, RoofPoint
from stepgrade.units import show_ms, show_share, show_si

DOTS_SHOWN = 60
LABELLED = 6
CLASSES = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "attention": "attention",
    "norm": "normalisation",
    "elementwise": "elementwise",
    "reduction": "reductions",
    "other": "other",
}
_LEAST_DRAWN, _MOST_DRAWN = 1e-300, 1e300


def view(block: RooflineChart) -> dict[str, Any]:
    """Return the plot."""
    found, points = block.found, block.found.points[:DOTS_SHOWN]
    # Both axes are wide enough for the points, the step as a whole, the level roofs and the ridge.
    drawn = [*points, *([found.run] if found.run else [])]
    across = [point.flops_per_byte for point in drawn] + ([found.ridge] if found.ridge else [])
    up = [point.flops_s for point in drawn]
    up += [roof.per_s for roof in found.roofs if roof.kind == "compute"]
    x, y = _half_decades(across), _half_decades(up)
    lines = _roofs(found, x, y)
    # The level roofs' names are stacked left of where they begin: no operation can be there.
    level = sorted((line for line in lines if not line.is_rising), key=lambda line: line.y1)
    side = "end" if level and level[0].x1 > 35.0 else "start"
    dots = [_dot(point, x, y, found.points[0].ms) for point in points]
    return {
        "chart": block,
        "points": points,
        "above": any((point.roof_share or 0.0) > 1.0 for point in points),
        "classes": CLASSES,
        "bases": BASES,
        "lines": lines,
        "dots": dots,
        "labels": _labels(dots, found.points),
        "roof_labels": [
            Mark(x=level[0].x1, y=level[0].y1, height=-0.4 - 1.2 * index, label=line.label, look=side)
            for index, line in enumerate(reversed(level))
        ],
        "run": None if found.run is None else _dot(found.run, x, y, found.run.ms, look="run"),
        "x_ticks": [Tick(at=x.place(value), text=show_density(value)) for value in decades(x.low, x.high)],
        "y_ticks": [
            Tick(at=100.0 - y.place(value), text=show_si(value, "FLOP/s")) for value in decades(y.low, y.high)
        ],
    }


def _half_decades(values: list[float]) -> Scale:
    """Return an axis around the values, from one half of a power of ten to another."""
    # Figures of a stranger may be beyond any number that can be drawn.
    drawn = [min(max(value, _LEAST_DRAWN), _MOST_DRAWN) for value in values]
    low, high = math.log10(min(drawn)), math.log10(max(drawn))
    ends = 10 ** (math.floor(low * 2 - 0.3) / 2), 10 ** (math.ceil(high * 2 + 0.3) / 2)
    return Scale(low=ends[0], high=ends[1], is_log=True)


def _roofs(found: Roofline, x: Scale, y: Scale) -> list[Line]:
    """Return every roof as a line: memory rises with the FLOPs per byte, arithmetic is level."""
    compute = [roof for roof in found.roofs if roof.kind == "compute"]
    memory = [roof for roof in found.roofs if roof.kind == "memory"]
    top = max((roof.per_s for roof in compute), default=y.high)
    slope = max((roof.per_s for roof in memory), default=None)
    lines = []
    for roof in compute:
        begin, at = x.place(roof.per_s / slope) if slope else 0.0, 100.0 - y.place(roof.per_s)
        lines.append(
            Line(x1=begin, y1=at, x2=100.0, y2=at, look=f"compute {roof.basis}", label=_roof_label(roof))
        )
    for roof in memory:
        # Only the part that is inside the plot.
        first = max(x.low, y.low / roof.per_s)
        last = min(x.high, min(top, y.high) / roof.per_s)
        if last > first:
            lines.append(
                Line(
                    x1=x.place(first),
                    y1=100.0 - y.place(first * roof.per_s),
                    x2=x.place(last),
                    y2=100.0 - y.place(last * roof.per_s),
                    look=f"memory {roof.basis}",
                    label=_roof_label(roof),
                    is_rising=True,
                )
            )
    return lines


def _roof_label(roof: Roof) -> str:
    return f"{roof.shown}, {BASES[roof.basis]}"


def _dot(point: RoofPoint, x: Scale, y: Scale, longest_ms: float, look: str = "") -> Mark:
    share = None
    if point.roof_share is not None and point.limit is not None:
        share = f"{show_share(point.roof_share)} of what {ROOFS[point.limit]} allows"
    density = f"{show_density(point.flops_per_byte)} FLOP/byte"
    figures = joined(show_ms(point.ms), show_si(point.flops_s, "FLOP/s"), density, share)
    return Mark(
        x=x.place(point.flops_per_byte),
        y=100.0 - y.place(point.flops_s),
        width=4.0 + 12.0 * math.sqrt(point.ms / longest_ms),
        tip=f"{shortened(point.name, 80)}: {figures}",
        look=look or f"class-{point.kind if point.kind in CLASSES else 'other'}",
    )


def show_density(flops_per_byte: float) -> str:
    """Return how many FLOPs an operation does for each byte."""
    return f"{flops_per_byte:,.0f}" if flops_per_byte >= 10 else f"{flops_per_byte:.3g}"


def _labels(dots: list[Mark], points: tuple[RoofPoint, ...]) -> list[Mark]:
    """Return names for the longest operations, leaving out those that would lie on another."""
    placed: list[Mark] = []
    for dot, point in zip(dots, points, strict=False):
        taken = any(abs(dot.x - label.x) < 16.0 and abs(dot.y - label.y) < 5.0 for label in placed)
        if not taken and len(placed) < LABELLED:
            side = "end" if dot.x > 75.0 else "start"
            placed.append(Mark(x=dot.x, y=dot.y, width=dot.width, label=shortened(point.name, 28), look=side))
    return placed
