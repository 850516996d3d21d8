"""Which line of the user's Python code the host was in, where the profiler recorded stacks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepgrade.model.activity import HostLine
from stepgrade.model.columns import distinct, groups
from stepgrade.model.events import NONE, Ids, Longs, Trace
from stepgrade.naming.python_frames import read_frame
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.links import find_parents, nearest, pick
from stepgrade.units import NS_PER_MS

LINES_KEPT = 3


class LoopFrames(NamedTuple):
    """One thread cut at every call and return; of each stretch, the user's function and what that called."""

    start_ns: Longs
    end_ns: Longs
    user: Ids  # name of the innermost function of the user's code, or NONE
    called: Ids  # name of what it called outside of it, or NONE
    strings: tuple[str, ...]

    def lines_of(self, spans: iv.Spans, steps: int) -> tuple[HostLine, ...]:
        """Return the user's lines that the thread was in during `spans`, longest first, in ms of a step."""
        inside = iv.covered_within(spans, self.start_ns, self.end_ns)
        return self._lines(self.user, self.called, inside, steps)

    def lines_at(self, times: Longs, weights: Longs, steps: int) -> tuple[HostLine, ...]:
        """Return the user's lines that the thread was in at `times`, by the sum of their weights in ns."""
        place = np.searchsorted(self.start_ns, times, side="right") - 1
        known = place >= 0
        known[known] = times[known] < self.end_ns[place[known]]
        place = place[known]
        return self._lines(self.user[place], self.called[place], weights[known], steps)

    def _lines(self, user: Ids, called: Ids, ns: Longs, steps: int) -> tuple[HostLine, ...]:
        chosen = (user >= 0) & (ns > 0)
        user, called, ns = user[chosen], called[chosen], ns[chosen]
        values, which, _ = groups(user.astype(np.int64))
        total = np.bincount(which, weights=ns, minlength=len(values))
        found = []
        for place in np.argsort(-total, kind="stable")[:LINES_KEPT].tolist():
            frame = read_frame(self.strings[int(values[place])])
            of_line = which == place
            names, inner, _ = groups(called[of_line])
            longest = int(names[np.bincount(inner, weights=ns[of_line]).argmax()])
            found.append(
                HostLine(
                    where=frame.where or "",
                    function=frame.name,
                    calls=None if longest == NONE else read_frame(self.strings[longest]).name,
                    ms=float(total[place]) / steps / NS_PER_MS,
                )
            )
        return tuple(found)


NO_FRAMES = LoopFrames(*(np.empty(0, np.int64),) * 2, *(np.empty(0, np.int32),) * 2, ())


def find_loop_frames(trace: Trace, thread: int) -> LoopFrames:
    """Return what the thread's Python code was in at any time; nothing where no stacks were recorded."""
    frames = trace.frames
    rows = np.flatnonzero(frames.thread == thread) if frames is not None else np.empty(0, np.int64)
    if frames is None or not len(rows):
        return NO_FRAMES
    start, end = frames.start_ns[rows], (frames.start_ns + frames.dur_ns)[rows]
    name = frames.name[rows]
    parent = find_parents(start, end, np.zeros(len(rows), np.int32))
    is_user = np.zeros(max(len(trace.strings), 1), np.bool_)
    used = distinct(name)
    is_user[used] = [read_frame(trace.strings[index]).is_user for index in used.tolist()]
    user_row = nearest(parent, is_user[name])
    enters = ~is_user[name] & ((parent < 0) | is_user[name[np.maximum(parent, 0)]])
    called_row = np.where(is_user[name], NONE, nearest(parent, enters)).astype(np.int32)
    # At each call and return: which function runs from then on. Returns come before calls at the same time.
    count = len(rows)
    time = np.concatenate([start, end])
    owner = np.concatenate([np.arange(count, dtype=np.int32), parent])
    turn = np.concatenate([np.arange(count), -np.arange(count)])
    order = np.lexsort((turn, np.repeat([1, 0], count), time))
    time, owner = time[order], owner[order]
    ends = np.append(time[1:], time[-1:])
    real = (ends > time) & (owner >= 0)
    time, ends, owner = time[real], ends[real], owner[real]
    return LoopFrames(time, ends, pick(name, user_row[owner]), pick(name, called_row[owner]), trace.strings)
