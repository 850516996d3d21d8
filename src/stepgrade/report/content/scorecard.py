"""The scorecard: the grade and its meaning first, then why, then what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from stepgrade.contract.types import LEAST_EFFICIENCY, Grade
from stepgrade.errors import name_fields
from stepgrade.model import Ledger
from stepgrade.model.ledger import account_words
from stepgrade.model.notes import has_code, texts_of
from stepgrade.model.scorecard import AT_MOST, UNGRADED, Arithmetic, Finding, Scorecard
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
    Only,
    Paragraph,
    Space,
    Title,
    bar_table,
    bullets,
    share_bar,
    shorten,
)
from stepgrade.report.content.details import (
    details,
    hang_blocks,
    kernel_sentence,
    memory_use_blocks,
    out_of_memory_lines,
)
from stepgrade.report.names import GRADE_MEANINGS, ROOFS, plural, printable
from stepgrade.units import (
    show_bytes,
    show_count,
    show_graded_share,
    show_ms,
    show_named,
    show_rate,
    show_ratio,
    show_samples_rate,
    show_share,
    show_shared_rate,
    show_si,
)

_BADGES = {"A": "badge-good", "B": "badge-good", "C": "badge-fair", "D": "badge-bad", "F": "badge-bad"}
_BOUNDS = tuple(least for least, _ in LEAST_EFFICIENCY)
GRADES = ((0.0, "F"), *((least, str(grade)) for least, grade in reversed(LEAST_EFFICIENCY)))
# Bottlenecks that are work, not waiting: without them there would be no step.
_WORK = ("compute", "memory_bw", "unknown")
PHASES_SHOWN = 8
HOTSPOTS_SHOWN = 4
HOTSPOTS_LISTED = 100
LAYERS_SHOWN = 4
RANKS_SHOWN = 3
MANY_RANKS = 16
FINDINGS_FIRST = 3
NOTES_SHOWN = 4
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
        yield from hang_blocks(card.hang)
        yield from _to_do(card)
        yield from _notes(card, flags)
        return
    yield from _answer(card, flags)


def _answer(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield what is known of a run that does not hang: the answer, what to do, and what both rest on."""
    badge = headline(card, flags)
    yield badge
    if badge.points:
        yield Heading("Not graded because", only="full")
        yield bullets(badge.points)
    yield Space()
    # Neither a memory recording nor a log of torch.compile alone has steps.
    of_memory, only_compiled = is_of_memory(card), card.steps is None and card.compile is not None
    has_steps = not (of_memory or only_compiled)
    if has_steps:
        yield Facts(tuple(_facts(card)))
        if card.baseline is not None:
            from stepgrade.report.content.comparison import regression_blocks

            yield from regression_blocks(card)
    yield from _to_do(card)
    if has_steps:
        yield from time_blocks(card)
    if card.memory is not None and not only_compiled:
        yield from memory_use_blocks(card.memory)
    if has_steps:
        yield from _hotspots(card)
    if not of_memory:
        yield from _tables(card, has_steps=has_steps)
    yield from _notes(card, flags)
    if has_steps and (left := _left_out(card)):
        yield Paragraph(name_fields(f"{{full}} shows {left}.", flags), style="dim", only="brief")


def is_of_memory(card: Scorecard) -> bool:
    """Return whether the source shows what memory holds, and no step."""
    return (
        card.memory is not None and card.steps is None and card.step_time_ms is None and not card.throughput
    )


def headline(card: Scorecard, flags: Mapping[str, str]) -> Badge:
    """Return the answer to what the source is asked: out of memory, memory, goodput, or the grade."""
    memory, why = card.memory, texts_of(card.ungraded_because[:1], flags)
    if memory is not None and memory.out_of_memory is not None and card.grade == UNGRADED:
        first, *rest = out_of_memory_lines(memory.out_of_memory)
        return Badge("out of memory", "badge-bad", first, "title", tuple(rest), title=(first,))
    if memory is not None and memory.peak_bytes is not None and is_of_memory(card):
        of = f" of {show_bytes(memory.capacity_bytes)}" if memory.capacity_bytes else ""
        text = f"{show_bytes(memory.peak_bytes)}{of} at the peak"
        return Badge("memory", "badge-none", text, "title", tuple(why), title=(text,))
    goodput = card.goodput
    if goodput is not None and card.grade == UNGRADED:
        share = show_share(goodput.productive)
        text = f"{share} of the {show_ms(goodput.wall_s * 1e3)} of the run went into steps that count"
        reasons = texts_of(card.ungraded_because, flags)
        return Badge("goodput", "badge-none", text, "title", title=(text,), points=tuple(reasons))
    return grade_badge(card, flags)


