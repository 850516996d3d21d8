"""Tables beneath the figures: shapes, collectives, stages. A terminal shows what matters, a document all."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepgrade.model.activity import KernelUse
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.blocks import Bar, Bars, Block, Heading, Only, more, shorten
from stepgrade.report.names import shortened
from stepgrade.units import MISSING, show_bytes, show_count, show_ms, show_share

ROWS_KEPT = 100  # in a document
_SHAPES_SHOWN, _COLLECTIVES_SHOWN, _RANKS_SHOWN, _FRAMES_SHOWN = 4, 4, 8, 3
_OPERATIONS_WITH_KERNELS = 20
_COPIES_SHOWN, _COUNTERS_SHOWN = 4, 8
_LEAST_EXPOSED = 0.02  # of the step, in copies that nothing hides
_DIRECTIONS = {"h2d": "host to device", "d2h": "device to host"}
_LEAST_KNOWN = 0.5  # of the kernels' time, for a mean of them to be told
_LEAST_IMBALANCE = 1.05  # of what ranks receive: below, nobody looks at them
# Below a hundredth of the step nobody looks for what a shape loses.
_LEAST_LOSS = 0.01


class Detail(Struct, frozen=True):
    """One table, the first `shown` rows of which are drawn in a terminal."""

    name: str
    heading: str
    about: str
    header: tuple[str, ...]
    rows: tuple[Bar, ...]
    shown: int = 0


def details(card: Scorecard) -> Iterator[Detail]:
    """Yield the tables that the card has anything for."""
    yield from shapes(card)
    yield from collectives(card)
    yield from stages(card)
    yield from experts(card)
    yield from compiled(card)
    yield from copies(card)
    yield from kernels(card)
    yield from counters(card)


def detail_blocks(card: Scorecard) -> Iterator[Block]:
    """Yield the tables for terminal and Markdown."""
    for detail in details(card):
        only: Only = None if detail.shown else "full"
        yield Heading(detail.heading, only=only)
        yield Bars(
            detail.header, shorten(detail.rows[:ROWS_KEPT], detail.shown), has_long_names=True, only=only
        )
        if detail.shown:
            yield from more(len(detail.rows), detail.shown, ROWS_KEPT)


def shapes(card: Scorecard) -> Iterator[Detail]:
    """Yield what loses most against its own roof, by operation and shape."""
    rows = [
        (row.ms * (1.0 - row.roof_share), op.name, row)
        for op in card.operations
        for row in op.shapes
        if row.shape and row.ms and row.roof_share is not None
    ]
    rows.sort(key=lambda each: -each[0])
    if not rows:
        return
    bars = []
    for lost, name, row in rows:
        cells = show_ms(lost), show_ms(row.ms), show_share(row.roof_share, 0)
        calls = show_count(None if row.calls is None else round(row.calls, 1))
        bars.append(
            Bar(
                f"{shortened(name, 60)} {row.shape}",
                lost,
                f"{cells[0]:>9} of {cells[1]:>9} {cells[2]:>5}",
                (*cells, calls),
                narrow=f"{cells[0]:>9} {cells[2]:>5}",
            )
        )
    least = _LEAST_LOSS * (card.step_time_ms or 0.0)
    yield Detail(
        "shapes",
        "Shapes that lose most against their roofs, and the share of them they reach",
        "One row for each operation and shape of its inputs: how much less time it would take at its own "
        "roof, how long it takes, and the share of the roof that it reaches.",
        ("Operation and shape", "Loses", "Per step", "Of its roof", "Calls"),
        tuple(bars),
        min(sum(lost >= least for lost, _, _ in rows), _SHAPES_SHOWN),
    )


def collectives(card: Scorecard) -> Iterator[Detail]:
    """Yield collectives by message size, with their rates."""
    bars = []
    for row in card.collectives:
        rate = "" if row.busbw_gb_s is None else f"{'≥ ' if row.at_least else ''}{row.busbw_gb_s:,.4g} GB/s"
        size = MISSING if row.bytes is None else show_bytes(row.bytes)
        group = f", {row.group_size} ranks" if row.group_size else ""
        group += f", {row.groups} groups" if row.groups > 1 else ""
        calls = show_count(None if row.calls is None else round(row.calls, 1))
        share = show_share(row.link_share, 0) if row.link_share is not None else ""
        cells = show_ms(row.ms), show_ms(row.wait_ms) if row.wait_ms is not None else MISSING, rate, share
        bars.append(
            Bar(
                f"{shortened(row.name, 60)} {size}{group}",
                row.ms or 0.0,
                f"{cells[0]:>9} {rate:>13} {share:>5}",
                (*cells, f"{row.algbw_gb_s:,.4g} GB/s" if row.algbw_gb_s else MISSING, calls),
                narrow=f"{cells[0]:>9} {rate:>13}",
            )
        )
    if not bars:
        return
    fits = "".join(
        f" {shortened(fit.name, 40)}: {fit.latency_us:,.3g} µs a call and {fit.gb_s:,.4g} GB/s beyond."
        for fit in card.collective_fits
    )
    yield Detail(
        "collectives",
        "Collectives by message size: time, bus bandwidth, share of the link",
        "One row for each collective, group and size of its message, many groups alike in one. Rates are "
        f"over the time from the last rank's arrival on; with one rank alone they are lower bounds.{fits}",
        ("Collective", "Per step", "Of it waiting", "Bus bandwidth", "Of the link", "Bandwidth", "Calls"),
        tuple(bars),
        min(len(bars), _COLLECTIVES_SHOWN),
    )


def stages(card: Scorecard) -> Iterator[Detail]:
    """Yield the stages of a pipeline."""
    if card.pipeline is None:
        return
    bars = []
    for stage in card.pipeline.stages:
        cells = tuple(show_ms(ms) for ms in (stage.busy_ms, stage.bubble_ms, stage.transfer_ms))
        bars.append(
            Bar(
                f"rank {stage.rank}",
                stage.busy_ms,
                f"{cells[0]:>9} busy {cells[1]:>9} bubble {cells[2]:>9} transfer",
                (*cells, show_share(stage.bubble_share)),
                narrow=f"{cells[0]:>9} / {cells[1]:>9}",
            )
        )
    ideal = show_share(card.pipeline.ideal_bubble_share)
    yield Detail(
        "pipeline",
        f"Pipeline: a bubble of {show_share(card.pipeline.bubble_share)}, {ideal} is its schedule's",
        "Each stage's time in a step: computing, waiting for others, and while messages are on their way.",
        ("Stage", "Busy", "Bubble", "Transfer", "Bubble of the step"),
        tuple(bars),
        len(bars),
    )


def copies(card: Scorecard) -> Iterator[Detail]:
    """Yield copies between host and device; a terminal shows them where the device waits for them."""
    bars = []
    for row in card.copies:
        rate = MISSING if row.gb_s is None else f"{row.gb_s:,.3g} GB/s"
        size = MISSING if row.bytes is None else show_bytes(row.bytes)
        cells = show_ms(row.ms), rate, size, show_count(round(row.calls, 1))
        way = _DIRECTIONS.get(row.direction, row.direction)
        name = way if row.memory is None else f"{way}, {row.memory}"
        bars.append(Bar(name, row.ms, f"{cells[0]:>9} {rate:>11}", cells))
    exposed = card.ledger.exposed_copy if card.ledger is not None else None
    if bars:
        yield Detail(
            "copies",
            "Copies between host and device",
            "Of a step, by direction and kind of the host's memory: time, bandwidth, bytes and calls.",
            ("Copies", "Per step", "Bandwidth", "Bytes", "Calls"),
            tuple(bars),
            min(len(bars), _COPIES_SHOWN) if (exposed or 0.0) >= _LEAST_EXPOSED else 0,
        )


def counters(card: Scorecard) -> Iterator[Detail]:
    """Yield what the device's own counters say of the steady steps."""
    found = card.kernel_use.counters if card.kernel_use is not None else ()
    if found:
        yield Detail(
            "counters",
            "Counters of the device: mean, least and most in the steady steps",
            "Samples of the device's hardware counters, under the names that the profiler gives them.",
            ("Counter", "Mean", "Least", "Most", "Samples"),
            tuple(
                Bar(
                    shortened(one.name, 120),
                    one.mean,
                    f"{one.mean:>12,.5g}",
                    (f"{one.mean:,.5g}", f"{one.least:,.5g}", f"{one.most:,.5g}", show_count(one.samples)),
                )
                for one in found
            ),
            min(len(found), _COUNTERS_SHOWN),
        )


