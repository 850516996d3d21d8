"""A step as it is and with changes, in less than a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import Block, Column, Heading, Paragraph, Space, Table, Title, bullets, facts
from stepgrade.report.names import shortened
from stepgrade.units import show_ms, show_rate, show_share
from stepgrade.whatif.answers import ChangedStep, StepPart, WhatIf

_NAME_CELLS = 60
_LEAST_SHARE = 0.01


def blocks(found: WhatIf, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the step, what it would take with each change, and what then keeps it from being shorter."""
    yield Title("What if", "stepgrade · ", found.source.shown)
    yield Space()
    ranks = f" of {found.ranks} ranks" if found.ranks > 1 else ""
    replayed = f"step {found.step}, replayed in {show_ms(found.replayed_ms)}"
    rows = {"step": f"{show_ms(found.step_ms)}{ranks} ({replayed})"}
    figures = [
        show_rate(found.throughput_tok_s) if found.throughput_tok_s is not None else "",
        f"{show_share(found.mfu)} MFU" if found.mfu is not None else "",
        f"grade {found.grade}" if found.grade is not None else "",
    ]
    if any(figures):
        rows["reaches"] = ", ".join(figure for figure in figures if figure)
    rows["made of"] = _said(found.bound)
    yield facts(rows)
    yield Heading("What if")
    if not found.answers:
        text = "No change of one part that was tried makes the step 1 % shorter."
        yield Paragraph(text)
    else:
        yield _table(found.answers)
        yield Heading("Why not more")
        yield bullets(f"{_change(one)}: {_said(one.bound)}" for one in found.answers)
    if found.notes:
        yield Heading("Notes")
        yield bullets(texts_of(found.notes, flags), style="dim")


def _change(answer: ChangedStep) -> str:
    return shortened(answer.changes[0], _NAME_CELLS) if len(answer.changes) == 1 else "all of them"


def _said(parts: Sequence[StepPart]) -> str:
    """Return what the time goes into, in words."""
    told = [f"{show_share(part.share, 0)} {part.what}" for part in parts if part.share >= _LEAST_SHARE]
    return ", ".join(told) or "nothing that takes time is left"


def _table(answers: Sequence[ChangedStep]) -> Table:
    """Return a row for each answer, without the columns that none of them has."""
    more = {
        "tok/s": [f"{one.throughput_tok_s:,.0f}" if one.throughput_tok_s else "" for one in answers],
        "MFU": [show_share(one.mfu) if one.mfu is not None else "" for one in answers],
        "grade": [one.grade or "" for one in answers],
    }
    used = {name: cells for name, cells in more.items() if any(cells)}
    columns = (
        Column("change", fills=True),
        Column("step", width=9, right=True),
        Column("from", width=9, right=True),
        Column("to", width=9, right=True),
        Column("saves", width=6, right=True),
        *(Column(name, width=max(5, *map(len, cells)), right=True) for name, cells in used.items()),
    )
    rows = tuple(
        (
            _change(one),
            show_ms(one.step_ms),
            show_ms(one.low_ms),
            show_ms(one.high_ms),
            show_share(one.gain),
            *(cells[place] for cells in used.values()),
        )
        for place, one in enumerate(answers)
    )
    return Table(columns, rows)
