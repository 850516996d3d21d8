"""The scorecard in a terminal: the grade and its meaning first, then why, then what to do."""

from __future__ import annotations

from stepgrade.model.finding import Finding
from stepgrade.model.notes import Note, texts_of
from stepgrade.model.scorecard import (
    UNGRADED,
    Arithmetic,
    LayerStep,
    Operation,
    Scorecard,
    Throughput,
)
from stepgrade.report.accounts import ACCOUNTS
from stepgrade.report.names import printable, shortened
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.units import (
    show_count,
    show_graded_share,
    show_ms,
    show_rate,
    show_ratio,
    show_share,
    show_si,
)

_BADGE = {"A": "badge-good", "B": "badge-good", "C": "badge-fair", "D": "badge-bad", "F": "badge-bad"}
_THRESHOLDS = (("D", 0.10), ("C", 0.20), ("B", 0.40), ("A", 0.60))
_BOUNDS = tuple(least for _, least in _THRESHOLDS)
_ROOF = {"memory": "memory bandwidth", "compute": "arithmetic", "link": "the link"}
_WORK = ("compute", "memory_bw", "unknown")
PHASES_SHOWN = 8
HOTSPOTS_SHOWN = 8
LAYERS_SHOWN = 6
RANKS_SHOWN = 16
_MARKS = {"critical": ("!", "bad"), "warning": ("!", "fair"), "info": ("·", "dim")}


def draw(card: Scorecard, canvas: Canvas) -> None:
    """Draw the whole card."""
    _title(card, canvas)
    _differences(card, canvas)
    _grade(card, canvas)
    _facts(card, canvas)
    _regressions(card, canvas)
    _ledger(card, canvas)
    _phases(card, canvas)
    _hotspots(card, canvas)
    _layers(card, canvas)
    _ranks(card, canvas)
    _findings(card, canvas)
    _advice(card, canvas)
    _notes(card, canvas)


def _title(card: Scorecard, canvas: Canvas) -> None:
    facts = [printable(card.source.format)]
    if len(card.source.files) > 1:
        facts.append(f"{len(card.source.files)} files")
    if card.steps and card.steps.count:
        facts.append(f"{show_count(card.steps.count)} step{'s' if card.steps.count != 1 else ''}")
    told = " · ".join(facts)
    name = shortened(card.source.files[0], max(8, canvas.width - len(told) - len("stepgrade ·  · ")))
    canvas.line(canvas.style(shortened(f"stepgrade · {name} · {told}", canvas.width), "dim"))


def _differences(card: Scorecard, canvas: Canvas) -> None:
    if card.differences:
        from stepgrade.report.terminal.baseline import draw_differences  # noqa: PLC0415  with a baseline only

        draw_differences(card.differences, canvas, compared=bool(card.compared))


def _regressions(card: Scorecard, canvas: Canvas) -> None:
    if card.baseline is not None:
        from stepgrade.report.terminal.baseline import draw_regressions  # noqa: PLC0415  as above

        draw_regressions(card, card.baseline, canvas)


def _grade(card: Scorecard, canvas: Canvas) -> None:
    canvas.line()
    badge = canvas.style(f" {card.grade} ", _BADGE.get(card.grade, "badge-none"))
    if card.grade == UNGRADED:
        canvas.line(f"  {badge}")
        for reason in texts_of(card.ungraded_because):
            canvas.paragraph(reason, indent="    ", first="  · ")
        return
    if _is_graded_by_arithmetic(card):
        _grade_of_arithmetic(card, canvas, badge)
        return
    roof = card.ceilings[0]
    reached = f"{show_graded_share(card.efficiency, _BOUNDS)} of what {_ROOF[roof.kind]} allows"
    canvas.paragraph(reached, indent="       ", first=f"  {badge}  ", style="title")
    canvas.paragraph(
        f"{show_rate(card.throughput_tok_s)} of {show_rate(roof.tok_s)}{_on_device(card)}: {roof.convention}",
        indent="       ",
    )
    canvas.line(f"       {_scale(card.efficiency or 0.0, canvas)}")


def _grade_of_arithmetic(card: Scorecard, canvas: Canvas, badge: str) -> None:
    """Draw a grade that rests on the recorded FLOPs alone: without tokens there is no tok/s."""
    reached = f"{show_graded_share(card.efficiency, _BOUNDS)} of what arithmetic allows"
    canvas.line(f"  {badge}  {canvas.style(reached, 'title')}")
    counted = _counted(card.arithmetic) if card.arithmetic is not None else "as recorded"
    canvas.paragraph(f"{_arithmetic(card)}{_on_device(card)}, {counted}", indent="       ")
    canvas.line(f"       {_scale(card.efficiency or 0.0, canvas)}")


def _arithmetic(card: Scorecard) -> str:
    done = card.arithmetic
    if done is None:
        return ""
    peak = f" of {show_si(done.peak_flops_s, 'FLOP/s')}" if done.peak_flops_s else ""
    return f"{show_si(done.achieved_flops_s, 'FLOP/s')}{peak} {done.dtype or ''}".rstrip()


