"""Results as Markdown for issues, pull requests and notebooks; names are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepgrade.compare.decompose import Decomposition
from stepgrade.compare.matrix import ParityMatrix
from stepgrade.compare.parity import ParityReport
from stepgrade.model.finding import Finding
from stepgrade.model.notes import Result, texts_of
from stepgrade.model.scorecard import Scorecard
from stepgrade.report import hardware
from stepgrade.report.names import markdown as escaped
from stepgrade.report.types import Page
from stepgrade.scoring.inspection import Inspection
from stepgrade.units import show_delta, show_ms, show_rate, show_ratio, show_share

_PARITY = {True: "yes", False: "no", None: "cannot tell"}


def render(result: Result, page: Page) -> str:  # noqa: ARG001  Markdown has no width
    """Return the result as Markdown."""
    if isinstance(result, Scorecard):
        lines = _scorecard(result)
    elif isinstance(result, ParityReport):
        lines = _parity(result)
    elif isinstance(result, ParityMatrix):
        lines = _matrix(result)
    elif isinstance(result, Inspection):
        lines = _inspection(result)
    else:
        lines = hardware.render(result)
    return "\n".join(lines) + "\n"


def _scorecard(card: Scorecard) -> list[str]:
    lines = ["## Training Scorecard", ""]
    lines += _table(("Metric", "Value"), _metrics(card))
    lines += _section("Not graded because", _bullets(texts_of(card.ungraded_because)))
    lines += _section("Regressions", _bullets(_regressions(card)))
    lines += _section("Where a step goes", _phases(card))
    lines += _section("Hotspot operations", _hotspots(card))
    lines += _section("Findings", _bullets(text for finding in card.findings for text in _finding(finding)))
    lines += _section("What to do next", _bullets(card.recommendations))
    return lines + _section("Notes", _bullets(texts_of((*card.unreported_warnings, *card.notes))))


def _finding(finding: Finding) -> Iterable[str]:
    gain = f"{show_share(finding.gain_low, 0)} to {show_share(finding.gain_high, 0)} of the step"
    worth = f" Worth {gain}." if finding.gain_high > 0.005 else ""
    yield f"{finding.severity}: {finding.claim}{worth}"
    yield from (f"which explains: {seen}" for seen in finding.consequences)


def _metrics(card: Scorecard) -> list[tuple[str, str]]:
    ceilings = [
        (f"Ceiling ({ceiling.kind})", f"{show_rate(ceiling.tok_s)}: {ceiling.source}; {ceiling.convention}")
        for ceiling in card.ceilings
    ]
    rows = [
        ("Grade", f"**{card.grade}**"),
        ("Efficiency", show_share(card.efficiency)),
        ("Bottleneck", escaped(": ".join((card.bottleneck, *card.bottleneck_evidence)))),
        ("Throughput", show_rate(card.throughput_tok_s)),
        *((name, escaped(text)) for name, text in ceilings),
        *([(f"MFU ({card.flops_convention})", show_share(card.mfu))] if card.mfu is not None else []),
        ("Step time", f"{show_ms(card.step_time_ms)}{_interval(card)}"),
        ("Backward / forward", show_ratio(card.forward_backward_ratio)),
        ("Wall coverage", show_share(card.wall_coverage)),
    ]
    return [*rows, ("Baseline", escaped(card.baseline))] if card.baseline else rows


def _interval(card: Scorecard) -> str:
    steps = card.steps
    if steps is None or steps.low_ms is None:
        return ""
    return f" ({show_ms(steps.low_ms)} to {show_ms(steps.high_ms)}, 95 %)"


def _regressions(card: Scorecard) -> list[str]:
    found = [f"{r.metric}: {show_delta(r.delta)} ({r.severity})" for r in card.regressions]
    return found or (["none"] if card.baseline else [])


def _phases(card: Scorecard) -> list[str]:
    rows = [
        (escaped(name), show_ms(phase.ms), show_share(phase.share))
        for name, phase in card.phases.items()
        if phase.share
    ]
    return _table(("Phase", "Per step", "Share"), rows) if rows else []


def _hotspots(card: Scorecard) -> list[str]:
    per_step = {op.name: op.ms for op in card.operations}
    rows = [
        (escaped(name), show_ms(per_step.get(name)), show_share(pct / 100.0))
        for name, _, pct in card.hotspot_ops
    ]
    return _table(("Operation", "Per step", "Of all operations"), rows) if rows else []


def _parity(report: ParityReport) -> list[str]:
    ours, theirs = escaped(report.apr_runtime), escaped(report.baseline_runtime)
    rows = [
        ("Parity", _PARITY[report.parity_achieved]),
        (f"Throughput, {theirs} over {ours}", show_ratio(report.throughput_ratio)),
        (f"Step time, {ours} over {theirs}", show_ratio(report.step_time_ratio)),
        (f"Launches, {ours} over {theirs}", show_ratio(report.launch_ratio)),
        (f"Matched time of {ours}", show_share(report.ours_matched_share)),
        (f"Matched time of {theirs}", show_share(report.theirs_matched_share)),
        (f"The same by {report.canonical_level}, {ours}", show_share(report.canonical_ours_share)),
        (f"The same by {report.canonical_level}, {theirs}", show_share(report.canonical_theirs_share)),
    ]
    gaps = [
        (escaped(gap.op), show_ms(gap.apr_ms), show_ms(gap.baseline_ms), show_ratio(gap.ratio))
        for gap in report.gaps
    ]
    lines = [f"## Parity: {ours} vs {theirs}", "", *_table(("Question", "Answer"), rows)]
    lines += _section("The gap in parts", _parts(report.gap))
    lines += _section("Operations", _table(("Operation", ours, theirs, "Ratio"), gaps) if gaps else [])
    lines += _section(f"Only in {ours}", _bullets(f"{one.op}: {show_ms(one.ms)}" for one in report.only_ours))
    lines += _section(
        f"Only in {theirs}", _bullets(f"{one.op}: {show_ms(one.ms)}" for one in report.only_theirs)
    )
    return lines + _section("Notes", _bullets(texts_of(report.notes)))


def _parts(gap: Decomposition | None) -> list[str]:
    if gap is None:
        return []
    rows = [(escaped(part.name), f"{part.ms:+.3f} ms", show_share(part.share)) for part in gap.parts]
    whole = ("all", f"{gap.gap_ms:+.3f} ms", "100.0 %" if gap.gap_ms else show_share(None))
    return _table(("What makes the gap", "Per step", "Share"), [*rows, whole])


def _matrix(matrix: ParityMatrix) -> list[str]:
    names = [escaped(name) for name in matrix.runtimes]
    rows = [
        (name, *(show_ratio(ratio) for ratio in ratios))
        for name, ratios in zip(names, matrix.time_ratios, strict=True)
    ]
    return ["## Parity: row over column, above 1 the row is slower", "", *_table(("", *names), rows)]


def _inspection(inspection: Inspection) -> list[str]:
    rows = [("format", inspection.source.format), *inspection.holds.items()]
    lines = [f"## {escaped(', '.join(inspection.source.files))}", ""]
    lines += _table(("What", "Held"), [(name, escaped(text)) for name, text in rows])
    lines += _section(
        "Not in this file", _bullets(f"{name}: {text}" for name, text in inspection.missing.items())
    )
    return lines + _section("Notes", _bullets(texts_of((*inspection.fitness, *inspection.notes))))


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"### {title}", "", *lines] if lines else []


def _bullets(texts: Iterable[str]) -> list[str]:
    return [f"- {escaped(text, limit=1000)}" for text in texts]


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