def grade_badge(card: Scorecard, flags: Mapping[str, str]) -> Badge:
    """Return the grade and its basis, or why there is none."""
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
    if card.ceilings and card.throughput_tok_s is not None:
        roof = card.ceilings[0]
        roof_name = ROOFS[roof.kind]
        roof_rate = show_shared_rate(roof.tok_s, card.device.count if card.device else None)
        rests_on = f"{show_rate(card.throughput_tok_s)} of {roof_rate}{on}: {roof.convention}"
    else:
        # Without tokens there is no tok/s: the grade rests on the recorded FLOPs alone.
        rate, counted = arithmetic_words(card.arithmetic)
        roof_name, rests_on = ROOFS["compute"], f"{rate}{on}, {counted}"
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


def arithmetic_words(done: Arithmetic | None) -> tuple[str, str]:
    """Return the rate of the arithmetic, and what its FLOPs were counted from."""
    if done is None:
        return "", "as recorded"
    peak = f" of {show_si(done.peak_flops_s, 'FLOP/s')}" if done.peak_flops_s else ""
    counted = "matrix products from the recorded shapes"
    if done.known_share is not None and done.known_share <= 0.995:
        counted = f"from the shapes of {show_share(done.known_share, 0)} of the matrix products' time"
    return f"{show_si(done.achieved_flops_s, 'FLOP/s')}{peak} {done.dtype or ''}".rstrip(), counted


def hfu_words(card: Scorecard) -> str | None:
    """Return the HFU, and that it decides the grade where the MFU would make another."""
    if card.hfu is None:
        return None
    text = f"HFU {show_share(card.hfu)}"
    if card.mfu is None or card.grade == UNGRADED or not card.ceilings or card.ceilings[0].kind != "compute":
        return text
    by_mfu = str(Grade.from_efficiency(card.mfu))
    if by_mfu == card.grade:
        return text
    return (
        f"{text}: the grade counts all FLOPs that the device must do, recomputation and masked attention "
        f"included; by MFU it would be {by_mfu}"
    )


def is_worth_showing(done: Arithmetic | None) -> bool:
    """Return whether enough of the matrix products is counted for their rate to mean anything."""
    return done is not None and (done.known_share is None or done.known_share >= LEAST_COUNTED)


