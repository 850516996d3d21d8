"""What changed between runs: the same words, figures and tables for the scorecard and the gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from stepgrade.model.comparison import METRICS, MetricChange, Noise, Shift, StepChange
from stepgrade.model.ledger import account_words
from stepgrade.model.notes import Note, texts_of
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.blocks import (
    Block,
    Column,
    Differences,
    Fact,
    Facts,
    Heading,
    Paragraph,
    Space,
    Table,
    Title,
    bullets,
)
from stepgrade.report.names import joined, plural
from stepgrade.units import (
    MISSING,
    show_bytes,
    show_count,
    show_delta,
    show_ms,
    show_rate,
    show_samples_rate,
    show_share,
)

if TYPE_CHECKING:
    from stepgrade.compare.runs import Repeats

_NOISE = {
    "measured": "measured from history",
    "repeated": "measured from the repeated runs",
    "turns": "measured from pairs of runs in turns",
    "pooled": "by these few runs and other runs of this history",
    "usual": "by these few runs and what is usual elsewhere",
    "given": "as given",
    "assumed": "assumed: nobody measured it",
    "same": "the run is its own baseline",
}
_KINDS = {"ledger": "device", "new operation": "operation", "gone operation": "operation"}
# Below this the table of shifts has no room left for names.
_LEAST_TABLE = 64
_FIGURE = 11
NAME_CELLS = 120
_TITLE = 17


def title_of(metric: str) -> str:
    """Return what people call a metric."""
    return METRICS[metric].title if metric in METRICS else metric


def show_metric(metric: str, value: float | None) -> str:
    """Return a metric's figure with its unit."""
    if value is None:
        return MISSING
    unit = METRICS[metric].unit if metric in METRICS else "ms"
    if unit == "count":
        return show_count(round(value))
    shown: dict[str, Callable[[float], str]] = {
        "ms": show_ms,
        "tok/s": show_rate,
        "samples/s": show_samples_rate,
        "share": show_share,
        "bytes": show_bytes,
    }
    return shown[unit](value)


def show_interval(change: MetricChange) -> str:
    """Return the interval that the change lies in."""
    return f"{show_delta(change.low)} to {show_delta(change.high)}"


def show_change(change: MetricChange) -> str:
    """Return the change with its interval."""
    return f"{show_delta(change.change)} ({show_interval(change)})"


def show_noise(noise: Noise) -> str:
    """Return how much identical runs differ, and how that is known."""
    return f"{show_share(noise.share)}, {_NOISE[noise.basis]}"


def show_regression(metric: str, delta: float) -> str:
    """Return how far a metric moved; a coverage moves by points."""
    return f"{delta * 100:+.1f} points" if metric == "wall_coverage" else show_delta(delta)


def shift_cells(shift: Shift) -> tuple[str, str, str, str, str]:
    """Return kind, name, before, now and change of a part; a part without an earlier value is new."""
    name = account_words(shift.name) if shift.kind == "ledger" else shift.name
    kind, name = _KINDS.get(shift.kind, shift.kind), "per step" if shift.kind == "launches" else name
    show = show_ms if shift.unit == "ms" else show_count
    before, now = show(shift.before), show(shift.now)
    if shift.before is None or shift.now is None:
        return kind, name, before, now, "new" if shift.before is None else "gone"
    moved = shift.now - shift.before
    return kind, name, before, now, f"{'+' if moved >= 0 else '-'}{show(abs(moved))}"


def difference_blocks(
    differences: Iterable[Note], flags: Mapping[str, str], *, compared: bool
) -> tuple[Block, ...]:
    """Return how the setups differ, if they do."""
    texts = tuple(texts_of(differences, flags))
    headline = "compared although these differ:" if compared else "not comparable, these differ:"
    return (Differences(headline, texts),) if texts else ()


def change_table(changes: Sequence[MetricChange]) -> tuple[Block, ...]:
    """Return every metric before and now, with the interval of its change, its verdict and its noise."""
    if not changes:
        return ()
    rows = tuple(
        (
            title_of(change.metric),
            show_metric(change.metric, change.before),
            show_metric(change.metric, change.now),
            show_change(change),
            show_delta(change.change),
            show_interval(change),
            change.outcome,
            show_noise(change.noise),
            ": ".join(filter(None, (change.outcome, "; ".join(filter(None, (change.why, change.more)))))),
            joined(show_noise(change.noise), plural(change.before_runs, "earlier run")),
        )
        for change in changes
    )
    figure = max(_FIGURE, *(len(shown) for row in rows for shown in row[1:3]))
    columns = (
        Column("Metric", width=_TITLE if figure == _FIGURE else max(len(row[0]) for row in rows)),
        Column("before", width=figure, right=True, title="Before", look="number"),
        Column("now", width=figure, right=True, title="Now", look="number"),
        Column("change, surely within", gap=2, only="text"),
        Column("Change", look="strong", only="page"),
        Column("Surely within", look="number", only="page"),
        Column("verdict", only="full"),
        Column("noise from run to run", only="full"),
        Column("Verdict", look="verdict", only="page"),
        Column("Noise from run to run", look="prose", only="page"),
    )
    label, narrow = "Before and now", "Before, now, surely within"
    title = Heading(label, only="full")
    return title, Table(columns, rows, is_spaced=True, narrow_head=narrow, label=label)


