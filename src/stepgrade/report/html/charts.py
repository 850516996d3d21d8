"""Where the parts of the smaller charts are drawn, in percent of the chart's size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from stepgrade.model.comparison import StepChange
from stepgrade.model.ledger import account_words
from stepgrade.model.memory import CATEGORIES, Memory
from stepgrade.model.operations import LayerStep, ModuleStep
from stepgrade.model.profile import RankRow
from stepgrade.model.scorecard import StepStats
from stepgrade.report.blocks import Badge
from stepgrade.report.content.details import memory_rows
from stepgrade.report.content.scorecard_page import layer_ms, module_ms
from stepgrade.report.figures import Ceilings, Diverging, Icicle, LayerChart, Legend, RankChart, Slice, Stack
from stepgrade.report.html.plots import Mark, Scale, Tick, even_ticks
from stepgrade.report.names import BASES, ROOFS, joined, plural, shortened
from stepgrade.scoring.charts import grouped, histogram, stretches, waiting_share
from stepgrade.scoring.step_times import RULE, STEADY, marks_of
from stepgrade.units import MISSING, show_bytes, show_ms, show_share, show_shared_rate

PARTS_SHOWN = 9
POINTS_SHOWN = 400
RANK_CELLS = 64
MODULES_LISTED = 100
MARKS_SHOWN = 1_500
LEVELS_SHOWN = 14
LEAST_WIDTH = 0.15  # percent: about a dot of a narrow screen
LABEL_CELL = 0.75  # percent of the width that a letter takes
PLACE_CELLS = 120
NARROW = 4.0  # a letter takes so many times that of a narrow screen
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
    look = f"grade-{block.text}" if block.is_grade and block.scale is not None else block.style
    return {"badge": block, "look": look, "zones": zones, "marker": marker}


def ceilings(block: Ceilings) -> list[dict[str, Any]]:
    """Return each ceiling as a bar, and how much of it is reached."""
    scale = Scale(low=0.0, high=max(row.ceiling.tok_s for row in block.rows))
    rows = []
    for row in block.rows:
        ceiling, width = row.ceiling, scale.place(row.ceiling.tok_s)
        rows.append(
            {
                "name": f"{ROOFS[ceiling.kind]}, {BASES[ceiling.basis]}",
                "rate": show_shared_rate(ceiling.tok_s, row.devices),
                "share": None if row.share is None else show_share(row.share),
                "width": width,
                "reached": 0.0 if row.share is None else min(width, width * row.share),
                "counts": row.counts,
                "tip": joined(ceiling.convention, ceiling.source),
            }
        )
    return rows


def stack(block: Stack) -> list[tuple[str, list[Mark], str]]:
    """Return the parts of each row side by side; wide parts carry their share as a label."""
    rows = []
    for name, slices, figure in block.rows:
        marks, at = [], 0.0
        for part in slices:
            width, tip = part.share * 100.0, f"{part.name}: {part.figures}"
            label = f"{width:.0f} %" if width >= 6.0 else ""
            marks.append(Mark(x=at, width=width, tip=tip, look=part.look, label=label))
            at += width
        rows.append((name, marks, figure))
    return rows


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
        tip, width = f"{name}: {figures}{both}", max(last - first, 0.3)
        rows.append((name, Mark(x=first, width=width, tip=tip, look=look, label=figures)))
    before, now = (
        (name, Mark(x=0.0, width=scale.place(ms), tip=f"step {name}: {show}", look="whole", label=show))
        for name, ms in (("before", change.before_ms), ("now", change.now_ms))
        for show in (show_ms(ms),)
    )
    return {"rows": [before, *rows, now], "begins_at": show_ms(scale.low) if scale.low > 0.0 else None}


def layers(block: LayerChart) -> dict[str, Any]:
    """Return a column for each layer."""
    shown = block.layers
    scale = Scale(low=0.0, high=max(map(layer_ms, shown)) * 1.08)
    every, width = max(1, -(-len(shown) // 16)), 100.0 / len(shown)
    columns = []
    for index, layer in enumerate(shown):
        times = {"forward": layer.fwd_ms, "recompute": layer.recompute_ms, "backward": layer.bwd_ms}
        x, parts, figures, top = index * width, [], [], 100.0
        for look, ms in times.items():
            if ms:
                height = scale.place(ms)
                top -= height
                parts.append(Mark(x=x + width * 0.1, y=top, width=width * 0.8, height=height, look=look))
                figures.append(f"{look} {show_ms(ms)}")
        slow = f"stands out: {' and '.join(layer.slow)}" if layer.slow else None
        tip = f"{layer_name(layer)}: {joined(*figures, slow)}"
        hit = Mark(x=x, width=width, tip=tip, look="slow" if layer.slow else "", y=top)
        columns.append({"parts": parts, "hit": hit, "middle": x + width / 2})
    return {
        "chart": block,
        "rows": [
            (
                layer_name(layer),
                *map(show_ms, (layer.fwd_ms, layer.bwd_ms, layer.recompute_ms)),
                " and ".join(layer.slow),
            )
            for layer in shown
        ],
        "slow": [layer_name(layer) for layer in shown if layer.slow],
        "has_recompute": any(layer.recompute_ms for layer in shown),
        "columns": columns,
        "y_ticks": scale.rising_ticks(show_ms),
        "x_ticks": [
            Tick(at=(index + 0.5) * width, text=str(layer.layer))
            for index, layer in enumerate(shown)
            if index % every == 0
        ],
    }


def layer_name(layer: LayerStep) -> str:
    """Return a layer's name, or its number."""
    return shortened(layer.name or f"layer {layer.layer}", 60)


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
        "y_ticks": scale.rising_ticks(show_ms),
        "stats": stats,
        "counts": {mark: marks.count(mark) for mark in dict.fromkeys(marks) if mark != STEADY},
        "rule": RULE,
        "per_point": points[0].last - points[0].first + 1,
    }


