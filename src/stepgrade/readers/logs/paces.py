"""Step times of a log: as printed, else from its rates, else from its timestamps."""

from __future__ import annotations

from math import isfinite, nan

import numpy as np
from msgspec import Struct

from stepgrade.model import Note
from stepgrade.readers.logs.dialect import Dialect
from stepgrade.readers.logs.order import Floats, Table, later_by
from stepgrade.readers.logs.plain_lines import LONGEST_BARE_S
from stepgrade.units import show_count

_HOUR_S = 3600.0
# A clock may be changed by an hour; a pause of exactly that length is rare.
_JUMP_S = 5.0
# A clock of whole seconds times an interval of this length to 5 %.
COARSE_S = 20.0
# A time that grows from line to line is elapsed time; in a few lines it may grow by chance.
_GROWS, _SURE_LINES, _GROWN = 0.95, 6, 1.5


class Paces(Struct, frozen=True, kw_only=True):
    """The step times of every row, and how they are known."""

    step_s: Floats
    count: Floats
    wall_s: Floats
    has_clock: bool
    is_mean: bool
    clock_s: float
    notes: tuple[Note, ...]


def middle_of(values: Floats) -> float | None:
    """Return the median of the positive values; None without any."""
    values = values[np.isfinite(values) & (values > 0.0)]
    return float(np.median(values)) if len(values) else None


def steps_apart(steps: Floats) -> float:
    """Return the usual number of steps between two lines."""
    later = np.diff(steps)
    later = later[later > 0.0]
    return float(np.median(later)) if len(later) else 1.0


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
    counts = counts_of(table["step"], usual if is_mean else 1.0)
    times, elapsed = table.get("time", unknown), table.get("elapsed_s", unknown)
    has_clock = (
        rows > 1 and bool(np.isfinite(times).mean() > 0.8) and bool(np.nanmax(times) > np.nanmin(times))
    )
    since = times if has_clock else elapsed
    wall = np.append(nan, later_by(since)) if np.isfinite(since).any() else unknown
    clock_s = 0.0
    if np.isfinite(wall).any():
        clock_s = 1.0 if bool(np.all(since[np.isfinite(since)] % 1.0 == 0.0)) else 0.001
    step_s = printed_times(table, dialect, counts, world, step_tokens)
    if not np.isfinite(step_s).any():
        step_s, is_mean = wall / counts, True
        if not has_clock and isfinite(elapsed[0]) and table["step"][0] > 0.0:
            counts[0] = table["step"][0]
            step_s[0] = elapsed[0] / counts[0]
    elif "step_s" in table and "elapsed_s" in table:
        by_clock = np.diff(elapsed) / counts[1:]
        known = by_clock[by_clock > 0.0]
        # A field called dt may be in milliseconds.
        if len(known) and 500.0 < float(np.nanmedian(step_s) / np.median(known)) < 2000.0:
            step_s = step_s / 1e3
    step_s = np.where(np.isfinite(step_s) & (step_s >= 0.0), step_s, nan)
    if not isfinite(step_s[0]) and np.isfinite(step_s).any():
        step_s[0] = np.nanmedian(step_s)  # the start of the first step is unknown
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


def counts_of(steps: Floats, usual: float) -> Floats:
    """Return how many steps each line covers; the first of an attempt as many as the others, if possible."""
    counts = np.diff(steps, prepend=steps[0])
    counts[0] = max(min(usual, float(steps[0])), 1.0)
    return np.where(counts <= 0.0, usual, counts)


def printed_times(
    table: Table, dialect: Dialect, counts: Floats, world: int | None, step_tokens: float | None
) -> Floats:
    """Return the seconds of a step that a log prints, or that follow from its rates; nan otherwise."""
    unknown = np.full(len(counts), nan)
    candidates = [table.get("step_s", unknown), table.get("interval_s", unknown) / counts]
    if dialect.mean != "running":
        rate = table.get("tok_s", table.get("tok_s_device", unknown) * (world or 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            candidates += [1.0 / table.get("steps_s", unknown), (step_tokens or nan) / rate]
            candidates.append(table.get("step_samples", unknown) / table.get("samples_s", unknown))
    return next((found for found in candidates if np.isfinite(found).any()), unknown)


def is_coarse(table: Table) -> bool:
    """Tell whether steps are timed only by a clock of whole seconds."""
    if any(name in table for name in ("step_s", "interval_s", "steps_s")) or len(table["step"]) < 3:
        return False
    times = table.get("elapsed_s", table.get("time"))
    if times is None or not np.isfinite(times).all() or not bool(np.all(times % 1.0 == 0.0)):
        return False
    return float(times[-1] - times[0]) > 2.0 * COARSE_S and float(np.median(np.diff(times))) < COARSE_S


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
    step_s_usual = _usual_step_s(table)
    if step_s_usual is None:
        text = (
            f"the log prints a time every {show_count(apart)} steps, which may be that of one step or of all "
            f"{show_count(apart)}: [[dialect]] in stepgrade.toml can say which"
        )
        return table, False, (Note("time_unclear", text),)
    middle = float(np.median(known))
    # Is it closer to the time of one step, or of all?
    is_of_all = middle > step_s_usual * apart**0.5
    table["interval_s" if is_of_all else "step_s"] = times
    return table, is_of_all, ()


def _usual_step_s(table: Table) -> float | None:
    """Return how long a step takes by the clock of the lines, or by steps per second; None without either."""
    steps = np.diff(table["step"])
    clock = table.get("time", np.full(len(table["step"]), nan))
    with np.errstate(divide="ignore", invalid="ignore"):
        by_clock = np.diff(clock)[steps > 0.0] / steps[steps > 0.0]
        by_rate = 1.0 / table.get("steps_s", np.full(1, nan))
    return middle_of(by_clock) or middle_of(by_rate)
