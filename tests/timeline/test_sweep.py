"""The busy accounts of the ledger against a sweep over every start and end, one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings

from stepgrade.model.events import DeviceEvent
from stepgrade.model.ledger import Ledger
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline.timeline import Timeline, build_timeline
from tests.kineto_traces import read_sample, sample_names
from tests.timeline.test_invariants import RUNS
from tests.trace_builder import Run, make_trace

BUSY = ("compute", "exposed_communication", "exposed_copy")
HOST_COPIES = {DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H, DeviceEvent.COPY_OTHER}


def swept(timeline: Timeline) -> dict[str, int]:
    """Return the busy accounts over all windows, told from who is running between any two moments."""
    work = timeline.trace.work
    moments: list[tuple[int, int, str]] = []
    for row in timeline.chosen.nonzero()[0].tolist():
        start, account = int(work.start_ns[row]), BUSY[0]
        if timeline.classes[row] == WorkClass.COMMUNICATION:
            account = BUSY[1]
        elif work.kind[row] in HOST_COPIES:
            account = BUSY[2]
        moments += [(start, 1, account), (start + int(work.dur_ns[row]), -1, account)]
    low, high = int(timeline.windows.start_ns.min()), int(timeline.windows.end_ns.max())
    running: Counter[str] = Counter()
    total: Counter[str] = Counter()
    before = low
    for moment, change, account in sorted(moments):
        now = min(max(moment, low), high)
        owner = next((name for name in BUSY if running[name]), None)
        if owner:
            total[owner] += now - before
        before = now
        running[account] += change
    return dict(total)


def assert_agrees(timeline: Timeline) -> None:
    if timeline.ledger is None or not len(timeline.trace.work.name):
        return
    total = Ledger.sum(timeline.ledger.of_windows(timeline.windows))
    found = {name: getattr(total, name) for name in BUSY}
    assert {name: ns for name, ns in found.items() if ns} == {
        n: ns for n, ns in swept(timeline).items() if ns
    }


@given(RUNS)
@settings(max_examples=30)
def test_made_traces(run: Run) -> None:
    assert_agrees(build_timeline(make_trace(run)))


@pytest.mark.samples
def test_real_traces() -> None:
    for name in sample_names():
        assert_agrees(build_timeline(read_sample(name)))
