"""Tables beneath the figures: shapes, collectives, memory, ranks that hang. A document shows all rows."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepgrade.model.activity import KernelUse
from stepgrade.model.memory import CATEGORIES, Memory, OutOfMemory
from stepgrade.model.ranks import Hang
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.blocks import (
    Badge,
    Bar,
    Bars,
    Block,
    Column,
    Heading,
    Table,
    bullets,
    facts,
    share_bar,
)
from stepgrade.report.names import shortened
from stepgrade.units import (
    BYTES_PER_GB,
    MISSING,
    show_bytes,
    show_count,
    show_ms,
    show_number,
    show_ranks,
    show_share,
    show_si,
)

_SHAPES_SHOWN, _COLLECTIVES_SHOWN, _RANKS_SHOWN, _FRAMES_SHOWN = 4, 4, 8, 3
_OPERATIONS_WITH_KERNELS = 20
_COPIES_SHOWN, _COUNTERS_SHOWN, _HOLDERS_SHOWN, _CALLS_SHOWN = 4, 8, 6, 40
_LEAST_EXPOSED = 0.02  # of the step, in copies that nothing hides
_DIRECTIONS = {"h2d": "host to device", "d2h": "device to host"}
_LEAST_KNOWN = 0.5  # of the kernels' time, for their mean to be shown
_LEAST_IMBALANCE = 1.05  # of what ranks receive, to be worth a look
# Losses below a hundredth of the step are not worth a look.
_LEAST_LOSS = 0.01
HANG_VERDICTS = {
    "missing_rank": "ranks wait for one that never came",
    "mismatch": "ranks call different collectives",
    "deadlock": "ranks wait for each other",
    "unfinished": "a collective does not end",
    "one_rank": "one rank is not enough to tell",
    "none": "nothing shows that the run hangs",
}


class Detail(Struct, frozen=True):
    """A table; a terminal draws the first `shown` rows."""

    heading: str
    about: str
    header: tuple[str, ...]
    rows: tuple[Bar, ...]
    shown: int = 0


def details(card: Scorecard) -> list[Detail]:
    """Return the tables that the card has data for."""
    tables = (*_shapes_and_ranks(card), *_compiled(card), *_on_the_device(card))
    return [table for table in tables if table.rows]


def _shapes_and_ranks(card: Scorecard) -> Iterator[Detail]:
    """Yield shapes, collectives by message size, the stages of a pipeline, and what each rank receives."""
    lossy = [
        (row.ms * (1.0 - row.roof_share), op.name, row)
        for op in card.operations
        for row in op.shapes
        if row.shape and row.ms and row.roof_share is not None
    ]
    bars = []
    for lost, name, row in sorted(lossy, key=lambda each: -each[0]):
        cells = show_ms(lost), show_ms(row.ms), show_share(row.roof_share, 0)
        figures, narrow = f"{cells[0]:>9} of {cells[1]:>9} {cells[2]:>5}", f"{cells[0]:>9} {cells[2]:>5}"
        calls = show_count(row.calls and round(row.calls, 1))
        bars.append(Bar(f"{shortened(name, 60)} {row.shape}", lost, figures, (*cells, calls), narrow))
    least = _LEAST_LOSS * (card.step_time_ms or 0.0)
    yield Detail(
        "Shapes furthest below their roofs, and the share they reach",
        "One row for each operation and shape of its inputs: how much less time it would take at its own "
        "roof, how long it takes, and the share of the roof that it reaches.",
        ("Operation and shape", "Loses", "Per step", "Of its roof", "Calls"),
        tuple(bars),
        min(sum(lost >= least for lost, _, _ in lossy), _SHAPES_SHOWN),
    )
    bars = []
    for sent in card.collectives:
        rate = "≥ " * sent.at_least + _rate(sent.busbw_gb_s) if sent.busbw_gb_s is not None else ""
        size = MISSING if sent.bytes is None else show_bytes(sent.bytes)
        group = f", {sent.group_size} ranks" if sent.group_size else ""
        group += f", {sent.groups} groups" if sent.groups > 1 else ""
        share = show_share(sent.link_share, 0) if sent.link_share is not None else ""
        narrow = f"{show_ms(sent.ms):>9} {rate:>13}"
        algorithm = _rate(sent.algbw_gb_s or None)
        calls = show_count(sent.calls and round(sent.calls, 1))
        shown = (show_ms(sent.ms), show_ms(sent.wait_ms), rate, share, algorithm, calls)
        name = f"{shortened(sent.name, 60)} {size}{group}"
        bars.append(Bar(name, sent.ms or 0.0, f"{narrow} {share:>5}", shown, narrow))
    fits = "".join(
        f" {shortened(fit.name, 40)}: {show_ms(fit.latency_us / 1e3)} a call and {_rate(fit.gb_s)} beyond."
        for fit in card.collective_fits
    )
    yield Detail(
        "Collectives by message size: time, bus bandwidth, share of the link",
        "One row for each collective, group and size of its message, many groups alike in one. Rates are "
        f"over the time from the last rank's arrival on; with one rank they are lower bounds.{fits}",
        ("Collective", "Per step", "Of it waiting", "Bus bandwidth", "Of the link", "Bandwidth", "Calls"),
        tuple(bars),
        _COLLECTIVES_SHOWN,
    )
    if card.pipeline is not None:
        bars = []
        for stage in card.pipeline.stages:
            busy, bubble, transfer = map(show_ms, (stage.busy_ms, stage.bubble_ms, stage.transfer_ms))
            figures = f"{busy:>9} busy {bubble:>9} bubble {transfer:>9} transfer"
            times = (busy, bubble, transfer, show_share(stage.bubble_share))
            bars.append(Bar(f"rank {stage.rank}", stage.busy_ms, figures, times, f"{busy:>9} / {bubble:>9}"))
        ideal = show_share(card.pipeline.ideal_bubble_share)
        yield Detail(
            f"Pipeline: a bubble of {show_share(card.pipeline.bubble_share)}, {ideal} is its schedule's",
            "Each stage's time in a step: computing, waiting for others, and transferring messages.",
            ("Stage", "Busy", "Bubble", "Transfer", "Bubble of the step"),
            tuple(bars),
            len(bars),
        )
    for use in card.experts:
        if use.max_over_mean is not None:
            received = sorted(zip(use.received_bytes, use.ranks, strict=True), key=lambda each: -each[0])
            yield Detail(
                f"Exchanges: the busiest rank gets {use.max_over_mean:.2f}x the mean; ranks wait "
                f"{show_ms(use.wait_ms)} in them",
                "What each rank receives in the all-to-alls of a step: with experts, its tokens.",
                ("Rank", "Receives"),
                tuple(
                    Bar(f"rank {rank}", size, show_bytes(size), (show_bytes(size),))
                    for size, rank in received
                ),
                _RANKS_SHOWN if use.max_over_mean > _LEAST_IMBALANCE else 0,
            )


def _compiled(card: Scorecard) -> Iterator[Detail]:
    """Yield what torch.compile compiled, and where graphs break."""
    found = card.compile
    if found is None:
        return
    bars = []
    for frame in found.frames:
        cells = show_ms(frame.ms), show_count(frame.compiles), show_count(frame.recompiles)
        known = [shortened(text, 80) for text in (frame.function, _file_of(frame.where)) if text]
        guard = shortened(frame.guards[0].reason, 200) if frame.guards else ""
        figures = f"{cells[0]:>9}, {cells[2]} again"
        bars.append(Bar(", ".join((f"frame {frame.frame}", *known)), frame.ms, figures, (*cells, guard)))
    about = []
    if found.graph_breaks is not None:
        about.append(f"Graphs break {show_number(found.graph_breaks)} times in a steady step")
    if found.guard_ms is not None:
        about.append(f"checking guards takes {show_ms(found.guard_ms)} of it")
    if found.steps:
        steps = ", ".join(f"{show_ms(step.ms)} in step {step.step}" for step in found.steps[:_FRAMES_SHOWN])
        about.append(f"compiling takes {steps}")
    total = show_ms(found.total_ms if found.logged_ms is None else found.logged_ms)
    yield Detail(
        f"torch.compile: {total}, {found.recompiles} of {found.compiles} compiled again",
        f"{'; '.join(about)}." if about else "",
        ("Function", "Time", "Compilations", "Again", "Guard that failed"),
        tuple(bars),
        _FRAMES_SHOWN,
    )
    bars = []
    for end in found.breaks:
        if end.reason:
            name = f"{shortened(_file_of(end.where), 80)} {shortened(end.reason.split(': ')[0], 80)}"
            count = show_count(end.compiles)
            per_step = show_number(end.per_step)
            shown = (count, per_step, shortened(end.reason, 200))
            bars.append(Bar(name, float(end.compiles or 0), f"{count} compilations", shown))
    yield Detail(
        "Where compiled graphs break, and why",
        "One row for each line at which a compiled graph ends: how many compilations broke there, and, "
        "where a trace shows it, how often in a step.",
        ("Line", "Compilations", "In a step", "Why"),
        tuple(bars),
        _FRAMES_SHOWN,
    )


def _rate(gb_s: float | None) -> str:
    return show_si(None if gb_s is None else gb_s * BYTES_PER_GB, "B/s")


def _file_of(where: str | None) -> str:
    """Return file.py:line without its directories: the line must not be cut off."""
    return (where or "").rsplit("/", 1)[-1]


def _on_the_device(card: Scorecard) -> Iterator[Detail]:
    """Yield copies, the kernels under the longest operations, and the device's own counters."""
    bars = []
    for row in card.copies:
        rate = _rate(row.gb_s)
        size = MISSING if row.bytes is None else show_bytes(row.bytes)
        cells = show_ms(row.ms), rate, size, show_count(round(row.calls, 1))
        way = _DIRECTIONS.get(row.direction, row.direction)
        name = way if row.memory is None else f"{way}, {row.memory}"
        bars.append(Bar(name, row.ms, f"{cells[0]:>9} {rate:>11}", cells))
    exposed = (card.ledger.exposed_copy if card.ledger is not None else None) or 0.0
    yield Detail(
        "Copies between host and device",
        "Of a step, by direction and kind of the host's memory: time, bandwidth, bytes and calls.",
        ("Copies", "Per step", "Bandwidth", "Bytes", "Calls"),
        tuple(bars),
        _COPIES_SHOWN if exposed >= _LEAST_EXPOSED else 0,
    )
    bars = []
    for op in card.operations[:_OPERATIONS_WITH_KERNELS]:
        for kernel in op.kernels:
            cores = MISSING if kernel.tensor_cores is None else "yes" if kernel.tensor_cores else "no"
            blocks, registers = map(show_number, (kernel.blocks_per_sm, kernel.registers))
            ms, occupancy = show_ms(kernel.ms), show_share(kernel.occupancy, 0)
            figures = (shortened(op.name, 60), ms, occupancy, blocks, registers, cores)
            bars.append(Bar(shortened(kernel.name, 120), kernel.ms or 0.0, ms, figures))
    yield Detail(
        "Kernels of the longest operations",
        f"{kernel_sentence(card.kernel_use)} Occupancy is what the profiler estimates; where it writes "
        "0, it is computed from registers, shared memory and blocks.",
        ("Kernel", "Operation", "Per step", "Occupancy", "Blocks per SM", "Registers", "Tensor cores"),
        tuple(bars),
    )
    bars = []
    for counter in card.kernel_use.counters if card.kernel_use is not None else ():
        means = tuple(show_number(figure, 5) for figure in (counter.mean, counter.least, counter.most))
        figure = f"{means[0]:>12}"
        bars.append(
            Bar(shortened(counter.name, 120), counter.mean, figure, (*means, show_count(counter.samples)))
        )
    yield Detail(
        "Counters of the device: mean, least and most in the steady steps",
        "Samples of the device's hardware counters, under the names that the profiler gives them.",
        ("Counter", "Mean", "Least", "Most", "Samples"),
        tuple(bars),
        _COUNTERS_SHOWN,
    )


