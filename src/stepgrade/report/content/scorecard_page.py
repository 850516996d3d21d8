"""The scorecard as a page: its sections and charts, and links that open the trace in Perfetto."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from urllib.parse import quote

import msgspec

from stepgrade._version import __version__
from stepgrade.errors import name_fields
from stepgrade.model import Ledger, Source, Span
from stepgrade.model.ledger import account_words
from stepgrade.model.notes import texts_of
from stepgrade.model.operations import LayerStep, ModuleStep
from stepgrade.model.scorecard import Finding, Scorecard
from stepgrade.report.blocks import (
    Block,
    Bullet,
    Bullets,
    Column,
    Fact,
    Facts,
    Heading,
    Paragraph,
    Table,
    bullets,
)
from stepgrade.report.content import comparison
from stepgrade.report.content.details import (
    HANG_VERDICTS,
    details,
    hang_rows,
    memory_holders,
    memory_rows,
    out_of_memory_lines,
)
from stepgrade.report.content.scorecard import (
    arithmetic_words,
    evidence_rows,
    gain,
    headline,
    hfu_words,
    is_from_timeline,
    is_of_memory,
    is_worth_showing,
    joint_gain,
    shares,
    time_blocks,
    without_it,
)
from stepgrade.report.figures import (
    Ceilings,
    FindingList,
    FindingRow,
    Halves,
    Icicle,
    LaneChart,
    LayerChart,
    Legend,
    OperationTable,
    Page,
    RankChart,
    RooflineChart,
    Section,
    Shown,
    Slice,
    Stack,
    Tiles,
    TraceHelp,
    empty,
    numbers,
)
from stepgrade.report.names import BOTTLENECKS, joined, plural, printable, shortened
from stepgrade.scoring.charts import roofline_of, standings, tail_of
from stepgrade.units import show_count, show_ms, show_rate, show_samples_rate, show_share, show_si

# Perfetto's page takes no trace from a page opened as a file (browsers give those no origin), but it fetches
# one from port 9001 of the same machine and shows the stretch that the link names.
PERFETTO_PAGE = "https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A9001%2F"
PERFETTO_SERVER = (
    "from http.server import HTTPServer, SimpleHTTPRequestHandler as Files\n"
    "class Shared(Files):\n"
    "    def end_headers(self):\n"
    '        self.send_header("Access-Control-Allow-Origin", "https://ui.perfetto.dev")\n'
    "        super().end_headers()\n"
    'HTTPServer(("127.0.0.1", 9001), Shared).serve_forever()'
)
# Some time on both sides, so that what comes before and after can be seen.
PERFETTO_MARGIN = 0.25
_LONGEST_FILE_NAME = 255  # of every file system in use


# Which roofs a roofline has -> what to say of those that it lacks.
_MISSING_ROOFS = {
    frozenset[str](): "Without the device's peaks there are no roofs: give {device}.",
    frozenset({"compute"}): "Its memory bandwidth is not known, so there is no memory roof: "
    "give {peak_bw_gb_s}.",
    frozenset({"memory"}): "Its peak in this precision is not known, so there is no compute roof: "
    "give {peak_tflops}.",
}
OPERATIONS_SHOWN = 25
ROWS_KEPT = 2_000
RANKS_IN_TIMELINE = 8
RANKS_IN_LEDGER = 16
PHASES_SHOWN = 12
LAYERS_SHOWN = 256
LONGEST_MS = 1e300  # longer times cannot be drawn


FINDINGS_FIRST = 3
FILES_SHOWN = 16
CAUSES_SHOWN = 12


def page(card: Scorecard, flags: Mapping[str, str]) -> Page:
    """Return the sections that the card has data for."""
    first = card.source.files[0] if card.source.files else ""
    more = f" and {len(card.source.files) - 1} more" if len(card.source.files) > 1 else ""
    found = [_finding(finding, card) for finding in card.findings]
    # A log of torch.compile alone, and a run that hangs, have no steps: sections on steps would be empty.
    only_compiled = card.compile is not None and not card.operations and card.steps is None
    has_steps = card.hang is None and not only_compiled and not is_of_memory(card)
    verdict = _verdict(card, flags, found, has_steps=has_steps)
    sections = [Section("verdict", "Verdict", "", tuple(verdict))]
    if card.hang is not None:
        heads = ("ranks", "last collective", "at", "state")
        columns = tuple(Column(head, look="isolated") for head in heads)
        table = Table(columns, tuple(hang_rows(card.hang)), label="The last collective of every rank")
        answer = Paragraph(HANG_VERDICTS[card.hang.kind], style="title")
        sections.append(Section("hang", "Ranks", "Where the ranks are", (answer, table)))
    elif is_of_memory(card):
        sections.append(Section("memory", "Memory", "Device memory", tuple(_memory(card))))
    elif only_compiled:
        tables = tuple(_detail_tables(card))
        sections.append(Section("compilation", "Compilation", "What was compiled", tables))
    else:
        sections += _step_sections(card, flags)
    blocks: list[Shown] = [FindingList(tuple(found)), *joint_gain(card)] if found else []
    said = {finding.remedy for finding in card.findings}
    if others := [text for text in card.recommendations if text not in said]:
        blocks += [Heading("What to do next"), Bullets(tuple(Bullet(text, "1.") for text in others))]
    if tips := list(_would_show_more(card, flags)):
        blocks += [Heading("What would show more"), bullets(tips)]
    sections.append(Section("findings", "Findings", "Findings", tuple(blocks)))
    if has_steps and card.ranks:
        ranks = RankChart(tuple(sorted(card.ranks, key=lambda row: row.rank)))
        sections.append(Section("ranks", "Ranks", "Ranks", (ranks,)))
    origin = tuple(_provenance(card, flags))
    sections.append(Section("provenance", "Provenance", "Where the numbers come from", origin))
    return Page(
        f"{card.grade}: {shortened(first, 80)}" if first else card.grade,
        shortened(first, 120) + more if first else printable(card.source.format),
        tuple(section for section in sections if section.blocks),
    )


def _step_sections(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Section]:
    yield Section("baseline", "Baseline", "Against the baseline", tuple(_baseline(card, flags)))
    title = "Where the time goes" if card.goodput is not None else "Where a step goes"
    yield Section("ledger", "Time", title, tuple(_ledger(card)))
    if card.views:
        numbered = dict.fromkeys(view.number for view in card.views)
        # The rank that waits least is the one the others wait for: it comes first.
        waits = {row.rank: row.wait_ms or 0.0 for row in card.ranks}
        ordered = sorted(card.views, key=lambda view: (waits.get(view.rank or 0, 0.0), view.rank or 0))
        steps = tuple(
            tuple(view for view in ordered if view.number == number)[:RANKS_IN_TIMELINE]
            for number in numbered
        )
        another = name_fields("Others are drawn with {steps}.", flags)
        lanes = LaneChart(steps, card.findings, another, max(0, len(card.ranks) - len(steps[0])))
        yield Section("timeline", "One step", "One step", (lanes,))
    if (roofline := roofline_of(card)) is not None:
        kinds = frozenset(roof.kind for roof in roofline.roofs)
        plot = RooflineChart(roofline, name_fields(_MISSING_ROOFS.get(kinds, ""), flags))
        yield Section("roofline", "Roofline", "Roofline", (plot,))
    if drawn := tuple(layer for layer in card.layers if 0.0 < layer_ms(layer) < LONGEST_MS)[:LAYERS_SHOWN]:
        left_out = max(0, len(card.layers) - LAYERS_SHOWN)
        chart = LayerChart(drawn, card.forward_backward_ratio, left_out)
        yield Section("layers", "Layers", "Layers", (chart,))
    if sum(module_ms(module) for module in card.modules if module.parent is None) > 0.0:
        yield Section("modules", "Modules", "Modules", (Icicle(card.modules),))
    operations: tuple[Shown, ...] = ()
    if card.operations:
        table = OperationTable(
            tuple((op, perfetto_link(op.longest, card.source)) for op in card.operations[:OPERATIONS_SHOWN]),
            len(card.operations),
            any(op.longest for op in card.operations),
            any(op.roof_share is not None for op in card.operations),
            tail_of(card.operations, ROWS_KEPT),
        )
        operations = (table,)
    link = perfetto_link(card.typical_step, card.source)
    help_ = () if link is None else (TraceHelp(link),)
    yield Section("hotspots", "Hotspots", "Hotspots", (*operations, *_detail_tables(card), *help_))
    if card.steps is not None and len(card.steps.samples_ms) > 1:
        yield Section("steps", "Steps", "Step times", (card.steps,))
    yield Section("memory", "Memory", "Device memory", tuple(_memory(card)))


def _memory(card: Scorecard) -> Iterator[Shown]:
    """Yield why memory ran out, and what it held."""
    memory = card.memory
    if memory is None:
        return
    if memory.out_of_memory is not None:
        yield Heading("Out of memory")
        yield bullets(out_of_memory_lines(memory.out_of_memory))
    if memory.peak_bytes is not None or memory.categories or memory.curve:
        yield memory


def _would_show_more(card: Scorecard, flags: Mapping[str, str]) -> Iterator[str]:
    """Yield what to give or to record to see more, as far as it fits the source."""
    if any(one.code == "ranks_missing" for one in card.fitness):
        yield "The traces of all ranks, or their folder, show who waits for whom."
    if card.source.format == "kineto" and card.operations:
        if not any(op.flops or op.bytes for op in card.operations):
            yield "With record_shapes=True, operations have FLOPs and bytes, and a share of their roofs."
        if not card.modules:
            yield "With with_stack=True, time is shown by module and by line of code."
    if card.operations and not card.ceilings and card.work != "inference":
        yield name_fields(
            "Give {device} and {model} with {batch} and {seq}: a ceiling in tokens per second.", flags
        )


def layer_ms(layer: LayerStep) -> float:
    """Return how long a layer takes in a step."""
    return (layer.fwd_ms or 0.0) + (layer.recompute_ms or 0.0) + (layer.bwd_ms or 0.0)


def module_ms(module: ModuleStep) -> float:
    """Return how long a module takes in a step."""
    return module.fwd_ms + module.bwd_ms + module.recompute_ms


def _ledger(card: Scorecard) -> Iterator[Shown]:
    """Yield where a step's time goes: as a whole, by rank, by phase."""
    if slices := ledger_slices(card.ledger, card.step_time_ms):
        basis = "From the phases that the source names; it has no timeline of the device."
        if is_from_timeline(card.ledger):
            basis = "What the device does in a step, from its timeline."
        yield Paragraph(f"{basis} The parts add up to 100 %.")
        yield Stack((("Parts of a step", slices, ""),))
        yield Legend(slices)
        ranks = sorted(card.ranks, key=lambda row: (row.wait_ms or 0.0, row.rank))
        if ranks:
            yield Heading("By rank")
        if len(ranks) > RANKS_IN_LEDGER:
            half, many = RANKS_IN_LEDGER // 2, card.many_ranks
            ranks = [*ranks[:half], *ranks[-half:]]
            run = f" of the run's {many.ranks}" if many and many.ranks > len(card.ranks) else ""
            text = f"the {half} that wait least for others and the {half} that wait most."
            yield Paragraph(f"Of {len(card.ranks)}{run} ranks, {text}")
        rows = (
            (f"rank {row.rank}", ledger_slices(row.ledger, row.step_ms), show_ms(row.step_ms))
            for row in sorted(ranks, key=lambda row: row.rank)
        )
        if ranks:
            yield Stack(tuple(rows))
    yield from time_blocks(card)


