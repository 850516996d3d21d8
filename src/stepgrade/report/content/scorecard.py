"""The scorecard: the grade and its meaning first, then why, then what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepgrade.contract.types import LEAST_EFFICIENCY
from stepgrade.model import Ledger
from stepgrade.model.finding import Finding
from stepgrade.model.ledger import account_words
from stepgrade.model.notes import has_code, texts_of
from stepgrade.model.profile import LOG
from stepgrade.model.scorecard import AT_MOST, UNGRADED, Arithmetic, Scorecard, StepStats
from stepgrade.model.step_log import GOODPUT_ACCOUNTS
from stepgrade.report.blocks import (
    Badge,
    Bar,
    Bars,
    Block,
    Bullet,
    Bullets,
    Fact,
    Facts,
    Heading,
    Paragraph,
    Space,
    Title,
    bullets,
    more,
    shorten,
)
from stepgrade.report.content.details import detail_blocks, kernel_sentence
from stepgrade.report.content.memory_use import memory_use_blocks
from stepgrade.report.words import GRADE_MEANINGS, ROOFS, plural
from stepgrade.units import (
    show_count,
    show_graded_share,
    show_ms,
    show_rate,
    show_ratio,
    show_samples_rate,
    show_share,
    show_si,
)

_BADGES = {"A": "badge-good", "B": "badge-good", "C": "badge-fair", "D": "badge-bad", "F": "badge-bad"}
_BOUNDS = tuple(least for least, _ in LEAST_EFFICIENCY)
GRADES = ((0.0, "F"), *((least, str(grade)) for least, grade in reversed(LEAST_EFFICIENCY)))
# Bottlenecks that are work, not waiting: without them there would be no step.
_WORK = ("compute", "memory_bw", "unknown")
PHASES_SHOWN = 8
HOTSPOTS_SHOWN = 8
LAYERS_SHOWN = 6
RANKS_SHOWN = 16
ROWS_KEPT = 100  # in a document
_MARKS = {"critical": ("!", "bad"), "warning": ("!", "fair"), "info": ("·", "dim")}
# Of the matrix products' time: with less of it counted, a rate is of nothing.
LEAST_COUNTED = 0.5
# Below half a percent of the step, a gain is not worth a sentence.
_LEAST_GAIN = 0.005
# Less of the step than this is not drawn.
LEAST_SHARE = 0.0005


def blocks(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the whole card."""
    described = [card.source.format]
    if len(card.source.files) > 1:
        described.append(f"{len(card.source.files)} files")
    if card.steps and card.steps.count:
        described.append(plural(card.steps.count, "step"))
    source = card.source.files[0] if card.source.files else "a profile in memory"
    about = f" · {' · '.join(described)}"
    yield Title("Training Scorecard", "stepgrade · ", source, about)
    yield Paragraph(f"{source}{about}", only="full")
    if card.differences:
        from stepgrade.report.content.comparison import difference_blocks  # with a baseline only

        yield from difference_blocks(card.differences, flags, compared=bool(card.compared))
    yield Space()
    if card.hang is not None:
        from stepgrade.report.content.hang import hang_blocks  # for dumps only

        yield from hang_blocks(card.hang)
        yield from _advice(card, flags)
        return
    yield from _grade(card, flags)
    yield Space()
    if card.steps is None and card.compile is not None:  # a log of torch.compile alone
        yield from detail_blocks(card)
        yield from _advice(card, flags)
        return
    yield Facts(tuple(_facts(card)))
    if card.baseline is not None:
        yield from _regressions(card, card.baseline)
    yield from _where_time_goes(card)
    yield from _goodput(card)
    yield from memory_use_blocks(card.memory)
    yield from _operations(card)
    yield from detail_blocks(card)
    yield from _layers_and_ranks(card)
    yield from _advice(card, flags)


def _grade(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Block]:
    badge = grade_badge(card, flags)
    yield badge
    if badge.scale is None:
        yield Heading("Not graded because", only="full")
        yield bullets(badge.points)


