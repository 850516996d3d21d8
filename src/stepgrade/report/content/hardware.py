"""Devices, what this machine has and reaches, and what a planned run could reach and would need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    Only,
    Paragraph,
    Space,
    Table,
    Title,
    bullets,
    facts,
    share_bar,
)
from stepgrade.report.names import BASES, ROOFS, plural
from stepgrade.units import (
    show_bytes,
    show_count,
    show_figure,
    show_number,
    show_rate,
    show_share,
    show_si,
)

if TYPE_CHECKING:
    from stepgrade.hardware.catalogue import DeviceTable
    from stepgrade.hardware.detect import Detection
    from stepgrade.hardware.estimate import Estimate
    from stepgrade.hardware.measure import Measured
    from stepgrade.hardware.measured import Measurement
    from stepgrade.hardware.memory.fit import MemoryChange, MemoryFit
    from stepgrade.hardware.planner import PlanMatrix, PlanTable, RunCost
    from stepgrade.hardware.setup import DeviceFacts
    from stepgrade.hardware.throughput import Expected
    from stepgrade.hardware.trainers import RankedPlan

_DTYPES = ("fp32", "fp16", "bf16", "fp8")
_NAME_WIDTH = 14
_LONG_NAME_WIDTH = 16
VERDICTS = {"fits": "fits", "does_not_fit": "does not fit", "too_close": "too close to call"}
PHASES = {
    "loss": "when the loss is computed",
    "backward": "when the backward pass begins",
    "end_of_backward": "when the backward pass ends",
    "optimizer": "when the optimizer steps",
}
TRAINERS = {
    "torchtitan": "torchtitan",
    "megatron": "Megatron-LM",
    "megatron-bridge": "Megatron-Bridge",
    "maxtext": "MaxText",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
}


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
    """Yield every figure of a device, with sources, confidence and notes."""
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
        spread = (
            f"median {show_number(rate.median)}, spread {show_share(rate.spread_share, 0)} over "
            f"{plural(rate.runs, 'run')}"
        )
        rows[name] = f"{show_number(rate.best)} {unit} ({spread})"
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
    """Yield the devices of this machine by driver, including drivers that are missing."""
    yield Title("Devices of this machine", "")
    rows = []
    for answer in found.answers:
        style = None if answer.state == "found" else "dim"
        yield Facts((Fact(answer.driver, answer.detail, text_style=style),), _NAME_WIDTH, only="brief")
        points = []
        for device in answer.devices:
            figures: tuple[tuple[float | None, Callable[[float], str]], ...] = (
                (device.memory_bytes, show_bytes),
                (device.compute_units, "{} compute units".format),
                (device.driver_bw_gb_s, "{:,.0f} GB/s by its driver".format),
                (device.power_limit_w, "limited to {:,.0f} W".format),
            )
            known = [repr(device.name), *(show(figure) for figure, show in figures if figure is not None)]
            text = f"{device.key or 'not known'}: {', '.join(known)}"
            points.append(Bullet(text, mark=str(device.index), indent=4))
            notes = (*device.notes, *((device.problem,) if device.problem else ()))
            points += [Bullet(note, style="dim", indent=6) for note in notes]
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
        each = " per device" if found.plan.parallel.devices > 1 else ""
        reach = (
            f"{show_rate(found.bound_by.tok_s)}{each} is the most that {ROOFS[found.bound_by.kind]} allows"
        )
        if found.is_reachable is False:
            reach += ", out of reach: it does not fit into the memory"
        elif found.memory is not None and found.memory.verdict == "too_close":
            reach += ", if it fits into the memory, which is too close to call"
        yield Paragraph(reach, style="title")
        likely = found.expected_tok_s
        yield Paragraph(f"{_expected(likely)}{each} is to be expected" if likely else "no rate is known")
        if found.achievable is not None:
            rate, limit = show_rate(found.achievable.tok_s), ROOFS[found.achievable.kind]
            yield Paragraph(f"{rate}{each} at measured rates ({limit})")
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


def _expected(rate: Expected) -> str:
    """Return the middle and the interval that holds nine runs in ten."""
    return f"{show_rate(rate.mid)} ({rate.low:,.0f} to {rate.high:,.0f})"


def _token(found: Estimate) -> Iterator[Block]:
    """Yield the model, the cost of a token, and where its bytes go."""
    costs = found.costs
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
    intensity, ridge = found.intensity_flops_per_byte, found.ridge_flops_per_byte
    rows["regime"] = f"{intensity:,.0f} FLOP per byte"
    if ridge is not None:
        first, second = ("arithmetic", "memory") if intensity >= ridge else ("memory", "arithmetic")
        side = "above" if intensity >= ridge else "below"
        rows["regime"] += f" {side} the ridge point of {ridge:,.0f}: {first} limits it before {second}"
        if found.crossing_tokens is None:
            rows["regime"] += ", at any batch"
        else:
            batch = found.crossing_tokens / found.plan.seq
            tokens = f"{show_count(round(found.crossing_tokens))} tokens per micro-batch"
            rows["regime"] += f"; that changes at {tokens} (batch {show_number(batch, 2)})"
    yield facts(rows, _LONG_NAME_WIDTH)
    parts = {
        name: getattr(costs.traffic, name)
        for name in ("weights", "gradients", "optimizer", "activations", "loss")
    }
    yield Heading("Where the bytes go")
    bars = (
        share_bar(name, amount, show_si(amount, "B"), amount / found.bytes_per_token)
        for name, amount in parts.items()
    )
    yield Bars(("Bytes of", "Per token", "Share"), tuple(bars))


def memory_blocks(found: Estimate, memory: MemoryFit) -> Iterator[Block]:
    """Yield the peak memory of a device, its capacity, the largest micro-batch, and how to make it fit."""
    yield Heading("Memory of one device")
    band = f"{show_bytes(memory.low_bytes)} to {show_bytes(memory.high_bytes)}"
    rows = {"needs": f"{show_bytes(memory.need_bytes)} ({band})"}
    if memory.capacity_bytes is not None and memory.verdict is not None:
        rows["has"] = f"{show_bytes(memory.capacity_bytes)} as its driver reports: {VERDICTS[memory.verdict]}"
    taken = memory.reserved_bytes + memory.parts["context"]
    if show_bytes(taken) != show_bytes(memory.need_bytes):
        rows["takes"] = f"{show_bytes(taken)} where there is room: the allocator keeps what it can"
    stage = f" on pipeline stage {memory.stage + 1}" if found.plan.parallel.pipeline > 1 else ""
    rows["peak"] = PHASES[memory.phase] + stage
    if memory.largest_micro_batch is not None:
        many = "sequence" if memory.largest_micro_batch == 1 else "sequences"
        fits = f"{memory.largest_micro_batch:,} {many} of {found.plan.seq:,} tokens"
        rows["micro-batch"] = (
            f"at most {fits}" if memory.largest_micro_batch else "does not fit, even with a micro-batch of 1"
        )
    if memory.is_anchored:
        rows["anchor"] = "predicted from the run that was measured"
    yield facts(rows, _LONG_NAME_WIDTH)
    bars = (
        share_bar(name.replace("_", " "), amount, show_bytes(amount), amount / memory.need_bytes, 10)
        for name, amount in memory.parts.items()
        if amount > 0
    )
    yield Bars(("Memory of", "Bytes", "Share"), tuple(bars))
    if memory.changes or memory.least_devices is not None:
        enough = bool(memory.changes) and memory.changes[-1].verdict == "fits"
        one = "The cheapest change that makes it fit"
        title = one if len(memory.changes) == 1 else "The cheapest changes that make it fit"
        yield Heading(title if enough else "Cheapest changes, still not enough")
        points = (
            Bullet(_change_text(change), f"{number}.") for number, change in enumerate(memory.changes, 1)
        )
        yield Bullets(tuple(points))
    if memory.least_devices is not None:
        yield Paragraph(f"It fits on {memory.least_devices} such devices with FSDP and full checkpointing")
    if memory.another_training is not None:
        yield Heading("An alternative that fits")
        yield Bullets((Bullet(_change_text(memory.another_training)),))


def _change_text(change: MemoryChange) -> str:
    return f"{change.text}: saves {show_bytes(change.saves_bytes)}, {change.price}"


def plans(found: PlanTable, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the plans as a table, what limits each, and the flags that launch the best of them."""
    step = f"{found.global_batch:,} x {found.seq:,} tokens per step"
    run = f"{found.model}, {step}"
    yield Title("Plans", f"stepgrade · {found.devices} x {found.device} · {step}")
    yield Space()
    yield Paragraph(f"{found.devices} x {found.device}: {run}", only="full")
    if not found.plans:
        yield Paragraph("no plan fits", style="title")
    else:
        best = found.plans[0]
        verdict = "" if best.verdict == "fits" else ", if it fits, which is too close to call"
        mfu = f", {show_share(best.expected_mfu, 0)} MFU" if best.expected_mfu is not None else ""
        headline = f"{_expected(best.expected_tok_s)}{mfu}{verdict}: {_sharing(best)}"
        yield Paragraph(headline, style="title")
        yield _plan_table(found)
        shown: set[str] = set()
        for number, plan in enumerate(found.plans, 1):
            only: Only = "full" if plan.trainer in shown else None  # a terminal has the best of each trainer
            shown.add(plan.trainer)
            yield Heading(f"{number}. {TRAINERS[plan.trainer]}: {_sharing(plan)}", only=only)
            band = f"{show_bytes(plan.low_bytes)} to {show_bytes(plan.high_bytes)}"
            limits = "; ".join(why.text for why in plan.why_not_better)
            rows = (
                Fact("memory", f"{show_bytes(plan.need_bytes)} ({band}): {VERDICTS[plan.verdict]}"),
                Fact("expected", f"{_expected(plan.expected_tok_s)}; at most {show_rate(plan.tok_s)}"),
                Fact("step", limits),
                Fact("start with", plan.flags),
            )
            yield Facts(rows, header=("What", "Value"), only=only)
    if found.cost is not None:
        yield Heading(f"Training on {show_count(round(found.cost.tokens))} tokens with the first plan")
        taken = {
            name: f"{amount.mid:,.1f} ({amount.low:,.1f} to {amount.high:,.1f})"
            for name, amount in _amounts(found.cost).items()
        }
        yield facts(taken, _LONG_NAME_WIDTH)
    considered = f"{show_count(found.considered)} plans considered"
    capacity = f"each device has {show_bytes(found.capacity_bytes)}"
    notes = (found.model, f"{considered}; {capacity}", *texts_of(found.notes, flags))
    yield Heading("Notes")
    yield bullets(notes, style="dim")


