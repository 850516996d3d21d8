"""The memory over a step: what it is made of at each moment, and the peak."""

from __future__ import annotations

import math
from typing import Any

from stepgrade.model.memory import CATEGORIES, MemoryCurve
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.content.memory_use import memory_rows
from stepgrade.report.html.plot import Mark, Scale, Slice, Tick, even_ticks
from stepgrade.report.names import shortened
from stepgrade.units import show_bytes, show_ms, show_share


def view(card: Scorecard) -> dict[str, Any] | None:
    """Return the curve, its parts and its figures; None where only a peak is known, or nothing."""
    memory = card.memory
    if memory is None or not (memory.categories or memory.curve or memory.out_of_memory):
        return None
    held, whole = memory.categories, sum(memory.categories.values())
    # What is not there at the peak may still have its colour in the curve.
    drawn = {name for name, sizes in memory.curve.categories.items() if any(sizes)} if memory.curve else set()
    return {
        "legend": [
            Slice(
                name=name,
                share=held[name] / whole if held.get(name) else 0.0,
                figures=f"{show_bytes(held[name])} ({show_share(held[name] / whole)})"
                if held.get(name)
                else "none at the peak",
                look=f"memory-{name}",
            )
            for name in CATEGORIES
            if held and (held.get(name) or name in drawn)
        ],
        "rows": memory_rows(memory),
        "curve": _curve(memory.curve) if memory.curve else None,
        "holders": [
            (shortened(holder.shown, 120), shortened(holder.category or "", 20), show_bytes(holder.bytes))
            for holder in memory.holders
        ],
    }


def _curve(curve: MemoryCurve) -> dict[str, Any]:
    """Return a column for each moment, as wide as until the next one."""
    count = len(curve.at_ms)
    names = [name for name in CATEGORIES if name in curve.categories]
    totals = [sum(curve.categories[name][place] for name in names) for place in range(count)]
    scale = Scale(low=0.0, high=max(totals) * 1.08 or 1.0)
    last = curve.at_ms[-1] + (curve.at_ms[-1] - curve.at_ms[0]) / count
    across = Scale(low=curve.at_ms[0], high=last)
    columns = []
    for place, at in enumerate(curve.at_ms):
        x = across.place(at)
        end = across.place(curve.at_ms[place + 1]) if place + 1 < count else 100.0
        floor, parts = 100.0, []
        for name in names:
            height = scale.place(curve.categories[name][place])
            floor -= height
            if height > 0.0:
                width = max(end - x, 0.1) + 0.08  # a little over the next: no gap shows between two
                parts.append(Mark(x=x, y=floor, width=width, height=height, look=f"memory-{name}"))
        when = show_ms(at) if curve.has_times else f"event {at:,.0f}"
        made = ", ".join(
            f"{name} {show_bytes(curve.categories[name][place])}"
            for name in names
            if curve.categories[name][place] > 0.0
        )
        columns.append({"parts": parts, "tip": f"{when}: {show_bytes(totals[place])} ({made})"})
    peak, unit = curve.peak_index, 1024.0 ** int(math.log(max(scale.high, 1.0), 1024.0))
    return {
        "columns": columns,
        "peak": Mark(
            x=across.place(curve.at_ms[peak]),
            y=100.0 - scale.place(totals[peak]),
            label=f"peak {show_bytes(totals[peak])}",
            look="end" if across.place(curve.at_ms[peak]) > 70.0 else "start",
        ),
        "y_ticks": [
            Tick(at=100.0 - scale.place(size * unit), text=show_bytes(size * unit))
            for size in even_ticks(0.0, scale.high / unit)
        ],
        "first": show_ms(0.0) if curve.has_times else "1",
        "last": show_ms(last) if curve.has_times else f"{last:,.0f}",
        "axis": "time" if curve.has_times else "allocations and frees, in order",
    }
