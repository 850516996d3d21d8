"""The first screen: the grade and what it is a grade of, the rate, the ceilings, what holds the run back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from stepgrade.model.scorecard import UNGRADED, Scorecard, StepStats, Throughput
from stepgrade.report.html import words
from stepgrade.report.html.plot import Mark, Scale, joined
from stepgrade.scoring.standing import Standing, standings
from stepgrade.units import MISSING, show_count, show_graded_share, show_ms, show_rate, show_share, show_si

Tile = tuple[str, str, str]
_BOUNDS = tuple(begin / 100.0 for _, begin in words.GRADES_BEGIN[1:])


def view(card: Scorecard) -> dict[str, Any]:
    """Return the first screen."""
    return {
        "grade": MISSING if card.grade == UNGRADED else card.grade,
        "is_graded": card.grade != UNGRADED,
        "headline": _headline(card),
        "meaning": words.GRADE_MEANINGS.get(card.grade, "not graded"),
        "of": _what_it_grades(card),
        "marker": None if card.efficiency is None else min(100.0, card.efficiency * 100.0),
        "zones": _zones(),
        "tiles": _tiles(card),
        "bottleneck": words.BOTTLENECKS.get(card.bottleneck, card.bottleneck),
        "ceilings": _ceilings(card),
    }


def _headline(card: Scorecard) -> str:
    if card.grade == UNGRADED:
        return "Not graded"
    return f"{show_graded_share(card.efficiency, _BOUNDS)} of what {_limit(card)} allows"


def _limit(card: Scorecard) -> str:
    if card.ceilings and card.throughput is not None:
        return words.ROOFS[card.ceilings[0].kind]
    return words.ROOFS["compute"]


def _what_it_grades(card: Scorecard) -> str:
    """Say what was held against what, and by which count."""
    if card.grade == UNGRADED:
        return ""
    on = f" on {card.device.name}" if card.device and card.device.name else ""
    if card.ceilings and card.throughput is not None:
        roof = card.ceilings[0]
        return f"{show_rate(card.throughput.tok_s)}{on} against {show_rate(roof.tok_s)}: {roof.convention}."
    done = card.arithmetic
    if done is None:
        return ""
    peak = show_si(done.peak_flops_s, "FLOP/s")
    return (
        f"{show_si(done.achieved_flops_s, 'FLOP/s')}{on} against {peak} {done.dtype or ''}, "
        "from the matrix products whose shapes were recorded."
    )


def _zones() -> list[Mark]:
    begins = [*words.GRADES_BEGIN, ("", 100)]
    return [
        Mark(x=begin, width=following - begin, label=grade, look=f"grade-{grade}")
        for (grade, begin), (_, following) in pairwise(begins)
    ]


def _tiles(card: Scorecard) -> list[Tile]:
    tiles = [
        ("Throughput", _rate(card.throughput), _rate_note(card.throughput)),
        ("Step", show_ms(card.step_time_ms), _step_note(card.steps)),
    ]
    if card.mfu is not None:
        tiles.append(("MFU", show_share(card.mfu), _mfu_note(card)))
    elif card.arithmetic is not None:
        share = "" if card.arithmetic.share is None else f"{show_share(card.arithmetic.share)} of the peak"
        tiles.append(("Arithmetic", show_si(card.arithmetic.achieved_flops_s, "FLOP/s"), share))
    if card.launches_per_step is not None:
        tiles.append(("Launches", show_count(round(card.launches_per_step)), "per step"))
    return tiles


def _mfu_note(card: Scorecard) -> str:
    return joined(card.flops_convention, None if card.hfu is None else f"HFU {show_share(card.hfu)}")


def _rate(throughput: Throughput | None) -> str:
    return "not known" if throughput is None else show_rate(throughput.tok_s)


def _rate_note(throughput: Throughput | None) -> str:
    if throughput is None:
        return "give --tokens-per-step N or --throughput TOK_S"
    interval = None
    if throughput.low is not None and throughput.high is not None:
        interval = f"95 % interval {show_rate(throughput.low)} to {show_rate(throughput.high)}"
    return joined(interval, throughput.basis)


def _step_note(steps: StepStats | None) -> str:
    if steps is None or steps.median_ms is None:
        return "average; single steps were not recorded"
    return joined(f"median {show_ms(steps.median_ms)}", _spread(steps), _counted(steps))


def _spread(steps: StepStats) -> str | None:
    """Return the interval of the median where there is one."""
    if steps.low_ms is None or steps.high_ms is None:
        return None
    return f"95 % interval {show_ms(steps.low_ms)} to {show_ms(steps.high_ms)}"


def _counted(steps: StepStats) -> str:
    return f"{show_count(len(steps.samples_ms))} steps"


def _ceilings(card: Scorecard) -> list[dict[str, Any]]:
    found = standings(card)
    if not found:
        return []
    scale = Scale(low=0.0, high=max(one.ceiling.tok_s for one in found))
    return [_ceiling(one, scale) for one in found]


def _ceiling(one: Standing, scale: Scale) -> dict[str, Any]:
    ceiling = one.ceiling
    width = scale.place(ceiling.tok_s)
    return {
        "name": f"{words.ROOFS[ceiling.kind]}, {words.BASES[ceiling.basis]}",
        "rate": show_rate(ceiling.tok_s),
        "share": show_share(one.share),
        "width": width,
        "reached": 0.0 if one.share is None else min(width, width * one.share),
        "is_known": one.share is not None,
        "counts": one.counts,
        "tip": joined(ceiling.convention, ceiling.source),
    }
