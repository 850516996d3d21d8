"""What this machine has, in a terminal: driver by driver, also those that are not there."""

from __future__ import annotations

from stepgrade.hardware.detect import Answer, Detection, FoundDevice
from stepgrade.report.names import printable
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.units import show_bytes, show_count

_NAME_WIDTH = 14


def draw(detection: Detection, canvas: Canvas) -> None:
    """Draw every answer, then the processor."""
    for answer in detection.answers:
        _answer(answer, canvas)
    one = detection.processor
    memory = f", {show_bytes(one.memory_bytes)}" if one.memory_bytes else ""
    cores = f"{show_count(one.cores)} core{'s' if one.cores != 1 else ''}"
    _row(canvas, "processor", f"{one.name}, {cores}{memory}")
    canvas.line()
    canvas.paragraph("stepgrade devices --measure measures what it reaches", style="dim")


def _answer(answer: Answer, canvas: Canvas) -> None:
    _row(canvas, answer.driver, answer.detail, style=None if answer.state == "found" else "dim")
    for device in answer.devices:
        _device(device, canvas)


def _device(device: FoundDevice, canvas: Canvas) -> None:
    facts = [repr(device.name)]
    if device.memory_bytes is not None:
        facts.append(show_bytes(device.memory_bytes))
    if device.compute_units is not None:
        facts.append(f"{device.compute_units} compute units")
    if device.driver_bw_gb_s is not None:
        facts.append(f"{device.driver_bw_gb_s:,.0f} GB/s by its driver")
    if device.power_limit_w is not None:
        facts.append(f"limited to {device.power_limit_w:,.0f} W")
    name = device.key or "not known"
    canvas.paragraph(printable(f"{name}: {', '.join(facts)}"), indent="      ", first=f"    {device.index} ")
    for note in (*device.notes, *((device.problem,) if device.problem else ())):
        canvas.paragraph(printable(note), indent="        ", first="      · ", style="dim")


def _row(canvas: Canvas, name: str, text: str, style: str | None = None) -> None:
    first = f"  {canvas.style(name.ljust(_NAME_WIDTH), 'title')}"
    canvas.paragraph(printable(text), indent=" " * (_NAME_WIDTH + 2), first=first, style=style)
