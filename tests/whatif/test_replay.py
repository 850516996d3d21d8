"""The replay of a step takes what was measured, and with a change what a run with that change takes.

`tests/trace_builder.py` plays a host and a device against each other: the truth about a change is the same run
played with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.errors import BadOption, NotMeasured
from stepgrade.model.events import DeviceEvent, Trace
from stepgrade.replay.packed import unpack_graph
from stepgrade.replay.replayer import Replayer
from tests.trace_builder import (
    COMMUNICATION_STREAM,
    COMPUTE_STREAM,
    Run,
    TraceBuilder,
    analyse_trace,
    make_trace,
    play,
)


def ask(run: Run | Trace, *changes: sg.AssumedChange) -> sg.WhatIf:
    return sg.what_if([make_trace(run) if isinstance(run, Run) else run], changes)


def played_ms(**known: Any) -> float:
    mean = analyse_trace(make_trace(Run(steps=6, **known))).mean_step_ms
    assert mean is not None
    return mean


def test_a_refused_run_leaves_no_file_open() -> None:
    """Whoever holds the error holds its frames, and with them what they read."""
    closed = []

    def traces() -> Iterator[Trace]:
        try:
            yield make_trace(Run(steps=0))
            yield make_trace(Run(steps=0))
        finally:
            closed.append(True)

    with pytest.raises(NotMeasured):
        sg.what_if(traces())
    assert closed == [True]


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ({"input_ns": 3_000_000}, sg.AssumedChange(what="data"), {"input_ns": 0}),
        ({"sync": True}, sg.AssumedChange(what="sync"), {}),
        ({"reduce_ns": 500_000}, sg.AssumedChange(what="communication"), {"reduce_ns": 1}),
        (
            {"reduce_ns": 500_000, "sync": True},
            sg.AssumedChange(what="communication", speed=5),
            {"reduce_ns": 100_000, "sync": True},
        ),
        ({}, sg.AssumedChange(what="*", speed=2), {"kernel_ns": 30_000, "copy_ns": 7_500}),
        # The device becomes so quick that the host is the bound.
        (
            {"reduce_ns": 60_000},
            sg.AssumedChange(what="*", speed=6),
            {"kernel_ns": 10_000, "copy_ns": 2_500, "reduce_ns": 10_000},
        ),
        # Slower is a change as well.
        ({}, sg.AssumedChange(what="*", speed=0.5), {"kernel_ns": 120_000, "copy_ns": 30_000}),
        (
            {"kernel_ns": 5_000, "host_op_ns": 200_000},
            sg.AssumedChange(what="host", speed=2),
            {"kernel_ns": 5_000, "host_op_ns": 100_000},
        ),
    ],
    ids=str,
)
def test_a_change_brings_what_a_run_with_it_shows(
    before: dict[str, Any], change: sg.AssumedChange, after: dict[str, Any]
) -> None:
    found = ask(Run(steps=6, **before), change)
    assert found.replayed_ms == pytest.approx(found.step_ms, rel=0.002)
    (answer,) = found.answers
    assert answer.step_ms == pytest.approx(played_ms(**after), rel=0.03)
    assert answer.low_ms <= answer.step_ms <= answer.high_ms


def test_what_is_hidden_gains_nothing() -> None:
    """Input that the device does not wait for, launches of a host that is ahead, a sync that waits for nothing."""
    busy = Run(steps=6, kernel_ns=200_000)
    for change in (sg.AssumedChange(what="input"), sg.AssumedChange(what="launches", launches=0)):
        (answer,) = ask(busy, change).answers
        assert answer.affected_ms > 0
        assert answer.gain == pytest.approx(0.0, abs=1e-6)
    (answer,) = ask(Run(steps=6, kernel_ns=5_000, sync=True), sg.AssumedChange(what="sync")).answers
    assert answer.gain == pytest.approx(0.0, abs=0.01)


def test_the_bound_is_said() -> None:
    slow = Run(steps=6, kernel_ns=5_000, input_ns=3_000_000)
    found = ask(slow, sg.AssumedChange(what="input"), sg.AssumedChange(what="launches", launches=0))
    assert found.bound[0].what == "input"
    without, graph, both = found.answers
    assert without.bound[0].what == "host"
    assert graph.bound[0].what == "input"
    assert both.bound[0].what in ("gemm", "elementwise", "launch latency")
    assert len(both.changes) == 2
    for parts in (found.bound, *(one.bound for one in found.answers)):
        assert 0.9 < sum(part.share for part in parts) <= 1.0 + 1e-9


def test_without_a_change_those_are_tried_that_bring_something() -> None:
    found = ask(Run(steps=6, input_ns=3_000_000))
    assert found.answers[0].changes == ("without input",)
    assert [one.gain for one in found.answers] == sorted((one.gain for one in found.answers), reverse=True)
    assert all(one.gain >= 0.01 for one in found.answers)


runs = st.builds(
    Run,
    steps=st.just(4),
    layers=st.integers(1, 3),
    kernel_ns=st.integers(1_000, 200_000),
    host_op_ns=st.integers(2_000, 100_000),
    input_ns=st.integers(0, 2_000_000),
    reduce_ns=st.sampled_from([0, 5_000, 300_000]),
    sync=st.booleans(),
    graph=st.booleans(),
    recompute=st.booleans(),
)
KINDS = ("gemm", "host", "input", "elementwise", "*")


@settings(max_examples=12, deadline=None)
@given(run=runs, what=st.sampled_from(KINDS), speed=st.floats(1.0, 50.0))
def test_what_holds_of_every_step(run: Run, what: str, speed: float) -> None:
    trace = make_trace(run)
    try:
        same, faster, gone = (
            ask(trace, sg.AssumedChange(what=what, speed=times)).answers[0]
            for times in (1.0, speed, math.inf)
        )
    except BadOption:
        assert run.input_ns == 0 or run.graph  # nothing of it is in the step
        return
    measured = ask(trace).step_ms
    assert same.step_ms == pytest.approx(measured, rel=1e-6), "no change changes nothing"
    assert same.gain == pytest.approx(0.0, abs=1e-6)
    # Faster parts make no step longer, none saves more than it took, and nothing beats leaving it out.
    assert gone.step_ms - 1e-6 <= faster.step_ms <= measured * (1 + 1e-6)
    assert measured - gone.step_ms <= gone.affected_ms * 1.01 + 0.001
    assert faster.low_ms <= faster.step_ms <= faster.high_ms


@settings(max_examples=6, deadline=None)
@given(run=runs, slower=st.integers(2, 9))
def test_in_slow_motion_a_step_takes_longer_by_as_much(run: Run, slower: int) -> None:
    (graph, *_) = (unpack_graph(step.packed) for step in analyse_trace(make_trace(run)).steps_to_replay)
    every = np.ones(len(graph.edges.before), np.bool_)
    replayer = Replayer(graph)
    usual, slow = (replayer.replay(graph.edges.lag_ns * times, every).step_ns for times in (1, slower))
    assert slow == usual * slower


def test_ranks_that_wait_for_nobody_are_as_fast_alone_as_together() -> None:
    change = sg.AssumedChange(what="gemm", speed=2.0)
    alone, together = (sg.what_if(ranks, [change]).answers[0] for ranks in (two_ranks()[:1], two_ranks()))
    assert together.low_ms * 0.98 <= alone.step_ms <= together.high_ms * 1.02


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_phase_is_its_work_and_the_launches_of_it(phase: str) -> None:
    """Of a run that its host holds, a phase is made faster by faster launches as well."""
    run = Run(steps=6, kernel_ns=5_000, host_op_ns=200_000)
    host, part = ask(
        run, sg.AssumedChange(what="host", speed=2.0), sg.AssumedChange(what=f"phase {phase}", speed=2.0)
    ).answers[:2]
    assert 0.05 < part.gain < host.gain


def two_ranks(**slow: Any) -> list[Trace]:
    """Return two ranks whose reductions end together; the second is slower."""
    late = play(Run(steps=5, rank=1, world_size=2, reduce_ns=100_000, **slow))
    name = late.strings["ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    ends = [row[2] + row[3] for row in late.work if row[0] == name]
    early = play(Run(steps=5, rank=0, world_size=2, reduce_ns=100_000), ends)
    return [early.trace(), late.trace()]


def test_ranks_wait_for_each_other() -> None:
    """Of two ranks one is late: a faster link brings what moving data took, not what waiting did."""
    ranks = two_ranks(delay_ns=2_000_000, sync=True)
    alone = sg.what_if(ranks[:1], [sg.AssumedChange(what="communication")]).answers[0]
    both = sg.what_if(
        ranks, [sg.AssumedChange(what="link", speed=1000), sg.AssumedChange(what="communication")]
    )
    assert both.ranks == 2
    assert both.replayed_ms == pytest.approx(both.step_ms, rel=0.02)
    link, without, _ = both.answers
    # The early rank alone seems to lose its waiting in communication; together they are as slow as the late one.
    assert alone.gain > 0.3
    assert link.gain < 0.2
    assert without.gain < 0.2
    assert [note.code for note in both.notes if note.code == "one_rank"] == []


def test_without_stragglers_all_are_as_fast_as_the_median_rank() -> None:
    """Of three ranks one is late: without it they take what the others take when nobody is."""
    run = Run(steps=5, world_size=3, reduce_ns=100_000)
    late = play(replace(run, rank=1, delay_ns=2_000_000, sync=True))
    name = late.strings["ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    ends = [row[2] + row[3] for row in late.work if row[0] == name]
    first, third = (play(replace(run, rank=rank), ends) for rank in (0, 2))
    found = sg.what_if([first.trace(), late.trace(), third.trace()], [sg.AssumedChange(what="stragglers")])
    usual = analyse_trace(make_trace(Run(steps=5, reduce_ns=100_000))).mean_step_ms
    assert found.answers[0].step_ms == pytest.approx(usual, rel=0.03)
    assert found.answers[0].affected_ms > 0.0


def test_stragglers_go_with_changes_of_parts_that_not_every_rank_has() -> None:
    """Only the late rank waits for its device: without stragglers and those waits the others stay as they are."""
    late, parts = two_ranks(delay_ns=2_000_000, sync=True), ("stragglers", "sync")
    both = sg.what_if(late, [sg.AssumedChange(what=part) for part in parts]).answers[-1]
    assert both.step_ms > 0.0


@pytest.mark.parametrize("speed", [2.0, math.inf])
def test_stragglers_are_of_several_ranks_and_removed(speed: float) -> None:
    ranks = two_ranks(delay_ns=2_000_000, sync=True)[: 1 if speed == math.inf else 2]
    with pytest.raises(BadOption, match="one rank does not" if speed == math.inf else "only removed"):
        sg.what_if(ranks, [sg.AssumedChange(what="stragglers", speed=speed)])


@settings(max_examples=12, deadline=None)
@given(
    kernel_ns=st.integers(60_000, 200_000),
    delay_ns=st.integers(0, 3_000_000),
    layers=st.integers(1, 4),
    stream=st.sampled_from([COMPUTE_STREAM, COMMUNICATION_STREAM]),
)
def test_ranks_without_communication_do_the_rest_of_their_work(
    kernel_ns: int, delay_ns: int, layers: int, stream: int
) -> None:
    """Leaving out what ranks meet in skips nothing else: together they are as slow as the slower one without it."""
    run = Run(
        steps=5, world_size=2, reduce_ns=100_000, reduce_stream=stream, kernel_ns=kernel_ns, layers=layers
    )
    late = play(replace(run, rank=1, delay_ns=delay_ns))
    name = late.strings["ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    ends = [row[2] + row[3] for row in late.work if row[0] == name]
    early = play(replace(run, rank=0), ends)
    alone = analyse_trace(make_trace(replace(run, rank=1, delay_ns=delay_ns, reduce_ns=1))).mean_step_ms
    assert alone is not None
    both = sg.what_if([early.trace(), late.trace()], [sg.AssumedChange(what="communication")])
    without = both.answers[0]
    assert without.step_ms >= 0.95 * alone  # which still launches its reductions
    assert without.step_ms <= both.step_ms * 1.001


def test_what_another_stream_must_wait_for_is_kept() -> None:
    """A stream that is told to wait does so although what it waits for was done long before."""
    out = TraceBuilder()
    for number in range(4):
        at = 1_000_000 * number
        out.range(f"ProfilerStep#{number}", at, 1_000_000)
        out.kernel(
            "gemm_a", at + 20_000, 300_000, correlation=out.call("cudaLaunchKernel", at + 10_000, 3_000)
        )
        send = out.call("cudaLaunchKernel", at + 20_000, 3_000)
        out.kernel("ncclAllGather", at + 40_000, 200_000, correlation=send, stream=COMMUNICATION_STREAM)
        out.call("cudaStreamWaitEvent", at + 30_000, 1_000)
        after = out.call("cudaLaunchKernel", at + 40_000, 3_000)
        out.kernel("gemm_b", at + 320_000, 100_000, correlation=after)
        copy = out.call("cudaMemcpyAsync", at + 50_000, 380_000)
        out.kernel("Memcpy DtoH", at + 420_000, 8_000, correlation=copy, kind=DeviceEvent.COPY_D2H)
    (answer,) = ask(out.trace(), sg.AssumedChange(what="gemm_a", speed=10)).answers
    # gemm_b now waits for the 200 µs of the collective instead of the 30 that are left of gemm_a.
    assert answer.step_ms == pytest.approx(0.92, abs=0.01)


def test_every_steady_step_is_asked_and_the_range_holds_them_all() -> None:
    """A product takes 300 or 420 µs of a step in turn: leaving it out saves as much in the mean."""
    out, at, products = TraceBuilder(), 0, (300_000, 420_000, 300_000, 420_000, 300_000, 420_000)
    for number, product in enumerate(products):
        out.range(f"ProfilerStep#{number}", at, 400_000 + product)
        call = out.call("cudaLaunchKernel", at + 1_000, 3_000)
        out.kernel("gemm", at + 10_000, product, correlation=call)
        call = out.call("cudaLaunchKernel", at + 5_000, 3_000)
        out.kernel("softmax", at + 10_000 + product, 350_000, correlation=call)
        out.call("cudaDeviceSynchronize", at + 10_000, product + 355_000)
        at += 400_000 + product
    found = ask(out.trace(), sg.AssumedChange(what="gemm"))
    assert found.steps_replayed >= 4
    (answer,) = found.answers
    assert answer.gain == pytest.approx(sum(products[1:5]) / (4 * 400_000 + sum(products[1:5])), abs=0.02)
    assert answer.low_ms == pytest.approx(found.step_ms * 400 / 820, rel=0.02)
    # The other end is further: of the gain of a replay, only a part came where such changes were made.
    assert answer.high_ms >= found.step_ms * 400 / 700 * 0.98


def test_a_replay_that_is_off_answers_nothing() -> None:
    out = TraceBuilder()
    for number in range(4):
        at = 1_000_000 * number
        out.range(f"ProfilerStep#{number}", at, 990_000)
        # Each step's work is launched by a host that takes three times as long as the device shows.
        for kernel in range(3):
            call = out.call("cudaLaunchKernel", at + 100_000 * kernel, 3_000)
            out.kernel("gemm", 300_000 * number + at // 10 + 100_000 * kernel, 90_000, correlation=call)
    with pytest.raises(NotMeasured, match="its replay"):
        ask(out.trace())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (sg.AssumedChange(what="sgem_n"), "nothing in the step is 'sgem_n' .did you mean"),
        (sg.AssumedChange(what="sync"), "nothing in the step is 'sync'"),
        (sg.AssumedChange(what="attention"), "the longest are aten::mm"),
    ],
)
def test_what_the_step_has_nothing_of_is_refused(change: sg.AssumedChange, problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        ask(Run(steps=4), change)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, 1e9])
def test_a_speed_makes_sense(speed: float) -> None:
    with pytest.raises(BadOption, match="is not a speed"):
        sg.AssumedChange(what="gemm", speed=speed)


def test_a_run_on_a_processor_is_one_operation_after_the_other() -> None:
    run = Run(steps=6, device=False, kernel_ns=100_000)
    found = ask(run, sg.AssumedChange(what="gemm", speed=2), sg.AssumedChange(what="input"))
    assert found.replayed_ms == pytest.approx(found.step_ms, rel=0.01)
    for answer in found.answers[:2]:
        part = 0.5 if "gemm" in answer.changes[0] else 1.0
        assert found.step_ms - answer.step_ms == pytest.approx(part * answer.affected_ms, rel=0.01)


def test_a_trace_without_the_device_is_refused() -> None:
    out = TraceBuilder()
    for number in range(4):
        out.range(f"ProfilerStep#{number}", 1_000_000 * number, 1_000_000)
        out.op("aten::mm", 1_000_000 * number + 10_000, 500_000)
        out.call("cudaLaunchKernel", 1_000_000 * number + 20_000, 3_000)
    with pytest.raises(NotMeasured, match="no work of the device"):
        ask(out.trace())


def test_a_step_in_which_nothing_ran_is_refused() -> None:
    out = TraceBuilder()
    for number in range(3):
        out.range(f"ProfilerStep#{number}", 1_000_000 * number, 1_000_000)
    out.kernel("gemm", 100_000, 50_000, device=-1)
    with pytest.raises(NotMeasured):
        ask(out.trace())
