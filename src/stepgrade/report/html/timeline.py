"""Steps of every rank on a common clock: the device's time, phases, streams and the host's threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import structs

from stepgrade.model.finding import Finding
from stepgrade.model.ledger import account_words
from stepgrade.model.step_view import Lane, StepView
from stepgrade.report.figures import LaneChart, Legend, Slice
from stepgrade.report.html.plot import Line, Mark, Scale, Tick, even_ticks
from stepgrade.report.names import shortened
from stepgrade.report.words import joined
from stepgrade.units import NS_PER_MS, show_count, show_ms

SLICES_SHOWN = 6_000  # on the page, of all ranks
ROW_HEIGHT = 26  # of a rank's waits, in dots
MOST_TIMES = 64.0  # so many times as wide as the screen
# What limits the work of a class decides its colour: arithmetic, moving data, talking, waiting.
_ARITHMETIC = ("gemm", "convolution", "attention")
_WORK = {"communication": "communication", "copy": "copies", "wait": "the host waits", "other": "other work"}
_LANES = {"ledger": "device", "phases": "phases"}
_LEGENDS = {"ledger": "The device", "phases": "Phases", "work": "Streams and threads"}


def view(block: LaneChart) -> dict[str, Any]:
    """Return the lanes of each rank in each step that is drawn."""
    drawn = [view for views in block.steps for view in views]
    most = max(60, SLICES_SHOWN // max(1, sum(len(view.lanes) for view in drawn)))
    steps = [_step(views, index, most, block.findings) for index, views in enumerate(block.steps)]
    longest = max(views[0].dur_ns for views in block.steps)
    for index, (step, views) in enumerate(zip(steps, block.steps, strict=True)):
        which = "in the middle" if index == 0 else "slowest" if views[0].dur_ns == longest else "fastest"
        step["title"] = f"step {show_count(views[0].number)}, {which}: {step['length']}"
    looks = {kind: dict[str, None]() for kind in _LEGENDS}
    for lane in (lane for view in drawn for lane in view.lanes):
        looks["work" if lane.kind in ("stream", "thread") else lane.kind].update(dict.fromkeys(lane.look))
    return {
        "chart": block,
        "steps": steps,
        "one": len(block.steps[0]) == 1,
        "legends": [
            Legend(tuple(dict.fromkeys(_legend(kind, look) for look in seen)), name=_LEGENDS[kind])
            for kind, seen in looks.items()
            if seen
        ],
    }


def _step(views: Sequence[StepView], place: int, most: int, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """Return one step of all ranks, on a scale of its own."""
    begin = min(view.at_ns for view in views)
    end = max(view.at_ns + view.dur_ns for view in views)
    scale = Scale(low=0.0, high=float(end - begin))
    kept = [[_lane(lane, view.at_ns - begin, scale, most, findings) for lane in view.lanes] for view in views]
    return {
        "id": f"drawn-{place}",
        "number": views[0].number,
        "length": show_ms(views[0].dur_ns / NS_PER_MS),
        "jumps": _jumps(views[0], kept[0], f"drawn-{place}"),
        "ranks": [
            {"name": "this rank" if view.rank is None else f"rank {view.rank}", "lanes": lanes}
            for view, lanes in zip(views, kept, strict=True)
        ],
        "ticks": [
            Tick(at=scale.place(ms * NS_PER_MS), text=show_ms(ms))
            for ms in even_ticks(0.0, (end - begin) / NS_PER_MS, 3)
        ],
        "waits": _waits(views, begin, scale),
        "has_pins": any(mark.label for lanes in kept for lane in lanes for mark in lane["marks"]),
    }


def _jumps(view: StepView, lanes: list[dict[str, Any]], step: str) -> list[dict[str, Any]]:
    """Return the phases that can be gone to: where each begins, and how much wider it fills the screen."""
    found = []
    for lane, drawn in zip(view.lanes, lanes, strict=True):
        looks = [mark.look for mark in drawn["marks"]] if lane.kind == "phases" else []
        for look in dict.fromkeys(looks):
            places = [place for place, other in enumerate(looks) if other == look]
            first, last = drawn["marks"][places[0]], drawn["marks"][places[-1]]
            name = look.removeprefix("phase-")
            drawn["marks"][places[0]] = structs.replace(first, id=f"{step}-{name}")
            span = last.x + last.width - first.x
            found.append(
                {"name": name, "id": f"{step}-{name}", "times": min(MOST_TIMES, 100.0 / max(span, 1.0))}
            )
    return found


def _waits(views: Sequence[StepView], begin: int, scale: Scale) -> dict[str, Any] | None:
    """Return a row for each rank with its waits, and an arrow from each to where the late rank arrives."""
    if not any(view.waits for view in views):
        return None
    rows = {view.rank: (place + 0.5) / len(views) * 100.0 for place, view in enumerate(views)}
    height = 100.0 / len(views)
    marks, arrows, told = [], [], []
    for view in views:
        for wait in view.waits:
            start = view.at_ns - begin + wait.start_ns
            x, until = scale.place(float(start)), scale.place(float(start + wait.dur_ns))
            drawn = "" if wait.late in rows else ", which is not drawn"
            tip = (
                f"rank {view.rank} waits {show_ms(wait.dur_ns / NS_PER_MS)} for rank {wait.late}{drawn}, "
                f"in {shortened(wait.name, 60)}"
            )
            y = rows[view.rank] - 0.3 * height
            marks.append(Mark(x=x, y=y, width=max(until - x, 0.05), height=0.6 * height, tip=tip))
            told.append(
                (
                    f"rank {view.rank}",
                    f"rank {wait.late}",
                    show_ms(wait.dur_ns / NS_PER_MS),
                    show_ms(start / NS_PER_MS),
                    shortened(wait.name, 60),
                )
            )
            if wait.late in rows:
                # From the middle of the wait to the row of the rank that ends it, when it arrives.
                end = rows[wait.late] + (0.3 if rows[wait.late] < rows[view.rank] else -0.3) * height
                arrows.append(Line(x1=(x + until) / 2, y1=rows[view.rank], x2=until, y2=end))
    return {
        "names": [(f"rank {rank}", y) for rank, y in rows.items()],
        "marks": marks,
        "arrows": arrows,
        "height": ROW_HEIGHT * len(views),
        "rows": told,
    }


def _lane(lane: Lane, shift: int, scale: Scale, most: int, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """Return the marks of a lane; the longest stretch of an account that a finding is about is pinned."""
    slices = _gathered(lane, most)
    pinned: dict[str, Finding] = {
        finding.account: finding
        for finding in reversed(findings)
        if lane.kind == "ledger" and finding.account is not None and finding.severity != "info"
    }
    named: dict[str, Finding] = {
        value: finding
        for finding in reversed(findings)
        if lane.kind in ("stream", "thread") and finding.severity != "info"
        for value in finding.evidence.values()
        if isinstance(value, str)
    }
    longest = {
        slices[place].look: place for place in sorted(range(len(slices)), key=lambda i: slices[i].dur_ns)
    }
    called = {
        slices[place].label: place for place in sorted(range(len(slices)), key=lambda i: slices[i].dur_ns)
    }
    marks = []
    for place, part in enumerate(slices):
        x = scale.place(float(shift + part.start_ns))
        width = scale.place(float(shift + part.start_ns + part.dur_ns)) - x
        finding = pinned.get(part.look) if longest[part.look] == place else None
        if called[part.label] == place:
            finding = finding or named.get(part.label)
        title = account_words(part.look) if lane.kind == "ledger" else shortened(part.label, 80)
        tip = joined(
            f"{title}: {show_ms(part.dur_ns / NS_PER_MS)}",
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


def _legend(kind: str, look: str) -> Slice:
    """Return the look of a kind of slice, and what it is called."""
    if kind == "ledger":
        return Slice(name=account_words(look), share=0.0, look=f"account-{look}")
    if kind == "phases":
        return Slice(name=look, share=0.0, look=f"phase-{look}")
    name = look if look in _WORK else "arithmetic" if look in _ARITHMETIC else "other"
    return Slice(name=_WORK.get(name, name), share=0.0, look=f"work-{name}")