def _is_graded_by_arithmetic(card: Scorecard) -> bool:
    return card.grade != UNGRADED and (card.throughput_tok_s is None or not card.ceilings)


def _counted(done: Arithmetic) -> str:
    """Return what the FLOPs were counted from."""
    if done.known_share is None or done.known_share > 0.995:
        return "matrix products from the recorded shapes"
    return f"from the shapes of {show_share(done.known_share, 0)} of the matrix products' time"


def _on_device(card: Scorecard) -> str:
    return f" on {card.device.name}" if card.device and card.device.name else ""


def _scale(efficiency: float, canvas: Canvas) -> str:
    """Return 0 to 100 % on one line: the grades where they begin, and where the run stands."""
    width = min(60, canvas.width - 14)
    ruler = ["·"] * (width + 1)
    for grade, least in _THRESHOLDS:
        ruler[round(least * width)] = grade
    ruler[0] = "F"
    at = round(min(efficiency, 1.0) * width)
    drawn = "".join(ruler)
    return f"{drawn[:at]}{canvas.style('◆', 'title')}{drawn[at + 1 :]} 100 %"


def _sureness(card: Scorecard) -> str:
    """Return what the step time rests on: its interval and how many steps are in it."""
    steps = card.steps
    if steps is None or steps.median_ms is None:
        return ""
    of_all = f"median of {show_count(steps.steady)} steady step{'s' if steps.steady != 1 else ''}"
    if steps.low_ms is None:
        return f", {of_all}"
    return f", between {show_ms(steps.low_ms)} and {show_ms(steps.high_ms)} (95 %; {of_all})"


def _throughput(rate: Throughput) -> str:
    """Return the rate, its interval where there is one, and what it rests on."""
    if rate.low is None or rate.high is None:
        return f"{show_rate(rate.tok_s)} ({rate.basis})"
    between = f"between {show_rate(rate.low)} and {show_rate(rate.high)}"
    return f"{show_rate(rate.tok_s)}, {between} (95 %; {rate.basis})"


def _facts(card: Scorecard, canvas: Canvas) -> None:
    canvas.line()
    evidence = "; ".join((*card.bottleneck_evidence, *_without(card)))
    canvas.fact("Bottleneck", f"{card.bottleneck}: {evidence}" if evidence else card.bottleneck)
    if card.step_time_ms is not None:
        canvas.fact("Step", f"{show_ms(card.step_time_ms)}{_sureness(card)}")
    if card.throughput is not None and (card.grade == UNGRADED or card.throughput.low is not None):
        canvas.fact("Throughput", _throughput(card.throughput))
    if card.arithmetic is not None and not _is_graded_by_arithmetic(card):
        canvas.fact("Arithmetic", f"{_arithmetic(card)}, {_counted(card.arithmetic)}")
    if card.mfu is not None:
        canvas.fact("MFU", f"{show_share(card.mfu)} ({card.flops_convention}), HFU {show_share(card.hfu)}")
    if card.forward_backward_ratio is not None:
        canvas.fact("Backward", f"{show_ratio(card.forward_backward_ratio)} the time of forward")
    if card.wall_coverage is not None:
        canvas.fact("Coverage", f"{show_share(card.wall_coverage)} of the wall time is in phases")
    if card.launches_per_step is not None:
        canvas.fact("Launches", f"{show_count(round(card.launches_per_step))} per step")


def _without(card: Scorecard) -> tuple[str, ...]:
    """Return what the step would take without the bottleneck, if that is a wait."""
    found = [cause for cause in card.causes if cause.bottleneck == card.bottleneck]
    if not found or found[0].remaining_ms is None or card.bottleneck in _WORK:
        return ()
    return (f"without it the step would take {show_ms(found[0].remaining_ms)}",)


def _ledger(card: Scorecard, canvas: Canvas) -> None:
    """Draw where the device's time goes, for sources that tell it apart from the phases."""
    if card.ledger is None or card.ledger.idle_sync is None:
        return
    canvas.heading("What the device does in a step")
    shares = [(words, getattr(card.ledger, account)) for account, words in ACCOUNTS.items()]
    canvas.bars(
        (words, share, _figures(share * (card.step_time_ms or 0.0), share))
        for words, share in shares
        if share > 0.0005
    )


def _phases(card: Scorecard, canvas: Canvas) -> None:
    shown = [(name, phase) for name, phase in card.phases.items() if phase.share]
    if not shown:
        return
    busy = card.ledger is not None and card.ledger.idle_sync is not None
    canvas.heading("What it works on" if busy else "Where a step goes")
    rows = [
        (name, phase.share or 0.0, _figures(phase.ms, phase.share)) for name, phase in shown[:PHASES_SHOWN]
    ]
    rest = shown[PHASES_SHOWN:]
    if rest:
        share, ms = sum(phase.share or 0.0 for _, phase in rest), sum(phase.ms or 0.0 for _, phase in rest)
        rows.append((f"{len(rest)} more", share, _figures(ms, share)))
    if card.ledger and not busy and card.step_time_ms and (uncovered := _uncovered(card)) > 0.001:
        rows.append(("in no phase", uncovered, _figures(uncovered * card.step_time_ms, uncovered)))
    canvas.bars(rows)


