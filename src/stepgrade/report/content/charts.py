"""The sections of a scorecard's page that draw something: time, roofline, layers, steps, memory, ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepgrade.errors import name_fields
from stepgrade.model import Ledger
from stepgrade.model.layers import LayerStep, ModuleStep
from stepgrade.model.ledger import account_words
from stepgrade.model.memory import Memory
from stepgrade.model.scorecard import Scorecard, StepStats
from stepgrade.report import trace_links
from stepgrade.report.blocks import Bar, Bars, Heading, Paragraph
from stepgrade.report.content.details import details
from stepgrade.report.content.scorecard import is_from_timeline, shares
from stepgrade.report.figures import (
    Icicle,
    LaneChart,
    LayerChart,
    Legend,
    OperationTable,
    RankChart,
    RooflineChart,
    Shown,
    Slice,
    Stack,
    TraceHelp,
    empty,
    numbers,
)
from stepgrade.report.names import printable, shortened
from stepgrade.scoring.roofline import roofline_of
from stepgrade.scoring.standing import tail_of
from stepgrade.units import show_ms, show_share

OPERATIONS_SHOWN = 25
ROWS_KEPT = 2_000
RANKS_IN_TIMELINE = 8
RANKS_IN_LEDGER = 16
PHASES_SHOWN = 12
LAYERS_SHOWN = 256
LONGEST_MS = 1e300  # what is longer cannot be drawn


def ledger_slices(ledger: Ledger | None, step_ms: float | None) -> tuple[Slice, ...]:
    """Return the accounts that are worth drawing, with their figures."""
    return tuple(
        Slice(
            name=account_words(name),
            share=share,
            figures=f"{show_share(share)} ({show_ms(share * step_ms)})" if step_ms else show_share(share),
            look=f"account-{name}",
        )
        for name, share in shares(ledger).items()
    )


def ledger_section(card: Scorecard) -> Iterator[Shown]:
    """Yield where a step's time goes: as a whole, by rank, by phase."""
    if slices := ledger_slices(card.ledger, card.step_time_ms):
        told = "From the phases that the source names; it has no timeline of the device."
        if is_from_timeline(card.ledger):
            told = "What the device does in a step, from its timeline."
        yield Paragraph(f"{told} The parts add up to 100 %.")
        yield Stack((("Parts of a step", slices, ""),))
        yield Legend(slices)
        yield from _ledger_of_ranks(card)
    else:
        yield empty(
            "Neither a timeline of the device nor phases that fill the step are known. Record a trace with "
            "torch.profiler, or write phases into the step profile."
        )
    phases = [(name, phase.share, phase.ms) for name, phase in card.phases.items() if phase.share]
    if phases:
        phases.sort(key=lambda phase: -phase[1])
        rows = (
            Bar(shortened(name, 60), share, "", (show_share(share), show_ms(ms)))
            for name, share, ms in phases[:PHASES_SHOWN]
        )
        yield Heading("What it works on")
        yield Bars((), tuple(rows))


def _ledger_of_ranks(card: Scorecard) -> Iterator[Shown]:
    """Yield the ledgers of all ranks if they are few, else of those that wait least and most."""
    ranks = sorted(card.ranks, key=lambda row: (row.wait_ms or 0.0, row.rank))
    if not ranks:
        return
    yield Heading("By rank")
    if len(ranks) > RANKS_IN_LEDGER:
        half, many = RANKS_IN_LEDGER // 2, card.many_ranks
        ranks = [*ranks[:half], *ranks[-half:]]
        run = f" of the run's {many.ranks}" if many and many.ranks > len(card.ranks) else ""
        yield Paragraph(
            f"Of {len(card.ranks)}{run} ranks, the {half} that wait least for others and the {half} that "
            "wait most."
        )
    yield Stack(
        tuple(
            (f"rank {row.rank}", ledger_slices(row.ledger, row.step_ms), show_ms(row.step_ms))
            for row in sorted(ranks, key=lambda row: row.rank)
        )
    )


def timeline_section(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Shown]:
    """Yield steps over time, if the source shows any."""
    if not card.views:
        return
    numbered = dict.fromkeys(view.number for view in card.views)
    steps = tuple(
        tuple(view for view in card.views if view.number == number)[:RANKS_IN_TIMELINE] for number in numbered
    )
    another = name_fields("Others are drawn with {steps}.", flags)
    yield LaneChart(steps, card.findings, another, max(0, len(card.ranks) - len(steps[0])))


