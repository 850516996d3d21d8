"""Every nanosecond in its account, on timelines small enough to be checked by eye (times in µs)."""

from __future__ import annotations

import pytest

from stepgrade.model.events import DeviceEvent, RangeKind
from stepgrade.timeline.timeline import build_timeline
from stepgrade.trace.profile import analyse_rank
from tests.trace_builder import TraceBuilder, analyse_trace

US = 1_000


class Line(TraceBuilder):
    """A builder that counts in microseconds and launches what it is told to."""

    def mark(self, number: int, start: int, end: int) -> None:
        self.range(f"ProfilerStep#{number}", start * US, (end - start) * US)

    def launched(self, name: str, at: int, start: int, end: int, **known: object) -> None:
        """Add a launch that takes one microsecond, and its work."""
        correlation = self.call("cudaLaunchKernel", at * US, US)
        self.kernel(name, start * US, (end - start) * US, correlation=correlation, **known)  # type: ignore[arg-type]

    def step_us(self, index: int = 0) -> dict[str, float]:
        """Return what is in the accounts of a step."""
        ledger = analyse_rank(self.trace()).steps[index].ledger
        assert ledger is not None
        names = ledger.__struct_fields__
        return {name: getattr(ledger, name) / US for name in names if getattr(ledger, name)}


def two_steps() -> Line:
    """Return two steps of 1000 µs whose first kernels start at 100 and 1100."""
    line = Line()
    line.mark(1, 0, 1000)
    line.mark(2, 1000, 2000)
    line.launched("kernel", 90, 100, 200)
    line.launched("kernel", 1090, 1100, 1200)
    return line


def test_a_step_goes_from_first_work_to_next_first_work() -> None:
    windows = build_timeline(two_steps().trace()).windows
    assert windows.dur_ns.tolist() == [1000 * US, 900 * US]  # of the second one the end is not in the trace
    assert windows.start_ns.tolist() == [100 * US, 1100 * US]
    assert windows.end_known.tolist() == [True, False]
    assert [str(mark) for mark in windows.mark] == ["steady", "open"]


def test_idle_until_the_launch_is_the_hosts() -> None:
    assert two_steps().step_us() == {"compute": 100, "idle_host": 900}


def test_communication_and_copies_count_where_nothing_computes() -> None:
    line = two_steps()
    line.launched("ncclDevKernel_AllReduce", 95, 150, 300, stream=13)
    line.launched("Memcpy HtoD (Pinned -> Device)", 96, 250, 400, stream=20, kind=DeviceEvent.COPY_H2D)
    assert line.step_us() == {
        "compute": 100,
        "exposed_communication": 100,
        "exposed_copy": 100,
        "idle_host": 700,
    }


@pytest.mark.parametrize("kind", [DeviceEvent.COPY_D2D, DeviceEvent.MEMSET])
def test_copies_within_the_device_are_compute(kind: DeviceEvent) -> None:
    line = two_steps()
    line.launched("Memset (Device)", 95, 200, 250, kind=kind)
    assert line.step_us() == {"compute": 150, "idle_host": 850}


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)",
    ],
)
def test_collectives_by_any_name(name: str) -> None:
    line = two_steps()
    line.launched(name, 95, 200, 300)
    assert line.step_us()["exposed_communication"] == 100


def test_waiting_for_input_is_where_the_loader_runs() -> None:
    line = two_steps()
    line.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1010 * US, 60 * US)
    assert line.step_us() == {"compute": 100, "idle_input": 60, "idle_host": 840}


def test_a_loader_in_another_thread_holds_nobody_up() -> None:
    line = two_steps()
    line.range("## data_load ##", 1010 * US, 60 * US, thread=9)
    assert "idle_input" not in line.step_us()


def test_an_only_step_is_what_the_host_marks() -> None:
    line = Line()
    line.mark(1, 0, 1000)
    line.range("enumerate(DataLoader)#x.__next__", 10 * US, 300 * US)
    line.launched("kernel", 390, 400, 900)
    rank = analyse_rank(line.trace())
    assert (rank.steps[0].start_ns, rank.steps[0].dur_ns) == (0, 1000 * US)
    assert line.step_us() == {"compute": 500, "idle_input": 300, "idle_host": 200}


