"""The layers side by side: forward, recomputation and backward, with those marked that stand out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrade.model.layers import LayerStep
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.html.plot import Mark, Scale, Tick, even_ticks, joined
from stepgrade.report.names import shortened
from stepgrade.units import show_ms

COLUMNS_SHOWN = 256
MOST_MS = 1e300  # what is longer cannot be drawn


def view(card: Scorecard, flags: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns, or why there are none."""
    shown = [layer for layer in card.layers if 0.0 < sum(_parts(layer).values()) < MOST_MS][:COLUMNS_SHOWN]
    if not shown:
        why = next((note.said(flags) for note in card.notes if note.code == "no_layers"), None)
        unknown = "The source tells no layers apart. "
        unknown += "Record with torch.profiler and with_modules or with_stack=True."
        return {"why_empty": why or unknown}
    scale = Scale(low=0.0, high=max(sum(_parts(layer).values()) for layer in shown) * 1.08)
    every = max(1, -(-len(shown) // 16))
    width = 100.0 / len(shown)
    return {
        "why_empty": None,
        "columns": [_column(layer, place * width, width, scale) for place, layer in enumerate(shown)],
        "y_ticks": [Tick(at=100.0 - scale.place(ms), text=show_ms(ms)) for ms in even_ticks(0.0, scale.high)],
        "x_ticks": [
            Tick(at=(place + 0.5) * width, text=str(layer.layer))
            for place, layer in enumerate(shown)
            if place % every == 0
        ],
        "slow": [_name(layer) for layer in shown if layer.slow],
        "has_recompute": any(layer.recompute_ms for layer in shown),
        "rows": [
            (
                _name(layer),
                show_ms(layer.fwd_ms),
                show_ms(layer.bwd_ms),
                show_ms(layer.recompute_ms),
                " and ".join(layer.slow),
            )
            for layer in shown
        ],
        "left_out": max(0, len(card.layers) - COLUMNS_SHOWN),
    }


def _parts(layer: LayerStep) -> dict[str, float]:
    return {
        "forward": layer.fwd_ms or 0.0,
        "recompute": layer.recompute_ms or 0.0,
        "backward": layer.bwd_ms or 0.0,
    }


def _name(layer: LayerStep) -> str:
    return shortened(layer.name or f"layer {layer.layer}", 60)


def _column(layer: LayerStep, x: float, width: float, scale: Scale) -> dict[str, Any]:
    parts, figures, top = [], [], 100.0
    for look, ms in _parts(layer).items():
        height = scale.place(ms)
        top -= height
        parts.append(Mark(x=x + width * 0.1, y=top, width=width * 0.8, height=height, look=look))
        if ms:
            figures.append(f"{look} {show_ms(ms)}")
    slow = f"stands out: {' and '.join(layer.slow)}" if layer.slow else None
    tip = f"{_name(layer)}: {joined(*figures, slow)}"
    hit = Mark(x=x, width=width, tip=tip, look="slow" if layer.slow else "", y=top)
    return {"parts": parts, "hit": hit, "middle": x + width / 2}