def _facts(card: Scorecard) -> Iterator[Fact]:
    yield Fact("Grade", card.grade, text_style="title", only="full")
    yield Fact("Efficiency", show_share(card.efficiency), only="full")
    yield Fact("Work", card.work, only=None if card.work == "inference" else "full")
    evidence = [*card.bottleneck_evidence]
    if without := without_it(card):
        evidence.append(without)
    yield Fact("Bottleneck", f"{card.bottleneck}: {'; '.join(evidence)}" if evidence else card.bottleneck)
    if card.step_time_ms is not None:
        steps, basis = card.steps, ""
        if steps is not None and steps.median_ms is not None:
            kind = "steady" if steps.steady else "warm-up"
            basis = f"median of {plural(steps.steady or steps.warm_up or 0, f'{kind} step')}"
            if steps.low_ms is not None:
                basis = f"between {show_ms(steps.low_ms)} and {show_ms(steps.high_ms)} (95 %; {basis})"
        yield Fact("Step", ", ".join(filter(None, (show_ms(card.step_time_ms), basis))))
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
    for ceiling in card.ceilings:
        allowed = show_shared_rate(ceiling.tok_s, card.device.count if card.device else None)
        text = f"{allowed}: {ceiling.source}; {ceiling.convention}"
        yield Fact(f"Ceiling ({ceiling.kind})", text, only="full")
    is_in_badge = card.grade != UNGRADED and (card.throughput_tok_s is None or not card.ceilings)
    if is_worth_showing(card.arithmetic) and not is_in_badge:
        yield Fact("Arithmetic", ", ".join(arithmetic_words(card.arithmetic)))
    ratio, coverage, launches = card.forward_backward_ratio, card.wall_coverage, card.launches_per_step
    mfu = show_share(card.mfu)
    kernels = kernel_sentence(card.kernel_use).removesuffix(".") or None
    rows: tuple[tuple[str, object, str, Only], ...] = (
        (
            "MFU",
            card.mfu,
            ", ".join(filter(None, (f"{mfu} ({card.flops_convention})", hfu_words(card)))),
            None,
        ),
        ("Kernels", kernels, kernels or "", "full"),
        ("Backward", ratio, f"{show_ratio(ratio)} the time of forward", "full"),
        ("Coverage", coverage, f"{show_share(coverage)} of the wall time is in phases", "full"),
        ("Launches", launches, f"{show_count(round(launches or 0.0))} per step", "full"),
    )
    yield from (Fact(name, text, only=only) for name, value, text, only in rows if value is not None)


def without_it(card: Scorecard) -> str:
    """Return how long the step would take without its bottleneck; empty where that is work, or unknown."""
    cause = next((cause for cause in card.causes if cause.bottleneck == card.bottleneck), None)
    if cause is None or cause.remaining_ms is None or card.bottleneck in _WORK:
        return ""
    return f"without it the step would take {show_ms(cause.remaining_ms)}"


def shares(ledger: Ledger | None) -> dict[str, float]:
    """Return the accounts of a ledger that are worth showing, each as a share of the step."""
    if ledger is None:
        return {}
    return {name: share for name, share in ledger.known().items() if share > LEAST_SHARE}


def is_from_timeline(ledger: Ledger | None) -> bool:
    """Return whether the ledger comes from a timeline of the device, not from phases."""
    return ledger is not None and ledger.idle_sync is not None


def time_blocks(card: Scorecard) -> Iterator[Block]:
    """Yield what the device does and works on in a step, and where the time of a logged run went."""
    busy = is_from_timeline(card.ledger)
    if busy:
        yield Heading("What the device does in a step", only="text")
        rows = (
            share_bar(account_words(name), share, show_ms(card.part_ms(share)), share)
            for name, share in shares(card.ledger).items()
        )
        yield Bars(("The device", "Per step", "Share"), tuple(rows), only="text")
    phases = [(name, phase.share, phase.ms) for name, phase in card.phases.items() if phase.share]
    if phases:
        # Where the device's time is known, phases are a detail.
        where: Only = "full" if busy else "text"
        heading = "What it works on" if busy else "Where a step goes"
        yield Heading(heading, only=where)
        bars = (share_bar(name, share, show_ms(ms), share) for name, share, ms in phases)
        drawn = shorten(bars, PHASES_SHOWN)
        if rest := phases[PHASES_SHOWN:]:
            share, ms = sum(row[1] for row in rest), sum(row[2] or 0.0 for row in rest)
            left = share_bar(f"{len(rest)} more", share, show_ms(ms), share)
            drawn += (replace(left, only="brief"),)
        uncovered = 1.0 - sum(share for _, share, _ in phases)
        if card.ledger and not busy and card.step_time_ms and uncovered > 0.001:
            ms = card.part_ms(uncovered)
            drawn += (share_bar("in no phase", uncovered, show_ms(ms), uncovered),)
        yield Bars(("Phase", "Per step", "Share"), drawn, only=where)
        yield Heading(heading, only="page")
        yield Bars(("Phase", "Per step", "Share"), drawn, only="page")
    goodput = card.goodput
    if goodput is not None:
        yield Heading(f"Where the {show_ms(goodput.wall_s * 1e3)} of the run went")
        rows = (
            share_bar(words, share, show_ms(share * goodput.wall_s * 1e3), share)
            for name, words in GOODPUT_ACCOUNTS.items()
            if (share := getattr(goodput, name)) > LEAST_SHARE or name == "productive"
        )
        yield Bars(("The run", "Of the wall time", "Share"), tuple(rows))