def test_a_synchronisation_costs_what_the_host_could_have_run_ahead() -> None:
    line = two_steps()
    line.call("cudaStreamSynchronize", 150 * US, 60 * US)  # waits 60, until 10 after the kernel ends
    assert line.step_us() == {"compute": 100, "idle_sync": 60, "idle_host": 840}


def test_a_long_wait_costs_no_more_than_the_gap() -> None:
    line = two_steps()
    line.call("cudaDeviceSynchronize", 100 * US, 950 * US)
    assert line.step_us() == {"compute": 100, "idle_sync": 891, "idle_host": 9}


def test_a_wait_in_which_another_thread_launches_holds_nothing_up() -> None:
    """The backward's thread launches late while the loop's waits for the device: its lateness is the host's."""
    line = two_steps()
    line.call("cudaDeviceSynchronize", 150 * US, 700 * US)
    correlation = line.call("cudaLaunchKernel", 600 * US, 5 * US, thread=7)
    line.kernel("gemm", 610 * US, 100 * US, correlation=correlation)
    # Only what follows the second kernel, as long as the host had waited, is the wait's.
    assert line.step_us()["idle_sync"] == 381


def test_a_copy_that_the_host_stays_with_is_a_wait() -> None:
    line = two_steps()
    correlation = line.call("cudaMemcpyAsync", 150 * US, 70 * US)
    line.kernel("Memcpy DtoH", 200 * US, 10 * US, correlation=correlation, kind=DeviceEvent.COPY_D2H)
    assert line.step_us() == {"compute": 100, "exposed_copy": 10, "idle_sync": 70, "idle_host": 820}


def test_a_wait_of_a_thread_that_launches_nothing_does_not_count() -> None:
    line = two_steps()
    line.call("cudaEventSynchronize", 150 * US, 60 * US, thread=5)
    assert "idle_sync" not in line.step_us()


def test_a_gap_before_work_without_a_launch_is_unattributed() -> None:
    line = two_steps()
    line.kernel("kernel", 600 * US, 100 * US)
    assert line.step_us() == {"compute": 200, "unattributed": 400, "idle_host": 400}


def test_a_long_wait_after_the_launch_is_unattributed() -> None:
    line = two_steps()
    line.launched("kernel", 150, 600, 700)  # queued before the gap opened at 200
    assert line.step_us() == {"compute": 200, "idle_host": 100 + 400, "unattributed": 300}
    activity = analyse_trace(line.trace()).activity
    assert activity is not None
    assert activity.gaps is not None
    assert activity.gaps.dispatch_ms * 2 > 0.1  # of both steps


def test_annotations_of_the_profiler_are_no_device_time() -> None:
    line = two_steps()
    before = line.step_us()
    line.range("Activity Buffer Request", 300 * US, 100 * US, kind=RangeKind.OVERHEAD)
    assert line.step_us() == before


def test_without_device_events_operations_are_compute() -> None:
    line = Line()
    line.mark(1, 0, 1000)
    line.op("aten::mm", 100 * US, 300 * US)
    line.op("aten::add", 150 * US, 100 * US)  # nested: counts once
    line.op("MmBackward0", 350 * US, 150 * US, thread=1)  # overlaps: counts once
    line.op("c10d::allreduce_", 480 * US, 100 * US, thread=2)
    line.range("enumerate(DataLoader)#x.__next__", 600 * US, 100 * US)
    line.op("aten::stack", 610 * US, 50 * US)  # the loader's own work is not the model's
    assert line.step_us() == {
        "compute": 400,
        "exposed_communication": 80,
        "idle_input": 100,
        "idle_host": 420,
    }


def test_a_device_whose_work_was_not_recorded_has_no_ledger() -> None:
    line = Line()
    line.mark(1, 0, 1000)
    line.op("aten::mm", 100 * US, 300 * US)
    line.call("cudaLaunchKernel", 110 * US, 10 * US)
    profile = analyse_trace(line.trace())
    assert profile.activity is not None
    assert profile.activity.driver == "unseen"
    assert profile.ledger is None
    assert profile.operations == () == profile.phases
    assert profile.warnings[0].fatal


def test_a_prefetch_on_a_stream_of_its_own_does_not_move_the_boundary() -> None:
    line = two_steps()
    line.launched("Memcpy HtoD", 1005, 1010, 1020, stream=20, kind=DeviceEvent.COPY_H2D)  # prefetch of step 2
    assert [step.start_ns for step in analyse_rank(line.trace()).steps] == [100 * US, 1100 * US]
