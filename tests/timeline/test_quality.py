from __future__ import annotations

import pytest

from stepgrade.model.events import RangeKind
from tests.trace_builder import Run, TraceBuilder, analyse_trace, play


def texts(made: TraceBuilder) -> dict[str, str]:
    return {note.code: note.text for note in analyse_trace(made.trace()).warnings}


def test_a_sound_trace_has_nothing_to_say() -> None:
    assert texts(play(Run())) == {}


def test_what_the_reader_lost_is_said() -> None:
    made = play(Run())
    made.lost = ("the end of the file is missing",)
    said = "the end of the file is missing"
    assert texts(made) == {"lost": f"lost in reading: {said}", "truncated": said}


def test_one_step_has_no_spread() -> None:
    assert set(texts(play(Run(steps=1)))) == {"one_step"}


def test_the_profilers_own_work_is_said_but_not_a_full_queue() -> None:
    made = play(Run())
    made.range("Command Buffer Full", 1_000_000, 2_000_000, kind=RangeKind.OVERHEAD)
    assert texts(made) == {}
    made.range("Buffer Flush", 1_000_000, 2_000_000, kind=RangeKind.OVERHEAD)
    assert "profiler itself was at work for 39.9 % of the steady steps" in texts(made)["profiler_overhead"]


def test_a_host_slowed_by_recording_is_said() -> None:
    said = texts(play(Run(kernel_ns=5_000)))
    assert set(said) == {"host_slowed"}
    assert "while shapes were recorded" in said["host_slowed"]


def test_kernels_before_their_launch_are_said() -> None:
    made = play(Run())
    made.work = [(*row[:2], row[2] - 3_000_000, *row[3:]) for row in made.work]
    assert "start before their launch" in texts(made)["clocks"]


def test_times_out_of_range_are_counted() -> None:
    made = play(Run())
    made.op("aten::odd", 10, -5)
    made.kernel("odd", 10, 10**17, device=3)
    assert texts(made)["out_of_range"].startswith("2 events have impossible times")


def test_kernels_alone_are_said() -> None:
    made = play(Run())
    made.ops = []
    assert "only kernels are known" in texts(made)["host_unseen"]


def test_unexplained_idle_time_is_said() -> None:
    made = play(Run(kernel_ns=5_000, shapes=False))
    made.work = [(*row[:6], -1, *row[7:]) if number % 7 else row for number, row in enumerate(made.work)]
    assert "does not explain" in texts(made)["unattributed"]


@pytest.mark.parametrize(
    ("durations_ms", "told"),
    [
        (
            (900, 400, 200, 100, 100),
            "2 of 4 steps differ from later ones (900 ms at first, 150 ms later): mostly warm-up.",
        ),
        (
            (100, 100, 900, 900, 900),
            "(100 ms at first, 900 ms later): queues were still full, or other load came later.",
        ),
    ],
)
def test_steps_that_were_mostly_left_out_are_told(durations_ms: tuple[int, ...], told: str) -> None:
    made, now = TraceBuilder(), 0
    for number, ms in enumerate(durations_ms):
        made.range(f"ProfilerStep#{number}", now, ms * 1_000_000)
        made.kernel("kernel", now + 2_000, 500, correlation=made.call("cudaLaunchKernel", now + 1_000, 100))
        now += ms * 1_000_000
    assert texts(made)["warm_up"].endswith(told)
