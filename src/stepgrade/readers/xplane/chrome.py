"""Chrome traces that jax.profiler makes of a profile: the same planes and lines, no HLO and fewer stats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from stepgrade.model.events import NONE, Longs, Trace
from stepgrade.readers.source import ByteSource
from stepgrade.readers.xplane.planes import (
    MISSING,
    NOISE,
    NUMBERS,
    TEXTS,
    Plane,
    PlaneEvents,
    PlaneLine,
    PlaneSpace,
)
from stepgrade.readers.xplane.reader import PROFILER, traces_of

_MEMORY_PER_BYTE: Final = 8
_LATEST_US: Final = 1e15
_PROFILER: Final = replace(
    PROFILER,
    format="xla_trace",
    producer="JAX (trace.json)",
    record_operations="Pass the .xplane.pb next to it: trace.json.gz has no HLO.",
    record_layers="Pass the .xplane.pb next to it: it has the scopes of operations.",
)


class _Event(Struct, frozen=True):
    """One event, or the name of a process or thread."""

    ph: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    name: str = ""
    args: dict[str, Any] = {}


class _File(Struct, frozen=True, rename={"events": "traceEvents"}):
    events: list[_Event] = []


def read_traces(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each device that worked."""
    events = source.decoded(_File, "a JAX trace", _MEMORY_PER_BYTE).events
    names = {event.pid: str(event.args.get("name", "")) for event in events if event.name == "process_name"}
    threads = {
        (event.pid, event.tid): str(event.args.get("name", ""))
        for event in events
        if event.name == "thread_name"
    }
    own: dict[int, list[_Event]] = {}
    for event in events:
        if event.ph == "X" and event.pid in names and NOISE.match(event.name) is None:
            own.setdefault(event.pid, []).append(event)
    del events
    planes = [_plane(name, own.get(process, ()), threads) for process, name in names.items()]
    return traces_of(b"", PlaneSpace(planes=planes, is_cut=False), source.name, _PROFILER)


def _plane(name: str, events: Sequence[_Event], threads: dict[tuple[int, int], str]) -> Plane:
    lines: dict[tuple[int, int], int] = {}
    names: dict[str, int] = {}
    texts: dict[str, int] = {}
    line = [lines.setdefault((event.pid, event.tid), len(lines)) for event in events]
    named = [names.setdefault(event.name[:4000], len(names)) for event in events]

    def number(event: _Event, key: str) -> int:
        value = str(event.args.get(key, ""))  # numbers are written as text
        return int(value) if len(value) < 19 and value.removeprefix("-").isdecimal() else int(MISSING)

    def text(event: _Event, key: str) -> int:
        value = event.args.get(key)
        return texts.setdefault(value[:4000], len(texts)) if isinstance(value, str) else NONE

    table = PlaneEvents(
        line=np.array(line, np.int32),
        name=np.array(named, np.int32),
        start_ns=_nanoseconds([event.ts for event in events]),
        end_ns=_nanoseconds([event.ts + event.dur for event in events]),
        numbers={key: np.array([number(event, key) for event in events], np.int64) for key in NUMBERS},
        texts={key: np.array([text(event, key) for event in events], np.int32) for key in TEXTS},
    )
    return Plane(
        name=name[:200],
        stats={},
        lines=[PlaneLine(tid & 0xFFFFFFFF, threads.get((pid, tid), ""), 0) for pid, tid in lines],
        names=[*names],
        shown=[*names],
        metadata=[{} for _ in names],
        texts=[*texts],
        events=table,
        damaged=0,
    )


def _nanoseconds(times: list[float]) -> Longs:
    return np.rint(np.clip(np.array(times, np.float64), -_LATEST_US, _LATEST_US) * 1000).astype(np.int64)
