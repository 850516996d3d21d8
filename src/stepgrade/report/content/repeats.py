"""What is shown of identical runs: each of them, and how much they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from stepgrade.report.blocks import Block, Column, Paragraph, Space, Table, Title
from stepgrade.report.content.comparison import show_metric
from stepgrade.report.words import plural
from stepgrade.units import show_ms, show_share

if TYPE_CHECKING:
    from stepgrade.compare.repeats import Repeats


def blocks(repeats: Repeats, _flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield a row for each run, and the noise between them."""
    yield Title("Repeated", f"stepgrade · {plural(len(repeats.runs), 'run')} of one command")
    yield Space()
    columns = (
        Column("run", width=34),
        Column("step", width=10, right=True),
        Column("rate", width=18, right=True),
        Column("grade", width=10, gap=2),
    )
    rows = tuple(
        (run.file, show_ms(run.step_ms), show_metric(run.rate_metric, run.rate), run.grade)
        for run in repeats.runs
    )
    yield Table(columns, rows)
    yield Space()
    if repeats.noise_share is None:
        yield Paragraph("One run says nothing of how much identical runs differ.")
    else:
        noise = show_share(repeats.noise_share)
        text = f"Identical runs differ by {noise} of the step time (standard deviation)."
        yield Paragraph(text, style="title")
