"""The calls in which the host waited for the device, and the operations that made them."""

from __future__ import annotations

import numpy as np

from stepgrade.analysis.trace.ledger import waiting_calls
from stepgrade.analysis.trace.links import OP, nearest, pick
from stepgrade.analysis.trace.steps import steps_of
from stepgrade.analysis.trace.timeline import Timeline
from stepgrade.model.activity import WaitTally
from stepgrade.model.columns import groups
from stepgrade.model.events import NONE
from stepgrade.units import NS_PER_MS


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
    pairs, which, counts = groups(calls.name[rows] * width + names + 1)
    total = np.bincount(which, weights=calls.dur_ns[rows])
    found = [
        _tally(line, pair, width, count=count / steps, ms=ns / steps / NS_PER_MS)
        for pair, count, ns in zip(pairs.tolist(), counts.tolist(), total.tolist(), strict=True)
    ]
    return tuple(sorted(found, key=lambda one: (-one.ms, one.call, one.caller or "")))


def _tally(line: Timeline, pair: int, width: int, *, count: float, ms: float) -> WaitTally:
    call, caller = divmod(pair, width)
    strings = line.trace.strings
    return WaitTally(
        call=strings[call], caller=strings[caller - 1] if caller - 1 != NONE else None, count=count, ms=ms
    )
