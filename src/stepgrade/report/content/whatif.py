"""A step as measured and with assumed changes."""

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
    """Yield the step, how long it would take with each change, and what would limit it then."""
    yield Title("What if", "stepgrade · ", found.source.shown)
    yield Space()
    ranks = f" of {found.ranks} ranks" if found.ranks > 1 else ""
    replayed = f"step {found.step}, replayed in {show_ms(found.replayed_ms)}"
    if found.steps_replayed > 1:
        replayed += f"; the answers are of {found.steps_replayed} steps"
    rows = {"step": f"{show_ms(found.step_ms)}{ranks} ({replayed})"}
    figures = [
        show_rate(found.throughput_tok_s) if found.throughput_tok_s is not None else "",
        f"{show_share(found.mfu)} MFU" if found.mfu is not None else "",
        f"grade {found.grade}" if found.grade is not None else "",
    ]
    if any(figures):
        rows["reaches"] = ", ".join(figure for figure in figures if figure)
    rows["made of"] = _parts(found.bound)
    yield facts(rows)
    yield Heading("What if")
    if not found.answers:
        text = "No change of one part that was tried makes the step 1 % shorter."
        yield Paragraph(text)
    else:
        answers = found.answers
        more = {
            "tok/s": [f"{one.throughput_tok_s:,.0f}" if one.throughput_tok_s else "" for one in answers],
            "MFU": [show_share(one.mfu) if one.mfu is not None else "" for one in answers],
            "grade": [one.grade or "" for one in answers],
        }
        used = {name: cells for name, cells in more.items() if any(cells)}
        columns = [Column("change", fills=True)]
        columns += [Column(name, width=9, right=True) for name in ("step", "from", "to")]
        columns.append(Column("saves", width=6, right=True))
        columns += [Column(name, width=max(5, *map(len, cells)), right=True) for name, cells in used.items()]
        table = []
        for index, one in enumerate(answers):
            times = map(show_ms, (one.step_ms, one.low_ms, one.high_ms))
            cells = (column[index] for column in used.values())
            table.append((_change(one), *times, show_share(one.gain), *cells))
        yield Table(tuple(columns), tuple(table))
        yield Heading("Why not more")
        yield bullets(f"{_change(one)}: {_parts(one.bound)}" for one in found.answers)
    if found.notes:
        yield Heading("Notes")
        yield bullets(texts_of(found.notes, flags), style="dim")


def _change(answer: ChangedStep) -> str:
    return shortened(answer.changes[0], _NAME_CELLS) if len(answer.changes) == 1 else "all of them"


def _parts(parts: Sequence[StepPart]) -> str:
    """Return where the time goes."""
    shown = [f"{show_share(part.share, 0)} {part.what}" for part in parts if part.share >= _LEAST_SHARE]
    return ", ".join(shown) or "nothing that takes time is left"
