"""Events of all processes in one file into a trace for each: what readers of device profilers share."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
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
    Profiler,
    Trace,
    TraceDevice,
    TraceThread,
)

Column: TypeAlias = NDArray[Any]
Columns: TypeAlias = dict[str, Column]
Table = TypeVar("Table", HostOps, HostCalls, DeviceWork, HostRanges)

_DEFAULTS: Final = {"kind": 0, "bytes": NONE, "collective": NONE, "external_id": NONE, "stream": NONE}
_MODELS: Final = {"ops": HostOps, "calls": HostCalls, "work": DeviceWork, "ranges": HostRanges}
_CATEGORIES: Final = {
    DeviceEvent.KERNEL: "kernel",
    DeviceEvent.COPY_H2D: "copy",
    DeviceEvent.COPY_D2H: "copy",
    DeviceEvent.COPY_D2D: "copy",
    DeviceEvent.COPY_OTHER: "copy",
    DeviceEvent.MEMSET: "memset",
}
# Later times are invalid; differences up to here still fit into 64 bits.
_LATEST_NS: Final = 1 << 61
_LONGEST_NAME: Final = 4000


class CaptureFacts(Struct, frozen=True, kw_only=True):
    """What is known about a whole file."""

    name: str
    profiler: Profiler
    era: str
    versions: dict[str, str]
    epoch_ns: int | None  # epoch nanoseconds of the time that the file counts from
    doubts: tuple[str, ...] = ()


class RankFacts(Struct, frozen=True, kw_only=True):
    """What is known about one process."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    devices: tuple[TraceDevice, ...] = ()
    tokens: tuple[int, ...] | None = None


class Events:
    """The events of all processes, in columns by the file's own clock and numbers; texts are kept once.

    Each table has `process`, `name`, `start` and `end`; those of the host have `thread`.
    """

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.inputs: dict[Inputs, int] = {}
        self.collectives: dict[Collective, int] = {}
        self.thread_names: dict[int, str] = {}
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

    def add(self, table: str, **columns: Column | int) -> None:
        """Add rows to `ops`, `calls`, `work` or `ranges`; an int stands for a constant column."""
        rows = len(np.asarray(columns["start"]))
        whole = {
            name: np.full(rows, value, np.int32) if isinstance(value, int) else value
            for name, value in columns.items()
        }
        start, end = (
            np.clip(np.asarray(whole.pop(name), np.int64), -_LATEST_NS, _LATEST_NS)
            for name in ("start", "end")
        )
        part = {name: narrow(column) for name, column in whole.items()}
        part |= {"start_ns": start, "dur_ns": narrow(np.maximum(end - start, 0))}
        self._parts[table].append(part)

    def join(self) -> None:
        """Concatenate the parts of each table, once all are added."""
        for table, model in _MODELS.items():
            parts = [part for part in self._parts.pop(table) if len(part["start_ns"])]
            self._joined[table] = {}
            for name in (*model.__struct_fields__, "process"):
                columns = [_part(part, name) for part in parts]
                none = np.empty(
                    0, np.int64 if name == "start_ns" else np.int8 if name == "kind" else np.int32
                )
                self._joined[table][name] = (
                    columns[0] if len(columns) == 1 else np.concatenate([none, *columns])
                )

    def table(self, name: str) -> Columns:
        """Return a table of all processes."""
        return self._joined[name]

    def processes(self) -> list[int]:
        """Return the processes whose device did more than memsets."""
        work = self._joined["work"]
        found: list[int] = distinct(work["process"][work["kind"] != DeviceEvent.MEMSET]).tolist()
        self._left = set(found)
        return found

    def take(self, process: int, file: CaptureFacts, of: RankFacts, *, zero_ns: int | None = None) -> Trace:
        """Return the timeline of one process, once; all processes of a file share one zero.

        Zero is the first work or call, unless given.
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
        counts = dict.fromkeys(_CATEGORIES.values(), 0)
        for kind, category in _CATEGORIES.items():
            counts[category] += int((tables["work"]["kind"] == kind).sum())
        for name, category in (("calls", "runtime call"), ("ranges", "range"), ("ops", "operation")):
            counts[category] = len(tables[name]["name"])
        return Trace(
            file=file.name,
            profiler=file.profiler,
            rank=of.rank,
            world_size=of.world_size,
            backend=of.backend,
            base_ns=None if file.epoch_ns is None else file.epoch_ns + zero_ns,
            file_zero_ns=zero_ns,
            devices=of.devices,
            tokens=of.tokens,
            versions=file.versions,
            strings=tuple(self.strings),
            inputs=tuple(self.inputs),
            collectives=tuple(self.collectives),
            ops=_model(HostOps, tables["ops"], zero_ns),
            calls=_model(HostCalls, tables["calls"], zero_ns),
            work=_model(DeviceWork, tables["work"], zero_ns),
            ranges=_model(HostRanges, tables["ranges"], zero_ns),
            recorded=frozenset({"shapes"} if self.inputs else ()),
            era=file.era,
            doubts=file.doubts,
            threads=tuple(
                TraceThread(process=str(process), thread=str(thread), name=self.thread_names.get(thread))
                for thread in threads.tolist()
            ),
            categories={name: count for name, count in counts.items() if count},
        )


def _part(part: Columns, name: str) -> Column:
    """Take a column out of a part, with a default if the reader has none."""
    if name in part and name != "start_ns":
        return part.pop(name)
    if name in part:
        return part[name]
    dtype = np.int8 if name == "kind" else np.int32
    return np.full(len(part["start_ns"]), _DEFAULTS.get(name, NONE), dtype)


def _model(model: type[Table], table: Columns, zero_ns: int) -> Table:
    """Return the rows as a model type, sorted and counted from zero."""
    order = order_by_start(table["start_ns"], table["dur_ns"])
    is_sorted = bool((np.diff(order) > 0).all())
    columns = {name: column if is_sorted else column[order] for name, column in table.items()}
    del order
    columns["start_ns"] = columns["start_ns"] - zero_ns
    columns["name"] = columns["name"].astype(np.int32, copy=False)
    if "kind" in columns:
        columns["kind"] = columns["kind"].astype(np.int8, copy=False)
    return model(**{name: once_if_constant(column) for name, column in columns.items()})


def in_order(ranked: list[tuple[int, RankFacts, int]]) -> list[tuple[int, RankFacts]]:
    """Return processes with their ranks: as recorded, else in device order."""
    ranks = [facts.rank for _, facts, _ in ranked]
    if len(ranked) > 1 and (None in ranks or len(set(ranks)) < len(ranks)):
        in_device_order = sorted(ranked, key=lambda found: (found[2], found[0]))
        return [
            (
                process,
                RankFacts(
                    rank=number,
                    world_size=max(facts.world_size or 0, len(ranked)),
                    backend=facts.backend,
                    devices=facts.devices,
                ),
            )
            for number, (process, facts, _) in enumerate(in_device_order)
        ]
    return [(process, facts) for process, facts, _ in sorted(ranked, key=lambda found: found[1].rank or 0)]