def grade_badge(card: Scorecard, flags: Mapping[str, str]) -> Badge:
    """Return the grade with what it is of, or why there is none."""
    if card.grade == UNGRADED:
        bound = [note for note in card.ungraded_because if note.code == AT_MOST]
        reasons = texts_of((note for note in card.ungraded_because if note not in bound), flags)
        because = bound[0].text if bound else ""
        title = f"Not graded{': ' if because else ''}{because}"
        return Badge(
            card.grade, "badge-none", because, "title", title=(title,), points=tuple(reasons), is_grade=True
        )
    on = f" on {card.device.name}" if card.device and card.device.name else ""
    if card.device and card.device.key == "cpu":
        on = f"{on} ({card.device.basis})"
    if _is_graded_by_arithmetic(card):
        # Without tokens there is no tok/s: the grade rests on the recorded FLOPs alone.
        counted = _counted(card.arithmetic) if card.arithmetic is not None else "as recorded"
        rests_on = f"{_arithmetic(card.arithmetic)}{on}, {counted}"
    else:
        roof = card.ceilings[0]
        each = f"{show_count(card.device.count)} x " if card.device and card.device.count else ""
        roof_rate = f"{each}{show_rate(roof.tok_s)}"
        rests_on = f"{show_rate(card.throughput_tok_s)} of {roof_rate}{on}: {roof.convention}"
    by_rate = card.ceilings and card.throughput_tok_s is not None
    roof_name = ROOFS[card.ceilings[0].kind] if by_rate else ROOFS["compute"]
    headline = f"{show_graded_share(card.efficiency, _BOUNDS)} of what {roof_name} allows"
    return Badge(
        card.grade,
        _BADGES.get(card.grade, "badge-none"),
        headline,
        "title",
        (rests_on,),
        scale=card.efficiency or 0.0,
        marks=GRADES,
        title=(headline,),
        meaning=GRADE_MEANINGS.get(card.grade, "not graded"),
        is_grade=True,
    )


def _is_graded_by_arithmetic(card: Scorecard) -> bool:
    return card.grade != UNGRADED and (card.throughput_tok_s is None or not card.ceilings)


def _arithmetic(done: Arithmetic | None) -> str:
    if done is None:
        return ""
    peak = f" of {show_si(done.peak_flops_s, 'FLOP/s')}" if done.peak_flops_s else ""
    return f"{show_si(done.achieved_flops_s, 'FLOP/s')}{peak} {done.dtype or ''}".rstrip()


def _counted(done: Arithmetic) -> str:
    """Return what the FLOPs were counted from."""
    if done.known_share is None or done.known_share > 0.995:
        return "matrix products from the recorded shapes"
    return f"from the shapes of {show_share(done.known_share, 0)} of the matrix products' time"


def is_worth_showing(done: Arithmetic | None) -> bool:
    """Tell whether enough of the matrix products is counted for their rate to mean anything."""
    return done is not None and (done.known_share is None or done.known_share >= LEAST_COUNTED)