def kernels(card: Scorecard) -> Iterator[Detail]:
    """Yield the kernels under the longest operations, for documents."""
    bars = []
    for op in card.operations[:_OPERATIONS_WITH_KERNELS]:
        for kernel in op.kernels:
            cores = MISSING if kernel.tensor_cores is None else "yes" if kernel.tensor_cores else "no"
            blocks, registers = (
                MISSING if figure is None else f"{figure:,.3g}"
                for figure in (kernel.blocks_per_sm, kernel.registers)
            )
            occupancy = MISSING if kernel.occupancy is None else show_share(kernel.occupancy, 0)
            cells = shortened(op.name, 60), show_ms(kernel.ms), occupancy, blocks, registers, cores
            bars.append(Bar(shortened(kernel.name, 120), kernel.ms or 0.0, show_ms(kernel.ms), cells))
    if bars:
        yield Detail(
            "kernels",
            "Kernels of the longest operations",
            f"{kernel_sentence(card.kernel_use)} Occupancy is what the profiler estimates; where it writes "
            "0, it is worked out from registers, shared memory and blocks.",
            ("Kernel", "Operation", "Per step", "Occupancy", "Blocks per SM", "Registers", "Tensor cores"),
            tuple(bars),
        )


def kernel_sentence(use: KernelUse | None) -> str:
    """Return how kernels fill the device, in words; empty where nothing is known."""
    said = []
    if use is not None and use.sm_efficiency is not None:
        said.append(f"{show_share(use.sm_efficiency)} of the multiprocessors have work")
    if use is not None and use.occupancy is not None and (use.occupancy_known_share or 0.0) >= _LEAST_KNOWN:
        said.append(f"those that have hold {show_share(use.occupancy)} of the warps they can")
    if use is not None and use.tensor_core_share is not None:
        said.append(f"tensor cores do {show_share(use.tensor_core_share)} of the matrix products' time")
    if use is not None and use.queue is not None and use.queue.known_share >= _LEAST_KNOWN:
        said.append(
            f"{use.queue.mean:,.3g} launches wait to begin on average, none for "
            f"{show_share(use.queue.empty_share)} of the step"
        )
    return f"{'; '.join(said)}." if said else ""