def _uncovered(card: Scorecard) -> float:
    return 1.0 - sum(phase.share or 0.0 for phase in card.phases.values())


def _figures(ms: float | None, share: float | None) -> str:
    return f"{show_ms(ms):>9} {show_share(share):>7}"


def _hotspots(card: Scorecard, canvas: Canvas) -> None:
    if not card.hotspot_ops:
        canvas.heading("Hotspots")
        canvas.line("  none: the profile lists no operations")
        return
    canvas.heading("Hotspots, of all operations' time")
    known = {op.name: op for op in card.operations}
    canvas.bars(
        (name, pct, f"{_figures(known[name].ms, pct / 100.0)}{_reached(known[name])}")
        for name, _, pct in card.hotspot_ops[:HOTSPOTS_SHOWN]
    )
    more = len(card.operations) - HOTSPOTS_SHOWN
    if more > 0:
        canvas.line(f"  {canvas.style(f'{more} more with --format json', 'dim')}")


def _reached(op: Operation) -> str:
    """Return how much of its own roof an operation reaches, where that is known."""
    return f"  {show_share(op.roof_share, 0):>5} of its roof" if op.roof_share is not None else ""


def _layers(card: Scorecard, canvas: Canvas) -> None:
    named = [layer for layer in card.layers if layer.name]
    if not named:
        return
    canvas.heading("Layers, forward + backward" if any(layer.bwd_ms for layer in named) else "Layers")
    rows = sorted(named, key=lambda layer: -((layer.fwd_ms or 0.0) + (layer.bwd_ms or 0.0)))[:LAYERS_SHOWN]
    canvas.bars((layer.name or "", _both(layer), _layer_figures(layer)) for layer in rows)
    if len(named) > LAYERS_SHOWN:
        canvas.line(f"  {canvas.style(f'{len(named) - LAYERS_SHOWN} more with --format json', 'dim')}")


def _both(layer: LayerStep) -> float:
    return (layer.fwd_ms or 0.0) + (layer.bwd_ms or 0.0) + (layer.recompute_ms or 0.0)


def _layer_figures(layer: LayerStep) -> str:
    if not layer.bwd_ms:
        return f"{show_ms(layer.fwd_ms)} forward"
    again = f" + {show_ms(layer.recompute_ms)} again" if layer.recompute_ms else ""
    return f"{show_ms(layer.fwd_ms):>9} + {show_ms(layer.bwd_ms)}{again}"


def _ranks(card: Scorecard, canvas: Canvas) -> None:
    if not card.ranks:
        return
    canvas.heading("Ranks, waiting for others in collectives")
    rows = sorted(card.ranks, key=lambda rank: rank.rank)
    canvas.bars(
        (f"rank {rank.rank}", rank.wait_ms or 0.0, f"{show_ms(rank.wait_ms):>9} of {show_ms(rank.step_ms)}")
        for rank in rows[:RANKS_SHOWN]
    )
    if len(rows) > RANKS_SHOWN:
        canvas.line(f"  {canvas.style(f'{len(rows) - RANKS_SHOWN} more with --format json', 'dim')}")


def _findings(card: Scorecard, canvas: Canvas) -> None:
    if not card.findings:
        return
    canvas.heading("Findings")
    for finding in card.findings:
        mark = canvas.style(*_MARKS[finding.severity])
        canvas.paragraph(f"{printable(finding.claim)}{_gain(finding)}", indent="    ", first=f"  {mark} ")
        for seen in finding.consequences:
            canvas.paragraph(printable(seen), indent="        ", first="      ← ", style="dim")


def _gain(finding: Finding) -> str:
    if finding.gain_high <= 0.005:
        return ""
    low, high = show_share(finding.gain_low, 0), show_share(finding.gain_high, 0)
    return f" Worth {low} to {high} of the step." if low != high else f" Worth up to {high} of the step."


def _advice(card: Scorecard, canvas: Canvas) -> None:
    if not card.recommendations:
        return
    canvas.heading("What to do next")
    for number, advice in enumerate(card.recommendations, start=1):
        canvas.paragraph(advice, indent="     ", first=f"  {number}. ")


def _notes(card: Scorecard, canvas: Canvas) -> None:
    if not (card.unreported_warnings or card.notes):
        return
    canvas.heading("Notes")
    for text in texts_of(card.unreported_warnings):
        canvas.paragraph(text, indent="    ", first=f"  {canvas.style('!', 'fair')} ")
    for text in _folded(card.notes):
        canvas.paragraph(text, indent="    ", first="  · ", style="dim")


def _folded(notes: tuple[Note, ...]) -> list[str]:
    """Return the notes with those on the older contract made one: who does not use it need not read them."""
    older = [note for note in notes if note.code.startswith("v1_")]
    if len(older) < 2:
        return [*texts_of(notes)]
    others = texts_of(note for note in notes if note not in older)
    return [*others, f"contract v1 differs in {len(older)} ways: --format json says how and why"]
