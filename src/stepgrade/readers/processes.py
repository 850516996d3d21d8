"""Collect the events of all processes in a file and build a trace for each; shared by device profilers."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.columns import distinct, groups, narrow, once_if_constant, order_by_start
from stepgrade.model.events import (
    NONE,
    Collective,
    DeviceEvent,
    DeviceWork,
    HostCalls,
    HostOps,
    HostRanges,
    Ids,
    Inputs,
    Kinds,
    Trace,
    TraceThread,
)
from stepgrade.naming.torch_names import BACKWARD, LONGEST_NAME

Column: TypeAlias = NDArray[Any]
Columns: TypeAlias = dict[str, Column]
Facts: TypeAlias = dict[str, Any]  # fields of Trace: what is known of a process besides its events

_MODELS: Final = {"ops": HostOps, "calls": HostCalls, "work": DeviceWork, "ranges": HostRanges}
_COPY_WORDS: Final = {
    "HtoD": (DeviceEvent.COPY_H2D, re.compile(r"HOST_?TO_?DEVICE|HtoD", re.IGNORECASE)),
    "DtoH": (DeviceEvent.COPY_D2H, re.compile(r"DEVICE_?TO_?HOST|DtoH", re.IGNORECASE)),
    "DtoD": (DeviceEvent.COPY_D2D, re.compile(r"DEVICE_?TO_?DEVICE|DtoD|copyBuffer", re.IGNORECASE)),
}
_FILL_KERNEL: Final = re.compile(r"^(__amd_rocclr_)?fillBuffer", re.IGNORECASE)
_COPY_KERNEL: Final = re.compile(r"^__amd_rocclr_copy")
# Later times are invalid; differences up to here still fit into 64 bits.
_LATEST_NS: Final = 1 << 61
_LONGEST_NAME: Final = 4000
# torch.autograd.profiler.emit_nvtx: every part after the name is optional.
_SIZES: Final = ", sizes = ["
_NUMBERS: Final = re.compile(r"(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = \d{1,30})?\Z")
_NUMBERS_LENGTH: Final = 80
_EMITTED_PARTS: Final = (", seq = ", ", op_id = ", ", sizes = ")
_QUALIFIED: Final = re.compile(r"[A-Za-z_]\w*::\w")
# TSL:Thunk:#name=jit(step)/dot_general,hlo_op=fusion.12#, as XLA writes; modules have their program's number.
_OF_XLA: Final = re.compile(
    r"TSL:(?P<kind>Thunk|XlaModule):#.{0,2000}?hlo_(?:op|module)=(?P<name>[^,#]{1,500})"
)
_LONGEST_TEXT: Final = 100_000
_LONGEST_RANGE: Final = 1000
_WIDTH: Final = 8


class Events:
    """The events of all processes, in columns by the file's own clock and numbers; texts are kept once.

    Each table has `process`, `name`, `start` and `end`; those of the host have `thread`.
    """

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.inputs: dict[Inputs, int] = {}
        self.collectives: dict[Collective, int] = {}
        self._annotations = array("q")
        self._parts: dict[str, list[Columns]] = {name: [] for name in _MODELS}
        self._joined: dict[str, Columns] = {}
        self._left: set[int] = set()

    def name_id(self, text: str) -> int:
        """Return the index of a text in `strings`."""
        return self.strings.setdefault(text[:_LONGEST_NAME], len(self.strings))

    def name_ids(self, numbers: Column, texts: dict[int, str]) -> Ids:
        """Return the name ids of a column of text numbers."""
        found = groups(numbers)
        table = [self.name_id(texts.get(number, "?")) for number in found.values.tolist()]
        return np.array(table, np.int32)[found.which]

    def kernels(self, names: Iterable[str]) -> tuple[Ids, Kinds]:
        """Return the name ids of kernels, and what each does."""
        ids = np.array([*map(self.name_id, names)], np.int32)
        kinds = np.array([*map(kind_of_kernel, self.strings), DeviceEvent.KERNEL], np.int8)
        return ids, kinds[ids]

    def add(self, table: str, **columns: Column | Sequence[Any] | int) -> None:
        """Add rows to `ops`, `calls`, `work` or `ranges`; names may be texts, an int is a constant column."""
        rows = len(np.asarray(columns["start"]))
        whole: Columns = {}
        for name, value in columns.items():
            if isinstance(value, int):
                whole[name] = np.full(rows, value, np.int32)
            elif isinstance(value, np.ndarray):
                whole[name] = value
            else:
                is_text = len(value) and isinstance(value[0], str)
                whole[name] = np.array([*map(self.name_id, value)] if is_text else value, np.int64)
        start, end = (
            np.clip(np.asarray(whole.pop(name), np.int64), -_LATEST_NS, _LATEST_NS)
            for name in ("start", "end")
        )
        part = {name: narrow(column) for name, column in whole.items()}
        part |= {"start_ns": start, "dur_ns": narrow(np.maximum(end - start, 0))}
        self._parts[table].append(part)

    def annotate(self, process: int, thread: int, start: int, end: int, text: str) -> None:
        """Add a range: an operation or a named range, with the shapes and numbers in its text."""
        name, is_op, sequence, inputs = text[:_LONGEST_TEXT], 0, NONE, NONE
        if any(part in name for part in _EMITTED_PARTS):
            is_op, name = 1, name.partition(", input_op_ids = ")[0]
            if name.endswith("]") and _SIZES in name:
                name, _, sizes = name.partition(_SIZES)
                inputs = self.inputs.setdefault(Inputs(dims=f"[{sizes}".encode()), len(self.inputs))
            numbers = _NUMBERS.search(name, max(0, len(name) - _NUMBERS_LENGTH))
            if numbers is not None and numbers[0]:
                name, sequence = name[: numbers.start()], int(numbers["seq"] or NONE)
        elif found := _OF_XLA.match(name):
            is_op, name = int(found["kind"] == "Thunk"), found["name"]
        name_id = self.name_id(name[:_LONGEST_RANGE])
        self._annotations.extend((process, thread, start, end, name_id, is_op, sequence, inputs))

    def join(self) -> None:
        """Concatenate the parts of each table, once all are added; missing columns are NONE, kinds 0."""
        rows = np.frombuffer(self._annotations or array("q"), np.int64).reshape(-1, _WIDTH)
        named, is_op = rows[:, 4].astype(np.int32), rows[:, 5] > 0
        texts = list(self.strings) if len(rows) else []
        if is_op.any():
            # Operations without autograd have only a name.
            qualified = [
                _QUALIFIED.match(text) is not None and not text.startswith("cub::") for text in texts
            ]
            is_op |= np.array(qualified, np.bool_)[named]
        # Autograd nodes carry the sequence number of their forward operation.
        is_node = np.array([BACKWARD.search(text, 0, LONGEST_NAME) is not None for text in texts], np.bool_)
        for sort, chosen in (("ops", is_op), ("ranges", ~is_op)) if len(rows) else ():
            process, thread, start, end, _, _, sequence, inputs = rows[chosen].T
            more: Columns = {}
            if sort == "ops":
                forward = np.where(sequence >= 0, is_node[named[chosen]], NONE)
                more = {"sequence": sequence, "inputs": inputs.astype(np.int32), "forward_thread": forward}
            self.add(sort, process=process, start=start, end=end, thread=thread, name=named[chosen], **more)
        for table, model in _MODELS.items():
            parts = [part for part in self._parts.pop(table) if len(part["start_ns"])]
            counts = [len(part["start_ns"]) for part in parts]
            self._joined[table] = {}
            for name in (*model.__struct_fields__, "process"):
                dtype = np.int64 if name == "start_ns" else np.int8 if name == "kind" else np.int32
                default = dtype(0 if name == "kind" else NONE)
                columns = [
                    part.pop(name) if name in part else np.full(count, default)
                    for part, count in zip(parts, counts, strict=True)
                ]
                is_alone = len(columns) == 1
                whole = columns[0] if is_alone else np.concatenate([np.empty(0, dtype), *columns])
                self._joined[table][name] = whole

    def table(self, name: str) -> Columns:
        """Return a table of all processes."""
        return self._joined[name]

    def processes(self) -> list[int]:
        """Return the processes whose device did more than memsets."""
        work = self._joined["work"]
        found: list[int] = distinct(work["process"][work["kind"] != DeviceEvent.MEMSET]).tolist()
        self._left = set(found)
        return found

    def traces(self, ranked: list[tuple[int, Facts, int]]) -> Iterator[Trace]:
        """Yield the traces of processes, which come with their first device, by rank or else by device."""
        ranks = [facts.get("rank") for _, facts, _ in ranked]
        if len(ranked) > 1 and (None in ranks or len(set(ranks)) < len(ranks)):
            ranked = sorted(ranked, key=lambda found: (found[2], found[0]))
            for rank, (_, facts, _) in enumerate(ranked):
                facts |= {"rank": rank, "world_size": max(facts.get("world_size") or 0, len(ranked))}
        for process, facts, _ in sorted(ranked, key=lambda found: found[1].get("rank") or 0):
            yield self.take(process, facts)

    def take(self, process: int, facts: Facts, *, zero_ns: int | None = None) -> Trace:
        """Return the timeline of one process, once; all processes of a file share one zero.

        Zero is the first work or call, unless given. `base_ns` in `facts` is that of the file's own clock.
        """
        starts = [self._joined[name]["start_ns"] for name in ("work", "calls")]
        if zero_ns is None:
            zero_ns = min(int(column.min()) for column in starts if len(column))
        tables: dict[str, Columns] = {}
        for name, table in self._joined.items():
            own = table["process"] == process
            rows = slice(None) if own.all() else own
            tables[name] = {field: table[field][rows] for field in table if field != "process"}
        del starts, table
        self._left.discard(process)
        if not self._left:
            self._joined.clear()  # traces are large: nothing is kept twice
        # Ranges that were open before the recording start with it.
        for name in ("ranges", "ops"):
            start = np.maximum(tables[name]["start_ns"], zero_ns)
            end = tables[name]["start_ns"] + tables[name]["dur_ns"]
            tables[name] |= {"start_ns": start, "dur_ns": narrow(np.maximum(end - start, 0))}
        host = [tables[name] for name in ("ops", "calls", "ranges")]
        threads = distinct(np.concatenate([table["thread"] for table in host]).astype(np.int64))
        for table in host:
            table["thread"] = np.searchsorted(threads, table["thread"]).astype(np.int32)
        by_kind = np.bincount(tables["work"]["kind"], minlength=len(DeviceEvent)).tolist()
        counts = {
            "kernel": by_kind[DeviceEvent.KERNEL],
            "copy": sum(by_kind[DeviceEvent.COPY_H2D : DeviceEvent.MEMSET]),
            "memset": by_kind[DeviceEvent.MEMSET],
            "runtime call": len(tables["calls"]["name"]),
            "range": len(tables["ranges"]["name"]),
            "operation": len(tables["ops"]["name"]),
        }
        models: dict[str, Any] = {}
        for name, table in tables.items():
            order = order_by_start(table["start_ns"], table["dur_ns"])
            is_sorted = bool((np.diff(order) > 0).all())
            columns = {field: column if is_sorted else column[order] for field, column in table.items()}
            columns["start_ns"] = columns["start_ns"] - zero_ns
            columns["name"] = columns["name"].astype(np.int32, copy=False)
            if "kind" in columns:
                columns["kind"] = columns["kind"].astype(np.int8, copy=False)
            kept = {field: once_if_constant(column) for field, column in columns.items()}
            models[name] = _MODELS[name](**kept)
        fields: Facts = {"rank": None, "world_size": None, "backend": None, "base_ns": None, "devices": ()}
        fields |= {"versions": {}} | facts
        if fields["base_ns"] is not None:
            fields["base_ns"] += zero_ns
        return Trace(
            **fields,
            file_zero_ns=zero_ns,
            strings=tuple(self.strings),
            inputs=tuple(self.inputs),
            collectives=tuple(self.collectives),
            **models,
            recorded=frozenset({"shapes"} if self.inputs else ()),
            threads=tuple(
                TraceThread(process=str(process), thread=str(thread)) for thread in threads.tolist()
            ),
            categories={name: count for name, count in counts.items() if count},
        )


def kind_of_kernel(name: str) -> DeviceEvent:
    """Return what a kernel does: ROCm copies and sets memory on the device by kernels of its own."""
    if _FILL_KERNEL.search(name):
        return DeviceEvent.MEMSET
    return DeviceEvent.COPY_D2D if _COPY_KERNEL.search(name) else DeviceEvent.KERNEL


def copy_direction(text: str) -> tuple[DeviceEvent, str]:
    """Return the direction of a copy, and the name that copies have in all traces."""
    for word, (kind, pattern) in _COPY_WORDS.items():
        if pattern.search(text):
            return kind, f"Memcpy {word}"
    return DeviceEvent.COPY_OTHER, "Memcpy other"
