"""Positions on a chart in percent of its size, and the two large charts: roofline and timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, structs

from stepgrade.model.ledger import account_words
from stepgrade.model.scorecard import Finding
from stepgrade.model.step_view import Lane, StepView
from stepgrade.report.figures import LaneChart, Legend, RooflineChart, Slice
from stepgrade.report.names import BASES, ROOFS, joined, shortened
from stepgrade.scoring.charts import RoofPoint
from stepgrade.units import NS_PER_MS, show_count, show_ms, show_number, show_share, show_si

_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


class Mark(Struct, frozen=True, kw_only=True):
    """One rectangle or dot: its position in percent, its tooltip, and its look."""

    x: float
    y: float = 0.0
    width: float = 0.0
    height: float = 100.0
    tip: str = ""
    look: str = ""
    label: str = ""
    name: str = ""  # that a script shows where there is room
    id: str = ""


class Line(Struct, frozen=True, kw_only=True):
    """One straight line, in percent; level unless it is rising."""

    x1: float
    y1: float
    x2: float
    y2: float
    look: str = ""
    label: str = ""
    tip: str = ""
    is_rising: bool = False


class Tick(Struct, frozen=True, kw_only=True):
    """One tick of an axis."""

    at: float
    text: str


class Scale(Struct, frozen=True, kw_only=True):
    """Values to percent, evenly or by powers of ten."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, 0 to 100; what lies outside is put on the edge."""
        low, high = self._bent(self.low), self._bent(self.high)
        if high <= low:
            return 50.0
        return min(100.0, max(0.0, (self._bent(value) - low) / (high - low) * 100.0))

    def rising_ticks(self, show: Callable[[float], str]) -> list[Tick]:
        """Return ticks of an axis that rises from the bottom."""
        values = decades(self.low, self.high) if self.is_log else even_ticks(self.low, self.high)
        return [Tick(at=100.0 - self.place(value), text=show(value)) for value in values]

    def _bent(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.is_log else value


def even_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return at most `most` + 1 round values from low to high."""
    span = high - low
    if not 0.0 < span < math.inf:
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in _NICE if power * nice >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [first * step + index * step for index in range(int((high - first * step) / step + 1e-9) + 1)]


def decades(low: float, high: float, most: int = 7) -> list[float]:
    """Return the powers of ten from low to high, thinned out to at most `most`."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first + 1) // most))
    return [10.0**power for power in range(first, last + 1, every)]


DOTS_SHOWN = 60
LABELLED = 6
CLASSES = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "attention": "attention",
    "norm": "normalisation",
    "elementwise": "elementwise",
    "reduction": "reductions",
    "other": "other",
}
_LEAST_DRAWN, _MOST_DRAWN = 1e-300, 1e300