def compiled(card: Scorecard) -> Iterator[Detail]:
    """Yield what torch.compile compiled, and where graphs break."""
    found = card.compile
    if found is None:
        return
    bars = []
    for frame in found.frames:
        cells = show_ms(frame.ms), show_count(frame.compiles), show_count(frame.recompiles)
        told = [frame.function, _file_of(frame.where)]
        name = ", ".join((f"frame {frame.frame}", *(shortened(text, 80) for text in told if text)))
        guard = shortened(frame.guards[0].reason, 200) if frame.guards else ""
        bars.append(Bar(name, frame.ms, f"{cells[0]:>9}, {frame.recompiles} again", (*cells, guard)))
    if bars:
        about = []
        if found.graph_breaks is not None:
            about.append(f"Graphs break {found.graph_breaks:.3g} times in a steady step")
        if found.guard_ms is not None:
            about.append(f"looking for compiled code whose guards hold takes {show_ms(found.guard_ms)} of it")
        if found.steps:
            steps = ", ".join(f"{show_ms(one.ms)} in step {one.step}" for one in found.steps[:_FRAMES_SHOWN])
            about.append(f"compiling takes {steps}")
        total = show_ms(found.total_ms if found.logged_ms is None else found.logged_ms)
        yield Detail(
            "compile",
            f"torch.compile: {total}, {found.recompiles} of {found.compiles} compiled again",
            f"{'; '.join(about)}." if about else "",
            ("Function", "Time", "Compilations", "Again", "Guard that failed"),
            tuple(bars),
            min(len(bars), _FRAMES_SHOWN),
        )
    broken = [(one, one.reason) for one in found.breaks if one.reason]
    if broken:
        yield Detail(
            "graph-breaks",
            "Where compiled graphs break, and why",
            "One row for each line at which a compiled graph ends: how many compilations broke there, and, "
            "where a trace tells, how often in a step.",
            ("Line", "Compilations", "In a step", "Why"),
            tuple(
                Bar(
                    " ".join((shortened(_file_of(one.where), 80), shortened(reason.split(": ")[0], 80))),
                    float(one.compiles or 0),
                    f"{show_count(one.compiles)}x",
                    (
                        show_count(one.compiles),
                        MISSING if one.per_step is None else f"{one.per_step:.3g}",
                        shortened(reason, 200),
                    ),
                )
                for one, reason in broken
            ),
            min(len(broken), _FRAMES_SHOWN),
        )


def _file_of(where: str | None) -> str:
    """Return file.py:line without its directories: the line must not be cut off."""
    return (where or "").rsplit("/", 1)[-1]


def experts(card: Scorecard) -> Iterator[Detail]:
    """Yield what each rank receives in exchanges of tokens, where they differ."""
    for use in card.experts:
        if use.max_over_mean is None:
            continue
        bars = tuple(
            Bar(f"rank {rank}", size, show_bytes(size), (show_bytes(size),))
            for rank, size in sorted(
                zip(use.ranks, use.received_bytes, strict=True), key=lambda each: -each[1]
            )
        )
        yield Detail(
            "experts",
            f"Exchanges: the busiest rank gets {use.max_over_mean:.2f}x the mean; ranks wait "
            f"{show_ms(use.wait_ms)} in them",
            "What each rank receives in the all-to-alls of a step: with experts, its tokens.",
            ("Rank", "Receives"),
            bars,
            min(len(bars), _RANKS_SHOWN) if use.max_over_mean > _LEAST_IMBALANCE else 0,
        )
