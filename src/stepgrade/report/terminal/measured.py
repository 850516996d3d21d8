"""A measurement of this machine in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepgrade.hardware.measured import Measurement, Rate
from stepgrade.report.names import printable
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.units import show_share

if TYPE_CHECKING:  # importing it would import what measures
    from stepgrade.hardware.measure import Measured

_NAME_WIDTH = 14


def draw(measured: Measured, canvas: Canvas) -> None:
    """Draw what was measured and where it is kept."""
    one = measured.measurement
    canvas.line(canvas.style(f"{printable(one.name)} · {printable(one.key)}", "title"))
    canvas.line()
    draw_rates(one, canvas)
    canvas.line()
    canvas.paragraph(f"{one.method}; {one.date}", style="dim")
    canvas.paragraph(f"kept in {printable(measured.kept_in)}", style="dim")


def draw_rates(measurement: Measurement, canvas: Canvas) -> None:
    """Draw the best rates with their spread."""
    if measurement.bandwidth_gb_s is not None:
        _row(canvas, "bandwidth", measurement.bandwidth_gb_s, "GB/s")
    for dtype, rate in measurement.tflops.items():
        _row(canvas, f"matmul {dtype}", rate, "TFLOP/s")


def _row(canvas: Canvas, name: str, rate: Rate, unit: str) -> None:
    spread = f"median {rate.median:,.3g}, spread {show_share(rate.spread_share, 0)} over {rate.runs} runs"
    canvas.line(f"  {canvas.style(name.ljust(_NAME_WIDTH), 'title')}{rate.best:,.3g} {unit} ({spread})")
