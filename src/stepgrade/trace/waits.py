"""The calls in which the host waited for the device, and the operations that made them."""

from __future__ import annotations

import numpy as np

from stepgrade.model.activity import WaitTally
from stepgrade.model.columns import among, groups
from stepgrade.model.events import NONE, DeviceEvent, Ids, Longs
from stepgrade.trace import intervals as iv
from stepgrade.trace.intervals import Spans
from stepgrade.trace.ledger import waiting_calls
from stepgrade.trace.links import OP, nearest, pick
from stepgrade.trace.steps import steps_of
from stepgrade.trace.timeline import Timeline
from stepgrade.units import NS_PER_MS

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
_WAYS = (None, "h2d", "d2h")


def tally_waits(line: Timeline, steps: int) -> tuple[WaitTally, ...]:
    """Return the waits of a steady step by call and calling operation, longest first."""
    calls, tree = line.trace.calls, line.tree
    steady = np.append(line.windows.steady, [False, False])
    step = steps_of(calls.start_ns, line.steps)
    chosen = waiting_calls(line.trace, line.links, line.steps)
    chosen &= steady[np.where(step >= 0, step, len(steady) - 1)]
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return ()
    caller = pick(nearest(tree.parent, tree.kind == OP), tree.of_call[rows])
    names = pick(tree.name, caller).astype(np.int64)
    width = len(line.trace.strings) + 1
    ways = _ways(line, rows, caller)
    pairs, which, counts = groups((calls.name[rows].astype(np.int64) * width + names + 1) * len(_WAYS) + ways)
    total = np.bincount(which, weights=calls.dur_ns[rows])
    idle = np.bincount(which, weights=_idle_after(line, rows))
    found = [
        _tally(line, int(pair), width, (count / steps, ns / steps / NS_PER_MS, lost / steps / NS_PER_MS))
        for pair, count, ns, lost in zip(pairs, counts.tolist(), total.tolist(), idle.tolist(), strict=True)
    ]
    return tuple(sorted(found, key=lambda one: (-one.ms, one.call, one.caller or "")))


def gap_openings(line: Timeline, spans: Spans) -> Longs:
    """Return when the device became idle in the gap that each of the idle spans lies in."""
    ledger = line.ledger
    busy = iv.merge(ledger.compute, ledger.communication, ledger.copy) if ledger else iv.NOTHING
    if not len(busy.ends):
        return spans.starts
    place = np.searchsorted(busy.ends, spans.starts, side="right") - 1
    opened: Longs = np.where(place >= 0, busy.ends[np.maximum(place, 0)], spans.starts)
    return opened


def steady_windows(line: Timeline) -> Spans:
    """Return the time of the steady steps."""
    steady = line.windows.steady
    return iv.union(line.windows.start_ns[steady], line.windows.end_ns[steady])


def _idle_after(line: Timeline, rows: Longs) -> Floats:
    """Return for each waiting call how long the device was idle in gaps that opened in it."""
    idle = np.zeros(len(rows))
    if line.ledger is None:
        return idle
    spans = iv.intersect(iv.merge(line.ledger.idle_sync, line.ledger.idle_host), steady_windows(line))
    calls = line.trace.calls
    order = np.argsort(calls.start_ns[rows], kind="stable")
    start = calls.start_ns[rows][order]
    end = start + calls.dur_ns[rows][order]
    opened = gap_openings(line, spans)
    place = np.searchsorted(start, opened, side="right") - 1
    inside = (place >= 0) & (opened <= end[np.maximum(place, 0)])
    np.add.at(idle, order[place[inside]], (spans.ends - spans.starts)[inside])
    return idle


def _ways(line: Timeline, rows: Longs, caller: Ids) -> Longs:
    """Return which way the copy went that each wait was for: its own, or that of the operation it is in."""
    work, links, tree = line.trace.work, line.links, line.tree
    copies = np.flatnonzero(
        (links.call >= 0) & among(work.kind, (DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H))
    )
    way = np.where(work.kind[copies] == DeviceEvent.COPY_H2D, 1, 2)
    by_call = np.zeros(len(line.trace.calls.name), np.int64)
    by_call[links.call[copies]] = way
    maker = pick(nearest(tree.parent, tree.kind == OP), tree.of_call[links.call[copies]])
    by_op = np.zeros(len(tree.kind), np.int64)
    by_op[maker[maker >= 0]] = way[maker >= 0]
    around = np.where(caller >= 0, pick(by_op, caller), 0)
    return np.where(by_call[rows] > 0, by_call[rows], around)


def _tally(line: Timeline, pair: int, width: int, amount: tuple[float, float, float]) -> WaitTally:
    named, way = divmod(pair, len(_WAYS))
    call, caller = divmod(named, width)
    strings = line.trace.strings
    return WaitTally(
        call=strings[call],
        caller=strings[caller - 1] if caller - 1 != NONE else None,
        count=amount[0],
        ms=amount[1],
        idle_ms=amount[2],
        direction=_WAYS[way],
    )
