"""A made trace as the JSON that the PyTorch profiler writes, to go all the way through the reader."""

from __future__ import annotations

import json
from typing import Any

from stepgrade.model.events import DeviceEvent, RangeKind, Trace

_RANGES = {
    RangeKind.ANNOTATION: "user_annotation",
    RangeKind.MODULE: "python_function",
    RangeKind.OVERHEAD: "overhead",
}


def kineto_text(trace: Trace) -> bytes:
    """Return the trace as JSON, events in the order of their start."""
    events = [*_ops(trace), *_calls(trace), *_work(trace), *_ranges(trace)]
    devices = [
        {"id": one.index, "name": one.name, "totalGlobalMem": one.memory_bytes} for one in trace.devices
    ]
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": devices,
        "record_shapes": 1,
        "baseTimeNanoseconds": trace.base_ns or 0,
        "traceEvents": sorted(events, key=lambda event: event["ts"]),
    }
    return json.dumps(document, indent=0).encode()


def _event(
    category: str, name: str, start: int, dur: int, thread: tuple[int, int], **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": thread[0],
        "tid": thread[1],
        "ts": start / 1000,
        "dur": dur / 1000,
        "args": args,
    }


def _ops(trace: Trace) -> list[dict[str, Any]]:
    ops = trace.ops
    found = []
    for row in range(len(ops.name)):
        args: dict[str, Any] = {"External id": int(ops.external_id[row])}
        if ops.sequence[row] >= 0:
            args |= {
                "Sequence number": int(ops.sequence[row]),
                "Fwd thread id": max(0, int(ops.forward_thread[row])),
            }
        if ops.inputs[row] >= 0:
            said = trace.inputs[int(ops.inputs[row])]
            args |= {"Input Dims": json.loads(said.dims), "Input type": json.loads(said.types)}
        thread = (100, 100 + int(ops.thread[row]))
        found.append(
            _event(
                "cpu_op",
                trace.strings[ops.name[row]],
                int(ops.start_ns[row]),
                int(ops.dur_ns[row]),
                thread,
                **args,
            )
        )
    return found


def _calls(trace: Trace) -> list[dict[str, Any]]:
    calls = trace.calls
    return [
        _event(
            "cuda_runtime",
            trace.strings[calls.name[row]],
            int(calls.start_ns[row]),
            int(calls.dur_ns[row]),
            (100, 100 + int(calls.thread[row])),
            correlation=int(calls.correlation[row]),
        )
        for row in range(len(calls.name))
    ]


def _work(trace: Trace) -> list[dict[str, Any]]:
    work = trace.work
    return [
        _event(
            "kernel" if work.kind[row] == DeviceEvent.KERNEL else "gpu_memcpy",
            trace.strings[work.name[row]],
            int(work.start_ns[row]),
            int(work.dur_ns[row]),
            (int(work.device[row]), int(work.stream[row])),
            device=int(work.device[row]),
            stream=int(work.stream[row]),
            correlation=int(work.correlation[row]),
        )
        for row in range(len(work.name))
    ]


def _ranges(trace: Trace) -> list[dict[str, Any]]:
    ranges = trace.ranges
    return [
        _event(
            _RANGES[RangeKind(int(ranges.kind[row]))],
            trace.strings[ranges.name[row]],
            int(ranges.start_ns[row]),
            int(ranges.dur_ns[row]),
            (100, 100 + int(ranges.thread[row])),
            **({"Python id": row + 1} if ranges.kind[row] == RangeKind.MODULE else {}),
        )
        for row in range(len(ranges.name))
    ]