def _hotspots(card: Scorecard) -> Iterator[Block]:
    """Yield the longest operations: the same share, of the step, as a page has."""
    rows = []
    has_roofs = any(op.roof_share is not None for op in card.operations[:HOTSPOTS_LISTED])
    for op in card.operations[:HOTSPOTS_LISTED]:
        if op.ms is None or op.share is None:
            continue
        row = share_bar(op.name, op.ms, show_ms(op.ms), op.share)
        roof = show_share(op.roof_share)
        reached = f"  {roof:>7} of its roof" if op.roof_share is not None else ""
        cells = (*row.cells, roof) if has_roofs else row.cells
        rows.append(replace(row, figures=row.figures + reached, cells=cells, narrow=row.figures))
    header = ("Operation", "Per step", "Of the step", "Of its roof")[: 4 if has_roofs else 3]
    if rows:
        bars = Bars(header, tuple(rows))
        yield from bar_table(
            Heading("Hotspots"),
            bars,
            HOTSPOTS_SHOWN,
            kept=len(rows),
            count=len(card.operations),
            counts=False,
        )


def _tables(card: Scorecard, *, has_steps: bool) -> Iterator[Block]:
    """Yield the details, the layers and the ranks."""
    for table in details(card):
        bars = Bars(table.header, table.rows, has_long_names=True)
        # Beside the step they are details; of compilation alone they are all there is.
        yield from bar_table(
            Heading(table.heading), bars, 0 if has_steps else table.shown, counts=not has_steps
        )
    named = [layer for layer in card.layers if layer.name and has_steps]
    if named:
        columns = 3 if any(layer.recompute_ms for layer in named) else 2
        rows = []
        for layer in sorted(named, key=lambda layer: -((layer.fwd_ms or 0.0) + (layer.bwd_ms or 0.0))):
            forward, backward, again = map(show_ms, (layer.fwd_ms, layer.bwd_ms, layer.recompute_ms))
            recomputed = f" + {again} again" if layer.recompute_ms else ""
            figures = f"{forward:>9} + {backward}{recomputed}" if layer.bwd_ms else f"{forward} forward"
            length = (layer.fwd_ms or 0.0) + (layer.bwd_ms or 0.0) + (layer.recompute_ms or 0.0)
            rows.append(Bar(layer.name or "", length, figures, (forward, backward, again)[:columns]))
        heads = ("Layer", "Forward", "Backward", "Forward again")[: columns + 1]
        title = "Layers, forward + backward" if any(layer.bwd_ms for layer in named) else "Layers"
        yield from bar_table(Heading(title), Bars(heads, tuple(rows)), LAYERS_SHOWN, counts=False)
    if not card.ranks or not has_steps:
        return
    heading = Heading("Ranks: the one that waits least is waited for")
    many = card.many_ranks
    spread = next((spread for spread in many.spreads if spread.figure == "waiting"), None) if many else None
    if many and spread and many.ranks > MANY_RANKS:
        ends = {
            f"least: rank {spread.least_rank}": spread.least_ms,
            "a quarter less than": spread.lower_ms,
            "half less than": spread.median_ms,
            "a quarter more than": spread.upper_ms,
            f"most: rank {spread.most_rank}": spread.most_ms,
        }
        drawn = tuple(Bar(name, ms, f"{show_ms(ms):>9}", (show_ms(ms),)) for name, ms in ends.items())
        yield from (heading, Bars((f"Of {many.ranks} ranks", "Waits per step"), drawn))
        return
    ranks = []
    for row in sorted(card.ranks, key=lambda row: (row.wait_ms or 0.0, row.rank)):
        wait, step = show_ms(row.wait_ms), show_ms(row.step_ms)
        ranks.append(Bar(f"rank {row.rank}", row.wait_ms or 0.0, f"{wait:>9} of {step}", (wait, step)))
    yield from bar_table(
        heading, Bars(("Rank", "Waits per step", "Of"), tuple(ranks)), RANKS_SHOWN, counts=False
    )