def _detail_tables(card: Scorecard) -> Iterator[Shown]:
    for one in details(card):
        yield Heading(one.heading)
        if one.about:
            yield Paragraph(one.about)
        rows = ((printable(row.name), *row.cells) for row in one.rows[:ROWS_KEPT])
        yield numbers(one.header, rows, one.heading)


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


def _verdict(
    card: Scorecard, flags: Mapping[str, str], found: list[FindingRow], *, has_steps: bool
) -> Iterator[Shown]:
    if card.baseline is not None:
        yield from comparison.difference_blocks(card.differences, flags, compared=bool(card.compared))
    yield headline(card, flags)
    columns: list[tuple[Shown, ...]] = []
    if shown := tuple(tiles(card, flags)):
        yield Tiles(shown)
    if has_steps:
        columns.append(tuple(_limits(card)))
    elif is_of_memory(card) and (held := tuple(memory_holders(card.memory))):
        columns.append((Heading("What holds it", level=2), *held))
    todo: list[Shown] = []
    if found:
        rest = max(0, len(found) - FINDINGS_FIRST)
        todo.append(FindingList(tuple(found[:FINDINGS_FIRST]), is_brief=True, more=rest))
    elif card.recommendations:
        todo.append(Bullets(tuple(map(Bullet, card.recommendations)), look="todo"))
    elif has_steps:
        todo.append(Paragraph("Nothing stands out."))
    if todo:
        todo.insert(0, Heading("What to do first", level=2))
    if card.unreported_warnings:
        todo += [Heading("Caveats", level=2), bullets(texts_of(card.unreported_warnings, flags))]
    yield Halves((*columns, tuple(todo)) if todo else tuple(columns))


