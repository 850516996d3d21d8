"""Step lines in the order of the run: one rank, one progress bar, every step once for each attempt."""

from __future__ import annotations

from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from stepgrade.readers.logs.scan import Rows
from stepgrade.readers.logs.values import Column

Floats = NDArray[np.float64]
Table = dict[Column, Floats]
# An epoch ends when the counter restarts after this share of its total.
_NEAR_END = 0.9
_NEAR_START = 0.5
_MOST_STEPS = 1e15  # no run has so many steps
_HALF_DAY_S, _DAY_S = 43_200.0, 86_400.0


def table_of(rows: Rows) -> tuple[Table, int]:
    """Return the columns of one rank's lines, and how many ranks wrote to the log."""
    table = {name: np.frombuffer(column, dtype=np.float64).copy() for name, column in rows.columns.items()}
    if rows.dialect.counts_lines and "step" not in table:
        table["step"] = np.arange(1.0, rows.count + 1.0)
    ranks = 1
    if "rank" in table:
        numbers, counts = np.unique(table["rank"][np.isfinite(table["rank"])], return_counts=True)
        ranks = len(numbers)
        if ranks > 1:
            table = _only(table, table["rank"] == numbers[int(np.argmax(counts))])
    if "total" in table and rows.dialect.restarts_at_epochs and "elapsed_s" in table:
        table = _only(table, table["total"] == longest_bar(table))
        if len(table["step"]) >= 2 * len(np.unique(table["step"])) and "epoch" not in table:
            # Several ranks draw the same bar: the first to show a step counts.
            table = _only(table, np.sort(np.unique(table["step"], return_index=True)[1]))
            table = _only(table, np.maximum.accumulate(table["step"]) == table["step"])
    if rows.dialect.micro:
        table = whole_steps(table)
    return table, ranks


def in_order(table: Table, *, counts_epochs: bool) -> tuple[Table, list[int]]:
    """Return the lines without repetitions, steps counted over all epochs, and where attempts begin."""
    if "step" not in table:
        return table, [0]
    steps, unknown = table["step"].tolist(), [nan] * len(table["step"])
    totals = table["total"].tolist() if "total" in table and counts_epochs else unknown
    epochs = table["epoch"].tolist() if "epoch" in table and counts_epochs else unknown
    kept: list[int] = []
    offsets: list[float] = []  # steps of earlier epochs
    attempts: list[int] = []
    begun: list[int] = []  # where elapsed time restarts with an epoch or attempt
    before = 0.0
    for row, number in enumerate(steps):
        if not 0.0 <= number < _MOST_STEPS:
            continue
        if kept:
            last, total = steps[kept[-1]], totals[row]
            has_ended = number <= _NEAR_START * total and _NEAR_END * total <= last != number
            is_next = epochs[row] > epochs[kept[-1]] or has_ended
            if number == last and not is_next:
                continue
            if is_next:
                before += total if isfinite(total) else last
                begun.append(len(kept))
            elif number < last:
                later = [step for step in steps[row + 1 : row + 4] if step != number][:1]
                if isfinite(total) or any(step > last for step in later):
                    continue  # another rank's line, or a bar that was drawn again
                attempts.append(len(kept))
        kept.append(row)
        offsets.append(before)
    table = _only(table, np.array(kept, dtype=np.int64))
    table["step"] = table["step"] + np.array(offsets)
    if "elapsed_s" in table:
        table["elapsed_s"] = over_all(table["elapsed_s"], begun, attempts)
    return table, [0, *attempts]


def over_all(elapsed: Floats, epochs: list[int], attempts: list[int]) -> Floats:
    """Return elapsed time that restarts with epochs or attempts as continuous time."""
    # If an epoch has several lines, its first shows whether the time restarts.
    goes_on = len(elapsed) > 2 * len(epochs) + 2 and all(elapsed[row] > elapsed[row - 1] for row in epochs)
    again = {row for row in attempts if elapsed[row] < elapsed[row - 1]}
    starts = sorted(again if goes_on else again.union(epochs))
    before = np.zeros(len(elapsed))
    before[starts] = elapsed[np.array(starts, dtype=np.int64) - 1]
    return elapsed + np.cumsum(before)


def coarser(table: Table, attempts: list[int], least_s: float) -> tuple[Table, list[int]]:
    """Return lines far enough apart for the clock of the log to time the steps between them."""
    name = "elapsed_s" if "elapsed_s" in table else "time"
    times = table[name].tolist()
    starts = set(attempts)
    kept: list[int] = []
    for row, now in enumerate(times):
        if not kept or row in starts or now - times[kept[-1]] >= least_s or row + 1 in starts:
            kept.append(row)
    if kept[-1] != len(times) - 1:
        kept.append(len(times) - 1)  # the last line always stays
    new_rows = {old: new for new, old in enumerate(kept)}
    return _only(table, np.array(kept, dtype=np.int64)), [new_rows[start] for start in attempts]


def later_by(times: Floats) -> Floats:
    """Return the seconds from each time to the next; a clock without a date wraps at midnight."""
    gaps = np.diff(times)
    return (
        np.where(gaps < -_HALF_DAY_S, gaps + _DAY_S, gaps) if np.nanmax(times, initial=0.0) < _DAY_S else gaps
    )


def _only(table: Table, chosen: NDArray[np.generic]) -> Table:
    return {name: column[chosen] for name, column in table.items()}


def longest_bar(table: Table) -> float:
    """Return the total of the bar that took longest: shorter ones are downloads, shards or evaluation."""
    longest: dict[float, float] = {}
    for total, elapsed in zip(table["total"].tolist(), table["elapsed_s"].tolist(), strict=True):
        if isfinite(total) and isfinite(elapsed):
            longest[total] = max(longest.get(total, elapsed), elapsed)
    return max(longest, key=lambda total: (longest[total], total), default=nan)


def whole_steps(table: Table) -> Table:
    """Return one line for each step, with the time of all its micro-batches."""
    steps = table["step"]
    ends = np.append(np.flatnonzero(np.diff(steps)), len(steps) - 1)
    merged = _only(table, ends)
    starts = np.append(0, ends[:-1] + 1)
    merged["step_s"] = np.add.reduceat(table["step_s"], starts)
    return merged