def memory(held: Memory) -> dict[str, Any]:
    """Return the figures, a column of the curve for each moment up to the next, and its legend."""
    whole = sum(held.categories.values())
    # What is not there at the peak may still have its colour in the curve.
    over_time = held.curve.categories if held.curve else {}
    seen = {name for name, sizes in over_time.items() if any(sizes)} | {
        *filter(held.categories.get, CATEGORIES)
    }
    legend = []
    for name in CATEGORIES if held.categories else ():
        size = held.categories.get(name)
        figures = f"{show_bytes(size)} ({show_share(size / whole)})" if size else "none at the peak"
        legend.append(Slice(name=name, share=0.0, figures=figures, look=f"memory-{name}"))
    curve, drawn = held.curve, None
    if curve is not None:
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
        drawn = {
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
    return {
        "facts": list(memory_rows(held)),
        "curve": drawn,
        "legend": Legend(tuple(part for part in legend if part.name in seen)),
        "holders": [
            (
                shortened(holder.shown, PLACE_CELLS),
                shortened(holder.category or "", 40),
                show_bytes(holder.bytes),
            )
            for holder in held.holders
        ],
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
    drawn, width = [], 100.0 / -(-count // per_cell)
    for name, figure, show in strips:
        # The rank that waits least is the one others wait for: it must be visible among its neighbours.
        groups = grouped(block.ranks, figure, RANK_CELLS, least_counts=name == _WAITS)
        if not groups:
            continue
        low, high = min(group.value for group in groups), max(group.value for group in groups)
        span, cells = max(high - low, high * _LEAST_SPAN), []
        for index, group in enumerate(groups):
            level = 0 if span <= 0.0 else min(_LEVELS - 1, int((group.value - low) / span * _LEVELS))
            which = f"rank {group.rank}"
            if group.first != group.last:
                which = f"ranks {group.first} to {group.last}, here {group.rank}"
            tip = f"{which}: {name} {show(group.value)}"
            cells.append(Mark(x=index * width, width=width, look=f"level-{level}", tip=tip))
        drawn.append({"name": name, "low": show(low), "high": show(high), "cells": cells})
    ticks = [
        Tick(at=(index + 0.5) / count * 100.0, text=str(block.ranks[index].rank))
        for index in range(0, count, max(1, -(-count // 8)))
    ]
    return {
        "strips": drawn,
        "ticks": ticks,
        "per_cell": per_cell,
        "count": count,
        "rows": [
            (str(row.rank), show_ms(row.step_ms), show_ms(row.wait_ms), show_share(waiting_share(row.ledger)))
            for row in block.ranks[:RANKS_LISTED]
        ],
    }


def icicle(block: Icicle) -> dict[str, Any]:
    """Return the levels of the icicle, and the longest modules with their paths."""
    modules = block.modules
    longest = sorted(modules, key=lambda module: -module_ms(module))[:MODULES_LISTED]
    sizes = () if modules[0].memory_bytes is None else ("memory",)
    rows = []
    for module in longest:
        path, at = [shortened(module.name, 60)], module
        while at.parent is not None:
            at = modules[at.parent]
            path.append(shortened(at.name, 60))
        size = (signed_bytes(module.memory_bytes),) if sizes else ()
        times = map(show_ms, (module.fwd_ms, module.bwd_ms, module.recompute_ms))
        rows.append((shortened(".".join(reversed(path)), 160), *times, *size, show_share(module.share)))
    return {
        "header": ("module", "forward", "backward", "forward again", *sizes, "of the step"),
        "levels": _levels(modules),
        "share": sum(module.share for module in modules if module.parent is None),
        "has_kernels": any(module.kernels for module in modules),
        "rows": rows,
        "left_out": max(0, len(modules) - MODULES_LISTED),
    }


def signed_bytes(count: float | None) -> str:
    """Return bytes with their sign: a module may free more than it allocates."""
    if count is None:
        return MISSING
    return f"-{show_bytes(-count)}" if count < 0 else show_bytes(count)


def _levels(modules: tuple[ModuleStep, ...]) -> list[list[Mark]]:
    """Return the marks of each level, from the outermost modules down."""
    whole_ms = sum(module_ms(module) for module in modules if module.parent is None)
    children: dict[int | None, list[int]] = {}
    for index, module in enumerate(modules):
        children.setdefault(module.parent, []).append(index)
    found: defaultdict[int, list[Mark]] = defaultdict(list)
    todo: list[tuple[int | None, int, float]] = [(None, 0, 0.0)]
    while todo and sum(map(len, found.values())) < MARKS_SHOWN:
        parent, level, x = todo.pop(0)
        for index in children.get(parent, ()):
            width = module_ms(modules[index]) / whole_ms * 100.0
            if width >= LEAST_WIDTH and level < LEVELS_SHOWN:
                module = modules[index]
                tip = joined(
                    f"{shortened(module.name, 60)}: {show_ms(module_ms(module))}, "
                    f"{show_share(module.share)} of the step",
                    f"forward {show_ms(module.fwd_ms)}" if module.fwd_ms else None,
                    f"backward {show_ms(module.bwd_ms)}" if module.bwd_ms else None,
                    f"forward again {show_ms(module.recompute_ms)}" if module.recompute_ms else None,
                    f"leaves {signed_bytes(module.memory_bytes)} allocated"
                    if module.memory_bytes is not None
                    else None,
                )
                found[level].append(_mark("module", module.name, tip, x, width))
                todo.append((index, level + 1, x))
            x += width
        if parent is None or level >= LEVELS_SHOWN:
            continue
        module = modules[parent]  # beside the modules in it: its own operations, and their kernels below
        for name, ms in module.ops.items():
            width, begin = ms / whole_ms * 100.0, x
            x += width
            if width < LEAST_WIDTH:
                continue
            tip = f"{shortened(name, 60)} in {shortened(module.name, 60)}: {show_ms(ms)}"
            found[level].append(_mark("operation", name, tip, begin, width))
            for kernel, kernel_ms in module.kernels.get(name, {}).items():
                width = kernel_ms / whole_ms * 100.0
                if width >= LEAST_WIDTH:
                    tip = f"{shortened(kernel, 120)} of {shortened(name, 60)}: {show_ms(kernel_ms)}"
                    found[level + 1].append(_mark("kernel", kernel, tip, begin, width))
                begin += width
    return [found[level] for level in sorted(found)]


def _mark(kind: str, name: str, tip: str, x: float, width: float) -> Mark:
    """Return a mark with its name if there is room; a narrow screen has none for the labels of tight ones."""
    shown = shortened(name, 60)
    look = f"{kind} tight" if len(shown) * LABEL_CELL * NARROW > width else kind
    return Mark(
        x=x,
        width=width,
        tip=tip,
        look=look,
        name=shown,
        label=shown if len(shown) * LABEL_CELL <= width else "",
    )
