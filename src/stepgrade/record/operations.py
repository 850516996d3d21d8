"""Operations of sampled steps: one step in N runs under torch.profiler and is left out of all other times."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.autograd.profiler_util import FunctionEventAvg
    from torch.profiler import profile

_OPERATIONS_KEPT = 200


class OperationWindow:
    """Profiles one step of every `every`, and keeps the self time of each operator by name."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._profiler: profile | None = None
        self._total_us: dict[str, float] = defaultdict(float)
        self.sampled = 0

    @property
    def is_open(self) -> bool:
        """Tell whether the current step is being profiled."""
        return self._profiler is not None

    def open_if_due(self, step: int) -> None:
        """Start profiling when the step's number is a multiple; never the first one."""
        if step == 0 or step % self._every:
            return
        import torch  # noqa: PLC0415  an extra

        if torch.autograd.profiler._is_profiler_enabled:  # noqa: SLF001  no public way to ask
            return  # the user is profiling this step, and torch allows one profiler at a time
        self._profiler = torch.profiler.profile()
        self._profiler.__enter__()

    def close(self) -> None:
        """Stop profiling and add up the times of the step's operators."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.__exit__(None, None, None)
        self.sampled += 1
        rows = profiler.key_averages()
        on_device = any(_device_us(row) for row in rows)
        for row in rows:
            spent_us = _device_us(row) if on_device else row.self_cpu_time_total
            if spent_us > 0 and not row.key.startswith(("ProfilerStep", "Activity Buffer")):
                self._total_us[row.key] += spent_us

    def drop(self) -> None:
        """Stop profiling a step that did not end; it would count as a whole one."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.__exit__(None, None, None)

    def per_step_ms(self) -> dict[str, float]:
        """Return each operator's milliseconds in an average step, longest first."""
        if not self.sampled:
            return {}
        longest = sorted(self._total_us.items(), key=lambda item: -item[1])[:_OPERATIONS_KEPT]
        return {name: spent_us / 1000.0 / self.sampled for name, spent_us in longest}


def _device_us(row: FunctionEventAvg) -> float:
    return float(getattr(row, "self_device_time_total", 0.0))
