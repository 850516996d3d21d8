"""Step lines in the order of the run: one rank, one progress bar, every step once for each attempt."""

from __future__ import annotations

from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from stepgrade.readers.logs.dialect import Column
from stepgrade.readers.logs.scan import Rows

Floats = NDArray[np.float64]
Table = dict[Column, Floats]
# An epoch ends when the counter begins again after this much of its total.
_NEAR_END = 0.9
_NEAR_START = 0.5
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
        table = _only(table, table["total"] == _longest_bar(table))
        if len(table["step"]) >= 2 * len(np.unique(table["step"])) and "epoch" not in table:
            # Several ranks draw the same bar: the first to show a step counts.
            table = _only(table, np.sort(np.unique(table["step"], return_index=True)[1]))
            table = _only(table, np.maximum.accumulate(table["step"]) == table["step"])
    if rows.dialect.micro:
        table = _whole_steps(table)
    return table, ranks


def in_order(table: Table, *, counts_epochs: bool) -> tuple[Table, list[int]]:
    """Return the lines without repetitions, steps counted over all epochs, and where attempts begin."""
    if "step" not in table:
        return table, [0]
    steps, totals = table["step"].tolist(), table.get("total")
    elapsed = table["elapsed_s"].tolist() if "elapsed_s" in table else None
    epochs = table["epoch"].tolist() if "epoch" in table and counts_epochs else None
    kept: list[int] = []
    numbers: list[float] = []
    spent: list[float] = []
    attempts: list[int] = []
    before = since = 0.0
    for place, step in enumerate(steps):
        if not isfinite(step) or step < 0.0:
            continue
        step += before
        last = numbers[-1] if numbers else -1.0
        is_next = bool(numbers) and epochs is not None and epochs[place] > epochs[kept[-1]]
        if numbers and step == last and not is_next:
            continue
        if numbers and (step < last or is_next):
            total = float(totals[place]) if totals is not None else nan
            if counts_epochs and isfinite(total) and total > 0.0:
                begun = steps[place] <= _NEAR_START * total
                if not is_next and not (begun and last - before >= _NEAR_END * total):
                    continue  # another rank's bar, or one that was drawn again
                before += total
                since = spent[-1] if spent else 0.0
                step = steps[place] + before
            else:
                following = next(
                    (later for later in steps[place + 1 : place + 4] if later != steps[place]), None
                )
                if following is not None and following + before > last:
                    continue  # a line of another rank that came late
                attempts.append(len(kept))
                since = spent[-1] if spent and elapsed is not None and elapsed[place] < spent[-1] else since
        kept.append(place)
        numbers.append(step)
        if elapsed is not None:
            spent.append(
                elapsed[place] + (since if elapsed[place] + since >= (spent[-1] if spent else 0.0) else 0.0)
            )
    table = _only(table, np.array(kept, dtype=np.int64))
    table["step"] = np.array(numbers)
    if elapsed is not None:
        table["elapsed_s"] = np.array(spent)
    return table, [0, *attempts]


def coarser(table: Table, attempts: list[int], least_s: float) -> tuple[Table, list[int]]:
    """Return lines so far apart that the clock of a log can time the steps between them."""
    name = "elapsed_s" if "elapsed_s" in table else "time"
    times = table[name].tolist()
    starts = set(attempts)
    kept: list[int] = []
    for place, now in enumerate(times):
        if not kept or place in starts or now - times[kept[-1]] >= least_s or place + 1 in starts:
            kept.append(place)
    places = {old: new for new, old in enumerate(kept)}
    return _only(table, np.array(kept, dtype=np.int64)), [places[start] for start in attempts]


def later_by(times: Floats) -> Floats:
    """Return the seconds from each time to the next; a clock without a date begins again at midnight."""
    gaps = np.diff(times)
    return (
        np.where(gaps < -_HALF_DAY_S, gaps + _DAY_S, gaps) if np.nanmax(times, initial=0.0) < _DAY_S else gaps
    )


def _only(table: Table, chosen: NDArray[np.generic]) -> Table:
    return {name: column[chosen] for name, column in table.items()}


def _longest_bar(table: Table) -> float:
    """Return the total of the bar that took longest: others are of downloads, shards or evaluation."""
    totals = table["total"]
    return max(
        np.unique(totals[np.isfinite(totals)]).tolist(),
        key=lambda total: (float(np.nanmax(table["elapsed_s"][totals == total])), total),
        default=nan,
    )


def _whole_steps(table: Table) -> Table:
    """Return one line for each step, with the time of all its micro-batches."""
    steps = table["step"]
    ends = np.append(np.flatnonzero(np.diff(steps)), len(steps) - 1)
    merged = _only(table, ends)
    starts = np.append(0, ends[:-1] + 1)
    merged["step_s"] = np.add.reduceat(table["step_s"], starts)
    return merged