def step_change_blocks(change: StepChange | None) -> tuple[Block | StepChange, ...]:
    """Return the change from the old step to the new one for a page, or why it is unknown."""
    if change is None:
        text = (
            "The parts of the baseline's step are not known. Give a profile or a scorecard of stepgrade as "
        )
        text += "the baseline, with the same phases or with a device timeline."
        return (Paragraph(text, style="empty", mark="Not explained.", only="page"),)
    by = "what the device does" if change.basis == "ledger" else "phase"
    return Heading(f"From the old step to the new one, by {by}", only="page"), change


def shift_table(shifts: Sequence[Shift]) -> tuple[Block, ...]:
    """Return the parts of the change by kind; sentences on a narrow terminal."""
    if not shifts:
        return ()
    rows = tuple(shift_cells(shift) for shift in shifts)
    sentences = []
    for shift, (kind, name, before, now, moved) in zip(shifts, rows, strict=True):
        if shift.before is None:
            sentences.append(f"new {kind} {name}: {now}")
        elif shift.now is None:
            sentences.append(f"gone {kind} {name}: was {before}")
        else:
            sentences.append(f"{kind} {name}: {before} to {now} ({moved})")
    figures = (
        Column("before", width=_FIGURE, right=True, title="Before", look="number"),
        Column("now", width=_FIGURE, right=True, title="Now", look="number"),
        Column("change", width=_FIGURE, right=True, title="Change", look="strong"),
    )
    table = Table(
        (
            Column("What changed", width=10, style="dim", role="once", title="Kind"),
            Column("", fills=True, title="Part", look="name"),
            *figures,
        ),
        rows,
        is_spaced=True,
        least_width=_LEAST_TABLE,
        otherwise=(Heading("What changed"), bullets(sentences)),
        label="What the change is made of",
    )
    return Heading("What changed", only="full"), Heading(table.label, only="page"), table


def regression_blocks(card: Scorecard) -> Iterator[Block]:
    """Yield how the card compares with its baseline."""
    yield Heading("Against", card.baseline or "")
    if not card.compared:
        yield Paragraph("nothing could be compared", style="fair")
    elif not card.regressions:
        yield Paragraph("no regression", style="good")
    yield Facts(
        tuple(
            Fact(
                found.severity,
                f"{title_of(found.metric)} {show_regression(found.metric, found.delta)}",
                "bad" if found.severity == "critical" else "fair",
            )
            for found in card.regressions
        ),
        width=10,
        header=("Severity", "Regression"),
    )
    for change in card.changes:
        if change.outcome not in ("regressed", "improved"):
            text = f"{title_of(change.metric)}: {change.outcome}, {change.why}"
            yield Paragraph(text, hanging=2)
    yield from change_table(card.changes)
    yield from shift_table(card.changed)


def noise_lines(changes: Iterable[MetricChange]) -> tuple[Paragraph, ...]:
    """Return how much identical runs differ, once for the metrics that have the same noise."""
    groups: dict[str, list[str]] = {}
    for change in changes:
        basis = f"{show_noise(change.noise)}; {plural(change.before_runs, 'earlier run')}"
        groups.setdefault(basis, []).append(title_of(change.metric))
    return tuple(
        Paragraph(f"noise from run to run ({', '.join(names)}): {basis}", style="dim", only="brief")
        for basis, names in groups.items()
    )


def repeats(found: Repeats, _flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield a row for each run, and the noise between them."""
    yield Title("Repeated", f"stepgrade · {plural(len(found.runs), 'run')} of one command")
    yield Space()
    columns = (
        Column("run", width=34),
        Column("step", width=10, right=True),
        Column("rate", width=18, right=True),
        Column("grade", width=10, gap=2),
    )
    rows = tuple(
        (run.file, show_ms(run.step_ms), show_metric(run.rate_metric, run.rate), run.grade)
        for run in found.runs
    )
    yield Table(columns, rows)
    yield Space()
    if found.noise_share is None:
        yield Paragraph("One run says nothing about how much identical runs differ.")
    else:
        noise = show_share(found.noise_share)
        text = f"Identical runs differ by {noise} of the step time (standard deviation)."
        yield Paragraph(text, style="title")
