"""Exports as Nsight Systems writes them, made here: two processes, whose correlation numbers collide."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

TABLES = {
    "StringIds": "id integer primary key, value text not null",
    "META_DATA_EXPORT": "name text, value text",
    "META_DATA_CAPTURE": "name text, value text",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs integer, utcTime text",
    "TARGET_INFO_GPU": "id integer, name text, totalMemory integer, smCount integer, computeMajor integer, "
    "computeMinor integer, cuDevice integer",
    "TARGET_INFO_CUDA_DEVICE": "cudaId integer, gpuId integer, pid integer",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start integer, end integer, deviceId integer, streamId integer, "
    "correlationId integer, globalPid integer, demangledName integer, shortName integer",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start integer, end integer, deviceId integer, streamId integer, "
    "correlationId integer, globalPid integer, bytes integer, copyKind integer, srcKind integer, dstKind integer",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start integer, end integer, deviceId integer, streamId integer, "
    "correlationId integer, globalPid integer, bytes integer",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start integer, end integer, deviceId integer, streamId integer, "
    "correlationId integer, globalPid integer, graphId integer, graphExecId integer",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start integer, end integer, eventClass integer, globalTid integer, "
    "correlationId integer, nameId integer",
    "NVTX_EVENTS": "start integer, end integer, eventType integer, text text, globalTid integer, "
    "textId integer, jsonText text, jsonTextId integer",
}
SECRET = "HF_TOKEN=hf_canaryTOKEN0123456789"  # noqa: S105
EPOCH_NS = 1_790_000_000_000_000_000
MS = 1_000_000


class Export:
    """An export that is built up event by event."""

    def __init__(self, path: Path, **tables: str | None) -> None:
        self.path = path
        self.connection = sqlite3.connect(path)
        for name, columns in (TABLES | tables).items():
            if columns is not None:
                self.connection.execute(f'create table "{name}" ({columns})')
        self._strings: dict[str | bytes, int] = {}
        self._correlation = 0
        self.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2026.3.1.157")
        self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.27.0")
        self.add("META_DATA_EXPORT", name="EXPORT_USER", value=SECRET)
        self.add("META_DATA_CAPTURE", name="PROCESS_ENVIRONMENT", value=SECRET)
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS)
        self.string(SECRET)

    def add(self, table: str, **values: Any) -> None:
        """Insert a row."""
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.connection.execute(f'insert into "{table}" ({names}) values ({marks})', tuple(values.values()))  # noqa: S608

    def string(self, text: str | bytes) -> int:
        """Return the number of a text."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            value = text if isinstance(text, str) else sqlite3.Binary(text)
            self.add("StringIds", id=self._strings[text], value=value)
            if isinstance(text, bytes):
                self.connection.execute("update StringIds set value = cast(value as text)")
        return self._strings[text]

    def kernel(self, name: str | bytes, start: int, end: int, pid: int, **more: Any) -> int:
        """Add a kernel and its launch; the numbers that join them begin anew in each process."""
        launch = more.pop("launch", start)
        correlation = more.pop("correlation", None)
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            deviceId=more.pop("device", 0),
            streamId=7,
            correlationId=correlation,
            globalPid=pid << 24,
            demangledName=self.string(name),
            shortName=self.string("short"),
        )
        self.call("cudaLaunchKernel_v7000", launch, launch + 1000, pid, correlation, more.pop("tid", 1))
        return int(correlation)

    def call(self, name: str, start: int, end: int, pid: int, correlation: int, tid: int = 1) -> None:
        """Add a call of the runtime."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            globalTid=pid << 24 | tid,
            correlationId=correlation,
            nameId=self.string(name),
        )

    def range(self, text: str, start: int, end: int, pid: int, **more: Any) -> None:
        """Add an NVTX range; `payload` becomes its JSON."""
        payload = more.get("payload")
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=59,
            text=text,
            globalTid=pid << 24 | more.get("tid", 1),
            jsonText=None if payload is None else json.dumps(payload),
        )

    def close(self) -> Path:
        """Write the file."""
        self.connection.commit()
        self.connection.close()
        return self.path


def two_ranks(path: Path, steps: int = 4) -> Path:
    """Return an export of a two-process training: steps of 10 ms, half computing, a tenth in an all-reduce."""
    export = Export(path)
    for gpu, cuda in ((1, 0), (0, 1)):  # the process's numbers are not the machine's
        for pid in (100, 200):
            export.add("TARGET_INFO_CUDA_DEVICE", cudaId=cuda, gpuId=gpu, pid=pid)
    for gpu, name in ((0, "NVIDIA A100-SXM4-80GB"), (1, "NVIDIA H100 80GB HBM3")):
        export.add(
            "TARGET_INFO_GPU",
            id=gpu,
            name=name,
            totalMemory=80 << 30,
            smCount=108,
            computeMajor=8,
            computeMinor=0,
        )
    for device, pid in enumerate((200, 100)):
        group = {"NCCL communicator ID": 2**63 + 5, "No. of ranks": 2, "Rank": device}
        export.range("ncclCommInitRankConfig", 0, MS, pid, payload=group)
        for step in range(steps):
            at, number = (1 + step * 10) * MS, step * 10
            export.range(f"step {step}", at, at + 9 * MS, pid)
            export.kernel("ampere_bf16_s16816gemm_128x64", at + MS, at + 6 * MS, pid, launch=at + 10_000,
                          correlation=number, device=device)  # fmt: skip
            message = {"NCCL communicator ID": 2**63 + 5, "Message size [bytes]": 1 << 20}
            export.range("ncclAllReduce", at + 7 * MS - 5000, at + 7 * MS, pid, payload=message)
            export.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", at + 7 * MS, at + 8 * MS, pid,
                          launch=at + 7 * MS - 3000, correlation=number + 1, device=device)  # fmt: skip
    return export.close()
