"""Where the ranks of a run that stands still are."""

from __future__ import annotations

from collections.abc import Iterator

from stepgrade.model.hang import Hang
from stepgrade.report.blocks import Badge, Block, Heading, bullets
from stepgrade.report.names import shortened
from stepgrade.units import show_ranks

VERDICTS = {
    "missing_rank": "ranks wait for one that never came",
    "mismatch": "ranks call different collectives",
    "deadlock": "ranks wait for each other",
    "unfinished": "a collective does not end",
    "one_rank": "one rank is not enough to tell",
    "none": "nothing shows that the run hangs",
}
_ROWS_SHOWN = 40


def hang_blocks(hang: Hang) -> Iterator[Block]:
    """Yield the answer in a line, and the last collective of every rank."""
    answer = {"none": "no hang", "one_rank": "not known"}.get(hang.kind, "hang")
    yield Badge(answer, "badge-bad" if answer == "hang" else "badge-none", VERDICTS[hang.kind], "title")
    yield Heading("Where the ranks are")
    yield bullets(
        f"{ranks}: {call}{f' at {where}' if where else ''}{f', {state}' if state else ''}"
        for ranks, call, where, state in hang_rows(hang)
    )


def hang_rows(hang: Hang) -> Iterator[tuple[str, str, str, str]]:
    """Yield the last call of ranks, those first that are named in the answer."""
    named = {*hang.missing, *(rank for row in hang.differences[:1] for rank in row.ranks)}
    rows = sorted(hang.last_calls, key=lambda row: (named.isdisjoint(row.ranks), len(row.ranks), row.ranks))
    for row in rows[:_ROWS_SHOWN]:
        called = "none"
        if row.name is not None:
            called = f"{shortened(row.name, 40)} {row.sequence} of {shortened(row.group or '', 40)}"
        yield show_ranks(row.ranks), called, shortened(row.where or "", 60), row.state or ""
    if len(rows) > _ROWS_SHOWN:
        yield f"{len(rows) - _ROWS_SHOWN} more", "", "", ""