def gain(finding: Finding) -> str:
    """Return the gain of a finding as a share of the step, and what limits it then; empty if negligible."""
    if finding.gain_high <= _LEAST_GAIN:
        return ""
    low, high = show_share(finding.gain_low, 0), show_share(finding.gain_high, 0)
    then = f"; then {finding.next_limit}" if finding.next_limit else ""
    return (f"{low} to {high} of the step" if low != high else f"up to {high} of the step") + then


def joint_gain(card: Scorecard) -> Iterator[Block]:
    """Yield what the first fixes bring together, which is less than the sum of their gains."""
    joint = card.together
    if joint is not None and joint.gain_high > _LEAST_GAIN:
        low, high = show_share(joint.gain_low, 0), show_share(joint.gain_high, 0)
        text = f"The first {len(joint.rules)} fixes together bring {low} to {high} of the step"
        step = f": at best it takes {show_ms(joint.step_ms)}" if joint.step_ms is not None else ""
        yield Paragraph(f"{text}{step}.")


def evidence_rows(finding: Finding) -> tuple[tuple[str, str], ...]:
    """Return what a finding rests on: names, and figures with their units."""
    return tuple(
        (name.replace("_", " "), printable(value)) if isinstance(value, str) else show_named(name, value)
        for name, value in finding.evidence.items()
    )


def _to_do(card: Scorecard) -> Iterator[Block]:
    """Yield the findings, the first with what to do about them; a document has all of it."""
    if card.findings:
        yield Heading("What to do first", only="brief")
        yield Heading("Findings", only="full")
        rows = []
        for index, finding in enumerate(card.findings):
            mark, style = _MARKS[finding.severity]
            worth = f" Worth {gain(finding)}." if gain(finding) else ""
            only: Only = "text" if index < FINDINGS_FIRST else "full"
            rows.append(Bullet(f"{finding.claim}{worth}", mark, style, label=finding.severity, only=only))
            if index < FINDINGS_FIRST:
                rows.append(Bullet(finding.remedy, "→", indent=4, only="brief"))
            rows += [
                Bullet(text, "←", style="dim", label="which explains", indent=6, only="full")
                for text in finding.consequences
            ]
        yield Bullets(tuple(rows))
        yield from joint_gain(card)
    said = {finding.remedy for finding in card.findings[:FINDINGS_FIRST]}
    if card.recommendations:
        yield Heading("What to do next", only="full" if said.issuperset(card.recommendations[:3]) else "text")
        yield Bullets(
            tuple(
                Bullet(text, f"{number}.", only="full" if text in said or number > FINDINGS_FIRST else "text")
                for number, text in enumerate(card.recommendations, start=1)
            )
        )


def _notes(card: Scorecard, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield caveats and notes; a terminal has room for the caveats, and counts the notes."""
    if not (card.unreported_warnings or card.notes):
        return
    warnings = [Bullet(text, "!", "fair") for text in texts_of(card.unreported_warnings, flags)]
    only: Only = None if len(card.notes) <= NOTES_SHOWN else "full"
    yield Heading("Notes", only=None if warnings else only)
    notes = [Bullet(note.said(flags), style="dim", only=only) for note in card.notes]
    yield Bullets((*warnings, *notes))


def _left_out(card: Scorecard) -> str:
    """Return what a terminal leaves out unless it is asked for all."""
    counts = (
        (len(card.findings) - FINDINGS_FIRST, "more finding"),
        (len(card.operations) - HOTSPOTS_SHOWN, "more operation"),
        (len(card.layers) - LAYERS_SHOWN, "more layer"),
        (len(card.ranks) - RANKS_SHOWN, "more rank"),
        (len(details(card)), "table"),
        (len(card.notes) if len(card.notes) > NOTES_SHOWN else 0, "note"),
    )
    parts = [plural(count, name) for count, name in counts if count > 0]
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)
