"""The steps of a profile: as the program marks them, else by the executions of its main program."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from stepgrade.model.columns import groups
from stepgrade.model.events import Longs
from stepgrade.readers.processes import Events
from stepgrade.readers.xplane.planes import MISSING, Plane

STEP_THREAD: Final = (1 << 40) + 1
_LATE_SHARE: Final = 0.05


class ProgramRuns(Struct, kw_only=True):
    """The executions of the program that takes the most time, in order."""

    start_ns: Longs
    end_ns: Longs

    @classmethod
    def of_runs(cls, plane: Plane, rows: Longs) -> ProgramRuns:
        """Return them by the number of the run that operations carry."""
        table = plane.events
        rows = rows[table.numbers["run_id"][rows] != MISSING]
        if not len(rows):
            return cls(start_ns=np.zeros(0, np.int64), end_ns=np.zeros(0, np.int64))
        programs = groups(table.texts["hlo_module"][rows])
        spent = np.bincount(programs.which, (table.end_ns - table.start_ns)[rows].astype(np.float64))
        rows = rows[programs.which == spent.argmax()]
        runs = groups(table.numbers["run_id"][rows])
        start = np.full(len(runs.values), np.iinfo(np.int64).max)
        end = np.zeros(len(runs.values), np.int64)
        np.minimum.at(start, runs.which, table.start_ns[rows])
        np.maximum.at(end, runs.which, table.end_ns[rows])
        order = np.argsort(start, kind="stable")
        return cls(start_ns=start[order], end_ns=end[order])

    @classmethod
    def of_modules(cls, plane: Plane) -> ProgramRuns:
        """Return them by the line that has an event for each."""
        table = plane.events
        lines = np.array([line.name == "XLA Modules" for line in plane.lines] or [False], np.bool_)
        rows = np.flatnonzero(lines[table.line])
        if not len(rows) or any(line.name.startswith("Stream #") for line in plane.lines):
            return cls(start_ns=np.zeros(0, np.int64), end_ns=np.zeros(0, np.int64))
        programs = groups(table.name[rows])
        spent = np.bincount(programs.which, (table.end_ns - table.start_ns)[rows].astype(np.float64))
        rows = rows[programs.which == spent.argmax()]
        rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
        return cls(start_ns=table.start_ns[rows], end_ns=table.end_ns[rows])

    def at(self, times: Longs) -> Longs:
        """Return the execution in which each of the times lies, or the one before."""
        return np.searchsorted(self.start_ns, times, side="right").astype(np.int64)


def add_steps(events: Events, host: list[Plane], executions: ProgramRuns, *, own_clock: bool) -> None:
    """Add the steps as ranges.

    A loop that does not wait marks only when it asked for a step: then a step is from one execution of the
    program to the next, and the marks number them. So it is where the device has a clock of its own.
    """
    marks = [_marks(plane) for plane in host]
    number, start, end, line = max(marks, key=lambda found: len(found[0])) if marks else _no_marks()
    per_step, rest = divmod(len(executions.start_ns), len(number)) if len(number) else (0, 0)
    if len(number) and per_step and not rest:
        mark = np.arange(len(executions.start_ns)) // per_step
        late = np.maximum(executions.end_ns - end[mark], 0) + np.maximum(start[mark] - executions.start_ns, 0)
        runs_apart = late.sum() > _LATE_SHARE * (executions.end_ns - executions.start_ns).sum()
        if own_clock or runs_apart:
            _add(events, "XlaStep", number, *_counted_up(executions, per_step), thread=STEP_THREAD)
            return
    if len(number) and not own_clock:
        _add(events, "ProfilerStep", number, start, end, thread=line)
    elif len(executions.start_ns) > 1:
        numbers = np.arange(len(executions.start_ns))
        _add(events, "XlaStep", numbers, *_counted_up(executions, 1), thread=STEP_THREAD)


def _counted_up(executions: ProgramRuns, per_step: int) -> tuple[Longs, Longs]:
    """Return where steps of so many executions each begin and end: at the next one's start."""
    start = executions.start_ns[::per_step]
    return start, np.append(start[1:], executions.end_ns[-1])


def _no_marks() -> tuple[Longs, Longs, Longs, int]:
    none = np.zeros(0, np.int64)
    return none, none, none, 0


def _marks(plane: Plane) -> tuple[Longs, Longs, Longs, int]:
    """Return number, start and end of the steps that a program marks, and the thread that does."""
    table = plane.events
    rows = np.flatnonzero(table.numbers["step_num"] != MISSING)
    if not len(rows):
        return _no_marks()
    line = int(np.bincount(table.line[rows]).argmax())
    rows = rows[table.line[rows] == line]
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    # One annotation may lie in another: the outer one is the step.
    outer = np.append(True, table.start_ns[rows][1:] >= np.maximum.accumulate(table.end_ns[rows])[:-1])
    rows = rows[outer[: len(rows)]]
    return table.numbers["step_num"][rows], table.start_ns[rows], table.end_ns[rows], line


def _add(events: Events, word: str, number: Longs, start: Longs, end: Longs, thread: int) -> None:
    name_ids = [events.name_id(f"{word}#{max(step, 0)}") for step in number.tolist()]
    events.add(
        "ranges",
        process=0,
        thread=np.full(len(name_ids), thread),
        name=np.array(name_ids, np.int32),
        start=start,
        end=end,
    )
