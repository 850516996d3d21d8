"""What a step did beyond its ledger, on a timeline small enough to be checked by eye (times in µs)."""

from __future__ import annotations

import pytest

from stepgrade.model.activity import (
    Activity,
    CopyRow,
    HostGaps,
    HostLine,
    KernelTally,
    OptimizerTally,
    WaitTally,
)
from stepgrade.model.events import DeviceEvent
from stepgrade.trace.profile import analyse_rank
from tests.timeline.test_ledger import Line
from tests.trace_builder import AUTOGRAD

US = 1_000


def steps_of_everything() -> Line:
    """Return two steps of 1000 µs, each with kernels, copies, a wait and an optimizer, and the start of a third."""
    line = Line()
    for number, at in enumerate((0, 1000)):
        line.mark(number, at, at + 1000)
        line.launched("gemm", at + 90, at + 100, at + 200)
        slow_launch = line.call("cudaLaunchKernel", (at + 205) * US, 3 * US)
        line.kernel("tiny", (at + 210) * US, 2 * US, correlation=slow_launch)
        copy = line.call("cudaMemcpyAsync", (at + 300) * US, US)
        line.kernel(
            "Memcpy HtoD (Pinned -> Device)",
            (at + 310) * US,
            20 * US,
            correlation=copy,
            kind=DeviceEvent.COPY_H2D,
            moved=1000,
        )
        line.op("aten::item", (at + 395) * US, 110 * US)
        read = line.call("cudaMemcpyAsync", (at + 396) * US, US)
        line.kernel(
            "Memcpy DtoH (Device -> Pageable)",
            (at + 398) * US,
            2 * US,
            correlation=read,
            kind=DeviceEvent.COPY_D2H,
        )
        line.call("cudaStreamSynchronize", (at + 400) * US, 100 * US)
        line.range("Optimizer.step#AdamW.step", (at + 600) * US, 100 * US)
        line.launched("multi_tensor_apply_kernel", at + 610, at + 620, at + 640)
        line.launched("plain", at + 630, at + 650, at + 660)
        line.call("cudaGraphInstantiate", (at + 750) * US, US)
    line.mark(2, 2000, 2100)
    line.launched("gemm", 2090, 2100, 2200)
    return line


def activity_of(line: Line) -> Activity:
    activity = analyse_rank(line.trace()).profile.activity
    assert activity is not None
    return activity


def test_kernels_copies_and_the_optimizer_of_a_step() -> None:
    activity = activity_of(steps_of_everything())
    assert activity.kernels == KernelTally(
        count=4.0,
        ms=0.132,  # 100 + 2 + 20 + 10
        short_count=1.0,  # 10 µs are not short
        short_ms=0.002,
        graph_share=0.0,
        launch_call_us=1.0,  # the median of 1, 3, 1 and 1
        outrun_share=0.25,  # the tiny one is shorter than its launch
    )
    assert activity.copies == (
        CopyRow(direction="d2h", memory="pageable", calls=1.0, ms=0.002, during="forward"),
        CopyRow(direction="h2d", memory="pinned", calls=1.0, ms=0.02, bytes=1000.0, during="forward"),
    )
    assert activity.optimizer == OptimizerTally(
        kernels=2.0,
        ms=0.03,
        span_ms=0.04,  # with the pause of 10 µs between its kernels
        multi_tensor_share=pytest.approx(2 / 3),
        fused=False,
        name="AdamW",
    )
    assert activity.marks == {"item": 1.0, "optimizer_step": 1.0, "graph_capture": 1.0}
    assert activity.class_kernels["copy"] == 2.0
    assert (activity.platform, activity.driver, activity.backward_passes) == ("cuda", "device", 1.0)


def test_gaps_and_waits_of_a_step() -> None:
    activity = activity_of(steps_of_everything())
    # Gaps of the host: 200-210, 212-310, 330-398, 500-620, 640-650 and 660-1100.
    assert activity.gaps == HostGaps(
        after_sync_ms=0.0,  # the wait itself took all that the host could have run ahead
        stall_ms=pytest.approx(0.44),
        stalls=1.0,
        longest_ms=pytest.approx(0.44),
        dispatch_ms=pytest.approx(0.04),  # 2 + 9 + 1 + 9 + 10 + 9, from the end of each launch
        steady_stall_ms=pytest.approx(0.44),
        stall_from_ms=0.25,
    )
    assert activity.waits == (
        WaitTally(
            call="cudaStreamSynchronize",
            caller="aten::item",
            count=1.0,
            ms=pytest.approx(0.1),
            direction="d2h",
            idle_ms=pytest.approx(0.22),  # from 400, in the wait, to 620
        ),
    )
    assert activity.scalar_read_ms == pytest.approx(0.11)


