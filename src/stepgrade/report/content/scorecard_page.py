"""The scorecard as a page: which sections there are, in which order, and those that are mostly words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from stepgrade._version import __version__
from stepgrade.errors import name_fields
from stepgrade.model.finding import Finding
from stepgrade.model.notes import texts_of
from stepgrade.model.scorecard import Scorecard
from stepgrade.report import trace_links
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
from stepgrade.report.content.charts import (
    details_section,
    hotspots_section,
    layers_section,
    ledger_section,
    memory_section,
    modules_section,
    ranks_section,
    roofline_section,
    steps_section,
    timeline_section,
)
from stepgrade.report.content.hang import VERDICTS, hang_rows
from stepgrade.report.content.scorecard import gain, grade_badge, is_worth_showing
from stepgrade.report.figures import (
    Ceilings,
    FindingList,
    FindingRow,
    Halves,
    Page,
    Section,
    Shown,
    Tiles,
    empty,
    numbers,
)
from stepgrade.report.names import printable, shortened
from stepgrade.report.words import BOTTLENECKS, joined
from stepgrade.scoring.standing import standings
from stepgrade.units import show_count, show_ms, show_rate, show_samples_rate, show_share, show_si

FINDINGS_FIRST = 3
FILES_SHOWN = 16
CAUSES_SHOWN = 12


def page(card: Scorecard, flags: Mapping[str, str]) -> Page:
    """Return the sections that the card has anything for."""
    first = card.source.files[0] if card.source.files else ""
    more = f" and {len(card.source.files) - 1} more" if len(card.source.files) > 1 else ""
    found = [_finding(finding, card) for finding in card.findings]
    # A log of torch.compile alone, and a run that hangs, tell of no step: sections on steps would be empty.
    only_compiled = card.compile is not None and not card.operations and card.steps is None
    has_steps = card.hang is None and not only_compiled
    chosen: list[tuple[str, str, str, Iterator[Shown]]] = [
        ("verdict", "Verdict", "", _verdict(card, flags, found, has_steps=has_steps))
    ]
    if card.hang is not None:
        heads = ("ranks", "last collective", "at", "state")
        columns = tuple(Column(head, look="isolated") for head in heads)
        label = "The last collective of every rank"
        table = Table(columns, tuple(hang_rows(card.hang)), label=label)
        verdict = Paragraph(VERDICTS[card.hang.kind], style="title")
        chosen.append(("hang", "Ranks", "Where the ranks are", iter((verdict, table))))
    elif only_compiled:
        chosen.append(("compilation", "Compilation", "What was compiled", details_section(card)))
    else:
        chosen += [
            ("baseline", "Baseline", "Against the baseline", _baseline(card, flags)),
            ("ledger", "Time", "Where a step goes", ledger_section(card)),
            ("timeline", "One step", "One step", timeline_section(card, flags)),
            ("roofline", "Roofline", "Roofline", roofline_section(card, flags)),
            ("layers", "Layers", "Layers", layers_section(card, flags)),
            ("modules", "Modules", "Modules", modules_section(card)),
            ("hotspots", "Hotspots", "Hotspots", hotspots_section(card)),
            ("steps", "Steps", "Step times", steps_section(card.steps)),
            ("memory", "Memory", "Memory of the device", memory_section(card.memory)),
        ]
    chosen.append(("findings", "Findings", "Findings", _findings(card, found)))
    if has_steps:
        chosen.append(("ranks", "Ranks", "Ranks", ranks_section(card, flags)))
    chosen.append(("provenance", "Provenance", "Where the numbers come from", _provenance(card, flags)))
    made = (Section(address, nav, title, tuple(blocks)) for address, nav, title, blocks in chosen)
    return Page(
        f"{card.grade}: {shortened(first, 80)}" if first else card.grade,
        shortened(first, 120) + more if first else printable(card.source.format),
        tuple(section for section in made if section.blocks),
    )


def _verdict(
    card: Scorecard, flags: Mapping[str, str], found: list[FindingRow], *, has_steps: bool
) -> Iterator[Shown]:
    if card.baseline is not None:
        yield from comparison.difference_blocks(card.differences, flags, compared=bool(card.compared))
    yield grade_badge(card, flags)
    columns: list[tuple[Shown, ...]] = []
    if has_steps:
        yield Tiles(tuple(tiles(card, flags)))
        limits: list[Shown] = []
        limits.append(Heading("What holds it back", level=2))
        limits.append(Paragraph(bottleneck_words(card), style="big"))
        limits += [Paragraph(f"{text}.", style="says") for text in card.bottleneck_evidence]
        if not card.bottleneck_evidence:
            limits.append(Paragraph("The source has no evidence for a bottleneck."))
        limits.append(Heading("What the hardware allows", level=2))
        if ceilings := standings(card):
            limits.append(Ceilings(ceilings))
        else:
            supply = name_fields("Give {device} and {model} with {batch} and {seq}.", flags)
            limits.append(empty(f"No ceiling in tokens per second is known. {supply}"))
        columns.append(tuple(limits))
    columns.append(tuple(_first_steps(card, flags, found)))
    yield Halves(tuple(columns))


def tiles(card: Scorecard, flags: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the figures of the first screen: name, value, and what it rests on."""

    def interval(show: Callable[[float], str], low: float | None, high: float | None) -> str | None:
        return None if low is None or high is None else f"95 % interval {show(low)} to {show(high)}"

    rate, steps = card.throughput, card.steps
    if rate is not None:
        yield (
            "Throughput",
            show_rate(rate.tok_s),
            joined(interval(show_rate, rate.low, rate.high), rate.basis),
        )
    elif card.samples_s is not None:
        yield "Throughput", show_samples_rate(card.samples_s), "samples per step over the step time"
    else:
        supply = name_fields("give {tokens_per_step} or {throughput_tok_s}", flags)
        yield "Throughput", "not known", supply
    basis = "average; single steps were not recorded"
    if steps is not None and steps.median_ms is not None:
        count = f"{show_count(len(steps.samples_ms))} steps"
        between = interval(show_ms, steps.low_ms, steps.high_ms)
        basis = joined(f"median {show_ms(steps.median_ms)}", between, count)
    yield "Step", show_ms(card.step_time_ms), basis
    if card.mfu is not None:
        hfu = None if card.hfu is None else f"HFU {show_share(card.hfu)}"
        yield "MFU", show_share(card.mfu), joined(card.flops_convention, hfu)
    elif card.arithmetic is not None and is_worth_showing(card.arithmetic):
        share = "" if card.arithmetic.share is None else f"{show_share(card.arithmetic.share)} of the peak"
        yield "Arithmetic", show_si(card.arithmetic.achieved_flops_s, "FLOP/s"), share
    if card.launches_per_step is not None:
        yield "Launches", show_count(round(card.launches_per_step)), "per step"


