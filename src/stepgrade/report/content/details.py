"""Tables beneath the figures: operations by shape. A terminal shows the rows that matter, a document all."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepgrade.model.scorecard import Scorecard
from stepgrade.report.blocks import Bar, Bars, Block, Heading, Only, more, shorten
from stepgrade.report.names import shortened
from stepgrade.units import show_count, show_ms, show_share

ROWS_KEPT = 100  # in a document
_SHAPES_SHOWN = 4
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
    yield from _shapes(card)


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


def _shapes(card: Scorecard) -> Iterator[Detail]:
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
