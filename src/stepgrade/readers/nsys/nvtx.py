"""NVTX ranges: operations as PyTorch's emit_nvtx names them, NCCL's calls, and all others."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from stepgrade.model.events import NONE, Inputs
from stepgrade.readers.sqlite import SqliteFile

# torch.autograd.profiler.emit_nvtx: every part after the name is optional.
_EMITTED = re.compile(
    r"(?P<name>.*?)(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = \d+)?(?:, sizes = (?P<sizes>\[.*\]))?"
    r"(?:, input_op_ids = .*)?",
    re.DOTALL,
)
_EMITTED_PARTS = (", seq = ", ", op_id = ", ", sizes = ")
_QUALIFIED = re.compile(r"[A-Za-z_]\w*::\w")
_COLUMNS = ("start", "end", "globalTid", "text", "textId", "jsonText", "jsonTextId")
_LONGEST_NAME = 1000


class EmittedOps(Struct, kw_only=True):
    """Operations that emit_nvtx wrote, a row each."""

    names: list[str] = []
    rows: list[tuple[int, int, int, int, int]] = []  # start, end, globalTid, sequence, place in `inputs`
    inputs: dict[Inputs, int] = {}


class CommunicationCall(Struct, frozen=True, kw_only=True):
    """A call into NCCL, and what it says of its message."""

    name: str
    start_ns: int
    end_ns: int
    payload: dict[str, Any]


class NvtxRanges(Struct, kw_only=True):
    """The ranges of a file, told apart by who wrote them."""

    ops: EmittedOps
    names: list[str]
    rows: list[tuple[int, int, int]]  # start, end, globalTid of what is neither an operation nor NCCL's
    calls: dict[int, list[CommunicationCall]]  # NCCL's, by globalTid


def read_ranges(file: SqliteFile, strings: dict[int, str]) -> NvtxRanges:
    """Return the ranges that have an end; marks and domains have none."""
    found = NvtxRanges(ops=EmittedOps(names=[], rows=[], inputs={}), names=[], rows=[], calls={})
    plain: list[tuple[str, tuple[int, int, int]]] = []
    where = 'where eventType in (59, 60) and "end" is not null'
    for start, end, thread, text, text_id, json, json_id in file.rows("NVTX_EVENTS", _COLUMNS, where):
        if not (isinstance(start, int) and isinstance(end, int) and isinstance(thread, int)):
            continue
        name = text if isinstance(text, str) else strings.get(text_id, "")
        place = (start, max(start, end), thread)
        if name.startswith("nccl"):
            payload = json if isinstance(json, str) else strings.get(json_id)
            call = CommunicationCall(
                name=name[:_LONGEST_NAME], start_ns=place[0], end_ns=place[1], payload=_payload(payload)
            )
            found.calls.setdefault(thread, []).append(call)
        elif any(part in name for part in _EMITTED_PARTS):
            _add_op(found.ops, name, place)
        else:
            plain.append((name[:_LONGEST_NAME], place))
    # Operations that autograd does not follow are written by their name alone.
    for name, place in plain:
        if found.ops.names and _QUALIFIED.match(name) and not name.startswith("cub::"):
            _add_op(found.ops, name, place)
        else:
            found.names.append(name)
            found.rows.append(place)
    for calls in found.calls.values():
        calls.sort(key=lambda call: call.start_ns)
    return found


def _add_op(ops: EmittedOps, text: str, place: tuple[int, int, int]) -> None:
    parts = _EMITTED.fullmatch(text)
    if parts is None:
        return
    sizes = parts["sizes"]
    inputs = NONE
    if sizes:
        inputs = ops.inputs.setdefault(Inputs(dims=sizes.encode()), len(ops.inputs))
    ops.names.append(parts["name"][:_LONGEST_NAME])
    ops.rows.append((*place, int(parts["seq"] or NONE), inputs))


def _payload(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
