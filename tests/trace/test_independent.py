"""Step windows and ledgers against a second implementation, over made and real traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from stepgrade.model.events import Trace
from stepgrade.trace import analyse_rank
from stepgrade.trace.timeline import build_timeline
from tests.kineto_traces import read_file
from tests.trace.conftest import SAMPLES as FOLDER
from tests.trace.slow_steps import slow_ledger, slow_windows
from tests.trace.test_invariants import RUNS
from tests.trace_builder import Run, make_trace

ACCOUNTS = (
    "compute",
    "exposed_communication",
    "exposed_copy",
    "idle_input",
    "idle_host",
    "idle_sync",
    "unattributed",
)
PATHS = sorted((*FOLDER.glob("*.json*"), *(FOLDER.parent / "kineto_more").glob("*.json.gz")))
SAMPLES = [pytest.param(path, id=path.name, marks=pytest.mark.samples) for path in PATHS]
if not SAMPLES:
    SAMPLES = [
        pytest.param(FOLDER, marks=pytest.mark.skip(reason="the real traces are not beside this clone"))
    ]
OTHERS = ("aiu_", "ascend_")  # traces of other tools
# Above this the second implementation, which looks at everything for every moment, takes too long.
MOST_WORK = 2500


def assert_windows(trace: Trace) -> int:
    """Compare the steps whose end is known, and return how many there are."""
    timeline = build_timeline(trace)
    if timeline.steps.basis != "profiler_step" or not timeline.windows.on_device:
        return 0
    windows, ends = timeline.windows, timeline.windows.end_known.tolist()
    expected = [step for step in slow_windows(trace) if step.is_known]
    found = [
        (number, start, end)
        for number, start, end, known in zip(
            timeline.steps.number.tolist(),
            windows.start_ns.tolist(),
            windows.end_ns.tolist(),
            ends,
            strict=True,
        )
        if known
    ]
    # Work after the last step ends it too; marks alone do not show that.
    assert found[: len(expected)] == [(step.number, step.start, step.end) for step in expected]
    assert len(found) - len(expected) in (0, 1)
    assert not any(
        mark == "steady" for mark, known in zip(windows.mark, ends, strict=True) if not known
    ) or not any(ends)
    return len(expected)


def assert_ledgers(trace: Trace, most: int = 3) -> None:
    rank = analyse_rank(trace)
    by_number = {step.number: step for step in rank.steps}
    for step in [step for step in slow_windows(trace) if step.is_known][:most]:
        ledger = by_number[step.number].ledger
        assert ledger is not None
        found = {name: getattr(ledger, f"{name}_ns") for name in ACCOUNTS}
        expected = slow_ledger(trace, (step.start, step.end))
        assert found == {name: expected[name] for name in ACCOUNTS}


@given(RUNS.filter(lambda run: run.device and run.marks and run.steps > 1))
@settings(max_examples=40)
def test_made_traces(run: Run) -> None:
    trace = make_trace(run)
    assert assert_windows(trace) >= run.steps - 1
    assert_ledgers(trace, 1)


@given(RUNS.filter(lambda run: run.device and run.steps > 1))
@settings(max_examples=40)
def test_steps_found_without_marks_are_the_marked_ones(run: Run) -> None:
    marked, found = (build_timeline(make_trace(replace(run, marks=marks))) for marks in (True, False))
    assert len(found.windows.mark) == len(marked.windows.mark)
    inside = (found.attribution.step >= 0) & (found.attribution.step < run.steps)
    assert found.trace.work.dur_ns[inside].sum() * 2 > found.trace.work.dur_ns.sum()


def read(path: Path) -> Trace:
    if path.name.startswith(OTHERS):
        pytest.skip("the trace of another tool")
    return read_file(path)[0]


@pytest.mark.parametrize("path", SAMPLES)
def test_real_traces(path: Path) -> None:
    trace = read(path)
    complete = assert_windows(trace)
    if complete and len(trace.work.name) <= MOST_WORK:
        assert_ledgers(trace)


@pytest.mark.parametrize("path", SAMPLES)
def test_steps_hold_most_of_what_the_device_did(path: Path) -> None:
    timeline = build_timeline(read(path))
    launched = timeline.chosen & (timeline.links.call >= 0)
    step, dur_ns = timeline.attribution.step, timeline.trace.work.dur_ns
    inside = launched & (step >= 0) & (step < len(timeline.steps.number))
    assert dur_ns[inside].sum() * 2 >= dur_ns[launched].sum()


@pytest.mark.samples
@pytest.mark.skipif(not PATHS, reason="the real traces are not beside this clone")
def test_many_real_steps_were_compared() -> None:
    names = ("kineto_v", "hta_ns", "hta_dlrm", "nanogpt_20251211")
    assert (
        sum(
            assert_windows(read(path))
            for path in PATHS
            if path.name.startswith(names) or "rank0" in path.name
        )
        > 20
    )
