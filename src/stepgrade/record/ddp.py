"""The gradient all-reduce of DistributedDataParallel, which runs inside backward where no hook reaches it."""

from __future__ import annotations

from typing import Any

# What DDP starts with; measuring each iteration costs a synchronisation on accelerators.
_DEFAULT_RATE = 100
_KEYS = ("backward_comm_time", "backward_compute_comm_overlap_time")


class DdpCommunication:
    """Asks DDP's own timers how long the all-reduce went on after the last gradient was computed."""

    def __init__(self, model: Any, *, on_host: bool) -> None:
        self._model = model
        self._every = 1 if on_host else _DEFAULT_RATE
        self._asked = 0
        self._exposed_ns = 0
        model._set_ddp_runtime_logging_sample_rate(self._every)  # noqa: SLF001  its only door

    def exposed_ns(self) -> int:
        """Return the exposed part of the latest measured iteration."""
        if self._asked % self._every == 0:
            found = self._model._get_ddp_logging_data()  # noqa: SLF001
            communicated, hidden = (int(found.get(key, 0)) for key in _KEYS)
            self._exposed_ns = max(0, communicated - hidden)
        self._asked += 1
        return self._exposed_ns

    def close(self) -> None:
        """Let DDP measure as seldom as before."""
        self._model._set_ddp_runtime_logging_sample_rate(_DEFAULT_RATE)  # noqa: SLF001


def ddp_communication(model: Any, *, on_host: bool) -> DdpCommunication | None:
    """Return the timers of a DDP model; None for any other."""
    return DdpCommunication(model, on_host=on_host) if hasattr(model, "_get_ddp_logging_data") else None
