"""The catalogue in a terminal: one line a device, grouped by maker."""

from __future__ import annotations

from stepgrade.hardware.catalogue import Device, DeviceTable
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.units import show_count, show_figure

_DTYPES = ("fp32", "fp16", "bf16", "fp8")
_KEY_WIDTH = 28


def draw(table: DeviceTable, canvas: Canvas) -> None:
    """Draw the devices in the catalogue's order."""
    heads = ("GB", "GB/s", *_DTYPES)
    canvas.line(canvas.style("key".ljust(_KEY_WIDTH) + "".join(f"{head:>8}" for head in heads), "title"))
    maker = None
    for device in table.devices:
        if device.vendor != maker:
            maker = device.vendor
            canvas.line(canvas.style(maker or "", "dim"))
        canvas.line(_row(device))
    canvas.line()
    shown = show_count(len(table.devices))
    which = f"{shown} of {show_count(table.total)} devices" if table.filter else f"{shown} devices"
    more = "peaks in dense TFLOP/s. stepgrade devices KEY shows one with its sources."
    canvas.paragraph(f"{which}; {more}", indent="", style="dim")


def _row(device: Device) -> str:
    figures = (device.memory_gb, device.peak_bw_gb_s, *(device.peak_tflops.get(dtype) for dtype in _DTYPES))
    return device.key.ljust(_KEY_WIDTH) + "".join(f"{show_figure(figure):>8}" for figure in figures)
