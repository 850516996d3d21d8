"""Where the parts of the smaller charts are drawn, in percent of the chart's size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from stepgrade.model.comparison import StepChange
from stepgrade.model.layers import LayerStep
from stepgrade.model.ledger import account_words
from stepgrade.model.memory import CATEGORIES, Memory, MemoryCurve
from stepgrade.model.profile import RankRow
from stepgrade.model.scorecard import StepStats
from stepgrade.report.blocks import Badge
from stepgrade.report.content.charts import layer_ms
from stepgrade.report.content.memory_use import memory_rows
from stepgrade.report.figures import Ceilings, Diverging, LayerChart, Legend, RankChart, Slice, Stack
from stepgrade.report.html.plot import Mark, Scale, Tick, even_ticks
from stepgrade.report.names import shortened
from stepgrade.report.words import BASES, ROOFS, joined, plural
from stepgrade.scoring.spread import histogram, stretches
from stepgrade.scoring.standing import RankGroup, grouped, waiting_share
from stepgrade.scoring.step_times import RULE, STEADY, marks_of
from stepgrade.units import show_bytes, show_ms, show_rate, show_share

PARTS_SHOWN = 9
POINTS_SHOWN = 400
RANK_CELLS = 64
RANKS_LISTED = 64
_WAITS = "waits for others"
_LEVELS = 8
# Ranks that differ by a percent must not look like night and day.
_LEAST_SPAN = 0.1


def badge(block: Badge) -> dict[str, Any]:
    """Return an answer with the zones of its scale, and where it lies."""
    begins = [*((share * 100.0, mark) for share, mark in block.marks), (100.0, "")]
    zones = [
        Mark(x=begin, width=following - begin, label=mark, look=f"grade-{mark}")
        for (begin, mark), (following, _) in pairwise(begins)
    ]
    marker = None if block.scale is None else min(100.0, block.scale * 100.0)
    return {"badge": block, "zones": zones, "marker": marker}


def ceilings(block: Ceilings) -> list[dict[str, Any]]:
    """Return each ceiling as a bar, and how much of it is reached."""
    scale = Scale(low=0.0, high=max(row.ceiling.tok_s for row in block.rows))
    rows = []
    for row in block.rows:
        ceiling, width = row.ceiling, scale.place(row.ceiling.tok_s)
        rows.append(
            {
                "name": f"{ROOFS[ceiling.kind]}, {BASES[ceiling.basis]}",
                "rate": show_rate(ceiling.tok_s),
                "share": None if row.share is None else show_share(row.share),
                "width": width,
                "reached": 0.0 if row.share is None else min(width, width * row.share),
                "counts": row.counts,
                "tip": joined(ceiling.convention, ceiling.source),
            }
        )
    return rows


def _stacked(slices: Iterable[Slice]) -> list[Mark]:
    """Return parts of a whole side by side; the wide ones carry their share as a label."""
    marks: list[Mark] = []
    at = 0.0
    for part in slices:
        width = part.share * 100.0
        label = f"{width:.0f} %" if width >= 6.0 else ""
        marks.append(Mark(x=at, width=width, tip=f"{part.name}: {part.figures}", look=part.look, label=label))
        at += width
    return marks


def stack(block: Stack) -> list[tuple[str, list[Mark], str]]:
    """Return a bar for each row."""
    return [(name, _stacked(slices), figure) for name, slices, figure in block.rows]


def diverging(block: Diverging) -> list[dict[str, Any]]:
    """Return bars on a scale of the same reach to both sides."""
    ends = (abs(end) for row in block.rows for end in (row.low, row.high))
    reach = max(block.least_reach, *ends) or 1.0
    scale = Scale(low=-reach, high=reach)
    rows = []
    for row in block.rows:
        x, end = scale.place(row.low), scale.place(row.high)
        dot = None if row.dot is None else scale.place(row.dot)
        rows.append({"row": row, "x": x, "width": max(end - x, 0.3), "dot": dot})
    return rows


def waterfall(change: StepChange) -> dict[str, Any]:
    """Return rows from the old step to the new one, each beginning where the one before ended."""
    deltas = [
        (
            account_words(part.name) if change.basis == "ledger" else shortened(part.name, 40),
            part.difference_ms,
            f", {show_ms(part.before_ms)} before, {show_ms(part.now_ms)} now",
        )
        for part in change.parts[:PARTS_SHOWN]
        if part.difference_ms
    ]
    if rest := change.parts[PARTS_SHOWN:]:
        deltas.append((f"{len(rest)} smaller changes", sum(part.difference_ms for part in rest), ""))
    ends = [change.before_ms]
    for _, delta, _ in deltas:
        ends.append(ends[-1] + delta)
    low, high = min(*ends, change.now_ms), max(*ends, change.now_ms)
    # Bars from zero would hide a change of a few percent, so the axis begins near the lowest value.
    scale = Scale(low=max(0.0, low - max(high - low, high * 0.02) * 0.6), high=high)
    rows = []
    for (name, delta, both), begin in zip(deltas, ends, strict=False):
        first, last = sorted((scale.place(begin), scale.place(begin + delta)))
        figures = ("+" if delta > 0 else "\N{MINUS SIGN}") + show_ms(abs(delta))
        look = "slower" if delta > 0 else "faster"
        bar = Mark(
            x=first, width=max(last - first, 0.3), tip=f"{name}: {figures}{both}", look=look, label=figures
        )
        rows.append((name, bar))
    before, now = (
        (
            name,
            Mark(
                x=0.0,
                width=scale.place(ms),
                tip=f"step {name}: {show_ms(ms)}",
                look="whole",
                label=show_ms(ms),
            ),
        )
        for name, ms in (("before", change.before_ms), ("now", change.now_ms))
    )
    return {"rows": [before, *rows, now], "begins_at": show_ms(scale.low) if scale.low > 0.0 else None}


def layers(block: LayerChart) -> dict[str, Any]:
    """Return a column for each layer."""
    shown = block.layers
    scale = Scale(low=0.0, high=max(map(layer_ms, shown)) * 1.08)
    every, width = max(1, -(-len(shown) // 16)), 100.0 / len(shown)
    return {
        "chart": block,
        "slow": [layer_name(layer) for layer in shown if layer.slow],
        "has_recompute": any(layer.recompute_ms for layer in shown),
        "columns": [_layer(layer, index * width, width, scale) for index, layer in enumerate(shown)],
        "y_ticks": [Tick(at=100.0 - scale.place(ms), text=show_ms(ms)) for ms in even_ticks(0.0, scale.high)],
        "x_ticks": [
            Tick(at=(index + 0.5) * width, text=str(layer.layer))
            for index, layer in enumerate(shown)
            if index % every == 0
        ],
    }


def layer_name(layer: LayerStep) -> str:
    """Return a layer's name, or its number."""
    return shortened(layer.name or f"layer {layer.layer}", 60)