def roofline_section(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Shown]:
    """Yield operations under the roofs of the device."""
    found = roofline_of(card)
    if found is not None:
        kinds, missing = {roof.kind for roof in found.roofs}, ""
        if not kinds:
            missing = "Without the device's peaks there are no roofs: give {device}."
        elif "memory" not in kinds:
            missing = "Its memory bandwidth is not known, so there is no roof of memory: give {peak_bw_gb_s}."
        elif "compute" not in kinds:
            missing = "Its peak in this precision is not known, so there is no roof of arithmetic: "
            missing += "give {peak_tflops}."
        yield RooflineChart(found, name_fields(missing, flags))
    elif card.operations:
        why = "No operation's FLOPs and bytes are known: the source has no shapes. "
        yield empty(f"{why}Record with torch.profiler and record_shapes=True.")
    else:
        why = "The profile lists no operations. Record a trace with torch.profiler and record_shapes=True."
        yield empty(why)


def layers_section(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Shown]:
    """Yield the layers, and which stand out."""
    shown = tuple(layer for layer in card.layers if 0.0 < layer_ms(layer) < LONGEST_MS)[:LAYERS_SHOWN]
    if shown:
        left_out = max(0, len(card.layers) - LAYERS_SHOWN)
        yield LayerChart(shown, card.forward_backward_ratio, left_out)
        return
    why = next((one.said(flags) for one in card.notes if one.code == "no_layers"), None)
    unknown = "The source tells no layers apart. "
    yield empty(why or f"{unknown}Record with torch.profiler and with_modules or with_stack=True.")


def layer_ms(layer: LayerStep) -> float:
    """Return what a layer takes of a step."""
    return (layer.fwd_ms or 0.0) + (layer.recompute_ms or 0.0) + (layer.bwd_ms or 0.0)


def modules_section(card: Scorecard) -> Iterator[Shown]:
    """Yield the modules, if the source names any."""
    if sum(module_ms(module) for module in card.modules if module.parent is None) > 0.0:
        yield Icicle(card.modules)


def module_ms(module: ModuleStep) -> float:
    """Return what a module takes of a step."""
    return module.fwd_ms + module.bwd_ms + module.recompute_ms


def hotspots_section(card: Scorecard) -> Iterator[Shown]:
    """Yield the operations, the tables beneath them, and how to look at the trace."""
    if card.operations:
        first = card.operations[:OPERATIONS_SHOWN]
        yield OperationTable(
            tuple((op, trace_links.link(op.longest, card.source)) for op in first),
            len(card.operations),
            any(op.longest for op in card.operations),
            tail_of(card.operations, ROWS_KEPT),
        )
    else:
        why = "The profile lists no operations. Record a trace with torch.profiler, or write `ops` into the "
        yield empty(f"{why}step profile.")
    yield from details_section(card)
    if (link := trace_links.link(card.typical_step, card.source)) is not None:
        yield TraceHelp(link)


def details_section(card: Scorecard) -> Iterator[Shown]:
    """Yield shapes, collectives, stages, kernels and the like."""
    for one in details(card):
        yield Heading(one.heading)
        if one.about:
            yield Paragraph(one.about)
        rows = ((printable(row.name), *row.cells) for row in one.rows[:ROWS_KEPT])
        yield numbers(one.header, rows, one.heading)


def steps_section(steps: StepStats | None) -> Iterator[Shown]:
    """Yield the step times and their spread."""
    if steps is not None and len(steps.samples_ms) > 1:
        yield steps
    elif steps is not None and steps.samples_ms:
        yield empty("Only one step was recorded: it has no spread. Record ten steps or more.")
    else:
        why = (
            "The source has no single step times, only an average. Record a trace, or write a line per step."
        )
        yield empty(why)


def memory_section(memory: Memory | None) -> Iterator[Shown]:
    """Yield the memory over a step; nothing where only a peak is known."""
    if memory is not None and (memory.categories or memory.curve or memory.out_of_memory):
        yield memory


def ranks_section(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Shown]:
    """Yield the ranks at one look."""
    if card.ranks:
        yield RankChart(tuple(sorted(card.ranks, key=lambda row: row.rank)))
        return
    missing = next((one.said(flags) for one in card.fitness if one.code == "ranks_missing"), None)
    alone = "One rank was given. Give the traces of all ranks, or their folder, to see who waits for whom."
    yield empty(f"{missing} Give the traces of all ranks." if missing else alone)