def roofline(block: RooflineChart) -> dict[str, Any]:
    """Return the plot."""
    found, points = block.found, block.found.points[:DOTS_SHOWN]
    # Both axes are wide enough for the points, the step as a whole, the level roofs and the ridge.
    drawn = [*points, *([found.run] if found.run else [])]
    across = [point.flops_per_byte for point in drawn] + ([found.ridge] if found.ridge else [])
    up = [point.flops_s for point in drawn]
    up += [roof.per_s for roof in found.roofs if roof.kind == "compute"]
    x, y = _half_decades(across), _half_decades(up)
    compute = [roof for roof in found.roofs if roof.kind == "compute"]
    memory = [roof for roof in found.roofs if roof.kind == "memory"]
    top = min(max((roof.per_s for roof in compute), default=y.high), y.high)
    slope = max((roof.per_s for roof in memory), default=None)
    lines = []  # memory rises with the FLOPs per byte, arithmetic is level
    for roof in compute:
        begin, at = x.place(roof.per_s / slope) if slope else 0.0, 100.0 - y.place(roof.per_s)
        label, look = f"{roof.shown}, {BASES[roof.basis]}", f"compute {roof.basis}"
        lines.append(Line(x1=begin, y1=at, x2=100.0, y2=at, look=look, label=label))
    for roof in memory:
        first, last = max(x.low, y.low / roof.per_s), min(x.high, top / roof.per_s)  # inside the plot
        if last > first:
            x1, x2 = x.place(first), x.place(last)
            y1, y2 = (100.0 - y.place(end * roof.per_s) for end in (first, last))
            label, look = f"{roof.shown}, {BASES[roof.basis]}", f"memory {roof.basis}"
            lines.append(Line(x1=x1, y1=y1, x2=x2, y2=y2, look=look, label=label, is_rising=True))
    # The level roofs' names are stacked left of where they begin: no operation can be there.
    level = sorted((line for line in lines if not line.is_rising), key=lambda line: line.y1)
    side = "end" if level and level[0].x1 > 35.0 else "start"
    dots = [_dot(point, x, y, found.points[0].ms) for point in points]
    labels: list[Mark] = []  # of the longest operations, without those that would cover another
    for dot, point in zip(dots, points, strict=True):
        taken = any(abs(dot.x - label.x) < 16.0 and abs(dot.y - label.y) < 5.0 for label in labels)
        if not taken and len(labels) < LABELLED:
            anchor = "end" if dot.x > 75.0 else "start"
            name = shortened(point.name, 28)
            labels.append(Mark(x=dot.x, y=dot.y, width=dot.width, label=name, look=anchor))
    return {
        "chart": block,
        "rows": [
            (
                shortened(point.name, 200, at_words=False),
                show_ms(point.ms),
                show_density(point.flops_per_byte),
                show_si(point.flops_s, "FLOP/s"),
                show_share(point.roof_share),
            )
            for point in points
        ],
        "above": any((point.roof_share or 0.0) > 1.0 for point in points),
        "classes": CLASSES,
        "bases": BASES,
        "lines": lines,
        "dots": dots,
        "labels": labels,
        "roof_labels": [
            Mark(x=level[0].x1, y=level[0].y1, height=-0.4 - 1.2 * index, label=line.label, look=side)
            for index, line in enumerate(reversed(level))
        ],
        "run": None if found.run is None else _dot(found.run, x, y, found.run.ms, look="run"),
        "x_ticks": [Tick(at=x.place(value), text=show_density(value)) for value in decades(x.low, x.high)],
        "y_ticks": y.rising_ticks(lambda value: show_si(value, "FLOP/s")),
    }


def _half_decades(values: list[float]) -> Scale:
    """Return an axis around the values, from one half of a power of ten to another."""
    # Figures of a stranger may be beyond any number that can be drawn.
    drawn = [min(max(value, _LEAST_DRAWN), _MOST_DRAWN) for value in values]
    low, high = math.log10(min(drawn)), math.log10(max(drawn))
    ends = 10 ** (math.floor(low * 2 - 0.3) / 2), 10 ** (math.ceil(high * 2 + 0.3) / 2)
    return Scale(low=ends[0], high=ends[1], is_log=True)


def _dot(point: RoofPoint, x: Scale, y: Scale, longest_ms: float, look: str = "") -> Mark:
    share = None
    if point.roof_share is not None and point.limit is not None:
        share = f"{show_share(point.roof_share)} of what {ROOFS[point.limit]} allows"
    density = f"{show_density(point.flops_per_byte)} FLOP/byte"
    figures = joined(show_ms(point.ms), show_si(point.flops_s, "FLOP/s"), density, share)
    return Mark(
        x=x.place(point.flops_per_byte),
        y=100.0 - y.place(point.flops_s),
        width=4.0 + 12.0 * math.sqrt(point.ms / longest_ms),
        tip=f"{shortened(point.name, 80)}: {figures}",
        look=look or f"class-{point.kind if point.kind in CLASSES else 'other'}",
    )


def show_density(flops_per_byte: float) -> str:
    """Return how many FLOPs an operation does for each byte."""
    return show_number(flops_per_byte)


