"""What holds for every trace, made or real: the ledger adds up, and what must not matter does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepgrade.model.events import Trace
from stepgrade.model.ledger import ACCOUNTS, Ledger
from stepgrade.ranks.packed_ranks import RankProfile
from stepgrade.timeline.timeline import build_timeline
from stepgrade.trace.profile import analyse_rank
from tests.kineto_traces import KINETO, read_sample, sample_names
from tests.samples import each_of
from tests.timeline.changes import cut, renamed_streams, shifted, shuffled, without_place
from tests.trace_builder import Run, make_trace

RUNS = st.builds(
    Run,
    steps=st.integers(1, 5),
    layers=st.integers(1, 3),
    kernel_ns=st.integers(1_000, 200_000),
    host_op_ns=st.integers(1_000, 60_000),
    input_ns=st.sampled_from([0, 20_000, 900_000]),
    reduce_ns=st.sampled_from([0, 40_000, 400_000]),
    sync=st.booleans(),
    marks=st.booleans(),
    recompute=st.booleans(),
    graph=st.booleans(),
    device=st.booleans(),
    modules=st.booleans(),
)


def assert_adds_up(rank: RankProfile) -> None:
    ledgers = [step.ledger for step in rank.steps if step.ledger]
    assert len(ledgers) in (0, len(rank.steps))
    for step, ledger in zip(rank.steps, ledgers, strict=bool(ledgers)):
        parts = [getattr(ledger, name) for name, own in ACCOUNTS.items() if not own.takes_all_ranks]
        assert min(parts) >= 0
        assert sum(parts) == ledger.total == step.dur_ns
    steady = Ledger.sum([step.ledger for step in rank.steps if step.ledger and step.steady])
    assert rank.profile.ledger == (steady if steady.total else None)


def assert_unmoved(trace: Trace, rank: RankProfile) -> None:
    plain = without_place(rank)
    assert without_place(analyse_rank(shifted(trace, 12_345_678_901))) == plain
    assert without_place(analyse_rank(renamed_streams(trace))) == plain
    assert without_place(analyse_rank(shuffled(trace, seed=7))) == plain


@given(RUNS)
@settings(max_examples=60)
def test_made_traces_add_up_and_stay_the_same(run: Run) -> None:
    trace = make_trace(run)
    rank = analyse_rank(trace)
    assert_adds_up(rank)
    assert_unmoved(trace, rank)


@pytest.mark.parametrize("path", each_of(f"{KINETO}/*.json*"))
def test_real_traces_add_up_and_stay_the_same(path: Path) -> None:
    trace = read_sample(path.name)
    rank = analyse_rank(trace)
    assert_adds_up(rank)
    assert_unmoved(trace, rank)


def assert_cuts_well(trace: Trace, at: int) -> None:
    whole = analyse_rank(trace)
    left, right = (analyse_rank(half) for half in cut(trace, at))
    # A step whose end is not in the trace begins on the host where it is the only one.
    ended = build_timeline(trace).windows.end_known.tolist()
    halves = [(step.number, step.dur_ns, step.ledger) for step in left.steps + right.steps]
    assert [part for part, known in zip(halves, ended, strict=True) if known] == [
        (step.number, step.dur_ns, step.ledger)
        for step, known in zip(whole.steps, ended, strict=True)
        if known
    ]


@given(RUNS.filter(lambda run: run.device and run.marks and run.steps > 1), st.data())
@settings(max_examples=60)
def test_a_made_trace_cut_at_a_step_gives_the_whole(run: Run, data: st.DataObject) -> None:
    assert_cuts_well(make_trace(run), data.draw(st.integers(1, run.steps - 1)))


@pytest.mark.samples
def test_real_traces_cut_at_a_step_give_the_whole() -> None:
    traces = [trace for trace in map(read_sample, sample_names()) if _can_be_cut(trace)]
    assert len(traces) > 15
    for trace in traces:
        assert_cuts_well(trace, len(analyse_rank(trace).steps) // 2)


def _can_be_cut(trace: Trace) -> bool:
    timeline = build_timeline(trace)
    marks = timeline.windows.mark
    marked = timeline.steps.basis == "profiler_step" and timeline.windows.on_device
    return marked and len(marks) > 1 and "empty" not in marks
