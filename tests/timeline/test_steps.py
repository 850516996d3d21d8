"""Where steps come from, which work belongs to them, and which of them stand for the run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.model.events import DeviceRanges, Trace
from stepgrade.model.notes import texts_of
from stepgrade.timeline.steps import HostSteps, StepBasis, steps_of
from stepgrade.timeline.timeline import build_timeline
from stepgrade.trace.profile import analyse_rank
from tests.timeline.changes import shifted
from tests.trace_builder import Run, TraceBuilder, analyse_trace, make_trace, play

MS = 1_000_000


def marks(trace: Trace) -> list[str]:
    return [str(mark) for mark in build_timeline(trace).windows.mark]


def loop(durations_ms: list[int], kernels: list[int] | None = None) -> TraceBuilder:
    """Return a loop that launches one kernel, or as many as told, at the start of each step."""
    made, now = TraceBuilder(), 0
    for number, (ms, count) in enumerate(zip(durations_ms, kernels or [1] * len(durations_ms), strict=True)):
        made.range(f"ProfilerStep#{number}", now, ms * MS)
        for place in range(count):
            start = now + 1_000 * (place + 1)
            made.kernel("kernel", start + 500, 400, correlation=made.call("cudaLaunchKernel", start, 200))
        now += ms * MS
    return made


@pytest.mark.parametrize(
    ("run", "basis", "count"),
    [
        (Run(), "profiler_step", 4),
        (Run(marks=False), "optimizer", 4),
        (Run(marks=False, optimizer=False), "loader", 4),
    ],
)
def test_steps_are_found_in_what_the_trace_has(run: Run, basis: str, count: int) -> None:
    timeline = build_timeline(make_trace(run))
    assert (timeline.steps.basis, len(timeline.windows.mark)) == (basis, count)
    usual = build_timeline(make_trace(Run()))
    assert timeline.windows.dur_ns[1] == usual.windows.dur_ns[1]


def test_without_loader_steps_follow_the_backward_passes() -> None:
    made = play(Run(marks=False, optimizer=False))
    made.ranges = [row for row in made.ranges if "DataLoader" not in list(made.strings)[row[0]]]
    profile = analyse_trace(made.trace())
    assert (profile.contents["steps from"], profile.recorded_steps) == ("backward", 4)
    assert any("backward pass" in note.text for note in profile.notes)


def test_without_any_sign_the_whole_span_is_one_step() -> None:
    made = TraceBuilder()
    made.kernel("kernel", 5 * MS, MS, correlation=made.call("cudaLaunchKernel", MS, 1000))
    made.kernel("kernel", 8 * MS, MS)
    profile = analyse_trace(made.trace())
    assert profile.contents["steps from"] == "span"
    assert profile.samples_ms == (4,)
    assert [note.code for note in profile.unfit] == ["no_steps"]
    assert sum(operation.ms or 0.0 for operation in profile.operations) == 2


def test_work_belongs_to_the_step_that_launched_it_however_late_it_runs() -> None:
    run = Run(steps=4, host_op_ns=2_000, kernel_ns=400_000)
    timeline = build_timeline(make_trace(run))
    steps = timeline.steps
    lag = timeline.windows.start_ns - steps.start_ns
    assert lag[-1] > 2 * (steps.end_ns - steps.start_ns)[-1]  # the host is more than two steps ahead
    counts = np.bincount(timeline.attribution.step, minlength=4)
    assert len(set(counts.tolist())) == 1
    steady = analyse_trace(make_trace(run)).samples_ms
    assert max(steady) - min(steady) < 0.01 * max(steady)  # though the host's own steps say another thing


def test_work_of_earlier_steps_is_kept_apart() -> None:
    made = play(Run())
    usual = analyse_trace(made.trace())
    first = min(row[2] for row in made.work)
    for place in range(5):
        made.kernel("left over", first - 100_000 * (place + 1), 90_000)
    profile = analyse_trace(shifted(made.trace(), MS))
    assert profile.ledger == usual.ledger
    assert "left over" not in {operation.name for operation in profile.operations}
    text = next(note.text for note in profile.warnings if note.code == "unlaunched")
    assert text.startswith(
        f"5 of {len(made.work)} kernels and copies have no recorded launch; all of them ran before"
    )


def test_work_between_two_of_a_step_on_its_stream_is_of_that_step() -> None:
    made = play(Run())
    row = made.work[20]
    made.work[20] = (*row[:6], -1, *row[7:])
    attribution = build_timeline(made.trace()).attribution
    assert attribution.inferred.sum() == 1
    assert attribution.step[20] == attribution.step[19]


def test_graph_replays_belong_to_the_step_of_their_launch() -> None:
    profile = analyse_trace(make_trace(Run(graph=True)))
    assert profile.activity is not None
    kernels = profile.activity.kernels
    assert kernels is not None
    assert kernels.graph_share > 0
    assert profile.launches_per_step is not None
    assert kernels.count > profile.launches_per_step
    assert len(set(profile.samples_ms[:3])) == 1
    assert "layers from" not in profile.contents
    assert any("replayed from a graph" in note.text for note in profile.notes)


def test_what_the_profiler_projects_on_streams_changes_nothing() -> None:
    trace = make_trace()
    column = np.zeros(1, np.int64)
    projected = DeviceRanges(
        name=column.astype(np.int32),
        start_ns=column,
        dur_ns=column + 10**9,
        device=column.astype(np.int32),
        stream=column,
        external_id=column,
    )
    assert analyse_trace(msgspec.structs.replace(trace, device_ranges=projected)) == analyse_trace(trace)


def test_a_slow_start_is_warm_up() -> None:
    assert marks(loop([180, 125, 127, 126, 124, 126]).trace()) == ["warm-up"] + ["steady"] * 4 + ["open"]


def test_a_last_step_whose_end_is_not_in_the_trace_is_left_out() -> None:
    for last_ms in (50, 100, 206):
        trace = loop([100, 100, 101, 100, last_ms]).trace()
        assert marks(trace) == ["steady"] * 4 + ["open"]
        profile = analyse_trace(trace)
        assert profile.samples_ms == (100.0, 100.0, 101.0, 100.0)
        assert profile.notes[0].text == "The last of 5 steps is left out: its end is not in the trace."


def test_work_after_the_last_step_ends_it() -> None:
    made = loop([100, 100, 90])
    call = made.call("cudaLaunchKernel", 290 * MS + 3_000, 200)
    made.kernel("kernel", 290 * MS + 5_000, 400, correlation=call)
    assert marks(made.trace()) == ["steady"] * 3


def test_steps_none_of_which_ends_in_the_trace_are_what_the_host_marks() -> None:
    made = TraceBuilder()
    for number in range(3):  # recording pauses between them
        start = number * 1000 * MS
        made.range(f"ProfilerStep#{number * 10}", start, 100 * MS)
        made.kernel("kernel", start + 40 * MS, MS, correlation=made.call("cudaLaunchKernel", start + MS, 200))
    windows = build_timeline(made.trace()).windows
    assert windows.dur_ns.tolist() == [100 * MS] * 3
    assert marks(made.trace()) == ["steady"] * 3


def test_the_rest_after_the_last_step_is_not_the_steady_one() -> None:
    made = loop([1000], [200])
    made.range("ProfilerStep#1", 1000 * MS, 22_000)
    call = made.call("cudaLaunchKernel", 1000 * MS + 1_000, 200)
    made.kernel("kernel", 1000 * MS + 2_000, 400, correlation=call)
    assert marks(made.trace()) == ["steady", "empty"]
    assert analyse_trace(made.trace()).mean_step_ms == pytest.approx(1000.0, rel=0.001)


def test_one_slow_step_in_the_middle_is_part_of_the_run() -> None:
    assert marks(loop([210, 219, 425, 210, 220]).trace()) == ["steady"] * 4 + ["open"]


def test_steps_that_alternate_are_all_steady_and_named() -> None:
    trace = loop([82, 107, 82, 107, 82, 107], [10, 20, 10, 20, 10, 20]).trace()
    assert marks(trace) == ["steady"] * 5 + ["open"]
    assert build_timeline(trace).windows.kind.tolist() == [0, 1, 0, 1, 0, 1]
    text = "Steps are of 2 kinds with different amounts of work: 82.0 ms and 107 ms."
    assert text in texts_of(analyse_trace(trace).notes)


def test_an_empty_last_step_is_left_out() -> None:
    trace = loop([100, 100, 100, 1], [1, 1, 1, 0]).trace()
    assert marks(trace) == ["steady"] * 2 + ["open", "empty"]
    assert analyse_rank(trace).steps[-1].dur_ns == 0


def test_a_step_without_work_in_the_middle_puts_the_clock_on_the_host() -> None:
    trace = loop([100, 50, 100], [1, 0, 1]).trace()
    windows = build_timeline(trace).windows
    assert not windows.on_device
    assert windows.dur_ns.tolist() == [100 * MS, 50 * MS, 100 * MS]
    assert "host_windows" in {note.code for note in analyse_trace(trace).warnings}


def test_a_pause_in_recording_does_not_stretch_a_step() -> None:
    made = loop([100, 100])
    made.range("ProfilerStep#7", 900 * MS, 100 * MS)
    made.kernel("kernel", 901 * MS, MS, correlation=made.call("cudaLaunchKernel", 900 * MS + 1000, 100))
    assert max(step.dur_ns for step in analyse_rank(made.trace()).steps) < 110 * MS


def test_the_busiest_device_is_looked_at() -> None:
    made = play(Run())
    made.kernel("kernel", 10, 20, device=5)
    assert build_timeline(made.trace()).device == 0
    notes = analyse_trace(made.trace()).notes
    assert any("several devices" in note.text for note in notes)


def test_a_device_numbered_as_an_agent_finds_its_name() -> None:
    made = play(Run())
    made.work = [(*row[:4], 2, *row[5:]) for row in made.work]
    device = analyse_trace(made.trace()).device
    assert device is not None
    assert device.name == "Made GPU"


def test_an_empty_trace_is_unfit() -> None:
    profile = analyse_trace(TraceBuilder().trace())
    assert profile.warnings[0].code == "empty"
    assert profile.samples_ms == ()


def passes(rows: int) -> Trace:
    """Return a step that looks 77 tokens up and multiplies matrices of so many rows."""
    made = TraceBuilder()
    made.range("ProfilerStep#1", 0, 100 * MS)
    made.op("aten::embedding", MS, MS, dims=[[50_000, 64], [1, 77]])
    for place in range(3):
        start = (10 + 20 * place) * MS
        made.op("aten::linear", start, MS, dims=[[1, rows, 64], [64, 64]])
        call = made.call("cudaLaunchKernel", start + 1000, 100)
        made.kernel("gemm", start + 5000, 10 * MS, correlation=call)
    return made.trace()


def test_tokens_are_those_that_feed_the_model() -> None:
    assert analyse_trace(passes(77)).tokens_per_step == 77
    assert analyse_trace(passes(4 * 77)).tokens_per_step == 77  # each goes to four experts
    assert analyse_trace(passes(4096)).tokens_per_step is None  # patches of an image


@pytest.mark.parametrize(
    ("sign", "work"),
    [
        (lambda made: made.op("autograd::engine::evaluate_function: AddmmBackward0", 0, 10), "training"),
        (lambda made: made.op("aten::mm", 0, 10, forward_thread=1), "training"),
        (lambda made: made.range("Optimizer.step#AdamW.step", 0, 10), "training"),
        (lambda made: made.range("## backward ##", 0, 10), "training"),
        (lambda made: made.kernel("flash_bwd_dq_dk_dv_loop_kernel", 0, 10), "training"),
        (lambda made: made.kernel("sm80_xmma_wgrad_implicit_gemm", 0, 10), "training"),
        (lambda made: made.kernel("multi_tensor_apply_kernel<FusedAdamMathFunctor>", 0, 10), "training"),
        (lambda made: made.op("aten::mm", 0, 10), "inference"),
        (lambda made: made.op("aten::mm", 0, 10, sequence=4), "inference"),
        (lambda made: made.kernel("paged_attention_v2_kernel", 0, 10), "inference"),
        (lambda made: made.kernel("sm80_xmma_dgrad_implicit_gemm", 0, 10), "unknown"),
        (lambda made: made.kernel("gemm", 0, 10), "unknown"),
    ],
)
def test_what_the_steps_hold(sign: Callable[[TraceBuilder], object], work: str) -> None:
    made = TraceBuilder()
    sign(made)
    assert analyse_trace(made.trace()).work == work


@pytest.mark.parametrize(
    ("updates", "steps"),
    [
        ((9, 14, 5, 8, 5, 8, 5, 8), 4),  # a GAN: the first time of each makes its states
        ((9, 8, 8, 8, 8, 8, 8, 8), 8),  # one optimizer
        ((5, 8, 3, 8, 7, 5, 8, 2), 8),  # no turns
        ((5, 8, 5, 8), 4),  # too few to tell
    ],
)
def test_optimizers_of_one_kind_that_take_turns_share_a_step(updates: tuple[int, ...], steps: int) -> None:
    out = TraceBuilder(devices=())
    for place, tensors in enumerate(updates):
        at = 10_000_000 * place
        out.op("aten::linear", at, 1_000_000, sequence=place)
        out.op("autograd::engine::evaluate_function: AddmmBackward0", at + 2_000_000, 1_000_000)
        out.range("Optimizer.step#Adam.step", at + 5_000_000, 4_000_000)
        for tensor in range(tensors):
            out.op("aten::addcdiv_", at + 5_100_000 + 100_000 * tensor, 50_000)
    found = build_timeline(out.trace()).steps
    assert found.basis == "optimizer"
    assert len(found.number) == steps


@given(
    st.lists(st.integers(-1, 60), max_size=40),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8),
)
def test_times_in_order_and_in_none_lie_in_the_same_steps(
    times: list[int], lengths: list[tuple[int, int]]
) -> None:
    edges = np.cumsum(np.array(lengths, np.int64).ravel()).reshape(-1, 2)  # each step, then a pause
    start, end = np.append(0, edges[:-1, 1]), edges[:, 0]
    nothing = np.zeros(len(start), np.bool_)
    steps = HostSteps(StepBasis.PROFILER_STEP, np.arange(len(start)), start, end, nothing, 0)
    ordered = np.array(sorted(times), np.int64)
    found = steps_of(ordered, steps)
    assert steps_of(ordered[::-1], steps).tolist() == found.tolist()[::-1]
    for time, step in zip(ordered.tolist(), found.tolist(), strict=True):
        assert not 0 <= step < len(start) or start[step] <= time < end[step]


@pytest.mark.parametrize("has_backward", [True, False])
def test_steps_begin_with_the_range_of_a_forward_pass_after_a_backward_pass(has_backward: bool) -> None:
    made = TraceBuilder()
    for step in range(3):
        at = 1_000_000 * step
        made.range("my_forward", at, 1_000)
        made.range("my_forward", at + 100_000, 1_000)  # a second micro-batch
        if has_backward:
            made.range("my_backward", at + 200_000, 1_000)
        # Work of other lengths each time, launched outside of the ranges.
        for number in range(2 + step):
            correlation = made.call("cudaLaunchKernel", at + 300_000 + 9_000 * number, 1_000)
            made.kernel(
                f"kernel_{step}_{number}", at + 400_000 + 9_000 * number, 8_000, correlation=correlation
            )
    steps = build_timeline(made.trace()).steps
    assert (steps.basis == StepBasis.PASSES) is has_backward
    if has_backward:
        assert steps.start_ns.tolist() == [0, 1_000_000, 2_000_000]


def test_without_launches_the_operations_say_what_steps_must_hold() -> None:
    made = TraceBuilder()
    for step in range(2):
        made.range(f"ProfilerStep#{step}", 1_000_000 * step, 1_000_000)
        made.op("aten::mm", 1_000_000 * step + 1_000, 500_000)
        made.kernel("gemm", 9_000_000 + 1_000_000 * step, 10_000)  # on another clock, and linked to nothing
    steps = build_timeline(made.trace()).steps
    assert (steps.basis, steps.number.tolist()) == (StepBasis.PROFILER_STEP, [0, 1])