SLICES_SHOWN = 6_000  # on the page, of all ranks
DETAILS_KEPT = 20_000  # beside it, for a script: about 400 kB
_ALL = 10**12  # more than any step has nanoseconds apart
_TENTH = 100  # ns
ROW_HEIGHT = 26  # of a rank's waits, in dots
MOST_TIMES = 64.0  # so many times as wide as the screen
# What limits the work of a class decides its colour: arithmetic, moving data, talking, waiting.
_ARITHMETIC = ("gemm", "convolution", "attention")
_WORK = {"communication": "communication", "copy": "copies", "wait": "the host waits", "other": "other work"}
_LANES = {"ledger": "device", "phases": "phases"}
_LEGENDS = {"ledger": "The device", "phases": "Phases", "work": "Streams and threads"}


def timeline(block: LaneChart) -> dict[str, Any]:
    """Return the lanes of each rank in each step that is drawn, each step on a scale of its own."""
    drawn = [view for views in block.steps for view in views]
    most = max(60, SLICES_SHOWN // max(1, sum(len(view.lanes) for view in drawn)))
    longest = max(views[0].dur_ns for views in block.steps)
    steps = []
    for index, views in enumerate(block.steps):
        begin = min(view.at_ns for view in views)
        end = max(view.at_ns + view.dur_ns for view in views)
        scale = Scale(low=0.0, high=float(end - begin))
        kept = [
            [_lane(lane, view.at_ns - begin, scale, most, block.findings) for lane in view.lanes]
            for view in views
        ]
        jumps = []  # links to the phases: where each begins, and the zoom at which it fills the screen
        for lane, lines in zip(views[0].lanes, kept[0], strict=True):
            marks = lines["marks"]
            phases = [mark.look for mark in marks] if lane.kind == "phases" else []
            for look in dict.fromkeys(phases):
                first, last = phases.index(look), len(phases) - 1 - phases[::-1].index(look)
                span, name = marks[last].x + marks[last].width - marks[first].x, look.removeprefix("phase-")
                marks[first] = structs.replace(marks[first], id=f"drawn-{index}-{name}")
                times = min(MOST_TIMES, 100.0 / max(span, 1.0))
                jumps.append({"name": name, "id": marks[first].id, "times": times})
        which = "in the middle" if index == 0 else "slowest" if views[0].dur_ns == longest else "fastest"
        length = show_ms(views[0].dur_ns / NS_PER_MS)
        steps.append(
            {
                "id": f"drawn-{index}",
                "title": f"step {show_count(views[0].number)}, {which}: {length}",
                "jumps": jumps,
                "ranks": [
                    {
                        "name": "this rank" if view.rank is None else f"rank {view.rank}",
                        "lanes": lanes,
                    }
                    for view, lanes in zip(views, kept, strict=True)
                ],
                "ticks": [
                    Tick(at=scale.place(ms * NS_PER_MS), text=show_ms(ms))
                    for ms in even_ticks(0.0, (end - begin) / NS_PER_MS, 3)
                ],
                "waits": _waits(views, begin, scale),
                "has_pins": any(mark.label for lanes in kept for lane in lanes for mark in lane["marks"]),
            }
        )
    looks = {kind: dict[str, None]() for kind in _LEGENDS}
    for lane in (lane for view in drawn for lane in view.lanes):
        looks["work" if lane.kind in ("stream", "thread") else lane.kind].update(dict.fromkeys(lane.look))
    return {
        "chart": block,
        "steps": steps,
        "one": len(block.steps[0]) == 1,
        "legends": [
            Legend(tuple(dict.fromkeys(_look(kind, look) for look in seen)), name=_LEGENDS[kind])
            for kind, seen in looks.items()
            if seen
        ],
    }


def _waits(views: Sequence[StepView], begin: int, scale: Scale) -> dict[str, Any] | None:
    """Return a row for each rank with its waits, and an arrow from each to where the late rank arrives."""
    if not any(view.waits for view in views):
        return None
    rows = {view.rank: (index + 0.5) / len(views) * 100.0 for index, view in enumerate(views)}
    height = 100.0 / len(views)
    marks, arrows, listed = [], [], []
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
            listed.append(
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
        "rows": listed,
    }


class _Slice(NamedTuple):
    start_ns: int
    dur_ns: int
    label: str
    look: str
    events: int


def _merged(lane: Lane, most: int) -> list[_Slice]:
    """Return slices of which neighbours are one where they are shorter than the lane over `most`."""
    columns = (lane.start_ns, lane.dur_ns, lane.label, lane.look, lane.count)
    rows = [_Slice(*row) for row in zip(*columns, strict=True)]
    least = max(1, (rows[-1].start_ns + rows[-1].dur_ns) // most) if rows else 1
    slices: list[_Slice] = []
    widest = 0  # of the slices drawn as the last one
    for row in rows:
        last = slices[-1] if slices else None
        is_short = row.dur_ns < least and widest < least
        if last is None or not is_short or row.start_ns // least != last.start_ns // least:
            slices.append(row)
            widest = row.dur_ns
            continue
        longer = row if row.dur_ns > widest else last
        widest = max(widest, row.dur_ns)
        dur, events = row.start_ns + row.dur_ns - last.start_ns, last.events + row.events
        slices[-1] = _Slice(last.start_ns, dur, longer.label, longer.look, events)
    return slices


def lane_details(block: LaneChart) -> dict[str, Any]:
    """Return the slices that a script draws where a reader zooms in, in tenths of a microsecond.

    Each lane has, one after the other, the gap before a slice, its length, the numbers of its label and its
    look among the `names`, and its events.
    """
    views = [view for views in block.steps for view in views]
    names: dict[str, int] = {}
    count = sum(len(lane.start_ns) for view in views for lane in view.lanes)
    lanes = sum(len(view.lanes) for view in views)
    most = _ALL if count <= DETAILS_KEPT else max(60, DETAILS_KEPT // lanes)
    details = []
    for view in views:
        for lane in view.lanes:
            numbers, end = list[int](), 0
            for part in _merged(lane, most):
                start, stop = part.start_ns // _TENTH, (part.start_ns + part.dur_ns) // _TENTH
                label = names.setdefault(shortened(part.label, 80), len(names))
                look = names.setdefault(_look(lane.kind, part.look).look, len(names))
                numbers += (start - end, max(1, stop - start), label, look, part.events)
                end = start + max(1, stop - start)
            details.append(numbers)
    return {"names": list(names), "lanes": details}


def _lane(lane: Lane, shift: int, scale: Scale, most: int, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """Return the marks of a lane; findings are pinned to the longest stretch of their account.

    Neighbouring short slices are drawn as one: a page with many ranks has room for fewer.
    """
    slices = _merged(lane, most)
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
    rising = sorted(range(len(slices)), key=lambda index: slices[index].dur_ns)
    longest = {slices[index].look: index for index in rising}
    called = {slices[index].label: index for index in rising}
    marks = []
    for index, part in enumerate(slices):
        x = scale.place(float(shift + part.start_ns))
        width = scale.place(float(shift + part.start_ns + part.dur_ns)) - x
        finding = pinned.get(part.look) if longest[part.look] == index else None
        if called[part.label] == index:
            finding = finding or named.get(part.label)
        title = account_words(part.look) if lane.kind == "ledger" else shortened(part.label, 80)
        tip = joined(
            f"{title}: {show_ms(part.dur_ns / NS_PER_MS)}",
            f"{show_count(part.events)} events" if part.events > 1 else None,
            shortened(finding.claim, 160) if finding else None,
        )
        look, label = _look(lane.kind, part.look).look, "▼" if finding else ""
        marks.append(Mark(x=x, width=max(width, 0.05), tip=tip, look=look, label=label))
    name = _LANES.get(lane.kind) or shortened(lane.name, 24)
    return {"name": name, "marks": marks, "shift": shift, "span": round(scale.high)}


def _look(kind: str, look: str) -> Slice:
    """Return the colour of a slice of a lane of this kind, and what the legend calls it."""
    if kind == "ledger":
        return Slice(name=account_words(look), share=0.0, look=f"account-{look}")
    if kind == "phases":
        return Slice(name=look, share=0.0, look=f"phase-{look}")
    name = look if look in _WORK else "arithmetic" if look in _ARITHMETIC else "other"
    return Slice(name=_WORK.get(name, name), share=0.0, look=f"work-{name}")