def bottleneck_words(card: Scorecard) -> str:
    """Return what holds the run back."""
    return BOTTLENECKS.get(card.bottleneck, card.bottleneck)


def _first_steps(card: Scorecard, flags: Mapping[str, str], found: list[FindingRow]) -> Iterator[Shown]:
    yield Heading("What to do first", level=2)
    if found:
        rest = max(0, len(found) - FINDINGS_FIRST)
        yield FindingList(tuple(found[:FINDINGS_FIRST]), is_brief=True, more=rest)
    elif card.recommendations:
        yield Bullets(tuple(map(Bullet, card.recommendations)), look="todo")
    else:
        yield Paragraph("Nothing stands out.")
    if card.unreported_warnings:
        yield Heading("Be wary", level=2)
        yield bullets(texts_of(card.unreported_warnings, flags))


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
    evidence = []
    for name, value in finding.evidence.items():
        if isinstance(value, str):
            shown = printable(value)
        elif name.endswith("_ms"):
            shown = show_ms(value)
        else:
            shown = show_share(value) if name.endswith("share") else f"{value:,.4g}"
        evidence.append((name.replace("_", " "), shown))
    return FindingRow(
        finding=finding,
        gain=gain(finding),
        evidence=tuple(evidence),
        link=trace_links.link(named or card.typical_step, card.source),
    )


def _findings(card: Scorecard, found: list[FindingRow]) -> Iterator[Shown]:
    if found:
        yield FindingList(tuple(found))
    else:
        yield empty(
            "Rules see more in a trace with shapes and stacks: torch.profiler with record_shapes=True and "
            "with_stack=True.",
            "No rule found anything.",
        )
    if card.recommendations:
        yield Heading("What to do next")
        yield Bullets(tuple(Bullet(text, "1.") for text in card.recommendations))


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
    pairs = ((name, value) for name, value in circumstances.items() if value not in (None, {}, []))
    rows = (
        ("format", joined(card.source.format, card.source.producer)),
        ("device", seen),
        ("throughput", card.throughput.basis if card.throughput else ""),
        *((f"{limit.kind} ceiling", f"{limit.convention}; {limit.source}") for limit in card.ceilings),
        ("FLOPs per token", joined(tokens, card.flops_convention) if tokens else ""),
        ("bytes per token", "" if card.bytes_per_token is None else show_si(card.bytes_per_token, "B")),
        ("shapes known for", known),
        ("fingerprint", ", ".join(f"{name} {value}" for name, value in pairs)),
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
    for heading, notes in (("Be wary", card.unreported_warnings), ("Notes", card.notes)):
        if notes:
            yield Heading(heading)
            yield bullets(texts_of(notes, flags))
