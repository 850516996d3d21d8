"""Keep only some steps of a trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from stepgrade.errors import BadOption
from stepgrade.model.columns import among
from stepgrade.model.events import NONE, DeviceRanges, DeviceWork, HostCalls, HostOps, HostRanges, Trace

Rows = TypeVar("Rows", HostOps, HostCalls, HostRanges, DeviceWork, DeviceRanges)
Mask = NDArray[np.bool_]
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,18})")


def only_steps(traces: Iterable[Trace], steps: tuple[int, int]) -> Iterator[Trace]:
    """Yield of each trace what the host did from the first to the last of `steps`, and what it launched."""
    return map(partial(_cut, steps=steps), traces)  # unlike a generator, it keeps no trace alive


def _cut(trace: Trace, steps: tuple[int, int]) -> Trace:
    numbers = {at: int(m[1]) for at, text in enumerate(trace.strings) if (m := _STEP.fullmatch(text))}
    rows = [row for row, name in enumerate(trace.ranges.name.tolist()) if name in numbers]
    wanted = [row for row in rows if steps[0] <= numbers[int(trace.ranges.name[row])] <= steps[1]]
    if not wanted:
        known = sorted(numbers[int(trace.ranges.name[row])] for row in rows)
        hint = f"it has steps {known[0]} to {known[-1]}" if known else "it marks no steps"
        raise BadOption(f"no step {steps[0]} to {steps[1]} in the trace", where=trace.file, hint=hint)
    starts, durs = trace.ranges.start_ns[wanted], trace.ranges.dur_ns[wanted]
    low, high = int(starts.min()), int((starts + durs).max())
    calls = _keep(trace.calls, _starts_in(trace.calls, low, high))
    work = trace.work
    # Work belongs to the step that launched it; without a recorded launch, to the one that it starts in.
    has_launch = among(work.correlation, trace.calls.correlation) & (work.correlation != NONE)
    in_steps = np.where(has_launch, among(work.correlation, calls.correlation), _starts_in(work, low, high))
    return replace(
        trace,
        ops=_keep(trace.ops, _starts_in(trace.ops, low, high)),
        calls=calls,
        work=_keep(work, in_steps),
        ranges=_keep(trace.ranges, _starts_in(trace.ranges, low, high)),
        device_ranges=trace.device_ranges
        and _keep(trace.device_ranges, _starts_in(trace.device_ranges, low, high)),
    )  # Python frames stay whole: functions around the steps began before them


def _starts_in(rows: Any, low: int, high: int) -> Mask:
    mask: Mask = (rows.start_ns >= low) & (rows.start_ns < high)
    return mask


def _keep(rows: Rows, mask: Mask) -> Rows:
    columns = {name: column for name, column in asdict(rows).items() if column is not None}
    return type(rows)(**{name: column[mask] for name, column in columns.items()})
