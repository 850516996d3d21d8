"""The step lines of one rank, and how long their steps took."""

from __future__ import annotations

from math import isfinite, nan

import numpy as np
from msgspec import Struct

from stepgrade.model import Note
from stepgrade.model.columns import median
from stepgrade.readers.logs.dialect import Dialect
from stepgrade.readers.logs.lines import LONGEST_BARE_S
from stepgrade.readers.logs.runs import Floats, Table, only
from stepgrade.readers.logs.scan import Rows
from stepgrade.units import show_count

_COARSE_S = 20.0  # a clock of whole seconds times an interval of this length to 5 %
_HALF_DAY_S, _DAY_S = 43_200.0, 86_400.0
_HOUR_S = 3600.0
# A clock may be changed by an hour; a pause of exactly that length is rare.
_JUMP_S = 5.0
# A time that grows from line to line is elapsed time; in a few lines it may grow by chance.
_GROWS, _SURE_LINES, _GROWN = 0.95, 6, 1.5


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
            table = only(table, table["rank"] == numbers[int(np.argmax(counts))])
    if "total" in table and rows.dialect.restarts_at_epochs and "elapsed_s" in table:
        table = only(table, table["total"] == longest_bar(table))
        if len(table["step"]) >= 2 * len(np.unique(table["step"])) and "epoch" not in table:
            # Several ranks draw the same bar: the first to show a step counts.
            table = only(table, np.sort(np.unique(table["step"], return_index=True)[1]))
            table = only(table, np.maximum.accumulate(table["step"]) == table["step"])
    if rows.dialect.micro:  # one line for each step, with the time of all its micro-batches
        ends = np.append(np.flatnonzero(np.diff(table["step"])), len(table["step"]) - 1)
        times = np.add.reduceat(table["step_s"], np.append(0, ends[:-1] + 1))
        table = only(table, ends) | {"step_s": times}
    return table, ranks


def without_close_lines(table: Table, attempts: list[int]) -> tuple[Table, list[int]]:
    """Return lines far enough apart for a clock of whole seconds, if only that times the steps."""
    times = table.get("elapsed_s", table.get("time"))
    if times is None or table.keys() & {"step_s", "interval_s", "steps_s"} or len(times) < 3:
        return table, attempts
    is_coarse = np.isfinite(times).all() and bool(np.all(times % 1.0 == 0.0))
    if not is_coarse or times[-1] - times[0] <= 2.0 * _COARSE_S or median(np.diff(times)) >= _COARSE_S:
        return table, attempts
    starts = {*attempts, len(times)}  # the last line always stays
    kept: list[int] = []
    for row, now in enumerate(times.tolist()):
        if not kept or row in starts or now - times[kept[-1]] >= _COARSE_S or row + 1 in starts:
            kept.append(row)
    new_rows = {old: new for new, old in enumerate(kept)}
    return only(table, np.array(kept, dtype=np.int64)), [new_rows[start] for start in attempts]


def longest_bar(table: Table) -> float:
    """Return the total of the bar that took longest: shorter ones are downloads, shards or evaluation."""
    longest: dict[float, float] = {}
    for total, elapsed in zip(table["total"].tolist(), table["elapsed_s"].tolist(), strict=True):
        if isfinite(total) and isfinite(elapsed):
            longest[total] = max(longest.get(total, elapsed), elapsed)
    return max(longest, key=lambda total: (longest[total], total), default=nan)


class Paces(Struct, frozen=True, kw_only=True):
    """The step times of every row, and how they are known."""

    step_s: Floats
    count: Floats
    wall_s: Floats
    has_clock: bool
    is_mean: bool
    clock_s: float
    notes: tuple[Note, ...]


def middle_of(values: Floats | None) -> float | None:
    """Return the median of the positive values; None without any."""
    if values is None:
        return None
    values = values[np.isfinite(values) & (values > 0.0)]
    return median(values) if len(values) else None


def total_rate(table: Table, world: int | None) -> Floats | None:
    """Return the tokens per second of all devices, if they are printed."""
    each = table.get("tok_s_device")
    return table.get("tok_s", None if each is None else each * (world or 1))


def steps_apart(steps: Floats) -> float:
    """Return the usual number of steps between two lines."""
    later = np.diff(steps)
    later = later[later > 0.0]
    return median(later) if len(later) else 1.0


