"""The timelines of every reader with other times in them: before zero, beyond all clocks, all the same."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster import Planned, kineto_of, simulate
from tests.fuzz.samples import SAMPLES
from tests.readers.xplane.files import number

Change = Callable[[str, float], float]  # of a time by the name of its field

_TIME = re.compile(r"(?i)^(ts|dur|start|end|stop|begin.*|.*timestamp|.*_ns|.*duration.*|.*_time)$")
_LONG = (1 << 63) - 1
_EDGES = (0, -1, 1, -(1 << 40), 1 << 52, _LONG, -_LONG - 1, _LONG // 1000, -_LONG // 1000, 10**18, 1 << 62)


def _moment(change: Callable[[float], float]) -> Change:
    """Return what changes when something is, and not how long it takes."""
    return lambda name, value: value if "dur" in name else change(value)


def _edge(seed: int) -> Change:
    chance = random.Random(seed)
    return lambda _, value: chance.choice(_EDGES) if chance.random() < 0.02 * (seed + 1) else value


CHANGES: dict[str, Change] = {
    "before zero": _moment(lambda value: value - 1e13),
    "around zero": _moment(lambda value: value - 1500),
    "late": _moment(lambda value: value + 1e13),
    "beyond every clock": _moment(lambda value: value + 9.2e18),
    "zero": lambda *_: 0,
    "all the same": _moment(lambda _: 1e12),
    "backwards": _moment(lambda value: -value),
    "many at once": _moment(lambda value: value // 1e6 * 1e6),
    "negative durations": lambda name, value: -value if "dur" in name or name == "end" else value,
    "not a number": lambda name, value: math.nan if "dur" in name else value,
    "infinite": lambda name, value: math.inf if "dur" in name else value,
}
EDGES = {f"edges {seed}": _edge(seed) for seed in range(6)}


def with_times(content: bytes, change: Change) -> bytes:
    """Return a file of any kind whose times are changed."""
    if content.startswith(b"SQLite"):
        return _sqlite(content, change)
    if content.lstrip()[:1] in (b"{", b"["):
        return json.dumps(_json(json.loads(content), change)).encode()
    if content.startswith(b'"Kind"') or b"Start_Timestamp" in content[:400]:
        return _csv(content, change)
    return _planes(content, change)


def _whole(change: Change, name: str, value: int) -> int:
    made = change(name, value)
    return max(-_LONG - 1, min(_LONG, int(made))) if math.isfinite(made) else value


def _json(value: Any, change: Change) -> Any:
    if isinstance(value, list):
        return [_json(one, change) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: (change if isinstance(one, float) else partial(_whole, change))(key, one)
        if isinstance(one, int | float) and _TIME.match(key)
        else _json(one, change)
        for key, one in value.items()
    }


def _csv(content: bytes, change: Change) -> bytes:
    rows = list(csv.reader(io.StringIO(content.decode())))
    for row in rows[1:]:
        for place, name in enumerate(rows[0]):
            if _TIME.match(name):
                row[place] = str(_whole(change, name, int(row[place])))
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()


def _sqlite(content: bytes, change: Change) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.sqlite")
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as database, database:
            database.create_function("changed", 2, partial(_whole, change))
            for (table,) in database.execute(
                "select name from sqlite_master where type = 'table'"
            ).fetchall():
                for _, column, *_ in database.execute(f'pragma table_info("{table}")').fetchall():
                    if _TIME.match(column):
                        new = f"changed('{column}', \"{column}\")"
                        whole = f"typeof(\"{column}\") = 'integer'"
                        database.execute(f'update "{table}" set "{column}" = {new} where {whole}')  # noqa: S608  our own
        return path.read_bytes()


# Fields of XLA's protobuf: of the lines of planes, and of their events.
_PLANE_TIMES = {(1, 3, 3): "timestamp_ns", (1, 3, 4, 2): "offset_ps", (1, 3, 4, 3): "duration_ps"}


def _planes(content: bytes, change: Change, depth: tuple[int, ...] = ()) -> bytes:
    made = bytearray()
    at = 0
    while at < len(content):
        key, at = _take(content, at)
        place, kind = divmod(key, 8)
        made += number(key)
        if kind == 0:
            value, at = _take(content, at)
            if name := _PLANE_TIMES.get((*depth, place)):
                signed = value - (1 << 64) if value >> 63 else value
                value = _whole(change, name, signed) & ((1 << 64) - 1)
            made += number(value)
        else:
            size, start = ({1: 8, 5: 4}[kind], at) if kind in (1, 5) else _take(content, at)
            part, at = content[start : start + size], start + size
            if kind == 2:
                inside = (*depth, place)
                if any(where[: len(inside)] == inside for where in _PLANE_TIMES):
                    part = _planes(part, change, inside)
                made += number(len(part))
            made += part
    return bytes(made)


def _take(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 0x80:
            return value, at


def waits_before_zero(lead_us: float = 100_000.0) -> bytes:
    """Return the merged trace of two ranks without a date; the first one's clock is ahead, and it waits at once."""
    plan = Planned(world=2, tensor=2, pipeline=1, steps=6, slow_rank=1)
    merged = []
    for rank, events in simulate(plan):
        document = json.loads(kineto_of(rank, events, plan))
        first = min(event["ts"] for event in document["traceEvents"] if event["name"].startswith("nccl"))
        for event in document["traceEvents"]:
            if rank == 0 and event["ts"] > first:
                event["ts"] += lead_us
            elif rank == 0:
                event["ts"] -= lead_us / 2
                is_open = event["ts"] + lead_us / 2 == first or event["cat"] == "user_annotation"
                event["dur"] += lead_us * 1.5 if is_open else 0
            merged.append({**event, "pid": rank, "args": {**event.get("args", {}), "rank": rank}})
    del document["baseTimeNanoseconds"]
    return json.dumps({**document, "traceEvents": merged}).encode()


TIMELINES = {
    f"{kind} {place}": content
    for kind in ("kineto", "nsys", "rocprof", "xplane", "xla_trace")
    for place, content in enumerate(SAMPLES[kind]())
    if kind != "kineto"
    or place in (0, 1, 4, 7)  # on a device, on a host, of ranks, with a little of everything
}
TIMELINES["ranks"] = waits_before_zero()
