"""A recording says when other programs held the training up, and only then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import stepgrade as sg
from stepgrade.config.limits import DEFAULT_LIMITS
from stepgrade.contract import Grade
from stepgrade.hardware.detect import OtherLoad
from stepgrade.model import RECORDER, Machine, Operation, Recorded, Source
from stepgrade.model.activity import Activity
from stepgrade.model.sampled import SampledSteps
from stepgrade.record.operations import _together

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="Linux counts how long a thread waits for a core"
)


@contextmanager
def one_core() -> Iterator[None]:
    """Let this process, and what it starts, use one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_program(*, is_ours: bool) -> Iterator[None]:
    """Run something that computes all the time, as a child of this process or of nobody here."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if is_ours or os.fork() == 0:
                os.write(theirs, b"%10d" % os.getpid())
                until = time.monotonic() + 120
                while time.monotonic() < until:
                    pass
        finally:
            os._exit(0)
    if not is_ours:
        os.waitpid(child, 0)  # its own child is nobody's now
    pid = int(os.read(ours, 10))
    for end in (ours, theirs):
        os.close(end)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if is_ours:
            os.waitpid(child, 0)


def train(path: Path, seconds: float) -> sg.Profile:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sg.start_recording(model, optimizer, path=path, warmup=1, ops_every=0) as recorder:
        until = time.monotonic() + seconds
        while recorder.steps < 5 or time.monotonic() < until:
            model(torch.ones(64, 64)).sum().backward()
            optimizer.step()
    return sg.load(path)


def test_another_program_on_the_same_core_is_told(tmp_path: Path) -> None:
    with one_core(), busy_program(is_ours=False):
        profile = train(tmp_path / "run.json", 2.0)
    card = sg.score(profile)
    assert profile.machine is not None
    assert (profile.machine.busy_share or 0.0) > 0.1
    assert (profile.machine.waited_for_core_share or 0.0) > 0.2
    assert card.machine == profile.machine
    assert card.grade == "ungraded"
    assert card.ungraded_because[0].code == "busy_machine"
    shown = str(card).splitlines()
    told, step = (
        next(i for i, line in enumerate(shown) if words in line) for words in ("was busy", "  Step ")
    )
    assert told < step  # before the figures that are not the script's


def test_what_the_training_started_itself_is_no_other_program(tmp_path: Path) -> None:
    """A loader's worker on the same core: the training waits for it, and others are not to blame."""
    load = OtherLoad(os.getpid())
    with one_core(), busy_program(is_ours=True):
        profile = train(tmp_path / "run.json", 2.0)
        others = load.share()
    machine = profile.machine
    told = machine is not None and (machine.busy_share or 0.0) >= DEFAULT_LIMITS.busy_cores_share
    assert not told or (others or 0.0) > 0.05, (machine, others)  # unless this machine is busy indeed


def recorded(machine: Machine | None, *, on_processor: bool = True) -> sg.Profile:
    """Return a recording of ten steps of 100 ms, the fastest of 80 ms, at a tenth of the ceiling."""
    return sg.Profile(
        source=Source(format="step_profiler_v2", files=("run.json",), producer=RECORDER),
        work="training",
        steps=10,
        mean_step_ms=100.0,
        samples_ms=(80.0, *[100.0] * 9),
        tokens_per_step=10.0,
        machine=machine,
        recorded=Recorded(processor="a processor" if on_processor else None),
    )


def graded(profile: sg.Profile) -> sg.Scorecard:
    return sg.score(profile, setup=sg.Setup(peak_bw_gb_s=1.0, bytes_per_token=1e6))


@pytest.mark.parametrize(
    ("waited", "others", "throttled", "is_told", "is_graded"),
    [
        (0.0, 0.0, None, False, True),
        (0.04, 0.9, None, False, True),
        (0.5, 0.09, None, False, True),  # its own threads and workers wait for each other
        (0.06, 0.11, None, True, True),
        (0.11, 0.11, None, True, False),
        (0.11, 0.0, True, True, False),
        (0.11, 0.0, False, False, True),
    ],
)
def test_both_have_to_be_notable(
    waited: float, others: float, throttled: bool | None, is_told: bool, is_graded: bool
) -> None:
    """Others that are busy on other cores hurt nobody; a wait for one's own threads is not theirs."""
    machine = Machine(busy_share=others, waited_for_core_share=waited, throttled=throttled)
    card = graded(recorded(machine))
    told = [note for note in (*card.notes, *card.ungraded_because) if note.code == "busy_machine"]
    assert len(told) == is_told
    assert (card.grade != "ungraded") is is_graded


def test_a_busy_machine_bounds_the_grade() -> None:
    """100 tokens a second of 1,000; without half of the step, which waited, they would be 200."""
    machine = Machine(busy_share=0.9, waited_for_core_share=0.5)
    card = graded(recorded(machine))
    assert card.efficiency == pytest.approx(0.1)
    assert card.grade_at_most == str(Grade.from_efficiency(0.2))
    assert "20.0 %" in card.ungraded_because[-1].text
    assert "about 50.0 ms, not 100 ms" in card.ungraded_because[0].text
    slower = graded(recorded(Machine(busy_share=0.9, waited_for_core_share=0.15)))
    assert "about 80.0 ms" in slower.ungraded_because[0].text  # one step took no longer


def test_a_device_does_not_wait_for_a_core() -> None:
    """With an accelerator a late host costs what the device waited for it, which is known."""
    machine = Machine(busy_share=0.9, waited_for_core_share=0.5)
    card = graded(recorded(machine, on_processor=False))
    assert card.grade != "ungraded"
    assert any(note.code == "busy_machine" for note in card.notes)


def test_nothing_is_said_where_it_cannot_be_known() -> None:
    card = graded(recorded(None))
    assert card.machine is None
    assert not any(note.code == "busy_machine" for note in card.notes)


def sampled(waited: float, **ms: float) -> SampledSteps:
    operations = tuple(Operation(name=name, ms=each, calls=2.0) for name, each in ms.items())
    return SampledSteps(
        steps=1,
        model_ms=sum(ms.values()),
        busy_ms=sum(ms.values()),
        tokens=10.0,
        operations=operations,
        activity=Activity(driver="host", marks={"waited": waited}),
        waited_for_core_share=waited,
    )


def test_a_call_that_was_interrupted_once_is_not_the_longest_operation() -> None:
    """Of three profiled steps, one lost 60 ms in squeeze: the median does not show it."""
    steps = [sampled(0.5, mm=10.0, squeeze=60.0), sampled(0.3, mm=12.0, squeeze=0.1), sampled(0.4, mm=14.0)]
    together = _together(steps)
    assert together.steps == 3
    usual = {op.name: op.per_step(3.0).ms for op in together.operations}
    assert usual == pytest.approx({"mm": 12.0, "squeeze": 0.1})
    assert {op.name: op.calls for op in together.operations} == {"mm": 6.0, "squeeze": 4.0}
    assert together.model_ms == pytest.approx(3 * 14.0)
    assert together.tokens == 30.0
    assert together.activity is not None
    assert together.activity.marks == {"waited": 0.3}  # of the quietest
    assert together.waited_for_core_share == 0.3
    assert _together(steps[:1]) is steps[0]
