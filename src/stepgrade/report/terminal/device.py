"""One device in a terminal: every figure, who says so, and what is doubtful about it."""

from __future__ import annotations

from stepgrade.hardware.setup import DeviceFacts
from stepgrade.report.names import printable
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.report.terminal.measured import draw_rates
from stepgrade.units import show_figure

_NAME_WIDTH = 14


def draw(facts: DeviceFacts, canvas: Canvas) -> None:
    """Draw all facts of one device."""
    device = facts.device
    canvas.line(canvas.style(f"{device.name} · {device.key}", "title"))
    canvas.line()
    _row(canvas, "maker", " · ".join(text for text in (device.vendor, device.arch) if text))
    _row(canvas, "memory", f"{show_figure(device.memory_gb)} GB")
    _row(canvas, "bandwidth", f"{show_figure(device.peak_bw_gb_s)} GB/s")
    if device.link_gb_s is not None or device.link_kind:
        rate = f"{show_figure(device.link_gb_s)} GB/s one way"
        _row(canvas, "link", f"{rate}, {device.link_kind}" if device.link_kind else rate)
    if device.tdp_w is not None:
        _row(canvas, "power", f"{show_figure(device.tdp_w)} W")
    if facts.part_key:
        _row(canvas, "seen as", f"{facts.part_count} devices, each {facts.part_key}")
    _peaks(facts, canvas)
    if facts.measured:
        canvas.heading(f"Measured here on {facts.measured.date[:10]}")
        draw_rates(facts.measured, canvas)
    canvas.heading("Where this comes from")
    _row(canvas, "sources", device.source)
    _row(canvas, "confidence", device.confidence)
    if device.notes:
        _row(canvas, "notes", device.notes)
    _row(canvas, "also called", "; ".join(device.aliases))


def _peaks(facts: DeviceFacts, canvas: Canvas) -> None:
    canvas.heading("Dense peaks")
    for dtype, peak in facts.device.peak_tflops.items():
        unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
        parts = [f"{show_figure(peak)} {unit}"]
        achievable = facts.device.achievable_tflops.get(dtype)
        if achievable is not None:
            parts.append(f"best matmul measured {show_figure(achievable)}")
        if dtype in facts.ridge_flops_per_byte:
            parts.append(f"ridge point {facts.ridge_flops_per_byte[dtype]:,.0f} FLOP/byte")
        _row(canvas, dtype, ", ".join(parts))
    if not facts.device.peak_tflops:
        canvas.line("  none published")


def _row(canvas: Canvas, name: str, text: str) -> None:
    first = f"  {canvas.style(name.ljust(_NAME_WIDTH), 'title')}"
    canvas.paragraph(printable(text), indent=" " * (_NAME_WIDTH + 2), first=first)
