"""NVTX ranges of an export: NCCL's calls, and what programs wrote."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from stepgrade.readers.annotations import Annotations
from stepgrade.readers.nsys.device import PID_BITS, PID_MASK, texts_of
from stepgrade.readers.processes import Events
from stepgrade.readers.sqlite import SqliteFile, json_object

_COLUMNS: Final = ("start", "end", "globalTid", "text", "textId", "jsonText", "jsonTextId")
_RANGES: Final = 'where eventType in (59, 60) and "end" is not null'
_LONGEST_NAME: Final = 100


class CommunicationCall(Struct, frozen=True, kw_only=True):
    """A call into NCCL, and what it says of its message."""

    name: str
    start_ns: int
    end_ns: int
    payload: dict[str, Any]


def add_ranges(file: SqliteFile, events: Events) -> dict[int, list[CommunicationCall]]:
    """Add the ranges that have an end; return NCCL's calls by thread. Marks and domains have no end."""
    numbers = file.whole_numbers("NVTX_EVENTS", ("textId", "jsonTextId"), _RANGES)
    strings = texts_of(file, *numbers.values())
    del numbers
    annotations = Annotations(events)
    calls: dict[int, list[CommunicationCall]] = {}
    for start, end, thread, text, text_id, json, json_id in file.rows("NVTX_EVENTS", _COLUMNS, _RANGES):
        if not (isinstance(start, int) and isinstance(end, int) and isinstance(thread, int)):
            continue
        name = text if isinstance(text, str) else strings.get(text_id, "")
        if not name.startswith("nccl"):
            annotations.add(thread >> PID_BITS & PID_MASK, thread, start, end, name)
            continue
        payload = json if isinstance(json, str) else strings.get(json_id, "")
        call = CommunicationCall(
            name=name[:_LONGEST_NAME], start_ns=start, end_ns=end, payload=json_object(payload)
        )
        calls.setdefault(thread, []).append(call)
    annotations.write()
    for thread_calls in calls.values():
        thread_calls.sort(key=lambda call: call.start_ns)
    return calls
