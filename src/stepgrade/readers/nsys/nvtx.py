"""NVTX ranges: operations as PyTorch's emit_nvtx and XLA name them, NCCL's calls, and all others."""

from __future__ import annotations

import re
from array import array
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from stepgrade.model.events import NONE, Inputs, Longs
from stepgrade.naming.torch_names import BACKWARD, LONGEST_NAME
from stepgrade.readers.nsys.device import process_of, texts_of
from stepgrade.readers.processes import Events
from stepgrade.readers.sqlite import SqliteFile

# torch.autograd.profiler.emit_nvtx: every part after the name is optional.
_EMITTED: Final = re.compile(
    r"(?P<name>.*?)(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = \d{1,30})?(?:, sizes = (?P<sizes>\[.*\]))?",
    re.DOTALL,
)
_EMITTED_PARTS: Final = (", seq = ", ", op_id = ", ", sizes = ")
_QUALIFIED: Final = re.compile(r"[A-Za-z_]\w*::\w")
# TSL:Thunk:#name=jit(step)/dot_general,hlo_op=fusion.12#, as XLA writes; modules have their program's number.
_OF_XLA: Final = re.compile(
    r"TSL:(?P<kind>Thunk|XlaModule):#.{0,2000}?hlo_(?:op|module)=(?P<name>[^,#]{1,500})"
)
_COLUMNS: Final = ("start", "end", "globalTid", "text", "textId", "jsonText", "jsonTextId")
_RANGES: Final = 'where eventType in (59, 60) and "end" is not null'
_LONGEST_TEXT: Final = 100_000
_LONGEST_NAME: Final = 1000


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
    rows = array("q")  # seven numbers for each range
    calls: dict[int, list[CommunicationCall]] = {}
    for start, end, thread, text, text_id, json, json_id in file.rows("NVTX_EVENTS", _COLUMNS, _RANGES):
        if not (isinstance(start, int) and isinstance(end, int) and isinstance(thread, int)):
            continue
        name = (text if isinstance(text, str) else strings.get(text_id, ""))[:_LONGEST_TEXT]
        is_op, sequence, inputs = 0, NONE, NONE
        if name.startswith("nccl"):
            payload = json if isinstance(json, str) else strings.get(json_id, "")
            name = name[:_LONGEST_NAME]
            call = CommunicationCall(name=name, start_ns=start, end_ns=end, payload=_decoded(payload))
            calls.setdefault(thread, []).append(call)
            continue
        if any(part in name for part in _EMITTED_PARTS) and (
            parts := _EMITTED.fullmatch(name.partition(", input_op_ids = ")[0])
        ):
            is_op, name, sequence = 1, parts["name"], int(parts["seq"] or NONE)
            if parts["sizes"]:
                described = Inputs(dims=parts["sizes"].encode())
                inputs = events.inputs.setdefault(described, len(events.inputs))
        elif found := _OF_XLA.match(name):
            is_op, name = int(found["kind"] == "Thunk"), found["name"]
        rows.extend((start, end, thread, events.place(name[:_LONGEST_NAME]), is_op, sequence, inputs))
    _add_rows(events, np.frombuffer(rows, np.int64).reshape(-1, 7) if rows else np.empty((0, 7), np.int64))
    for of_thread in calls.values():
        of_thread.sort(key=lambda call: call.start_ns)
    return calls


def _add_rows(events: Events, rows: Longs) -> None:
    """Add ranges as operations or as annotations."""
    name, is_op = rows[:, 3].astype(np.int32), rows[:, 4] > 0
    texts = list(events.strings)
    if is_op.any():
        # Operations that autograd does not follow are written by their name alone.
        qualified = [_QUALIFIED.match(text) is not None and not text.startswith("cub::") for text in texts]
        is_op |= np.array(qualified, np.bool_)[name]
    # Autograd's nodes name the number of the operation whose gradient they are.
    is_node = np.array([BACKWARD.search(text, 0, LONGEST_NAME) is not None for text in texts], np.bool_)
    for table, chosen in (("ops", is_op), ("ranges", ~is_op)):
        start, end, thread, _, _, sequence, inputs = rows[chosen].T
        of_op = {
            "sequence": sequence,
            "inputs": inputs.astype(np.int32),
            "forward_thread": np.where(sequence >= 0, is_node[name[chosen]], NONE) if texts else sequence,
        }
        events.add(
            table,
            process=process_of(thread),
            start=start,
            end=end,
            thread=thread,
            name=name[chosen],
            **(of_op if table == "ops" else {}),
        )


def _decoded(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