def _layer(layer: LayerStep, x: float, width: float, scale: Scale) -> dict[str, Any]:
    times = {"forward": layer.fwd_ms, "recompute": layer.recompute_ms, "backward": layer.bwd_ms}
    parts, figures, top = [], [], 100.0
    for look, ms in times.items():
        if ms:
            height = scale.place(ms)
            top -= height
            parts.append(Mark(x=x + width * 0.1, y=top, width=width * 0.8, height=height, look=look))
            figures.append(f"{look} {show_ms(ms)}")
    slow = f"stands out: {' and '.join(layer.slow)}" if layer.slow else None
    tip = f"{layer_name(layer)}: {joined(*figures, slow)}"
    hit = Mark(x=x, width=width, tip=tip, look="slow" if layer.slow else "", y=top)
    return {"parts": parts, "hit": hit, "middle": x + width / 2}


def steps(stats: StepStats) -> dict[str, Any]:
    """Return the steps in order, those that stand out marked, and beside them how they are distributed."""
    marks = marks_of(stats.samples_ms)
    points = stretches(stats.samples_ms, marks, POINTS_SHOWN)
    low, high = min(stats.samples_ms), max(stats.samples_ms)
    room = (high - low) * 0.08 or high * 0.05
    scale = Scale(low=max(0.0, low - room), high=high + room)
    bins, found = [], histogram(stats.samples_ms)
    most = max(part.count for part in found)
    for part in found:
        top, bottom = 100.0 - scale.place(part.high_ms), 100.0 - scale.place(part.low_ms)
        tip = f"{show_ms(part.low_ms)} to {show_ms(part.high_ms)}: {plural(part.count, 'step')}"
        width, height = part.count / most * 100.0, max(bottom - top, 1.0)
        bins.append(Mark(x=0.0, y=top, width=width, height=height, tip=tip))
    drawn = []
    for point in points:
        is_wide = point.first != point.last
        name = f"steps {point.first + 1} to {point.last + 1}" if is_wide else f"step {point.first + 1}"
        spread = f"{show_ms(point.low_ms)} to {show_ms(point.high_ms)}" if is_wide else None
        figures = joined(show_ms(point.median_ms), spread, None if point.mark == STEADY else point.mark)
        drawn.append(
            {
                "x": ((point.first + point.last) / 2 + 0.5) / len(stats.samples_ms) * 100.0,
                "y": 100.0 - scale.place(point.median_ms),
                "top": 100.0 - scale.place(point.high_ms),
                "bottom": 100.0 - scale.place(point.low_ms),
                "is_wide": is_wide,
                "look": point.mark.replace(" ", "-"),
                "tip": f"{name}: {figures}",
            }
        )
    return {
        "points": drawn,
        "bins": bins,
        "median": None if stats.median_ms is None else 100.0 - scale.place(stats.median_ms),
        "y_ticks": [
            Tick(at=100.0 - scale.place(ms), text=show_ms(ms)) for ms in even_ticks(scale.low, scale.high)
        ],
        "stats": stats,
        "counts": {mark: marks.count(mark) for mark in dict.fromkeys(marks) if mark != STEADY},
        "rule": RULE,
        "per_point": points[0].last - points[0].first + 1,
    }


