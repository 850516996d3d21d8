"""An obvious, slow reader of Kineto traces (json and Decimal) that the fast one is held against."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from stepgrade.model.events import NONE, DeviceEvent, RangeKind, Trace

CALLS = {"cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "xpu_runtime", "privateuse1_runtime"}
KERNELS = {"kernel", "Kernel", "mtia_ccp_events"}
MARKS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#", "DistributedDataParallel.", "nccl:")
COPIES = {"HtoD": DeviceEvent.COPY_H2D, "DtoH": DeviceEvent.COPY_D2H, "DtoD": DeviceEvent.COPY_D2D}
TABLES = ("ops", "calls", "work", "ranges", "device_ranges")

Rows = dict[str, list[tuple[Any, ...]]]


def load(path: Path) -> Any:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text, parse_float=Decimal)


def slow_rows(document: Any, rank: int | None = None) -> Rows:
    """Return the rows of each table with every index looked up, sorted."""
    events = document["traceEvents"] if isinstance(document, dict) else document
    used = [event for event in events if event.get("ph") == "X" and table_of(event)]
    zero = min(Decimal(event["ts"]) for event in used)
    rows: Rows = {table: [] for table in TABLES}
    for event in used:
        args = event.get("args") or {}
        if rank is None or args.get("rank") == rank:
            table = table_of(event)
            rows[table].append(_common(event, args, zero) + _ROWS[table](event, args))
    return {table: sorted(found, key=repr) for table, found in rows.items()}


def table_of(event: dict[str, Any]) -> str:
    category, name = event.get("cat"), event.get("name", "")
    args = event.get("args") or {}
    if category == "Operator":
        bare = "Input type" not in args and "::" not in name
        return "ranges" if name.startswith(MARKS) or bare else "ops"
    if category == "python_function":
        return "ranges" if name.startswith("nn.Module: ") else ""
    if category in {"user_annotation", "overhead"}:
        return "ranges"
    if category in KERNELS | {"gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}:
        return "work"
    if category in CALLS:
        return "calls"
    return {"cpu_op": "ops", "gpu_user_annotation": "device_ranges"}.get(category or "", "")


def _common(event: dict[str, Any], args: dict[str, Any], zero: Decimal) -> tuple[Any, ...]:
    start, dur = (Decimal(event["ts"]) - zero) * 1000, Decimal(event["dur"]) * 1000
    assert start == int(start)
    assert dur == int(dur)
    external = args.get("External id", args.get("external id", NONE))
    return event["name"], int(start), int(dur), external


def _thread(event: dict[str, Any]) -> tuple[str, str]:
    return str(event["pid"]), str(event["tid"])


def _op(event: dict[str, Any], args: dict[str, Any]) -> tuple[Any, ...]:
    inputs = (
        args.get("Input Dims", args.get("Input dims", [])),
        args.get("Input type", []),
        args.get("Concrete Inputs", []),
    )
    return _thread(event), args.get("Sequence number", NONE), args.get("Fwd thread id", NONE), inputs


def _call(event: dict[str, Any], args: dict[str, Any]) -> tuple[Any, ...]:
    return _thread(event), args.get("correlation", NONE)


def _place(event: dict[str, Any], args: dict[str, Any]) -> tuple[Any, ...]:
    stream = args.get("stream", event["tid"])
    return args.get("device", event["pid"]), stream


def _work(event: dict[str, Any], args: dict[str, Any]) -> tuple[Any, ...]:
    collective = (
        (
            args["Collective name"],
            args.get("In msg nelems"),
            args.get("Out msg nelems"),
            args.get("dtype"),
            args.get("Group size"),
            args.get("Process Group Name"),
            args.get("Process Group Ranks"),
        )
        if "Collective name" in args
        else None
    )
    where = _place(event, args)
    return (*where, _kind(event), args.get("correlation", NONE), args.get("bytes", NONE), collective)


def _kind(event: dict[str, Any]) -> DeviceEvent:
    if event["cat"] in KERNELS:
        return DeviceEvent.KERNEL
    if event["cat"] in {"gpu_memset", "Memset"}:
        return DeviceEvent.MEMSET
    return next((kind for word, kind in COPIES.items() if word in event["name"]), DeviceEvent.COPY_OTHER)


def _range(event: dict[str, Any], args: dict[str, Any]) -> tuple[Any, ...]:
    kinds = {"python_function": RangeKind.MODULE, "overhead": RangeKind.OVERHEAD}
    kind = kinds.get(event["cat"], RangeKind.ANNOTATION)
    parent = args.get("Python parent id", NONE)
    return _thread(event), kind, args.get("Python id", NONE), NONE if parent is None else parent


_ROWS = {"ops": _op, "calls": _call, "work": _work, "ranges": _range, "device_ranges": _place}


def fast_rows(trace: Trace) -> Rows:
    """Return the rows of a trace in the same form."""
    rows = {table: _looked_up(trace, table) for table in TABLES}
    return {table: sorted(found, key=repr) for table, found in rows.items()}


def _looked_up(trace: Trace, table: str) -> list[tuple[Any, ...]]:
    columns = getattr(trace, table)
    plain = {name: getattr(columns, name).tolist() for name in columns.__struct_fields__}
    plain["name"] = [trace.strings[at] for at in plain["name"]]
    if "thread" in plain:
        plain["thread"] = [(trace.threads[at].process, trace.threads[at].thread) for at in plain["thread"]]
    if "inputs" in plain:
        plain["inputs"] = [_inputs(trace, at) for at in plain["inputs"]]
    if "collective" in plain:
        plain["collective"] = [None if at == NONE else _collective(trace, at) for at in plain["collective"]]
    return list(zip(*(plain[name] for name in _ORDER[table]), strict=True))


_FIRST = ("name", "start_ns", "dur_ns", "external_id")
_ORDER = {
    "ops": (*_FIRST, "thread", "sequence", "forward_thread", "inputs"),
    "calls": (*_FIRST, "thread", "correlation"),
    "work": (*_FIRST, "device", "stream", "kind", "correlation", "bytes", "collective"),
    "ranges": (*_FIRST, "thread", "kind", "python_id", "python_parent"),
    "device_ranges": (*_FIRST, "device", "stream"),
}


def _inputs(trace: Trace, at: int) -> tuple[Any, ...]:
    if at == NONE:
        return [], [], []
    inputs = trace.inputs[at]
    return tuple(
        json.loads(text, parse_float=Decimal) for text in (inputs.dims, inputs.types, inputs.concrete)
    )


def _collective(trace: Trace, at: int) -> tuple[Any, ...]:
    c = trace.collectives[at]
    return c.name, c.in_elements, c.out_elements, c.dtype, c.group_size, c.group, c.group_ranks