def plans_side_by_side(found: PlanMatrix, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield a row for each device and number of devices, and the best plan of each."""
    yield Title("Plans", f"stepgrade · {found.tables[0].model} · {found.tables[0].seq:,} tokens a sequence")
    yield Space()
    names = [f"{table.devices} x {table.device}" for table in found.tables]
    bests = {"fastest": found.fastest, "cheapest": found.cheapest}
    headline = "; ".join(f"{word}: {names[index]}" for word, index in bests.items() if index is not None)
    yield Paragraph(headline or "no plan fits", style="title")
    rows: list[dict[str, str]] = []
    alone: dict[str, float] = {}  # tok/s per device of the first number of each device
    for name, table in zip(names, found.tables, strict=True):
        row = {"": name, "batch": f"{table.global_batch:,}"}
        if table.plans:
            each = table.plans[0].expected_tok_s.mid / table.devices
            kept = each / alone.setdefault(table.device, each)
            row |= {
                "tok/s": f"{each * table.devices:,.0f}",
                "each": f"{each:,.0f}",
                "kept": show_share(kept, 0),
            }
            amounts = {what: amount.mid for what, amount in _amounts(table.cost).items()}
            row |= {what: f"{mid:,.{0 if mid >= 1000 else 1}f}" for what, mid in amounts.items()}
        rows.append(row)
    titles = {
        "": "Devices",
        "batch": "Sequences per step",
        "each": "tok/s per device",
        "kept": "Of the first",
    }
    shown = [
        name
        for name in ("", "batch", "tok/s", "each", "kept", "days", "money", "MWh at most")
        if any(name in row for row in rows)
        and (name != "kept" or len(alone) < len(rows))
        and (name != "batch" or len({row["batch"] for row in rows}) > 1)
    ]
    columns = tuple(
        Column(
            name,
            width=max(len(name), *(len(row.get(name, "")) for row in rows)),
            right=name != "",
            title=titles.get(name, name),
        )
        for name in shown
    )
    yield Table(
        columns,
        tuple(tuple(row.get(name, "") for name in shown) for row in rows),
        indent=0,
        is_spaced=True,
        is_cut=True,
    )
    for name, table in zip(names, found.tables, strict=True):
        yield Heading(name)
        if not table.plans:
            yield bullets(texts_of(table.notes, flags))
            continue
        best = table.plans[0]
        yield Facts(
            (
                Fact("plan", f"{TRAINERS[best.trainer]}: {_sharing(best)}"),
                Fact("memory", f"{show_bytes(best.need_bytes)}: {VERDICTS[best.verdict]}"),
                Fact("expected", _expected(best.expected_tok_s)),
                Fact("step", "; ".join(why.text for why in best.why_not_better)),
                Fact("assumes", "; ".join(texts_of(table.notes, flags))),
            ),
            header=("What", "Value"),
        )
    yield Space()
    yield Paragraph("Where intervals overlap, the order may be another.", style="dim")


def _amounts(cost: RunCost | None) -> dict[str, Expected]:
    """Return what a training takes, as far as it is known."""
    if cost is None:
        return {}
    amounts = {
        "days": cost.days,
        "device-hours": cost.device_hours,
        "money": cost.money,
        "MWh at most": cost.energy_kwh and cost.energy_kwh.scaled(1 / 1000),  # of the devices alone
    }
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _plan_table(found: PlanTable) -> Table:
    """Return a row for each plan, without the columns that none of them needs; each as wide as its cells."""
    cells = {
        "": [str(index) for index in range(1, len(found.plans) + 1)],
        "tok/s": [f"{plan.expected_tok_s.mid:,.0f}" for plan in found.plans],
        "memory": [show_bytes(plan.need_bytes) for plan in found.plans],
        "trainer": [TRAINERS[plan.trainer] for plan in found.plans],
        "TP": [str(plan.tensor) for plan in found.plans],
        "PP": [f"{plan.pipeline}x{plan.virtual}".removesuffix("x1") for plan in found.plans],
        "CP": [str(plan.context) for plan in found.plans],
        "EP": [str(plan.expert) for plan in found.plans],
        "sharing": [_copies(plan) for plan in found.plans],
        "batch": [f"{plan.micro_batches}x{plan.micro_batch}" for plan in found.plans],
        "redone": [plan.checkpointing for plan in found.plans],
        "verdict": [VERDICTS[plan.verdict] for plan in found.plans],
    }
    titles = {"": "Place", "batch": "Micro-batches", "redone": "Recomputed"}
    rights = ("", "tok/s", "memory", "TP", "PP", "CP", "EP")
    columns = {
        name: Column(
            name,
            width=max(len(name), *map(len, texts)),
            right=name in rights,
            title=titles.get(name, name if name in rights else ""),
            fills=name == "verdict",
            only="full" if name == "verdict" else None,
        )
        for name, texts in cells.items()
        if name not in ("TP", "PP", "CP", "EP") or set(texts) != {"1"}
    }
    rows = zip(*(cells[name] for name in columns), strict=True)
    return Table(tuple(columns.values()), tuple(rows), indent=0, is_spaced=True, is_cut=True)


def _sharing(plan: RankedPlan) -> str:
    """Return a plan in a few words, without what it does not use."""
    sizes = {"TP": plan.tensor, "PP": plan.pipeline, "CP": plan.context, "EP": plan.expert}
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if plan.expert_tensor is not None:
        words.append("whole experts")
    if plan.virtual > 1:
        words.append(f"{plan.virtual} virtual stages")
    words.append(_copies(plan))
    of = "micro-batches of" if plan.micro_batches > 1 else "micro-batch of"
    words.append(f"{plan.micro_batches} {of} {plan.micro_batch}")
    if plan.loss == "fused":
        words.append("fused loss")
    if plan.offload != "none":
        words.append(f"{plan.offload} offloaded")
    words.append(
        "nothing recomputed" if plan.checkpointing == "none" else f"{plan.checkpointing} checkpointing"
    )
    return ", ".join(words)


def _copies(plan: RankedPlan) -> str:
    """Return how a plan shards, and among how many: devices that share a sequence hold shards as well."""
    peers = plan.replicas * plan.context
    if peers == 1:
        return "one replica"
    data = "fsdp, kept" if plan.data == "fsdp-no-reshard" else plan.data
    return f"{data} {peers}" if plan.shard_group is None else f"{data} {plan.shard_group} of {peers}"
