"""Step windows and ledgers against a second implementation, over made and real traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from stepgrade.model.events import Trace
from stepgrade.timeline.ledger import LedgerSpans
from stepgrade.timeline.timeline import build_timeline
from stepgrade.trace.profile import analyse_rank
from tests.kineto_traces import read_file
from tests.samples import each_of, shared
from tests.timeline.slow_steps import (
    device_work,
    host_rounds,
    sample_of,
    slow_host_ledger,
    slow_ledger,
    slow_windows,
)
from tests.timeline.test_invariants import RUNS
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
SAMPLES = each_of("samples/kineto/*.json*", "samples/kineto_more/*.json.gz")
OTHERS = ("aiu_",)  # traces of other tools
# The second implementation looks at everything for every moment: of a step with more work a part is compared.
MOST_WORK = 40
MOST_OPERATIONS = 6000


def assert_windows(trace: Trace) -> int:
    """Compare the steps whose end is known, and return how many there are."""
    timeline = build_timeline(trace)
    rounds, thread = host_rounds(trace)
    if not rounds or not timeline.windows.on_device:
        return 0
    assert timeline.steps.thread == thread
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


def assert_ledgers(trace: Trace, most: int = 3) -> int:
    """Compare the accounts of a few steps, of a part of each where a step has much work; return how many.

    Where no step's end is known by marks the windows are those that were found, whatever they were found from.
    """
    timeline, works = build_timeline(trace), device_work(trace)
    if timeline.ledger is None or not timeline.windows.on_device:
        return 0
    spans = [(step.start, step.end) for step in slow_windows(trace) if step.is_known]
    found_spans = zip(timeline.windows.start_ns.tolist(), timeline.windows.end_ns.tolist(), strict=True)
    compared = (spans or [*found_spans])[:most]
    for span in compared:
        around, window = sample_of(works, span, MOST_WORK)
        found = {name: covered(timeline.ledger, name, window) for name in ACCOUNTS}
        expected = slow_ledger(trace, window, around)
        assert found == {name: expected[name] for name in ACCOUNTS}
    return len(compared)


def covered(ledger: LedgerSpans, account: str, window: tuple[int, int]) -> int:
    """Return how much of a window the account has."""
    spans = ledger.time_in(account)
    return sum(
        max(0, min(end, window[1]) - max(start, window[0]))
        for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
    )


def assert_host_ledgers(trace: Trace, most: int = 2) -> int:
    """Compare the accounts of a run without a device, and return how many steps were compared."""
    rank = analyse_rank(trace)
    rounds, _ = host_rounds(trace)
    if len(trace.work.name) or rank.profile.activity is None or rank.profile.activity.driver != "host":
        return 0
    if rounds:
        assert [(step.start_ns, step.start_ns + step.dur_ns) for step in rank.steps] == [
            one[1:3] for one in rounds
        ]
    compared = [step for step in rank.steps if len(trace.ops.name) <= MOST_OPERATIONS][-most:]
    for step in compared:
        assert step.ledger is not None
        expected = slow_host_ledger(trace, (step.start_ns, step.start_ns + step.dur_ns))
        assert {name: getattr(step.ledger, name) for name in ACCOUNTS} == {
            name: expected[name] for name in ACCOUNTS
        }
    return len(compared)


@given(RUNS.filter(lambda run: run.device and run.steps > 1))
@settings(max_examples=40)
def test_made_traces(run: Run) -> None:
    trace = make_trace(run)
    assert assert_windows(trace) >= run.steps - 1
    assert assert_ledgers(trace, 1) == 1


@given(RUNS.filter(lambda run: not (run.device or run.graph or run.reduce_ns) and run.steps > 1))
@settings(max_examples=40)
def test_made_traces_without_a_device(run: Run) -> None:
    assert assert_host_ledgers(make_trace(run)) > 0


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
    assert_windows(trace)
    compared = assert_ledgers(trace) + assert_host_ledgers(trace)
    # Nothing is compared where the device was not recorded, or where a processor has more operations than can be.
    assert compared or not len(trace.work.name)


@pytest.mark.parametrize("path", SAMPLES)
def test_steps_hold_most_of_what_the_device_did(path: Path) -> None:
    timeline = build_timeline(read(path))
    launched = timeline.chosen & (timeline.links.call >= 0)
    step, dur_ns = timeline.attribution.step, timeline.trace.work.dur_ns
    inside = launched & (step >= 0) & (step < len(timeline.steps.number))
    assert dur_ns[inside].sum() * 2 >= dur_ns[launched].sum()


@pytest.mark.samples
def test_many_real_steps_were_compared() -> None:
    names = ("kineto_v", "hta_ns", "hta_dlrm", "nanogpt_20251211")
    folder = shared("samples")
    paths = sorted((*folder.glob("kineto/*.json*"), *folder.glob("kineto_more/*.json.gz")))
    assert (
        sum(
            assert_windows(read(path))
            for path in paths
            if path.name.startswith(names) or "rank0" in path.name
        )
        > 20
    )