def _facts(card: Scorecard) -> Iterator[Fact]:
    yield Fact("Grade", card.grade, text_style="title", only="full")
    yield Fact("Efficiency", show_share(card.efficiency), only="full")
    yield Fact("Work", card.work, only=None if card.work == "inference" else "full")
    evidence = [*card.bottleneck_evidence]
    cause = next((cause for cause in card.causes if cause.bottleneck == card.bottleneck), None)
    if cause and cause.remaining_ms is not None and card.bottleneck not in _WORK:
        evidence.append(f"without it the step would take {show_ms(cause.remaining_ms)}")
    yield Fact("Bottleneck", f"{card.bottleneck}: {'; '.join(evidence)}" if evidence else card.bottleneck)
    if card.step_time_ms is not None:
        yield Fact("Step", f"{show_ms(card.step_time_ms)}{_basis(card.steps)}")
    yield from _rates(card)
    for ceiling in card.ceilings:
        text = f"{show_rate(ceiling.tok_s)}: {ceiling.source}; {ceiling.convention}"
        yield Fact(f"Ceiling ({ceiling.kind})", text, only="full")
    if card.arithmetic and is_worth_showing(card.arithmetic) and not _is_graded_by_arithmetic(card):
        yield Fact("Arithmetic", f"{_arithmetic(card.arithmetic)}, {_counted(card.arithmetic)}")
    if card.mfu is not None:
        yield Fact("MFU", f"{show_share(card.mfu)} ({card.flops_convention}), HFU {show_share(card.hfu)}")
    if sentence := kernel_sentence(card.kernel_use):
        yield Fact("Kernels", sentence.removesuffix("."), only="full")
    ratio, coverage, launches = card.forward_backward_ratio, card.wall_coverage, card.launches_per_step
    for name, value, text in (
        ("Backward", ratio, f"{show_ratio(ratio)} the time of forward"),
        ("Coverage", coverage, f"{show_share(coverage)} of the wall time is in phases"),
        ("Launches", launches, f"{show_count(round(launches or 0.0))} per step"),
    ):
        if value is not None:
            yield Fact(name, text)


def _rates(card: Scorecard) -> Iterator[Fact]:
    """Yield the throughput in tokens; in samples as well, and in those alone where there are no tokens."""
    rate = card.throughput
    if rate is not None:
        between = ""
        if rate.low is not None and rate.high is not None:
            between = f", between {show_rate(rate.low)} and {show_rate(rate.high)}"
        text = f"{show_rate(rate.tok_s)}{between} ({'95 %; ' if between else ''}{rate.basis})"
        yield Fact("Throughput", text, only=None if between or card.grade == UNGRADED else "full")
    if card.samples_s is not None:
        own = " (this rank alone)" if has_code(card.notes, "one_rank") else ""
        text = f"{show_samples_rate(card.samples_s)}{own}"
        yield Fact("Throughput", text) if rate is None else Fact("Samples", text, only="full")


def _basis(steps: StepStats | None) -> str:
    """Return what the step time rests on: its interval and how many steps are in it."""
    if steps is None or steps.median_ms is None:
        return ""
    of_all = f"median of {show_count(steps.steady)} steady step{'s' if steps.steady != 1 else ''}"
    if steps.low_ms is None:
        return f", {of_all}"
    return f", between {show_ms(steps.low_ms)} and {show_ms(steps.high_ms)} (95 %; {of_all})"


def _regressions(card: Scorecard, baseline: str) -> Iterator[Block]:
    from stepgrade.report.content import comparison as shown  # with a baseline only

    yield Heading("Against", baseline)
    if not card.compared:
        yield Paragraph("nothing could be compared", style="fair")
    elif not card.regressions:
        yield Paragraph("no regression", style="good")
    yield Facts(
        tuple(
            Fact(
                found.severity,
                f"{shown.title_of(found.metric)} {shown.show_regression(found.metric, found.delta)}",
                "bad" if found.severity == "critical" else "fair",
            )
            for found in card.regressions
        ),
        width=10,
        header=("Severity", "Regression"),
    )
    for change in card.changes:
        if change.outcome not in ("regressed", "improved"):
            text = f"{shown.title_of(change.metric)}: {change.outcome}, {change.why}"
            yield Paragraph(text, hanging=2)
    yield from shown.change_table(card.changes)
    yield from shown.shift_table(card.changed)


def shares(ledger: Ledger | None) -> dict[str, float]:
    """Return the accounts of a ledger that are worth showing, each as a share of the step."""
    if ledger is None:
        return {}
    return {name: share for name, share in ledger.known().items() if share > LEAST_SHARE}


def is_from_timeline(ledger: Ledger | None) -> bool:
    """Tell whether the source tells what the device does apart from the phases."""
    return ledger is not None and ledger.idle_sync is not None


