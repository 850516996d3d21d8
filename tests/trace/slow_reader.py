"""A slow, obviously correct reader of Kineto traces, to test the analysis without the fast one."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from stepgrade.model.events import (
    NONE,
    Collective,
    DeviceEvent,
    DeviceWork,
    HostCalls,
    HostOps,
    HostRanges,
    Inputs,
    RangeKind,
    Trace,
    TraceDevice,
)
from stepgrade.readers.kineto.reader import PROFILER

OPS = {"cpu_op", "Operator"}
CALLS = {"cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime"}
KERNELS = {"kernel", "Kernel", "mtia_ccp_events"}
COPIES = {"gpu_memcpy", "Memcpy"}
MEMSETS = {"gpu_memset", "Memset"}
Event = dict[str, Any]


class Interned:
    """Text kept once, in the order in which it is first seen."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        return self.index.setdefault(thing, len(self.index))


def read_slowly(path: Path) -> Trace:
    """Return the trace in `path`, which must hold one rank."""
    document = json.loads(_text(path), parse_float=Decimal)
    header = {} if isinstance(document, list) else document
    events = document if isinstance(document, list) else document["traceEvents"]
    return _Builder(path.name, header, [e for e in events if e.get("ph") == "X"]).trace()


def _text(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def _ns(us: Any) -> int:
    return int(Decimal(us) * 1000)


def _number(args: Event, *keys: str) -> int:
    for key in keys:
        if key in args:
            number = int(args[key])
            return number if abs(number) < 2**63 else NONE
    return NONE


def _copy_kind(name: str) -> DeviceEvent:
    for mark, kind in (
        ("HtoD", DeviceEvent.COPY_H2D),
        ("HostToDevice", DeviceEvent.COPY_H2D),
        ("DtoH", DeviceEvent.COPY_D2H),
        ("DeviceToHost", DeviceEvent.COPY_D2H),
        ("DtoD", DeviceEvent.COPY_D2D),
        ("DeviceToDevice", DeviceEvent.COPY_D2D),
    ):
        if mark in name:
            return kind
    return DeviceEvent.COPY_OTHER


class _Builder:
    def __init__(self, file: str, header: Event, events: list[Event]) -> None:
        self.file, self.header = file, header
        self.strings, self.threads, self.inputs, self.collectives = (Interned() for _ in range(4))
        known = OPS | CALLS | KERNELS | COPIES | MEMSETS
        known |= {"user_annotation", "python_function", "overhead"}
        self.events = [e for e in events if e.get("cat") in known]
        self.zero = min((_ns(e["ts"]) for e in self.events), default=0)
        self.overhead_threads: set[int] = set()

    def of(self, cats: set[str]) -> list[Event]:
        return [e for e in self.events if e["cat"] in cats]

    def times(self, events: list[Event]) -> dict[str, Any]:
        return {
            "name": np.array([self.strings(e["name"]) for e in events], np.int32),
            "start_ns": np.array([_ns(e["ts"]) - self.zero for e in events], np.int64),
            "dur_ns": np.array([_ns(e["dur"]) for e in events], np.int64),
        }

    def thread(self, events: list[Event]) -> Any:
        return np.array([self.threads((str(e["pid"]), str(e["tid"]))) for e in events], np.int32)

    def longs(self, events: list[Event], *keys: str) -> Any:
        return np.array([_number(e.get("args", {}), *keys) for e in events], np.int64)

    def trace(self) -> Trace:
        info = self.header.get("distributedInfo") or {}
        base = self.header.get("baseTimeNanoseconds", 0)
        flags = {
            "record_shapes": "shapes",
            "with_stack": "stacks",
            "profile_memory": "memory",
            "with_modules": "modules",
        }
        parts: Event = {
            "ops": self.ops(),
            "calls": self.calls(),
            "work": self.work(),
            "ranges": self.ranges(),
        }
        return Trace(
            profiler=PROFILER,
            file=self.file,
            rank=info.get("rank"),
            world_size=info.get("world_size"),
            backend=info.get("backend"),
            base_ns=base + self.zero,
            file_zero_ns=self.zero,
            devices=tuple(_device(one) for one in self.header.get("deviceProperties", [])),
            versions={k: str(v) for k, v in self.header.items() if k.endswith("_version")},
            strings=tuple(self.strings.index),
            inputs=tuple(self.inputs.index),
            collectives=tuple(self.collectives.index),
            recorded=frozenset(word for key, word in flags.items() if self.header.get(key)),
            era="slow",
            **parts,
        )

    def ops(self) -> HostOps:
        events = self.of(OPS)
        return HostOps(
            **self.times(events),
            thread=self.thread(events),
            external_id=self.longs(events, "External id", "external id"),
            sequence=self.longs(events, "Sequence number"),
            forward_thread=self.longs(events, "Fwd thread id"),
            inputs=np.array([self.input_of(e.get("args", {})) for e in events], np.int32),
        )

    def input_of(self, args: Event) -> int:
        dims = args.get("Input Dims", args.get("Input dims"))
        if dims is None:
            return NONE
        return self.inputs(
            Inputs(
                dims=_raw(dims),
                types=_raw(args.get("Input type", [])),
                concrete=_raw(args.get("Concrete Inputs", [])),
                strides=_raw(args.get("Input Strides", [])),
                is_triton=args.get("kernel_backend") == "triton",
            )
        )

    def calls(self) -> HostCalls:
        events = self.of(CALLS)
        return HostCalls(
            **self.times(events),
            thread=self.thread(events),
            correlation=self.longs(events, "correlation"),
            external_id=self.longs(events, "External id", "external id"),
        )

    def work(self) -> DeviceWork:
        events = self.of(KERNELS | COPIES | MEMSETS)
        return DeviceWork(
            **self.times(events),
            kind=np.array([_kind(e) for e in events], np.int8),
            device=self.longs(events, "device").astype(np.int32),
            stream=self.longs(events, "stream"),
            correlation=self.longs(events, "correlation"),
            external_id=self.longs(events, "External id", "external id"),
            bytes=self.longs(events, "bytes"),
            collective=np.array([self.collective_of(e.get("args", {})) for e in events], np.int32),
        )

    def collective_of(self, args: Event) -> int:
        if "Collective name" not in args:
            return NONE
        return self.collectives(
            Collective(
                name=args["Collective name"],
                in_elements=args.get("In msg nelems"),
                out_elements=args.get("Out msg nelems"),
                dtype=args.get("dtype"),
                group_size=args.get("Group size"),
                group=args.get("Process Group Name"),
                group_ranks=args.get("Process Group Ranks"),
            )
        )

    def ranges(self) -> HostRanges:
        events = self.of({"user_annotation", "overhead"}) + [
            e for e in self.of({"python_function"}) if e["name"].startswith("nn.Module: ")
        ]
        kinds = {"user_annotation": RangeKind.ANNOTATION, "overhead": RangeKind.OVERHEAD}
        return HostRanges(
            **self.times(events),
            kind=np.array([kinds.get(e["cat"], RangeKind.MODULE) for e in events], np.int8),
            thread=self.thread(events),
            external_id=self.longs(events, "External id", "external id"),
            python_id=self.longs(events, "Python id"),
            python_parent=self.longs(events, "Python parent id"),
            inputs=np.array([self.input_of(e.get("args", {})) for e in events], np.int32),
        )


def _raw(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()


def _kind(event: Event) -> DeviceEvent:
    if event["cat"] in KERNELS:
        return DeviceEvent.KERNEL
    return DeviceEvent.MEMSET if event["cat"] in MEMSETS else _copy_kind(event["name"])


def _device(one: Event) -> TraceDevice:
    capability = f"{one['computeMajor']}.{one['computeMinor']}" if "computeMajor" in one else None
    return TraceDevice(
        index=int(one.get("id", NONE)),
        name=one.get("name") or None,
        memory_bytes=one.get("totalGlobalMem"),
        sm_count=one.get("numSms"),
        capability=capability,
    )
