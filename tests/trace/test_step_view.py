"""The drawn step: slices of a lane are in order, lie in the step, stand for every event, and lose no time."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.trace.tracks import SLICES, _lane
from tests.cluster import Planned, write_ranks
from tests.conftest import ROOT
from tests.samples import shared

TRACE = ROOT / "examples" / "traces" / "gpt_naive.json.gz"


def test_the_step_in_the_middle_of_a_real_run() -> None:
    profile = sg.load(TRACE)
    view, *others = profile.views
    assert {lane.kind for lane in view.lanes} == {"ledger", "phases", "thread"}
    for lane in view.lanes:
        ends = [start + dur for start, dur in zip(lane.start_ns, lane.dur_ns, strict=True)]
        assert min(lane.dur_ns) > 0
        assert lane.start_ns[0] >= 0
        assert ends[-1] <= view.dur_ns
        assert all(end <= start for end, start in zip(ends, lane.start_ns[1:], strict=False))
        assert len(lane.start_ns) <= 2 * SLICES
    ledger = next(lane for lane in view.lanes if lane.kind == "ledger")
    assert sum(ledger.dur_ns) == view.dur_ns  # every nanosecond of a step is in an account
    times = [one.dur_ns for one in profile.views]
    assert [max(times), min(times)] == [one.dur_ns for one in others]
    phases = next(lane for lane in view.lanes if lane.kind == "phases")
    assert list(dict.fromkeys(phases.label))[:2] == ["forward", "backward"]


def test_what_is_drawn_is_not_in_the_json() -> None:
    card = sg.score(TRACE)
    assert card.views
    document = json.loads(card.to_json())
    assert "views" not in document
    assert sg.Scorecard.from_json(card.to_json()).views == ()


@given(st.lists(st.tuples(st.integers(-500, 9_500), st.integers(0, 3_000), st.integers(0, 3)), max_size=60))
def test_a_lane_shows_one_thing_at_a_time_and_counts_all(events: list[tuple[int, int, int]]) -> None:
    begin, end = 0, 9_000
    columns = [np.array([event[place] for event in events], np.int64) for place in (0, 1, 2)]
    stop = columns[0] + columns[1]
    names = ["a", "b", "c", "d"]
    lane = _lane("stream", "s", (begin, end), (columns[0], stop, columns[2], columns[2]), names, names)
    starts = {(max(s, 0), min(s + d, end)) for s, d, _ in events if min(s + d, end) > max(s, 0)}
    if lane is None:
        assert not starts
        return
    covered = np.zeros(end, np.bool_)
    for s, e in starts:
        covered[s:e] = True
    shown = np.zeros(end, np.int64)
    for s, d in zip(lane.start_ns, lane.dur_ns, strict=True):
        shown[s : s + d] += 1
    assert shown.max() == 1
    assert set(lane.label) <= set(names)
    # Nothing is drawn where nothing was, but for gaps too short to be seen between short events.
    width = max((end - begin) // SLICES, 1)
    assert int(((shown > 0) & ~covered).sum()) <= width * len(lane.start_ns)
    assert sum(lane.count) <= len(events)
    assert all(a < b for a, b in pairwise(lane.start_ns))


@pytest.mark.samples
def test_ranks_are_on_one_clock() -> None:
    files = sorted(shared("samples/kineto").glob("modded-nanogpt_20251211_8xH100_rank*.json.gz"))
    profile = sg.load(*files)
    drawn = {
        view.number: [one for one in profile.views if one.number == view.number] for view in profile.views
    }
    for views in drawn.values():
        assert [view.rank for view in views] == [*range(8)]
        begins = [view.at_ns for view in views]
        assert max(begins) - min(begins) < max(view.dur_ns for view in views)


def test_waits_of_the_drawn_step_name_the_late_rank(tmp_path: Path) -> None:
    plan = Planned(world=4, tensor=2, pipeline=1, steps=5, slow_rank=1)
    profile = sg.load(*write_ranks(tmp_path, plan), cache=False)
    assert [view.rank for view in profile.views[:4]] == [0, 1, 2, 3]
    for view in profile.views:
        assert all(0 <= wait.start_ns <= wait.start_ns + wait.dur_ns <= view.dur_ns for wait in view.waits)
        assert all(wait.late != view.rank and wait.dur_ns > 0 for wait in view.waits)
    longest = max(profile.views[0].waits, key=lambda wait: wait.dur_ns)
    assert longest.late == 1
    waited = [sum(wait.dur_ns for wait in view.waits) for view in profile.views[:4]]
    assert waited[1] == min(waited)


def test_waits_end_when_the_late_rank_arrives(tmp_path: Path) -> None:
    """A wait starts in the lane of its collective, and all who wait for one rank end together on one clock."""
    plan = Planned(world=4, tensor=4, pipeline=1, steps=5, slow_rank=1)
    views = sg.load(*write_ranks(tmp_path, plan), cache=False).views[:4]
    ends: dict[int, list[int]] = {}
    for view in views:
        events = [row for lane in view.lanes for row in zip(lane.start_ns, lane.dur_ns, strict=True)]
        for wait in view.waits:
            end = wait.start_ns + wait.dur_ns
            assert any(at - 1_000 <= wait.start_ns and end <= at + dur + 1_000 for at, dur in events)
            if wait.late == 1:
                ends.setdefault(round((view.at_ns + end) / 20_000), []).append(view.at_ns + end)
    assert max(map(len, ends.values())) == 3
    assert all(max(together) - min(together) < 1_000 for together in ends.values())


def test_short_events_of_one_dot_are_one_slice() -> None:
    # A dot is 10 ns wide: 1-3 and 5-8 share one, 12-14 has the next, and a long event stands alone.
    start = np.array([1, 5, 12, 100, 205], np.int64)
    stop = np.array([3, 8, 14, 200, 206], np.int64)
    label = np.arange(5, dtype=np.int64)
    names = ["a", "b", "c", "d", "e"]
    lane = _lane("stream", "s", (0, 10 * SLICES), (start, stop, label, label), names, names)
    assert lane is not None
    assert lane.start_ns == (1, 12, 100, 205)
    assert lane.dur_ns == (7, 2, 100, 1)
    assert lane.label == ("b", "c", "d", "e")  # the longest of each
    assert lane.count == (2, 1, 1, 1)
