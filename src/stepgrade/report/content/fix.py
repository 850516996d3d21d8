"""What was tried to make a script faster, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepgrade.model.fix import FixReport, Gain, Try
from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import (
    Block,
    Bullet,
    Bullets,
    Code,
    Column,
    Heading,
    Paragraph,
    Space,
    Table,
    Title,
    bullets,
    facts,
)
from stepgrade.units import show_ms, show_share

_VERDICTS = {
    "accepted": "accepted",
    "rejected": "rejected",
    "cannot_tell": "cannot tell",
    "does_not_apply": "does not apply",
    "not_tried": "not tried",
}


def blocks(found: FixReport, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the unchanged script, each change with its verdict, all accepted ones together, and the edit."""
    base = found.base
    yield Title("Fix", "stepgrade · ", " ".join(found.command))
    yield Space()
    noise = f"; trials differ by {show_share(base.noise)}" if base.noise is not None else ""
    rows = {
        "unchanged": f"{show_ms(base.step_ms)} a step, {show_ms(base.processor_ms)} of processor "
        f"({base.trials} trials of {base.steps} steps{noise})",
    }
    if found.together is not None:
        together = found.together
        saved = f"{' and '.join(together.changes)} saves {_gain(together.measured)}"
        dropped = f"; beside them {', '.join(together.dropped)} gains nothing" if together.dropped else ""
        written = f"; as an edit {_gain(together.written)}" if together.written is not None else ""
        rows["fixed"] = f"{show_ms(together.step_ms)} a step: {saved}{dropped}{written}"
    rows["took"] = f"{found.seconds:,.0f} s"
    yield facts(rows)
    yield Heading("What was tried")
    if not found.tries:
        yield Paragraph("No finding of the recording asks for a change that is known here.")
    columns = (
        Column("change", fills=True),
        Column("predicted", width=10, right=True),
        Column("measured", width=9, right=True),
        Column("work", width=8),
        Column("verdict", width=11),
    )
    tried = [one for one in found.tries if one.verdict not in ("does_not_apply", "not_tried")]
    if tried:
        cells: list[tuple[str, ...]] = []
        for one in tried:
            promise = one.predicted
            predicted = f"{promise.low * 100:.0f} to {promise.high * 100:.0f} %" if promise else ""
            measured = show_share(one.measured.gain) if one.measured is not None else ""
            work = "" if one.same_work is None else "the same" if one.same_work else "differs"
            cells.append((one.change, predicted, measured, work, _VERDICTS[one.verdict]))
        yield Table(columns, tuple(cells))
        yield Space()
    yield Bullets(tuple(Bullet(_told(one)) for one in found.tries))
    if found.together is not None and found.together.diff is not None:
        yield Heading("The edit")
        yield Code(found.together.diff)
        breaks = [
            f"{one.change}: {one.breaks}." for one in found.tries if one.change in found.together.changes
        ]
        yield Heading("What to look at in the review")
        yield bullets(breaks)
    if found.notes:
        yield Heading("Notes")
        yield bullets(texts_of(found.notes, flags), style="dim")


def _gain(gain: Gain) -> str:
    return f"{show_share(gain.gain)} ({show_share(gain.low, 0)} to {show_share(gain.high, 0)})"


def _told(one: Try) -> str:
    how = f" ({one.how})" if one.how else ""
    where = f" at {one.where}" if one.where else ""
    saves = (
        f"; it saves {_gain(one.measured)} in {one.measured.rounds} rounds"
        if one.measured is not None
        else ""
    )
    return f"{one.what}{how}{where}: {_VERDICTS[one.verdict]}; {one.why.rstrip('.')}{saves}."