def _timed(name: str, share: float, ms: float | None) -> Bar:
    cells = show_ms(ms), show_share(share)
    return Bar(name, share, f"{cells[0]:>9} {cells[1]:>7}", cells)


def _where_time_goes(card: Scorecard) -> Iterator[Block]:
    busy = is_from_timeline(card.ledger)
    if busy:
        yield Heading("What the device does in a step")
        rows = (
            _timed(account_words(name), share, card.part_ms(share))
            for name, share in shares(card.ledger).items()
        )
        yield Bars(("The device", "Per step", "Share"), tuple(rows))
    phases = [(name, phase.share, phase.ms) for name, phase in card.phases.items() if phase.share]
    if not phases:
        return
    yield Heading("What it works on" if busy else "Where a step goes")
    rest, left = phases[PHASES_SHOWN:], None
    if rest:
        others = _timed(f"{len(rest)} more", sum(row[1] for row in rest), sum(row[2] or 0.0 for row in rest))
        left = Bar(others.name, others.length, others.figures, others.cells, only="brief")
    drawn = shorten((_timed(*phase) for phase in phases), PHASES_SHOWN, left)
    uncovered = 1.0 - sum(share for _, share, _ in phases)
    if card.ledger and not busy and card.step_time_ms and uncovered > 0.001:
        drawn += (_timed("in no phase", uncovered, card.part_ms(uncovered)),)
    yield Bars(("Phase", "Per step", "Share"), drawn)


def _goodput(card: Scorecard) -> Iterator[Block]:
    """Yield where the wall time of a logged run went."""
    goodput = card.goodput
    if goodput is None:
        return
    yield Heading(f"Where the {show_ms(goodput.wall_s * 1e3)} of the run went")
    rows = (
        _timed(GOODPUT_ACCOUNTS[name], share, share * goodput.wall_s * 1e3)
        for name in GOODPUT_ACCOUNTS
        if (share := getattr(goodput, name)) > LEAST_SHARE or name == "productive"
    )
    yield Bars(("The run", "Of the wall time", "Share"), tuple(rows))


def _operations(card: Scorecard) -> Iterator[Block]:
    if not card.hotspot_ops and card.source.format == LOG:
        return  # no log lists operations
    if not card.hotspot_ops:
        yield Heading("Hotspots")
        yield Paragraph("none: the profile lists no operations")
        return
    yield Heading("Hotspots, of all operations' time")
    known = {op.name: op for op in card.operations}
    roofs = {name: op.roof_share for name, op in known.items() if op.roof_share is not None}
    has_roofs = any(name in roofs for name, _, _ in card.hotspot_ops)
    rows = []
    for name, _, percent in card.hotspot_ops:
        cells = show_ms(known[name].ms if name in known else None), show_share(percent / 100.0)
        roof = show_share(roofs.get(name), 0)
        reached = f"  {roof:>5} of its roof" if name in roofs else ""
        figures = f"{cells[0]:>9} {cells[1]:>7}{reached}"
        rows.append(Bar(name, percent, figures, (*cells, roof) if has_roofs else cells))
    header = ("Operation", "Per step", "Of all operations", *(("Of its roof",) if has_roofs else ()))
    yield Bars(header, shorten(rows, HOTSPOTS_SHOWN))
    yield from more(len(card.operations), HOTSPOTS_SHOWN, len(rows))