def test_equal_waits_are_in_the_order_of_their_callers() -> None:
    line = steps_of_everything()
    for name, at in (("b::wait", 800), ("a::wait", 850), ("b::wait", 1800), ("a::wait", 1850)):
        line.op(name, at * US, 30 * US)
        line.call("cudaStreamSynchronize", (at + 5) * US, 20 * US)
    callers = [(wait.caller, wait.direction) for wait in activity_of(line).waits]
    assert callers == [("aten::item", "d2h"), ("a::wait", None), ("b::wait", None)]


def test_a_gap_after_a_wait_is_the_waits_as_far_as_the_host_would_have_run_ahead() -> None:
    line = Line()
    for number, at in enumerate((0, 1000)):
        line.mark(number, at, at + 1000)
        line.launched("gemm", at + 90, at + 100, at + 200)
        # The host waits from 110; the device runs dry at 200, and the next launch is done at 501.
        line.call("cudaDeviceSynchronize", (at + 110) * US, 95 * US)
        line.launched("gemm", at + 500, at + 510, at + 900)
    line.mark(2, 2000, 2100)
    line.launched("gemm", 2090, 2100, 2200)
    gaps = activity_of(line).gaps
    assert gaps is not None
    # Charged to the wait of 95 µs: 200-295. Of the rest, 295-510, nothing: all that was waited is used up.
    assert line.step_us() == {"compute": 490, "idle_sync": 95, "idle_host": 215 + 200}
    assert gaps.after_sync_ms == 0.0
    assert gaps.longest_ms == pytest.approx(0.31)


def test_scaling_multiplies_times_and_leaves_counts_and_single_events() -> None:
    line = HostLine(where="train.py:1", function="step", ms=3.0)
    wait = WaitTally(call="sync", caller=None, count=2.0, ms=1.0, idle_ms=None, line=line)
    gaps = HostGaps(
        after_sync_ms=1.0, stall_ms=2.0, stalls=3.0, longest_ms=4.0, dispatch_ms=5.0, steady_stall_ms=None
    )
    activity = Activity(
        driver="device",
        gaps=gaps,
        waits=(wait,),
        matmul_dtype_ms={"bf16": 1.5},
        class_kernels={"gemm": 4.0},
        marks={"item": 2.0},
        input_ms=(1.0, 2.0),
        lines={"stall": (line,)},
        startup_ms=0.5,
    )
    assert activity.scaled(1.0) is activity
    assert activity.scaled(2.0) == Activity(
        driver="device",
        gaps=HostGaps(
            after_sync_ms=2.0,
            stall_ms=4.0,
            stalls=3.0,
            longest_ms=4.0,
            dispatch_ms=10.0,
            steady_stall_ms=None,
        ),
        waits=(WaitTally(call="sync", caller=None, count=2.0, ms=2.0, idle_ms=None, line=line),),
        matmul_dtype_ms={"bf16": 3.0},
        class_kernels={"gemm": 4.0},
        marks={"item": 2.0},
        input_ms=(1.0, 2.0),
        lines={"stall": (line,)},
        startup_ms=1.0,
    )


def test_phases_of_a_step() -> None:
    phases = {phase.name: phase.ms for phase in analyse_rank(steps_of_everything().trace()).profile.phases}
    assert phases == {
        "h2d": pytest.approx(0.02),
        "forward": pytest.approx(0.102),
        "optimizer": pytest.approx(0.03),
        "d2h": pytest.approx(0.002),
    }


@pytest.mark.parametrize(("load_us", "startup_ms"), [(6000, 6.0), (4999, 0.0)])
def test_loading_a_kernel_is_start_up_if_it_takes_milliseconds(load_us: int, startup_ms: float) -> None:
    line = Line()
    for number, at in enumerate((0, 20_000)):
        line.mark(number, at, at + 20_000)
        line.launched("gemm", at + 90, at + 100, at + 200)
        line.call("cuModuleLoadData", (at + 300) * US, load_us * US)
        line.launched("gemm", at + 6_400, at + 6_410, at + 6_500)
    line.mark(2, 40_000, 40_100)
    line.launched("gemm", 40_090, 40_100, 40_200)
    assert activity_of(line).startup_ms == pytest.approx(startup_ms)


def test_kernels_that_wait_in_the_queue() -> None:
    line = Line()
    for number, at in enumerate((0, 1000)):
        line.mark(number, at, at + 1000)
        line.launched("gemm", at + 90, at + 100, at + 400)
        line.launched("gemm", at + 200, at + 400, at + 600)  # waits for 200 µs
        line.launched("gemm", at + 250, at + 600, at + 650)  # for 350 µs
    line.mark(2, 2000, 2100)
    line.launched("gemm", 2090, 2100, 2200)
    line.kernel("unlinked", 500 * US, US)  # between kernels of the first step
    use = analyse_rank(line.trace()).profile.kernel_use
    assert use is not None
    assert use.queue is not None
    # With the launch of the next step's first kernel, 10 µs before it begins, in a window of 1000 µs.
    assert use.queue.mean == pytest.approx((200 + 350 + 10) / 1000)
    assert use.queue.empty_share == pytest.approx(1 - (400 + 10) / 1000)
    assert use.queue.known_share == pytest.approx(6 / 7)