def kernel_sentence(use: KernelUse | None) -> str:
    """Return how kernels fill the device, in words; empty if unknown."""
    parts = []
    if use is not None and use.sm_efficiency is not None:
        parts.append(f"{show_share(use.sm_efficiency)} of the multiprocessors have work")
    if use is not None and use.occupancy is not None and (use.occupancy_known_share or 0.0) >= _LEAST_KNOWN:
        parts.append(f"mean occupancy is {show_share(use.occupancy)}")
    if use is not None and use.tensor_core_share is not None:
        parts.append(f"tensor cores do {show_share(use.tensor_core_share)} of the matrix products' time")
    if use is not None and use.queue is not None and use.queue.known_share >= _LEAST_KNOWN:
        parts.append(
            f"{show_number(use.queue.mean)} launches are queued on average, none for "
            f"{show_share(use.queue.empty_share)} of the step"
        )
    return f"{'; '.join(parts)}." if parts else ""


def out_of_memory_lines(failed: OutOfMemory) -> list[str]:
    """Return what was asked for, and where the memory was, in sentences."""
    lines = []
    where = f" in {shortened(failed.where, 80)}" if failed.where else ""
    capacity = show_bytes(failed.capacity_bytes) if failed.capacity_bytes else ""
    if failed.asked_bytes is not None:
        also = ""
        if failed.free_bytes is not None:
            also = f", and the device had {show_bytes(failed.free_bytes)} free"
        elif failed.allocated_bytes is None and failed.capacity_bytes is not None:
            also = f", and the device has {show_bytes(failed.capacity_bytes)}"
        lines.append(f"{show_bytes(failed.asked_bytes)} were asked for{where}{also}.")
    elif failed.allocated_bytes is None:
        lines.append("The driver or one of its libraries found no room; its message has no figures.")
    spare = failed.unallocated_bytes
    enough = spare is not None and failed.asked_bytes is not None and spare >= failed.asked_bytes
    why = ": enough, but in no piece that is large enough" if enough else ""
    sizes = (
        (failed.allocated_bytes, f"{f' of {capacity}' if capacity else ''} were in tensors."),
        (spare, f" were reserved and in no tensor{why}."),
        (failed.context_bytes or None, " were the driver's and the libraries' of this process."),
        (failed.other_processes_bytes or None, " were held by other processes on the device."),
    )
    return lines + [f"{show_bytes(size)}{text}" for size, text in sizes if size is not None]