def _layers_and_ranks(card: Scorecard) -> Iterator[Block]:
    named = [layer for layer in card.layers if layer.name]
    if named:
        yield Heading("Layers, forward + backward" if any(layer.bwd_ms for layer in named) else "Layers")
        columns = 3 if any(layer.recompute_ms for layer in named) else 2
        bars = []
        for layer in sorted(named, key=lambda layer: -((layer.fwd_ms or 0.0) + (layer.bwd_ms or 0.0))):
            forward, backward, again = (
                show_ms(ms) for ms in (layer.fwd_ms, layer.bwd_ms, layer.recompute_ms)
            )
            figures = f"{forward} forward"
            if layer.bwd_ms:
                recomputed = f" + {again} again" if layer.recompute_ms else ""
                figures = f"{forward:>9} + {backward}{recomputed}"
            length = (layer.fwd_ms or 0.0) + (layer.bwd_ms or 0.0) + (layer.recompute_ms or 0.0)
            bars.append(Bar(layer.name or "", length, figures, (forward, backward, again)[:columns]))
        heads = ("Layer", "Forward", "Backward", "Forward again")[: columns + 1]
        yield Bars(heads, shorten(bars[:ROWS_KEPT], LAYERS_SHOWN))
        yield from more(len(bars), LAYERS_SHOWN, ROWS_KEPT)
    if card.ranks:
        yield Heading("Ranks, waiting for others in collectives")
        ranks = [
            Bar(f"rank {row.rank}", row.wait_ms or 0.0, f"{wait:>9} of {step}", (wait, step))
            for row in sorted(card.ranks, key=lambda row: row.rank)
            for wait, step in ((show_ms(row.wait_ms), show_ms(row.step_ms)),)
        ]
        many = card.many_ranks
        spread = next((one for one in many.spreads if one.figure == "waiting"), None) if many else None
        if many and spread and many.ranks > RANKS_SHOWN:
            ends = (
                (f"least: rank {spread.least_rank}", spread.least_ms),
                ("a quarter less than", spread.lower_ms),
                ("half less than", spread.median_ms),
                ("a quarter more than", spread.upper_ms),
                (f"most: rank {spread.most_rank}", spread.most_ms),
            )
            yield Bars(
                (f"Of {many.ranks} ranks", "Waits per step"),
                tuple(Bar(name, ms, f"{show_ms(ms):>9}", (show_ms(ms),)) for name, ms in ends),
            )
            return
        yield Bars(("Rank", "Waits per step", "Of"), shorten(ranks[:ROWS_KEPT], RANKS_SHOWN))
        yield from more(len(ranks), RANKS_SHOWN, ROWS_KEPT)


def gain(finding: Finding) -> str:
    """Return what following a finding may bring, as a share of the step; empty if next to nothing."""
    if finding.gain_high <= _LEAST_GAIN:
        return ""
    low, high = show_share(finding.gain_low, 0), show_share(finding.gain_high, 0)
    return f"{low} to {high} of the step" if low != high else f"up to {high} of the step"


def _advice(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Block]:
    if card.findings:
        yield Heading("Findings")
        rows = []
        for finding in card.findings:
            mark, style = _MARKS[finding.severity]
            worth = f" Worth {gain(finding)}." if gain(finding) else ""
            rows.append(Bullet(f"{finding.claim}{worth}", mark, style, label=finding.severity))
            rows += [
                Bullet(text, "←", style="dim", label="which explains", indent=6)
                for text in finding.consequences
            ]
        yield Bullets(tuple(rows))
    if card.recommendations:
        yield Heading("What to do next")
        yield Bullets(
            tuple(Bullet(text, f"{number}.") for number, text in enumerate(card.recommendations, start=1))
        )
    if card.unreported_warnings or card.notes:
        yield Heading("Notes")
        warnings = [Bullet(text, "!", "fair") for text in texts_of(card.unreported_warnings, flags)]
        # Who does not use the older contract need not read how it differs.
        older = [note for note in card.notes if note.code.startswith("v1_")]
        folded = older if len(older) > 1 else []
        notes = [
            Bullet(note.said(flags), style="dim", only="full" if note in folded else None)
            for note in card.notes
        ]
        if folded:
            text = f"contract v1 differs in {len(older)} ways: the JSON says how and why"
            notes.append(Bullet(text, style="dim", only="brief"))
        yield Bullets((*warnings, *notes))
