"""The runs in a log: which step lines belong to which, and where epochs and attempts begin.

A counter that goes back means one of several things. It is the next epoch if the log says so, or if every
round ends at the same number; a restart if the run resumes in its middle, or the log shows a failure before
it; and another run if it begins anew without one.
"""

from __future__ import annotations

from math import isfinite, nan

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.columns import median
from stepgrade.readers.logs.dialect import LogEvent
from stepgrade.readers.logs.values import Column

Floats = NDArray[np.float64]
Table = dict[Column, Floats]
# An epoch ends when the counter restarts after this share of its total, and a run at this share of its steps.
_NEAR_END, _NEAR_START, _FINISHED = 0.9, 0.5, 0.98
_MOST_STEPS = 1e15  # no run has so many steps
# Lines of another rank, or a bar drawn again, are followed by a higher number within so many lines.
_LOOKED_AHEAD = 4


# A run with fewer lines did not get going: the last that did is read.
_LEAST_LINES = 3


class LoggedRun(Struct, frozen=True, kw_only=True):
    """One run of a log: its lines, and the rows where attempts begin."""

    table: Table
    attempts: list[int]
    count: int = 1  # how many runs the log contains
    is_last: bool = True
    begun_s: float = nan  # by the log's clock; nan for the first run


def only(table: Table, chosen: NDArray[np.generic]) -> Table:
    """Return some rows of a table."""
    return {name: column[chosen] for name, column in table.items()}


def last_run(
    table: Table, events: list[LogEvent], *, counts_epochs: bool, total: float | None = None
) -> LoggedRun:
    """Return the last run of some length: its lines without repetitions, its steps over all epochs.

    `total` is how many steps the run is to have, where its header says so.
    """
    if "step" not in table:
        return LoggedRun(table=table, attempts=[0])
    kept, epochs, returns, before = _lines_of_steps(table, counts_epochs=counts_epochs)
    table = only(table, np.array(kept, dtype=np.int64))
    steps, offsets = table["step"], table["at"]
    has_aim = "total" in table and not counts_epochs
    aims = table["total"] if has_aim else np.full(len(steps), nan if total is None else total)
    gaps = np.diff(steps)
    apart = median(gaps[gaps > 0.0]) if (gaps > 0.0).any() else 1.0
    failed = {event.at for event in events if event.failed}
    launched = {event.at for event in events if event.kind == "restart"}
    ends = [float(steps[row - 1]) for row in returns]
    is_even = bool(ends) and max(ends) - min(ends) <= apart and steps[-1] <= max(ends) + apart
    # Two rounds alone are epochs only if both are complete.
    is_even = is_even and (len(ends) > 1 or steps[-1] >= ends[0] - apart)
    is_even = is_even and not any(offsets[row] in launched for row in returns)
    runs = [[0]]  # where the attempts of each begin
    for row, end in zip(returns, ends, strict=True):
        is_finished = end >= _FINISHED * aims[row - 1]
        begins_anew = steps[row] <= max(2.0 * steps[runs[-1][0]], apart, 1.0)
        if begins_anew and is_even and not is_finished:
            epochs.append(row)
            before[row:] += end
        elif not begins_anew or (offsets[row] in failed and not is_finished):
            runs[-1].append(row)
        else:
            runs.append([row])
            before[row:] -= before[row]
    table["step"] = steps + before
    stops = [*(attempts[0] for attempts in runs[1:]), len(steps)]
    going = [number for number, stop in enumerate(stops) if stop - runs[number][0] >= _LEAST_LINES]
    chosen = going[-1] if going else len(runs) - 1
    attempts, first, stop = runs[chosen], runs[chosen][0], stops[chosen]
    if "elapsed_s" in table:
        table["elapsed_s"] = over_all(
            table["elapsed_s"], sorted(row for row in epochs if first < row < stop), attempts[1:]
        )
    return LoggedRun(
        table=table if len(runs) == 1 else only(table, np.arange(first, stop)),
        attempts=[row - first for row in attempts],
        count=len(runs),
        is_last=stop == len(steps),
        begun_s=float(table["begun"][first]) if first and "begun" in table else nan,
    )


def _lines_of_steps(table: Table, *, counts_epochs: bool) -> tuple[list[int], list[int], list[int], Floats]:
    """Return the lines to keep and, by their new rows: epochs, other returns, steps of earlier epochs."""
    steps, unknown = table["step"].tolist(), [nan] * len(table["step"])
    totals = table["total"].tolist() if "total" in table and counts_epochs else unknown
    numbers = table["epoch"].tolist() if "epoch" in table and counts_epochs else unknown
    kept: list[int] = []
    offsets: list[float] = []
    epochs: list[int] = []
    returns: list[int] = []
    begun: dict[float, float] = {}  # steps before each epoch
    before = 0.0
    for row, number in enumerate(steps):
        if not 0.0 <= number < _MOST_STEPS:
            continue
        if kept:
            last, total, epoch, earlier = steps[kept[-1]], totals[row], numbers[row], numbers[kept[-1]]
            has_ended = number <= _NEAR_START * total and _NEAR_END * total <= last != number
            is_next = epoch > earlier or (has_ended and not isfinite(epoch))
            if number == last and not is_next and not epoch < earlier:
                continue
            if is_next:
                before += total if isfinite(total) else last
                epochs.append(len(kept))
            elif number < last or epoch < earlier:
                ahead = [step for step in steps[row + 1 : row + 1 + _LOOKED_AHEAD] if step != number]
                if epoch < earlier:
                    before = begun.get(epoch, 0.0)
                elif any(step > last for step in (ahead if isfinite(total) else ahead[:1])):
                    continue
                returns.append(len(kept))
            begun.setdefault(epoch, before)
        kept.append(row)
        offsets.append(before)
    return kept, epochs, returns, np.array(offsets)


def over_all(elapsed: Floats, epochs: list[int], attempts: list[int]) -> Floats:
    """Return elapsed time that restarts with epochs or attempts as continuous time."""
    # If an epoch has several lines, its first shows whether the time restarts.
    goes_on = len(elapsed) > 2 * len(epochs) + 2 and all(elapsed[row] > elapsed[row - 1] for row in epochs)
    again = {row for row in attempts if elapsed[row] < elapsed[row - 1]}
    starts = sorted(again if goes_on else again.union(epochs))
    before = np.zeros(len(elapsed))
    before[starts] = elapsed[np.array(starts, dtype=np.int64) - 1]
    return elapsed + np.cumsum(before)
