"""Devices, detections, measurements and estimates as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from stepgrade.hardware.catalogue import DeviceTable
from stepgrade.hardware.detect import Detection
from stepgrade.hardware.estimate import Estimate
from stepgrade.hardware.measure import Measured
from stepgrade.hardware.measured import Measurement
from stepgrade.hardware.setup import DeviceFacts
from stepgrade.model.notes import Result, texts_of
from stepgrade.report.names import markdown as escaped
from stepgrade.units import show_figure, show_rate, show_share, show_si

_DTYPES = ("fp32", "fp16", "bf16", "fp8")
Row = tuple[str, ...]


def render(result: Result) -> list[str]:
    """Return the lines of a result about hardware."""
    if isinstance(result, DeviceTable):
        return table(("Device", "GB", "GB/s", *_DTYPES), _devices(result))
    if isinstance(result, DeviceFacts):
        return [f"## {escaped(result.device.name)}", "", *table(("What", "Value"), _facts(result))]
    if isinstance(result, Detection):
        return ["## Devices of this machine", "", *table(("Driver", "Answer"), _answers(result))]
    if isinstance(result, Measured):
        return ["## Measured", "", *table(("What", "Best", "Median", "Spread"), _rates(result.measurement))]
    if isinstance(result, Estimate):
        return _estimate(result)
    raise TypeError(f"{type(result).__name__} is not about hardware")


def table(header: Row, rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _devices(result: DeviceTable) -> list[Row]:
    return [
        (
            device.key,
            show_figure(device.memory_gb),
            show_figure(device.peak_bw_gb_s),
            *(show_figure(device.peak_tflops.get(dtype)) for dtype in _DTYPES),
        )
        for device in result.devices
    ]


def _facts(facts: DeviceFacts) -> list[Row]:
    device = facts.device
    peaks = [(f"{dtype}, dense TFLOP/s", show_figure(peak)) for dtype, peak in device.peak_tflops.items()]
    return [
        ("key", device.key),
        ("memory, GB", show_figure(device.memory_gb)),
        ("bandwidth, GB/s", show_figure(device.peak_bw_gb_s)),
        *peaks,
        ("link, GB/s one way", show_figure(device.link_gb_s)),
        ("sources", escaped(device.source, 1000)),
        ("confidence", escaped(device.confidence)),
        ("notes", escaped(device.notes, 1000)),
    ]


def _answers(detection: Detection) -> list[Row]:
    rows = [(answer.driver, escaped(answer.detail)) for answer in detection.answers]
    found = [
        (f"{answer.driver} {device.index}", escaped(device.key or device.problem or device.name, 1000))
        for answer in detection.answers
        for device in answer.devices
    ]
    return [*rows, *found, ("processor", escaped(detection.processor.name))]


def _rates(measurement: Measurement) -> list[Row]:
    rates = {f"matmul {dtype}, TFLOP/s": rate for dtype, rate in measurement.tflops.items()}
    if measurement.bandwidth_gb_s is not None:
        rates = {"bandwidth, GB/s": measurement.bandwidth_gb_s, **rates}
    return [
        (name, f"{rate.best:,.3g}", f"{rate.median:,.3g}", show_share(rate.spread_share, 0))
        for name, rate in rates.items()
    ]


def _estimate(estimate: Estimate) -> list[str]:
    costs, traffic = estimate.costs, estimate.costs.traffic
    ceilings = [
        (one.kind, show_rate(one.tok_s), one.basis, escaped(f"{one.convention}; {one.source}", 1000))
        for one in estimate.ceilings
    ]
    rows = [
        ("FLOPs per token", f"{show_si(costs.flops.model, 'FLOP')} ({costs.flops.convention})"),
        ("with recompute", show_si(costs.flops.hardware, "FLOP")),
        ("by PaLM's count", show_si(costs.flops_palm.model, "FLOP")),
        ("bytes per token", show_si(estimate.bytes_per_token, "B")),
        *((f"of these {name}", show_si(getattr(traffic, name), "B")) for name in traffic.__struct_fields__),
    ]
    found = estimate.utilisation
    if found is not None:
        rows += [("MFU", show_share(found.mfu)), ("HFU", show_share(found.hfu))]
        rows += [("of the ceiling", show_share(found.efficiency))]
    lines = ["## Estimate", "", *table(("Ceiling", "Per device", "Basis", "From"), ceilings)]
    lines += ["", *table(("What", "Value"), rows)]
    return lines + [f"- {escaped(note, 1000)}" for note in texts_of(estimate.notes)]