def _limits(card: Scorecard) -> Iterator[Shown]:
    """Yield what holds the run back, its cause first, and what the hardware allows."""
    cause, *more = card.bottleneck_evidence or ("",)
    cause = cause or bottleneck_words(card)
    yield Heading("What holds it back", level=2)
    yield Paragraph(f"{cause[0].upper()}{cause[1:]}.", style="big")
    yield from (Paragraph(f"{text}.", style="says") for text in more)
    if without := without_it(card):
        yield Paragraph(f"{without}.", style="says")
    if card.bottleneck_evidence:
        yield Paragraph(bottleneck_words(card), style="note")
    if ceilings := standings(card):
        yield Heading("What the hardware allows", level=2)
        yield Ceilings(ceilings)


def tiles(card: Scorecard, flags: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the figures of the first screen: name, value and basis."""
    if card.memory is not None and is_of_memory(card):
        for name, text in memory_rows(card.memory):
            value, _, basis = text.partition(", ")
            yield name.capitalize(), value, basis
    elif card.hang is None and (card.steps is not None or card.compile is None):
        yield from _rate_tiles(card, flags)
        if card.goodput is not None:
            of = f"of {show_ms(card.goodput.wall_s * 1e3)}"
            yield "Goodput", show_share(card.goodput.productive), of
        if card.mfu is not None:
            yield "MFU", show_share(card.mfu), joined(card.flops_convention, hfu_words(card))
        elif card.arithmetic is not None and is_worth_showing(card.arithmetic):
            done, counted = arithmetic_words(card.arithmetic)
            value, _, peak = done.partition(" of ")
            yield "Arithmetic", value, joined(peak and f"of {peak}", counted)
        if card.launches_per_step is not None:
            yield "Launches", show_count(round(card.launches_per_step)), "per step"


def _rate_tiles(card: Scorecard, flags: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the throughput and the step."""

    def interval(show: Callable[[float], str], low: float | None, high: float | None) -> str | None:
        return None if low is None or high is None else f"95 % interval {show(low)} to {show(high)}"

    rate, steps = card.throughput, card.steps
    if rate is not None:
        basis = joined(interval(show_rate, rate.low, rate.high), rate.basis)
        yield "Throughput", show_rate(rate.tok_s), basis
    elif card.samples_s is not None:
        yield "Throughput", show_samples_rate(card.samples_s), "samples per step over the step time"
    elif card.operations:
        supply = name_fields("give {tokens_per_step} or {throughput_tok_s}", flags)
        yield "Throughput", "not known", supply
    if card.step_time_ms is not None:
        basis = "average; single steps were not recorded"
        if steps is not None and steps.median_ms is not None:
            between = interval(show_ms, steps.low_ms, steps.high_ms)
            basis = joined(
                f"median {show_ms(steps.median_ms)}", between, plural(len(steps.samples_ms), "step")
            )
        yield "Step", show_ms(card.step_time_ms), basis


def bottleneck_words(card: Scorecard) -> str:
    """Return what holds the run back."""
    return BOTTLENECKS.get(card.bottleneck, card.bottleneck)


def _baseline(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Shown]:
    if card.baseline is None:
        return
    compared = ", ".join(comparison.title_of(metric) for metric in card.compared)
    name = shortened(card.baseline, comparison.NAME_CELLS)
    yield Paragraph("Compared with ", name=name, after=f": {compared}." if compared else ".")
    if card.regressions:
        rows = (
            Bullet(
                comparison.title_of(one.metric),
                label=one.severity,
                figure=comparison.show_regression(one.metric, one.delta),
            )
            for one in card.regressions
        )
        yield Bullets(tuple(rows), look="regressions")
    elif card.compared:
        yield Paragraph("No regression.", style="title")
    elif card.differences:
        yield from comparison.difference_blocks(card.differences, flags, compared=False)
    else:
        yield empty("Nothing could be compared: the two runs measured nothing in common.")
    yield from comparison.change_table(card.changes)
    yield from comparison.step_change_blocks(card.step_change)
    if card.changed:
        cells = map(comparison.shift_cells, card.changed[:CAUSES_SHOWN])
        yield numbers(
            ("part", "kind", "before", "now", "change"),
            ((shortened(part, comparison.NAME_CELLS), kind, *rest) for kind, part, *rest in cells),
            "What the change is made of",
        )


def _finding(finding: Finding, card: Scorecard) -> FindingRow:
    spans = {op.name: op.longest for op in card.operations}
    names = (value for value in finding.evidence.values() if isinstance(value, str))
    named = next((spans[name] for name in names if name in spans), None)
    return FindingRow(
        finding=finding,
        gain=gain(finding),
        evidence=evidence_rows(finding),
        link=perfetto_link(named or card.typical_step, card.source),
    )


def _provenance(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield where the numbers come from: the source, the device, the counts, and what to be wary of."""
    device, done = card.device, card.arithmetic
    seen = name_fields("not known: give {device}", flags)
    if device is not None:
        count = f"{show_count(device.count)} devices" if device.count else None
        seen = joined(device.name or device.key or "described by figures", count, device.basis)
    tokens = "" if card.flops_per_token is None else show_si(card.flops_per_token, "FLOP")
    known = ""
    if done is not None and done.known_share is not None:
        known = f"{done.known_share * 100:.0f} % of the time in matrix products, convolutions and attention"
    # What other runs must share to be compared with this one.
    circumstances = {} if card.fingerprint is None else msgspec.to_builtins(card.fingerprint)
    pairs = (
        (name, ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else value)
        for name, value in circumstances.items()
        if value not in (None, {}, [])
    )
    rows = (
        ("format", joined(card.source.format, card.source.producer)),
        ("device", seen),
        ("throughput", card.throughput.basis if card.throughput else ""),
        *((f"{limit.kind} ceiling", f"{limit.convention}; {limit.source}") for limit in card.ceilings),
        ("FLOPs per token", joined(tokens, card.flops_convention) if tokens else ""),
        ("bytes per token", "" if card.bytes_per_token is None else show_si(card.bytes_per_token, "B")),
        ("shapes known for", known),
        ("fingerprint", "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in pairs)),
        ("scorecard", f"contract v{card.schema_version}"),
    )
    files = tuple(shortened(name, 300) for name in card.source.files[:FILES_SHOWN])
    left = len(card.source.files) - FILES_SHOWN
    yield Facts(
        (
            *(Fact(name, printable(text)) for name, text in rows if text),
            Fact("files", f"and {left} more" if left > 0 else "", names=files),
            Fact("made by", f"stepgrade {__version__}"),
        )
    )
    for heading, notes in (("Caveats", card.unreported_warnings), ("Notes", card.notes)):
        if notes:
            yield Heading(heading)
            yield bullets(texts_of(notes, flags))


def perfetto_link(span: Span | None, source: Source) -> str | None:
    """Return the address that shows a stretch of a trace; None for other sources or without a file's name."""
    if span is None or not 0 <= span.file < len(source.files):
        return None
    name = source.files[span.file].replace("\\", "/").rpartition("/")[2]
    if not name or name == "-" or len(name) > _LONGEST_FILE_NAME:
        return None
    margin = int(span.dur_ns * PERFETTO_MARGIN)
    begin, end = max(0, span.start_ns - margin), span.start_ns + span.dur_ns + margin
    # Twice, as browsers encode it: once for the address that is fetched, once for its being a parameter.
    for _ in range(2):
        name = quote(name, safe="!'()*", errors="replace")
    return f"{PERFETTO_PAGE}{name}&visStart={begin}&visEnd={end}"
