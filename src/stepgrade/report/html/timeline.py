"""One step of every rank on a common clock: the device's time, phases, streams and the host's threads."""

from __future__ import annotations

from typing import Any, NamedTuple

from stepgrade.model.finding import Finding
from stepgrade.model.profile import ACCOUNTS
from stepgrade.model.scorecard import Scorecard
from stepgrade.model.step_view import Lane
from stepgrade.report.html.plot import Mark, Scale, Tick, even_ticks, joined
from stepgrade.report.names import shortened
from stepgrade.units import NS_PER_MS, show_count, show_ms

RANKS_SHOWN = 8
SLICES_SHOWN = 6_000  # on the page, of all ranks
# What limits the work of a class decides its colour: arithmetic, moving data, talking, waiting.
_ARITHMETIC = ("gemm", "convolution", "attention")
_WORK = {"communication": "communication", "copy": "copies", "wait": "the host waits", "other": "other work"}
_LANES = {"ledger": "device", "phases": "phases"}
_LEGENDS = {"ledger": "The device", "phases": "Phases", "work": "Streams and threads"}


def view(card: Scorecard) -> dict[str, Any] | None:
    """Return the lanes of each rank; None where no step can be drawn."""
    views = card.views[:RANKS_SHOWN]
    if not views:
        return None
    begin = min(view.at_ns for view in views)
    end = max(view.at_ns + view.dur_ns for view in views)
    scale = Scale(low=0.0, high=float(end - begin))
    most = max(60, SLICES_SHOWN // max(1, sum(len(view.lanes) for view in views)))
    kept = [
        [_lane(lane, view.at_ns - begin, scale, most, card.findings) for lane in view.lanes] for view in views
    ]
    looks = {kind: dict[str, None]() for kind in _LEGENDS}
    for lane in (lane for view in views for lane in view.lanes):
        looks["work" if lane.kind in ("stream", "thread") else lane.kind].update(dict.fromkeys(lane.look))
    return {
        "number": views[0].number,
        "length": show_ms(views[0].dur_ns / NS_PER_MS),
        "ranks": [
            {"name": "this rank" if view.rank is None else f"rank {view.rank}", "lanes": lanes}
            for view, lanes in zip(views, kept, strict=True)
        ],
        "one": len(views) == 1,
        "left_out": max(0, len(card.ranks) - len(views)),
        "ticks": [
            Tick(at=scale.place(ms * NS_PER_MS), text=show_ms(ms))
            for ms in even_ticks(0.0, (end - begin) / NS_PER_MS, 3)
        ],
        "has_pins": any(mark.label for lanes in kept for lane in lanes for mark in lane["marks"]),
        "legends": [
            {"name": _LEGENDS[kind], "rows": list(dict.fromkeys(_legend(kind, look) for look in seen))}
            for kind, seen in looks.items()
            if seen
        ],
    }


def _lane(lane: Lane, shift: int, scale: Scale, most: int, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """Return the marks of a lane; the longest stretch of an account that a finding is about is pinned."""
    slices = _gathered(lane, most)
    pinned: dict[str, Finding] = {
        finding.account: finding
        for finding in reversed(findings)
        if lane.kind == "ledger" and finding.account is not None and finding.severity != "info"
    }
    longest = {
        slices[place].look: place for place in sorted(range(len(slices)), key=lambda i: slices[i].dur_ns)
    }
    marks = []
    for place, part in enumerate(slices):
        x = scale.place(float(shift + part.start_ns))
        width = scale.place(float(shift + part.start_ns + part.dur_ns)) - x
        finding = pinned.get(part.look) if longest[part.look] == place else None
        named = ACCOUNTS[part.look] if lane.kind == "ledger" else shortened(part.label, 80)
        tip = joined(
            f"{named}: {show_ms(part.dur_ns / NS_PER_MS)}",
            f"{show_count(part.events)} events" if part.events > 1 else None,
            shortened(finding.claim, 160) if finding else None,
        )
        look, label = _look(lane, part.look), "▼" if finding else ""
        marks.append(Mark(x=x, width=max(width, 0.05), tip=tip, look=look, label=label))
    return {"name": _LANES.get(lane.kind) or shortened(lane.name, 24), "marks": marks}


class _Slice(NamedTuple):
    start_ns: int
    dur_ns: int
    label: str
    look: str
    events: int


def _gathered(lane: Lane, most: int) -> list[_Slice]:
    """Return the slices, short ones that stand together as one: a page with many ranks has room for fewer."""
    rows = [
        _Slice(*row)
        for row in zip(lane.start_ns, lane.dur_ns, lane.label, lane.look, lane.count, strict=True)
    ]
    width = max(1, (rows[-1].start_ns + rows[-1].dur_ns) // most) if rows else 1
    found: list[_Slice] = []
    longest = 0
    for row in rows:
        last = found[-1] if found else None
        is_short = row.dur_ns < width and last is not None and longest < width
        if last is None or not is_short or row.start_ns // width != last.start_ns // width:
            found.append(row)
            longest = row.dur_ns
            continue
        named = row if row.dur_ns > longest else last
        longest = max(longest, row.dur_ns)
        end = row.start_ns + row.dur_ns
        found[-1] = _Slice(
            last.start_ns, end - last.start_ns, named.label, named.look, last.events + row.events
        )
    return found


def _look(lane: Lane, look: str) -> str:
    if lane.kind in ("ledger", "phases"):
        return f"{'account' if lane.kind == 'ledger' else 'phase'}-{look}"
    return f"work-{look if look in _WORK else 'arithmetic' if look in _ARITHMETIC else 'other'}"


def _legend(kind: str, look: str) -> tuple[str, str]:
    """Return the look of a kind of slice, and what it is called."""
    if kind == "ledger":
        return f"account-{look}", ACCOUNTS[look]
    if kind == "phases":
        return f"phase-{look}", look
    name = look if look in _WORK else "arithmetic" if look in _ARITHMETIC else "other"
    return f"work-{name}", _WORK.get(name, name)