def memory_use_blocks(memory: Memory) -> Iterator[Block]:
    """Yield why memory ran out, what it held at its peak, and who allocated it."""
    if memory.out_of_memory is not None:
        yield Heading("Out of memory")
        yield bullets(out_of_memory_lines(memory.out_of_memory))
    if memory.peak_bytes is None:
        return
    yield Heading("Device memory")
    yield facts(dict(memory_rows(memory)), 16)
    yield from memory_holders(memory)


def memory_holders(memory: Memory | None) -> Iterator[Block]:
    """Yield what memory holds at its peak, by kind and by who allocated it."""
    if memory is None:
        return
    whole = sum(memory.categories.values())
    bars = tuple(
        share_bar(name, amount, show_bytes(amount), amount / whole, 10)
        for name in CATEGORIES
        if (amount := memory.categories.get(name))
    )
    if bars:
        yield Bars(("At the peak", "Bytes", "Share"), bars)
    if memory.holders:
        yield Heading("Who allocated it")
        yield Table(
            (
                Column("From", fills=True, look="name"),
                Column("As", width=12),
                Column("Bytes", width=10, right=True, look="number"),
            ),
            tuple(
                (shortened(holder.shown, 60), shortened(holder.category or "", 20), show_bytes(holder.bytes))
                for holder in memory.holders[:_HOLDERS_SHOWN]
            ),
            label="Who allocated it",
        )