def paces_of(
    table: Table, dialect: Dialect, world: int | None, step_tokens: float | None, apart: float | None = None
) -> Paces:
    """Return the step times, and the clock by which pauses are seen.

    `apart` is how many steps a line covers if the table has only some lines of the log.
    """
    rows = len(table["step"])
    unknown = np.full(rows, nan)
    is_mean = dialect.mean == "interval"
    usual = apart if apart is not None else steps_apart(table["step"])
    covered = usual if is_mean else 1.0  # by the first line of an attempt, if it has so many steps
    counts = np.diff(table["step"], prepend=table["step"][0])
    counts[0] = max(min(covered, float(table["step"][0])), 1.0)
    counts = np.where(counts <= 0.0, covered, counts)
    times, elapsed = table.get("time", unknown), table.get("elapsed_s", unknown)
    has_clock = (
        rows > 1 and bool(np.isfinite(times).mean() > 0.8) and bool(np.nanmax(times) > np.nanmin(times))
    )
    since = times if has_clock else elapsed
    wall = np.diff(since, prepend=nan)
    if np.nanmax(since, initial=0.0) < _DAY_S:  # a clock without a date wraps at midnight
        wall = np.where(wall < -_HALF_DAY_S, wall + _DAY_S, wall)
    clock_s = 0.0
    if np.isfinite(wall).any():
        clock_s = 1.0 if bool(np.all(since[np.isfinite(since)] % 1.0 == 0.0)) else 0.001
    candidates = [table.get("step_s", unknown), table.get("interval_s", unknown) / counts]
    if dialect.mean != "running":
        rate = total_rate(table, world)
        with np.errstate(divide="ignore", invalid="ignore"):
            candidates += [
                1.0 / table.get("steps_s", unknown),
                unknown if rate is None else (step_tokens or nan) / rate,
                table.get("step_samples", unknown) / table.get("samples_s", unknown),
            ]
    step_s = next((found for found in candidates if np.isfinite(found).any()), unknown)
    if not np.isfinite(step_s).any():
        step_s, is_mean = wall / counts, True
        if not has_clock and isfinite(elapsed[0]) and table["step"][0] > 0.0:
            counts[0] = table["step"][0]
            step_s[0] = elapsed[0] / counts[0]
    elif "step_s" in table and "elapsed_s" in table:
        by_clock = np.diff(elapsed) / counts[1:]
        known = by_clock[by_clock > 0.0]
        # A field called dt may be in milliseconds.
        if len(known) and 500.0 < median(step_s[~np.isnan(step_s)]) / median(known) < 2000.0:
            step_s = step_s / 1e3
    step_s = np.where(np.isfinite(step_s) & (step_s >= 0.0), step_s, nan)
    if not isfinite(step_s[0]) and np.isfinite(step_s).any():
        step_s[0] = median(step_s[np.isfinite(step_s)])  # the start of the first step is unknown
    own = step_s * counts
    notes: tuple[Note, ...] = ()
    is_hour = np.isfinite(own) & (np.abs(wall - own - _HOUR_S) < _JUMP_S) & (own < _HOUR_S / 4.0)
    jumps = (wall < 0.0) | is_hour if has_clock else np.zeros(rows, dtype=np.bool_)
    if jumps.any():
        wall = np.where(jumps, own, wall)
        count = int(jumps.sum())
        how_often = "once" if count == 1 else f"{count} times"
        text = f"the clock of the log jumps {how_often}; the printed step times are used there"
        notes = (Note("clock_jumped", text),)
    return Paces(
        step_s=step_s,
        count=counts,
        wall_s=np.where(np.isfinite(wall), wall, own),
        has_clock=has_clock,
        is_mean=is_mean,
        clock_s=clock_s,
        notes=notes,
    )


def with_times_classified(table: Table) -> tuple[Table, bool, tuple[Note, ...]]:
    """Return the lines with their times classified, and whether those cover all steps since the last line."""
    table = dict(table)
    steps = table["step"]
    if "epoch" in table:
        next_epoch = np.diff(table["epoch"]) > 0.0
        if not (np.diff(steps)[next_epoch] <= 0.0).any():
            del table["epoch"]  # the counter goes on from epoch to epoch
    bare, named = table.pop("bare_s", None), table.pop("line_s", None)
    times = bare if named is None else named
    if times is None:
        return table, False, ()
    later = np.diff(times)[np.diff(steps) > 0.0]
    later = later[np.isfinite(later)]
    known = times[np.isfinite(times)]
    is_sure = len(later) >= _SURE_LINES or (len(known) > 1 and known[-1] > _GROWN * known[0])
    if len(later) and is_sure and float(np.mean(later > 0.0)) > _GROWS:
        table.setdefault("elapsed_s", times)
        return table, False, ()
    if times is bare and (middle_of(times) or 0.0) >= LONGEST_BARE_S:
        text = "the log prints a time without a unit: specify it with [[dialect]] in stepgrade.toml"
        return table, False, (Note("time_unclear", text),)
    apart = steps_apart(steps)
    if apart <= 1.0:
        table["step_s"] = times
        return table, False, ()
    apart_s, gaps = np.diff(table.get("time", np.full(len(steps), nan))), np.diff(steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_rate = 1.0 / table.get("steps_s", np.full(1, nan))
    usual_s = middle_of(apart_s[gaps > 0.0] / gaps[gaps > 0.0]) or middle_of(by_rate)
    if usual_s is None:
        text = (
            f"the log prints a time every {show_count(apart)} steps, which may be that of one step or of all "
            f"{show_count(apart)}: [[dialect]] in stepgrade.toml can say which"
        )
        return table, False, (Note("time_unclear", text),)
    middle = median(known)
    # Is it closer to the time of one step, or of all?
    is_of_all = middle > usual_s * apart**0.5
    table["interval_s" if is_of_all else "step_s"] = times
    return table, is_of_all, ()
