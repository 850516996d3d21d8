"""Goodput: where the wall time of a logged run went, and which pauses it was interrupted by.

Every row of the log has steps that take what steps around them take; what it took besides is a pause, and
the lines between its rows say of which kind. Times add up to the wall time by construction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from stepgrade.model.step_log import GOODPUT_ACCOUNTS, Goodput, PauseKind, StepLog
from stepgrade.statistics import median, median_and_spread

# Rows whose median is what a step takes there: enough for pauses not to move it, few enough to follow drift.
_BLOCK = 32
_LEAST_BLOCK = 8
_MOST_BLOCKS = 512
# The pace of a run in progress is that of so many rows: enough for its recurring pauses.
_RECENT = 400
# A row is late beyond this many robust deviations and this share of its steps; half where the log says why.
_SCORE = 5.0
_LEAST_LATE = 0.03
_EXPLAINED = 0.5
# Drift must stand out from the noise of single rows by so much; a line's ends vary by sqrt(12) of it.
_DRIFT_SCORE = 14.0
# Slow steps recur if so many of the gaps between them are multiples of one.
_REGULAR = 0.8
_LEAST_RECURRING = 3


class Pause(Struct, frozen=True):
    """One interruption: of which kind, at which step, how long, and in which row."""

    kind: PauseKind
    step: float
    seconds: float
    row: int


class WallLedger(Struct, frozen=True, kw_only=True):
    """The goodput of a run with the pauses that it is made of; `lost_s` is of steps that were repeated."""

    goodput: Goodput
    pauses: tuple[Pause, ...]
    lost_s: float
    lost_steps: float
    drift: float  # how much longer a step takes at the end than at the beginning, as a share
    drift_s: float  # what that cost
    level_changes: tuple[float, ...] = ()  # steps from which on steps take another time

    def of(self, kind: PauseKind) -> tuple[Pause, ...]:
        """Return the pauses of one kind, in order."""
        return tuple(pause for pause in self.pauses if pause.kind == kind)


def wall_ledger(log: StepLog) -> WallLedger | None:
    """Return where the wall time went; None for a log without times."""
    rows = len(log.wall_s)
    if not rows or sum(log.wall_s) <= 0.0:
        return None
    usual, spread = usual_steps(log)
    spent: dict[str, float] = dict.fromkeys(GOODPUT_ACCOUNTS, 0.0)
    spent["startup"], spent["idle"] = log.before_s, log.after_s
    lost, restarted = lost_rows(log), set(log.attempts)
    reasons: dict[int, dict[PauseKind, float | None]] = {}
    for reason in log.reasons:
        reasons.setdefault(reason.row, {})[reason.kind] = reason.seconds
    typical = _typical_costs(log, usual, reasons)
    pauses: list[Pause] = []
    lost_s = 0.0
    for row in range(rows):
        wall = log.wall_s[row]
        expected = log.count[row] * usual[row]
        late = wall - expected
        reach = max(
            _SCORE * spread[row] * log.count[row] ** 0.5, _LEAST_LATE * expected, 1.5 * log.clock_s
        ) * (_EXPLAINED if row in reasons or row in restarted else 1.0)
        steps_s = wall if late <= reach else expected
        repeated = steps_s * lost.get(row, 0.0)
        spent["restart"] += repeated
        spent["productive"] += steps_s - repeated
        lost_s += repeated
        if late <= reach:
            continue
        for kind, seconds in shared_out(log, row, late, reasons.get(row, {}), typical):
            spent[kind] += seconds
            pauses.append(Pause(kind, log.step[row], seconds, row))
    for kind, printed_s in reasons.get(rows, {}).items():  # after the last step
        took = min(printed_s or 0.0, spent["idle"])
        spent["idle"] -= took
        spent[kind] += took
        if took:
            pauses.append(Pause(kind, log.step[-1], took, rows))
    wall_s = sum(spent.values())
    if not 0.0 < wall_s < math.inf:
        return None
    shares = {name: seconds / wall_s for name, seconds in spent.items()}
    steady = [row for row in range(rows) if row not in lost and row not in restarted]
    drift, drift_s = drift_of(log, usual, spread, steady)
    return WallLedger(
        goodput=Goodput(wall_s=wall_s, **shares),
        pauses=tuple(pauses),
        lost_s=lost_s,
        lost_steps=sum(log.count[row] * share for row, share in lost.items()),
        drift=drift,
        drift_s=drift_s,
    )


def remaining_s(log: StepLog) -> float | None:
    """Return how long the steps that are left take, pauses included, by the pace since the last start."""
    if log.total_steps is None or not log.step or log.step[-1] >= log.total_steps:
        return None
    first = log.attempts[-1] + 1 if len(log.step) > log.attempts[-1] + 1 else log.attempts[-1]
    first = max(first, len(log.step) - _RECENT)
    steps, wall_s = sum(log.count[first:]), sum(log.wall_s[first:])
    return (log.total_steps - log.step[-1]) * wall_s / steps if steps > 0.0 and wall_s > 0.0 else None


def period_of(steps: Sequence[float], coarse: float) -> float | None:
    """Return how many steps lie between pauses that recur; None where they come as they like.

    `coarse` is how many steps one line of the log covers: a pause is somewhere in them.
    """
    gaps = [later - earlier for earlier, later in pairwise(steps) if later > earlier]
    if len(gaps) + 1 < _LEAST_RECURRING:
        return None
    period = median(gaps)
    if period <= 0.0:
        return None
    fitting = sum(
        abs(gap - max(1.0, round(gap / period)) * period) <= max(coarse, 0.02 * period) for gap in gaps
    )
    return period if fitting >= _REGULAR * len(gaps) else None


def usual_steps(log: StepLog) -> tuple[list[float], list[float]]:
    """Return for every row what one of its steps takes, and how much that varies, by the rows around it."""
    rows = len(log.wall_s)
    per_step = [wall / count if count else 0.0 for wall, count in zip(log.wall_s, log.count, strict=True)]
    logged = list(log.step_s)
    # The first row of an attempt holds its start.
    known = [row for row in range(rows) if row not in set(log.attempts) and log.count[row] > 0.0]
    if not known:
        known = [row for row in range(rows) if log.count[row] > 0.0] or [0]
    size = max(min(_BLOCK, len(known) // 8), _LEAST_BLOCK, -(-len(known) // _MOST_BLOCKS))
    usual, spread = [0.0] * rows, [0.0] * rows
    starts = list(range(0, len(known), size))
    if len(starts) > 1 and len(known) - starts[-1] < size // 2:
        starts.pop()
    edges = [known[start] for start in starts] + [rows]
    edges[0] = 0
    for number, start in enumerate(starts):
        stop = starts[number + 1] if number + 1 < len(starts) else len(known)
        block = known[start:stop]
        middle, deviation = median_and_spread([per_step[row] for row in block])
        own = median([logged[row] for row in block])
        if 0.0 < own < middle:
            # The log times steps alone: what the clock has besides is not theirs, be it in every row.
            middle = own
            deviation = median_and_spread([logged[row] for row in block])[1]
        for row in range(edges[number], edges[number + 1]):
            usual[row], spread[row] = middle, deviation
    return usual, spread


def lost_rows(log: StepLog) -> dict[int, float]:
    """Return the rows whose steps were repeated after the run went back, with the share of them."""
    lost: dict[int, float] = {}
    for start in log.attempts[1:]:
        resumed = log.step[start] - log.count[start]
        row = start - 1
        while row >= 0 and log.step[row] > resumed:
            share = (log.step[row] - resumed) / max(log.count[row], 1.0)
            lost[row] = max(lost.get(row, 0.0), min(1.0, share))
            row -= 1
    return lost


def _typical_costs(
    log: StepLog, usual: Sequence[float], reasons: dict[int, dict[PauseKind, float | None]]
) -> dict[str, float]:
    """Return what a pause of each kind costs where it is the only one between two lines."""
    alone: dict[str, list[float]] = {}
    for row, why in reasons.items():
        if row >= len(log.wall_s):
            continue
        kinds = why.keys() & {"evaluation", "checkpoint"}
        late = log.wall_s[row] - log.count[row] * usual[row]
        if len(kinds) == 1 and late > 0.0 and row not in log.attempts:
            alone.setdefault(next(iter(kinds)), []).append(late)
    return {kind: median(costs) for kind, costs in alone.items()}


def shared_out(
    log: StepLog, row: int, late: float, reasons: dict[PauseKind, float | None], typical: dict[str, float]
) -> list[tuple[PauseKind, float]]:
    """Return which pauses make a row late; together they take all of it."""
    if row in log.attempts:
        return [("restart" if row != log.attempts[0] else "compile", late)]
    both: tuple[PauseKind, PauseKind] = ("evaluation", "checkpoint")
    if "evaluation" in reasons and "checkpoint" in reasons:
        for kind, other in (both, both[::-1]):
            cost = reasons[kind] or typical.get(kind)
            if cost is not None:
                cost = min(cost, late)
                return [(kind, cost), (other, late - cost)]
        return [(both[0], late / 2.0), (both[1], late / 2.0)]
    for kind in (*both, "compile"):
        if kind in reasons:
            return [(kind, late)]
    return [("stall", late)]


def drift_of(
    log: StepLog, usual: Sequence[float], spread: Sequence[float], rows: Sequence[int]
) -> tuple[float, float]:
    """Return how much longer steps take at the end than at the beginning, and what that cost.

    Steps get slower little by little or all at once: a line, or two levels, whichever is nearer.
    """
    levels = []
    for row in rows:
        reach = _SCORE * spread[row]
        each = log.wall_s[row] / log.count[row] if log.is_mean else log.step_s[row]
        levels.append(min(max(each, usual[row] - reach), usual[row] + reach))
    count = len(levels)
    if count < 4 * _LEAST_BLOCK:
        return 0.0, 0.0
    start, end = min(_line(levels), _two_levels(levels))[1:]
    # What a clock cannot tell apart looks like drift: a row is timed by two of its readings.
    unclear = log.clock_s / 6**0.5 / max(median(log.count[row] for row in rows), 1.0)
    noise = max(median(spread[row] for row in rows), unclear) / max(start, 1e-12)
    if start <= 0.0 or end / start - 1.0 < _DRIFT_SCORE * noise / count**0.5:
        return 0.0, 0.0
    extra = sum((level - start) * log.count[row] for row, level in zip(rows, levels, strict=True))
    return end / start - 1.0, max(0.0, extra)


def _line(levels: Sequence[float]) -> tuple[float, float, float]:
    """Return how far a line is from the levels (sum of squares), where it begins and where it ends."""
    count, middle = len(levels), (len(levels) - 1) / 2.0
    mean = sum(levels) / count
    square = sum((index - middle) ** 2 for index in range(count))
    slope = sum((index - middle) * (level - mean) for index, level in enumerate(levels)) / square
    rest = sum((level - mean - slope * (index - middle)) ** 2 for index, level in enumerate(levels))
    return rest, mean - slope * middle, mean + slope * middle


def _two_levels(levels: Sequence[float]) -> tuple[float, float, float]:
    """Return the same of the two levels that come nearest."""
    count, total = len(levels), sum(levels)
    squares = sum(level * level for level in levels)
    best, so_far = (squares, levels[0], levels[0]), 0.0
    for index, level in enumerate(levels[:-1], 1):
        so_far += level
        before, after = so_far / index, (total - so_far) / (count - index)
        rest = squares - index * before * before - (count - index) * after * after
        best = min(best, (max(rest, 0.0), before, after))
    return best