def host_steps(*ops: tuple[str, int, int]) -> Line:
    """Return two steps of 1000 µs without a device, each with these operations: name, start, end."""
    line = Line()
    for number, at in enumerate((0, 1000)):
        line.mark(number, at, at + 1000)
        for name, start, end in ops:
            line.op(name, (at + start) * US, (end - start) * US)
    return line


def test_random_numbers_for_dropout_are_told_from_others() -> None:
    line = host_steps(
        ("aten::mm", 0, 100),
        ("aten::dropout", 100, 300),
        ("aten::bernoulli_", 150, 200),
        ("aten::randn", 400, 700),
    )
    activity = activity_of(line)
    assert activity.dropout_ms == pytest.approx(0.05)
    assert (activity.driver, activity.platform) == ("host", "cpu")
    assert activity.kernels is None


def test_reads_of_a_loop_count_with_their_pauses() -> None:
    # Pauses of up to 50 µs are the loop's own; 51 µs are other work.
    line = host_steps(
        ("aten::item", 100, 110), ("aten::item", 160, 170), ("aten::item", 221, 231), ("aten::mm", 500, 700)
    )
    assert activity_of(line).scalar_read_ms == pytest.approx((60 + 10 + 10) / 1000)


@pytest.mark.parametrize(
    ("table", "indices", "tokens"),
    [
        ([1000, 64], [8, 128], 1024),
        ([256, 64], [8, 128], 1024),
        ([255, 64], [8, 128], None),  # too few rows for a vocabulary
        ([1000, 64], [1024], None),  # not a batch of sequences
        ([1000, 64, 2], [8, 128], None),
    ],
)
def test_tokens_by_an_indexed_table(table: list[int], indices: list[int], tokens: int | None) -> None:
    line = Line()
    for number, at in enumerate((0, 1000)):
        line.mark(number, at, at + 1000)
        line.op("aten::index", (at + 100) * US, 200 * US, dims=[table, indices], types=["float", "long int"])
    profile = analyse_rank(line.trace()).profile
    assert profile.tokens_per_step == tokens
    assert profile.activity is not None
    assert profile.activity.sequence == (tokens and 128)


def test_a_region_is_inside_another_of_its_own_thread_only() -> None:
    line = Line()
    for number in range(3):
        at = 1000 * number
        line.mark(number, at, at + 1000)
        line.op("Torch-Compiled Region: 0/0", (at + 10) * US, 900 * US)
        for place in range(5):  # the backward pass, on a thread of its own
            line.op("Torch-Compiled Region: 1/0", (at + 100 + 100 * place) * US, 50 * US, thread=AUTOGRAD)
        line.launched("gemm", at + 910, at + 920, at + 990)
    found = analyse_rank(line.trace()).profile.compilation
    assert found is not None
    assert found.graph_breaks == 0.0


def test_compilation_of_a_run() -> None:
    line = Line()
    for number in range(3):
        at = 1000 * number
        line.mark(number, at, at + 1000)
        line.op("TorchDynamo Cache Lookup", (at + 10) * US, 5 * US)
        line.op("Torch-Compiled Region: 0/0", (at + 50) * US, 60 * US)
        line.op("Torch-Compiled Region: 1/0", (at + 60) * US, 10 * US)  # after a graph break
        line.launched("gemm", at + 90, at + 100, at + 200)
    line.op("entire_frame_compile", 200 * US, 500 * US)
    line.range("entire_frame_compile_data: compile_id=0/1", 300 * US, US)
    line.mark(3, 3000, 3100)
    line.launched("gemm", 3090, 3100, 3200)
    found = analyse_rank(line.trace()).profile.compilation
    assert found is not None
    assert (found.total_ms, found.ms_per_step, found.steps_left_out) == (0.5, 0.0, 1)
    assert (found.compiles, found.recompiles) == (1, 1)  # the second compilation of frame 0
    assert found.guard_ms == pytest.approx(0.005)
    assert found.graph_breaks == 1.0
    assert [(step.step, step.ms) for step in found.steps] == [(0, 0.5)]
    assert [(frame.frame, frame.ms) for frame in found.frames] == [("0", 0.5)]
    assert found.recorded_ms == pytest.approx(3.0 + 0.1)  # three steps, and the start of a fourth
