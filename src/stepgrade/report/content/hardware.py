"""Devices, what this machine has and reaches, and what a planned run could reach on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from stepgrade.errors import name_fields
from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import (
    Bar,
    Bars,
    Block,
    Bullet,
    Bullets,
    Column,
    Fact,
    Facts,
    Heading,
    Paragraph,
    Space,
    Table,
    Title,
    bullets,
    facts,
)
from stepgrade.report.content.memory import memory_blocks
from stepgrade.report.words import BASES, ROOFS, plural
from stepgrade.units import show_bytes, show_count, show_figure, show_rate, show_share, show_si

if TYPE_CHECKING:  # each command imports what it answers with and nothing else
    from stepgrade.hardware.catalogue import DeviceTable
    from stepgrade.hardware.detect import Detection, FoundDevice
    from stepgrade.hardware.estimate import Estimate
    from stepgrade.hardware.measure import Measured
    from stepgrade.hardware.measured import Measurement
    from stepgrade.hardware.setup import DeviceFacts

_DTYPES = ("fp32", "fp16", "bf16", "fp8")
_NAME_WIDTH = 14
_LONG_NAME_WIDTH = 16


def device_table(table: DeviceTable, _flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the devices in the catalogue's order, one line each, grouped by maker."""
    heads = ("GB", "GB/s", *_DTYPES)
    columns = (
        Column("key", width=28, title="Device"),
        Column("maker", role="group", style="dim"),
        *(Column(head, width=8, gap=0, right=True, title=head) for head in heads),
    )
    rows = tuple(
        (
            device.key,
            device.vendor or "",
            show_figure(device.memory_gb),
            show_figure(device.peak_bw_gb_s),
            *(show_figure(device.peak_tflops.get(dtype)) for dtype in _DTYPES),
        )
        for device in table.devices
    )
    yield Table(columns, rows, indent=0)
    yield Space()
    shown = show_count(len(table.devices))
    which = f"{shown} of {show_count(table.total)} devices" if table.filter else f"{shown} devices"
    text = f"{which}; peaks in dense TFLOP/s. stepgrade devices KEY shows one with its sources."
    yield Paragraph(text, style="dim", indent=0)


