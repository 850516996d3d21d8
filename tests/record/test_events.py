"""The clock of accelerators, by events that stand for a device's: there is none where the tests run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import stepgrade as sg
from stepgrade.record import recording as recording_module
from stepgrade.record.clock import EventClock, HostClock, clock_for
from stepgrade.record.recording import Recording
from stepgrade.record.timeline import FORWARD
from tests.record.loop import Loop


class Event:
    """Stands for a device's timing event: the device is as far as `Event.reached`."""

    reached = 0.0
    recorded = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = None

    def record(self) -> None:
        Event.recorded += 1.0
        self.at_ms = Event.recorded

    def query(self) -> bool:
        return self.at_ms <= Event.reached

    def elapsed_time(self, other: Event) -> float:
        assert self.query(), "reading an event that is not done would wait for the device"
        assert other.query(), "reading an event that is not done would wait for the device"
        return other.at_ms - self.at_ms


class TestEvents:
    """No GPU here: this shows that events are only read when done, and come back to be used again."""

    def test_steps_are_read_when_the_device_is_through_and_events_are_used_again(self) -> None:
        made: list[Event] = []
        Event.reached = Event.recorded = 0.0

        class Device:
            @staticmethod
            def Event(*, enable_timing: bool) -> Event:  # noqa: N802
                made.append(Event(enable_timing=enable_timing))
                return made[-1]

            @staticmethod
            def synchronize() -> None:
                Event.reached = Event.recorded

        recording = Recording(warmup=0, ops_every=0)
        recording.clock = EventClock(Device)
        recording.timeline.now = recording.clock.now
        recording.timeline.start()
        for step in range(50):
            recording.timeline.enter(FORWARD)
            recording.timeline.leave()
            recording.end_step()
            assert recording.steady.steps <= step + 1
            Event.reached = max(0.0, Event.recorded - 9.0)  # the device is three steps behind
        assert 40 < recording.steady.steps < 50
        recording.stop()
        assert recording.steady.steps == 50
        assert recording.steady.phases_ns[FORWARD] == 50 * 1_000_000
        assert len(made) < 25

    def test_a_device_that_never_gets_there_costs_bounded_memory(self) -> None:
        Event.reached = Event.recorded = 0.0
        recording = Recording(warmup=0, ops_every=0)
        recording.clock = EventClock(type("Device", (), {"Event": Event, "synchronize": lambda: None}))
        recording.timeline.now = recording.clock.now
        recording.timeline.start()
        Event.reached = -1.0
        for _ in range(1000):
            recording.end_step()
        assert len(recording._pending) == 256
        assert recording.counts["lost_steps"] == 1000 - 256

    def test_the_clock_of_a_cpu_is_the_hosts(self) -> None:
        assert isinstance(clock_for(torch.device("cpu")), HostClock)
        assert isinstance(clock_for(None), HostClock)


class LateEvent:
    """An event that the device passes a while after the host recorded it, at the host's time."""

    BEHIND_S = 0.02

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return time.perf_counter() >= self.at + self.BEHIND_S

    def elapsed_time(self, other: LateEvent) -> float:
        assert self.query(), "reading an event that is not done would wait for the device"
        assert other.query(), "reading an event that is not done would wait for the device"
        return (other.at - self.at) * 1e3


class LateDevice:
    """The part of `torch.cuda` that the clock uses."""

    Event = LateEvent
    synchronised = 0

    @classmethod
    def synchronize(cls) -> None:
        cls.synchronised += 1
        time.sleep(LateEvent.BEHIND_S)


def test_a_whole_recording_by_events_waits_for_the_device_only_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_module, "clock_for", lambda _device: EventClock(LateDevice))
    monkeypatch.setattr(LateDevice, "synchronised", 0)
    loop = Loop(steps=12)
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, dataloader=loop.loader, path=tmp_path / "run.json"
    ) as recorder:
        loop.run(recorder.step)
        assert LateDevice.synchronised == 0
    assert LateDevice.synchronised == 1
    profile = sg.load(tmp_path / "run.json")
    assert (profile.recorded_steps, profile.steps) == (12, 9)
    assert {phase.name for phase in profile.phases} >= {"input", "forward", "loss", "backward", "optimizer"}
    assert all(layer.fwd_ms and layer.bwd_ms for layer in profile.layers)
    assert "device_clock" in [note.code for note in profile.notes]