def memory(held: Memory) -> dict[str, Any]:
    """Return the figures, the curve, and what its colours stand for."""
    whole = sum(held.categories.values())
    # What is not there at the peak may still have its colour in the curve.
    curve = held.curve.categories if held.curve else {}
    drawn = {name for name, sizes in curve.items() if any(sizes)} | {*filter(held.categories.get, CATEGORIES)}
    legend = []
    for name in CATEGORIES if held.categories else ():
        size = held.categories.get(name)
        figures = f"{show_bytes(size)} ({show_share(size / whole)})" if size else "none at the peak"
        legend.append(Slice(name=name, share=0.0, figures=figures, look=f"memory-{name}"))
    return {
        "facts": list(memory_rows(held)),
        "curve": _curve(held.curve) if held.curve else None,
        "legend": Legend(tuple(part for part in legend if part.name in drawn)),
        "holders": held.holders,
    }


def _curve(curve: MemoryCurve) -> dict[str, Any]:
    """Return a column for each moment, as wide as until the next one."""
    count = len(curve.at_ms)
    names = [name for name in CATEGORIES if name in curve.categories]
    totals = [sum(curve.categories[name][index] for name in names) for index in range(count)]
    scale = Scale(low=0.0, high=max(totals) * 1.08 or 1.0)
    last = curve.at_ms[-1] + (curve.at_ms[-1] - curve.at_ms[0]) / count
    across = Scale(low=curve.at_ms[0], high=last)
    columns = []
    for index, at in enumerate(curve.at_ms):
        x = across.place(at)
        end = across.place(curve.at_ms[index + 1]) if index + 1 < count else 100.0
        floor, parts = 100.0, []
        for name in names:
            height = scale.place(curve.categories[name][index])
            floor -= height
            if height > 0.0:
                width = max(end - x, 0.1) + 0.08  # a little over the next: no gap shows between two
                parts.append(Mark(x=x, y=floor, width=width, height=height, look=f"memory-{name}"))
        when = show_ms(at) if curve.has_times else f"event {at:,.0f}"
        sizes = ((name, curve.categories[name][index]) for name in names)
        made = ", ".join(f"{name} {show_bytes(size)}" for name, size in sizes if size > 0.0)
        columns.append({"parts": parts, "tip": f"{when}: {show_bytes(totals[index])} ({made})"})
    peak, unit = curve.peak_index, 1024.0 ** int(math.log(max(scale.high, 1.0), 1024.0))
    at_peak = across.place(curve.at_ms[peak])
    return {
        "columns": columns,
        "peak": Mark(
            x=at_peak,
            y=100.0 - scale.place(totals[peak]),
            label=f"peak {show_bytes(totals[peak])}",
            look="end" if at_peak > 70.0 else "start",
        ),
        "y_ticks": [
            Tick(at=100.0 - scale.place(size * unit), text=show_bytes(size * unit))
            for size in even_ticks(0.0, scale.high / unit)
        ],
        "first": show_ms(0.0) if curve.has_times else "1",
        "last": show_ms(last) if curve.has_times else f"{last:,.0f}",
        "axis": "time" if curve.has_times else "allocations and frees, in order",
    }


def ranks(block: RankChart) -> dict[str, Any]:
    """Return a strip of cells for each figure."""
    count = len(block.ranks)
    per_cell = -(-count // RANK_CELLS)
    strips: tuple[tuple[str, Callable[[RankRow], float | None], Callable[[float | None], str]], ...] = (
        ("step time", lambda row: row.step_ms, show_ms),
        (_WAITS, lambda row: row.wait_ms, show_ms),
        ("does not compute", lambda row: waiting_share(row.ledger), show_share),
    )
    # Who waits least is whom the others wait for: among neighbours that one must be seen.
    groups = [
        (name, grouped(block.ranks, figure, RANK_CELLS, least_counts=name == _WAITS), show)
        for name, figure, show in strips
    ]
    ticks = [
        Tick(at=(index + 0.5) / count * 100.0, text=str(block.ranks[index].rank))
        for index in range(0, count, max(1, -(-count // 8)))
    ]
    return {
        "strips": [_strip(name, found, show, -(-count // per_cell)) for name, found, show in groups if found],
        "ticks": ticks,
        "per_cell": per_cell,
        "count": count,
        "rows": [(row, waiting_share(row.ledger)) for row in block.ranks[:RANKS_LISTED]],
    }


def _strip(
    name: str, groups: tuple[RankGroup, ...], show: Callable[[float | None], str], cells: int
) -> dict[str, Any]:
    low, high = min(group.value for group in groups), max(group.value for group in groups)
    span, width = max(high - low, high * _LEAST_SPAN), 100.0 / cells
    marks = []
    for index, group in enumerate(groups):
        level = 0 if span <= 0.0 else min(_LEVELS - 1, int((group.value - low) / span * _LEVELS))
        who = f"rank {group.rank}"
        if group.first != group.last:
            who = f"ranks {group.first} to {group.last}, here {group.rank}"
        tip = f"{who}: {name} {show(group.value)}"
        marks.append(Mark(x=index * width, width=width, look=f"level-{level}", tip=tip))
    return {"name": name, "low": show(low), "high": show(high), "cells": marks}
