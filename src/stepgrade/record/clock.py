"""Timestamps: host nanoseconds, or events on the device's stream that are read once they are done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class HostClock:
    """For devices that run in the calling thread: a stamp is `perf_counter_ns`."""

    name = "host"

    def __init__(self) -> None:
        self.now = time.perf_counter_ns

    def is_done(self, _stamp: int) -> bool:
        """Return True: host stamps can always be read."""
        return True

    def times_ns(self, stamps: list[int]) -> list[int]:
        """Return the stamps as nanoseconds since the first."""
        first = stamps[0]
        return [stamp - first for stamp in stamps]

    def finish(self) -> None:
        """Do nothing."""


class EventClock:
    """For accelerators: a stamp is a timing event in the current stream, without synchronisation.

    Times are then those of the device: a wait for input that the device does not notice has no length.
    """

    name = "device events"

    def __init__(self, device_module: Any) -> None:  # torch.cuda, torch.xpu, …
        self._new = device_module.Event
        self._free: list[torch.Event] = []
        self._synchronize = device_module.synchronize

    def now(self) -> torch.Event:
        """Record an event and return it."""
        event = self._free.pop() if self._free else self._new(enable_timing=True)
        event.record()
        return event

    def is_done(self, stamp: torch.Event) -> bool:
        """Return whether the device has passed the event."""
        return bool(stamp.query())

    def times_ns(self, stamps: list[torch.Event]) -> list[int]:
        """Return nanoseconds since the first event; all events but the last are reused.

        The last one is also the first of the step that follows.
        """
        first = stamps[0]
        times = [0, *(max(0, round(first.elapsed_time(stamp) * 1e6)) for stamp in stamps[1:])]
        last = stamps[-1]
        self._free += {id(stamp): stamp for stamp in stamps if stamp is not last}.values()
        return times

    def finish(self) -> None:
        """Wait until the device has passed all events; only called at the end."""
        self._synchronize()


def clock_for(device: torch.device | None) -> HostClock | EventClock:
    """Return the clock for a torch device: the host's if it has no timing events."""
    if device is None or device.type in ("cpu", "meta"):
        return HostClock()
    import torch  # an extra

    module = getattr(torch, device.type, None)
    return EventClock(module) if hasattr(module, "Event") else HostClock()