def device(answer: DeviceFacts, _flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield every figure of one device, who says so, and what is doubtful about it."""
    found = answer.device
    yield Title(found.name, f"{found.name} · {found.key}", style="title")
    yield Space()
    rows = {
        "maker": " · ".join(text for text in (found.vendor, found.arch) if text),
        "memory": f"{show_figure(found.memory_gb)} GB",
        "bandwidth": f"{show_figure(found.peak_bw_gb_s)} GB/s",
    }
    if found.link_gb_s is not None or found.link_kind:
        rate = f"{show_figure(found.link_gb_s)} GB/s one way"
        rows["link"] = f"{rate}, {found.link_kind}" if found.link_kind else rate
    if found.tdp_w is not None:
        rows["power"] = f"{show_figure(found.tdp_w)} W"
    if answer.part_key:
        rows["seen as"] = f"{answer.part_count} devices, each {answer.part_key}"
    known = (Fact(name, text) for name, text in rows.items())
    yield Facts((Fact("key", found.key, only="full"), *known), _NAME_WIDTH, ("What", "Value"))
    yield Heading("Dense peaks")
    peaks = {}
    for dtype, peak in found.peak_tflops.items():
        parts = [f"{show_figure(peak)} {'TOP/s' if dtype == 'int8' else 'TFLOP/s'}"]
        if dtype in found.achievable_tflops:
            parts.append(f"best matmul measured {show_figure(found.achievable_tflops[dtype])}")
        if dtype in answer.ridge_flops_per_byte:
            parts.append(f"ridge point {answer.ridge_flops_per_byte[dtype]:,.0f} FLOP/byte")
        peaks[dtype] = ", ".join(parts)
    yield facts(peaks, _NAME_WIDTH) if peaks else Paragraph("none published")
    if answer.measured:
        yield Heading(f"Measured here on {answer.measured.date[:10]}")
        yield _rates(answer.measured)
    yield Heading("Where this comes from")
    notes = {"notes": found.notes} if found.notes else {}
    origin = {"sources": found.source, "confidence": found.confidence, **notes}
    yield facts(origin | {"also called": "; ".join(found.aliases)}, _NAME_WIDTH)


def _rates(measurement: Measurement) -> Facts:
    """Return the best rates with their spread."""
    rates = {f"matmul {dtype}": (rate, "TFLOP/s") for dtype, rate in measurement.tflops.items()}
    if measurement.bandwidth_gb_s is not None:
        rates = {"bandwidth": (measurement.bandwidth_gb_s, "GB/s"), **rates}
    rows = {}
    for name, (rate, unit) in rates.items():
        spread = f"median {rate.median:,.3g}, spread {show_share(rate.spread_share, 0)} over {rate.runs} runs"
        rows[name] = f"{rate.best:,.3g} {unit} ({spread})"
    return facts(rows, _NAME_WIDTH)


def measurement(measured: Measured, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield what was measured and where it is kept."""
    found = measured.measurement
    yield Title("Measured", f"{found.name} · {found.key}", style="title")
    yield Space()
    yield _rates(found)
    yield Space()
    yield Paragraph(f"{found.method}; {found.date}", style="dim")
    if measured.kept_in is not None:
        yield Paragraph(f"kept in {measured.kept_in}", style="dim")
    for text in texts_of(measured.notes, flags):
        yield Paragraph(text, style="fair")


def detection(found: Detection, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield what this machine has, driver by driver, also those that are not there."""
    yield Title("Devices of this machine", "")
    rows = []
    for answer in found.answers:
        style = None if answer.state == "found" else "dim"
        yield Facts((Fact(answer.driver, answer.detail, text_style=style),), _NAME_WIDTH, only="brief")
        points = [point for device in answer.devices for point in _found(device)]
        yield Bullets(tuple(points), only="brief")
        rows.append(Fact(answer.driver, answer.detail))
        rows += [Fact(f"{answer.driver} {point.mark}", point.text) for point in points]
    processor = found.processor
    memory = f", {show_bytes(processor.memory_bytes)}" if processor.memory_bytes else ""
    last = Fact("processor", f"{processor.name}, {plural(processor.cores, 'core')}{memory}")
    yield Facts((last,), _NAME_WIDTH, only="brief")
    yield Facts((*rows, last), header=("Driver", "Answer"), only="full")
    yield Space()
    yield Paragraph(name_fields("{measure_here} measures what this machine reaches", flags), style="dim")


def _found(device: FoundDevice) -> Iterator[Bullet]:
    known = [repr(device.name)]
    if device.memory_bytes is not None:
        known.append(show_bytes(device.memory_bytes))
    if device.compute_units is not None:
        known.append(f"{device.compute_units} compute units")
    if device.driver_bw_gb_s is not None:
        known.append(f"{device.driver_bw_gb_s:,.0f} GB/s by its driver")
    if device.power_limit_w is not None:
        known.append(f"limited to {device.power_limit_w:,.0f} W")
    yield Bullet(f"{device.key or 'not known'}: {', '.join(known)}", mark=str(device.index), indent=4)
    for note in (*device.notes, *((device.problem,) if device.problem else ())):
        yield Bullet(note, style="dim", indent=6)


def estimate(found: Estimate, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the most that a run could reach, which limit sets it, and where the bytes go."""
    plan = found.plan
    device = found.device.name if found.device else "a device described by hand"
    method = plan.method if plan.method == "full" else f"{plan.method} r{plan.rank}"
    shared = f" on {plan.parallel.devices} devices" if plan.parallel.devices > 1 else ""
    run = f"{method} {plan.dtype}, {plan.batch} x {plan.seq:,} tokens{shared}"
    yield Title("Estimate", f"stepgrade · {device} · {run}")
    yield Space()
    yield Paragraph(f"{device}: {run}", only="full")
    if found.bound_by is None:
        yield Paragraph("no ceiling: see the notes")
    else:
        each = " per device" if plan.parallel.devices > 1 else ""
        reach = (
            f"{show_rate(found.bound_by.tok_s)}{each} is the most that {ROOFS[found.bound_by.kind]} allows"
        )
        if found.is_reachable is False:
            reach += ", out of reach: it does not fit into the memory"
        elif found.memory is not None and found.memory.verdict == "too_close":
            reach += ", if it fits into the memory, which is too close to call"
        yield Paragraph(reach, style="title")
        if found.achievable is not None:
            rate, limit = show_rate(found.achievable.tok_s), ROOFS[found.achievable.kind]
            yield Paragraph(f"{rate}{each} at the rates that were measured ({limit})")
    yield Heading("Ceilings, tok/s per device")
    bars = (
        Bar(f"{limit.kind}, {BASES[limit.basis]}", limit.tok_s, f"{show_rate(limit.tok_s):>16}", ())
        for limit in found.ceilings
    )
    yield Bars((), tuple(bars), only="brief")
    yield Table(
        (Column("Ceiling"), Column("Per device", right=True), Column("Basis"), Column("From")),
        tuple(
            (limit.kind, show_rate(limit.tok_s), BASES[limit.basis], f"{limit.convention}; {limit.source}")
            for limit in found.ceilings
        ),
        only="full",
    )
    counted = [f"{limit.kind}: {limit.convention}" for limit in found.ceilings]
    for text in (*counted, *dict.fromkeys(limit.source for limit in found.ceilings)):
        yield Paragraph(text, style="dim", indent=4, only="brief")
    if found.memory is not None:
        yield from memory_blocks(found, found.memory)
    yield from _token(found)
    reached = found.utilisation
    if reached is not None:
        yield Heading(f"At {show_rate(reached.tok_s)}")
        palm = f"by PaLM's count {show_share(reached.mfu_palm)}"
        rows = {
            "MFU": f"{show_share(reached.mfu)} ({found.costs.flops.convention}), {palm}",
            "HFU": show_share(reached.hfu),
            "of the ceiling": show_share(reached.efficiency),
        }
        yield facts(rows, _LONG_NAME_WIDTH)
        if reached.above_one_because:
            yield Paragraph("more than the hardware can do; likely causes:")
            yield bullets(reached.above_one_because)
    if found.notes:
        yield Heading("Notes")
        yield bullets(texts_of(found.notes, flags), style="dim")


def _token(found: Estimate) -> Iterator[Block]:
    """Yield the model, what one of its tokens costs, and where the bytes of that go."""
    costs, traffic = found.costs, found.costs.traffic
    adapters = f", {show_count(costs.trained_parameters)} of adapters trained"
    trained = "" if costs.trained_parameters == costs.parameters else adapters
    yield Heading("The model")
    yield facts({costs.architecture: f"{show_count(costs.parameters)} parameters{trained}"}, _LONG_NAME_WIDTH)
    yield Heading("One token")
    flops = show_si(costs.flops.model, "FLOP")
    if costs.flops.hardware != costs.flops.model:
        flops += f", {show_si(costs.flops.hardware, 'FLOP')} with what is computed twice"
    rows = {
        "needs": f"{flops} ({costs.flops.convention})",
        "by PaLM": show_si(costs.flops_palm.model, "FLOP"),
        "moves": f"{show_si(found.bytes_per_token, 'B')} through memory",
    }
    if costs.link is not None:
        per_step = f"{show_si(costs.link.total, 'B')} per device and step"
        rows["sends"] = f"{show_si(costs.link.per_token, 'B')} over the link ({per_step})"
    yield facts(rows | {"regime": _regime(found)}, _LONG_NAME_WIDTH)
    parts = {
        "weights": traffic.weights,
        "gradients": traffic.gradients,
        "optimizer": traffic.optimizer,
        "activations": traffic.activations,
        "loss": traffic.loss,
    }
    yield Heading("Where the bytes go")
    bars = []
    for name, amount in parts.items():
        cells = show_si(amount, "B"), show_share(amount / found.bytes_per_token)
        bars.append(Bar(name, amount, f"{cells[0]:>9} {cells[1]:>7}", cells))
    yield Bars(("Bytes of", "Per token", "Share"), tuple(bars))


def _regime(found: Estimate) -> str:
    intensity, ridge = found.intensity_flops_per_byte, found.ridge_flops_per_byte
    if ridge is None:
        return f"{intensity:,.0f} FLOP per byte"
    above = intensity >= ridge
    text = f"{intensity:,.0f} FLOP per byte {'above' if above else 'below'} the ridge point of {ridge:,.0f}: "
    text += "arithmetic limits it before memory" if above else "memory limits it before arithmetic"
    if found.crossing_tokens is None:
        return f"{text}, at any batch"
    batch = found.crossing_tokens / found.plan.seq
    where = f"{show_count(round(found.crossing_tokens))} tokens per micro-batch (batch {batch:,.2g})"
    return f"{text}; that changes at {where}"