def memory_rows(memory: Memory) -> Iterator[tuple[str, str]]:
    """Yield the figures by their names."""
    if memory.peak_bytes is not None:
        of = f" of {show_bytes(memory.capacity_bytes)}" if memory.capacity_bytes else ""
        yield "peak", f"{show_bytes(memory.peak_bytes)}{of}"
    peak = memory.peak_at
    if peak is not None and (peak.op or peak.where):
        first, *rest = [shortened(part, 60) for part in (peak.layer, peak.where) if part] or [""]
        inside = f" in {first}" if first else ""
        yield "peak at", f"{shortened(peak.op or 'code', 60)}{inside}{f' ({rest[0]})' if rest else ''}"
    if memory.headroom_bytes is not None:
        left = memory.headroom_bytes
        yield "free", show_bytes(left) if left >= 0 else f"nothing: {show_bytes(-left)} too much"
    if memory.reserved_bytes:
        lost = memory.fragmentation
        in_fragments = f", {show_share(lost)} of it in no tensor at the peak" if lost else ""
        yield "reserved", f"{show_bytes(memory.reserved_bytes)}{in_fragments}"
    if memory.retries:
        yield "retries", f"{show_count(memory.retries)} times the allocator found no room and asked again"
    if memory.growth is not None:
        yield "grows", f"{show_bytes(memory.growth.bytes_per_step)} with every step"


def hang_blocks(hang: Hang) -> Iterator[Block]:
    """Yield the answer in a line, and the last collective of every rank."""
    answer = {"none": "no hang", "one_rank": "not known"}.get(hang.kind, "hang")
    style = "badge-bad" if answer == "hang" else "badge-none"
    yield Badge(answer, style, HANG_VERDICTS[hang.kind], "title")
    yield Heading("Where the ranks are")
    yield bullets(
        f"{ranks}: {call}{f' at {where}' if where else ''}{f', {state}' if state else ''}"
        for ranks, call, where, state in hang_rows(hang)
    )


def hang_rows(hang: Hang) -> Iterator[tuple[str, str, str, str]]:
    """Yield the last call of ranks, starting with those named in the answer."""
    named = {*hang.missing, *(rank for row in hang.differences[:1] for rank in row.ranks)}
    rows = sorted(hang.last_calls, key=lambda row: (named.isdisjoint(row.ranks), len(row.ranks), row.ranks))
    for row in rows[:_CALLS_SHOWN]:
        called = "none"
        if row.name is not None:
            called = f"{shortened(row.name, 40)} {row.sequence} of {shortened(row.group or '', 40)}"
        yield show_ranks(row.ranks), called, shortened(row.where or "", 60), row.state or ""
    if len(rows) > _CALLS_SHOWN:
        yield f"{len(rows) - _CALLS_SHOWN} more", "", "", ""
