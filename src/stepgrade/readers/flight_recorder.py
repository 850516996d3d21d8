"""Read dumps of PyTorch's Flight Recorder, one per rank: JSON, or pickles, which are never unpickled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepgrade.contract.decode import decode_json
from stepgrade.errors import BadInput
from stepgrade.model.hang import FlightCall, FlightRecord
from stepgrade.naming.python_frames import read_frame
from stepgrade.readers.base import Part, Reader, text_of
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.readers.plain_pickle import Plain

# The first keys of the dict that a dump is, in protocol 2 (of C++) to 5.
_PICKLE = re.compile(rb"\A\x80[\x02-\x05](?s:.){0,200}(?:pg_config|pg_status|comm_lib_version|nccl_version)")
_KEYS = frozenset({"entries", "pg_config"})
_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d{1,6})(?!\d)|(\d{1,6})(?:\.[A-Za-z]+)*$", re.IGNORECASE)
_MESSAGE = re.compile(r"^(send|recv) ?(\d{1,6})(->|<-)(\d{1,6})$")
_STATES = ("scheduled", "started", "completed")
_LONGEST_PATH = 1000
_LARGEST = 1 << 53
_MOST_SIZES = 8
_MOST_FRAMES = 200


def recognises(source: ByteSource) -> bool:
    """Tell by the first keys of the pickle, or by those of the JSON object."""
    if source.head[:1] == b"\x80":
        return _PICKLE.match(source.head) is not None
    return source.json_keys is not None and source.json_keys >= _KEYS


def read(source: ByteSource) -> Part:
    """Return the collectives of one rank."""
    if source.head[:1] == b"\x80":
        from stepgrade.readers.plain_pickle import decode  # for pickles only

        document = decode(source.chunks(), source.memory_bytes)
    else:
        document = decode_json(source.document(), dict[str, Any])
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, list):
        raise BadInput(
            "is a dump of the Flight Recorder without entries", hint="set TORCH_FR_BUFFER_SIZE=2000"
        )
    rows = sorted(
        (row for row in entries if isinstance(row, dict)), key=lambda row: _number(row, "record_id")
    )
    groups, descriptions = _groups(document)
    frames: dict[int, str | None] = {}
    calls = []
    for row in rows:
        named = row.get("process_group")
        group = str(_number(row, "pg_id"))
        if isinstance(named, tuple | list) and len(named) == 2:
            group = text_of(named[0])
            descriptions.setdefault(group, text_of(named[1]))
        calls.append(_call(row, group, frames))
    record = FlightRecord(
        file=source.name,
        rank=_rank(document, source.name),
        groups=groups,
        descriptions=descriptions,
        calls=tuple(calls),
        is_whole=not rows or _number(rows[0], "record_id") == 0,
    )
    return Part(hang=record)


def _call(row: Mapping[str, Plain], group: str, frames: dict[int, str | None]) -> FlightCall:
    name = text_of(row.get("profiling_name")).partition(":")[2] or text_of(row.get("profiling_name"))
    message = _MESSAGE.match(name)
    peers = None
    if message is not None:
        name, own, other = message[1], int(message[2]), int(message[4])
        peers = (own, other) if name == "send" else (other, own)
    is_message = row.get("is_p2p") is True
    types = row.get("input_dtypes")
    state = text_of(row.get("state"))
    return FlightCall(
        group=group,
        sequence=_number(row, "p2p_seq_id" if is_message else "collective_seq_id") or _number(row, "seq_id"),
        name=name or "collective",
        input_sizes=_sizes(row.get("input_sizes")),
        output_sizes=_sizes(row.get("output_sizes")),
        dtype=text_of(types[0]) if isinstance(types, list) and types else "",
        state=state if state in _STATES else "scheduled",
        where=_user_line(row.get("frames"), frames),
        peers=peers,
    )


def _user_line(frames: object, known: dict[int, str | None]) -> str | None:
    """Return the innermost line of the user's own code; frames of many entries may be one list."""
    if not isinstance(frames, list) or not frames:
        return None
    if id(frames) not in known:
        lines = (
            read_frame(
                f"{text_of(frame.get('filename'), _LONGEST_PATH)}({_number(frame, 'line')}): "
                f"{text_of(frame.get('name'), _LONGEST_PATH)}"
            )
            for frame in frames[:_MOST_FRAMES]
            if isinstance(frame, dict)
        )
        known[id(frames)] = next((line.where for line in lines if line.is_user), None)
    return known[id(frames)]


def _sizes(tensors: object) -> str:
    """Return the sizes of the first tensors only, since every entry may share one long list."""
    if not isinstance(tensors, list):
        return ""
    dims = [tensor[:_MOST_SIZES] if isinstance(tensor, list) else [] for tensor in tensors[:_MOST_SIZES]]
    texts = ("[" + ", ".join(text_of(size) for size in tensor if type(size) is int) + "]" for tensor in dims)
    more = f" and {len(tensors) - _MOST_SIZES} more" if len(tensors) > _MOST_SIZES else ""
    return ", ".join(texts) + more


def _groups(document: Mapping[str, object]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the ranks and the name of each group; gloo omits both."""
    config = document.get("pg_config")
    ranks, descriptions = dict[str, tuple[int, ...]](), dict[str, str]()
    known: dict[int, tuple[int, ...]] = {}  # by identity: all groups of a file may share one list
    for key, group in (config if isinstance(config, dict) else {}).items():
        if not isinstance(group, dict):
            continue
        name = text_of(group.get("name")) or text_of(key)
        listed = group.get("ranks")
        if id(listed) not in known:
            known[id(listed)] = _members(listed)
        if members := known[id(listed)]:
            ranks[name] = members
        if description := text_of(group.get("desc")):
            descriptions[name] = description
    return ranks, descriptions


def _members(listed: object) -> tuple[int, ...]:
    """Return the ranks of a group, which PyTorch writes as text or as a list."""
    if isinstance(listed, str):
        return tuple(int(digits) for digits in re.findall(r"\d{1,9}", listed))
    ranks = listed if isinstance(listed, list | tuple) else ()
    return tuple(rank for rank in ranks if type(rank) is int and 0 <= rank < _LARGEST)


def _rank(document: Mapping[str, object], name: str) -> int | None:
    """Return the rank in the dump, else in the file name."""
    for key in ("global_rank", "rank"):
        stated = document.get(key)
        if type(stated) is int and 0 <= stated < _LARGEST:
            return stated
    found = None
    for found in _RANK_IN_NAME.finditer(name.replace("\\", "/").rsplit("/", 1)[-1]):
        if found[1]:
            break
    return int(found[1] or found[2]) if found else None


def _number(row: Mapping[str, Plain], key: str) -> int:
    """Return a number of an entry; 0 if it is missing or out of range."""
    value = row.get(key)
    return value if type(value) is int and 0 <= value < _LARGEST else 0


READER = Reader(
    name="flight_recorder",
    summary="dumps of PyTorch's Flight Recorder: which rank a hanging run waits for, and where",
    recognises=recognises,
    read=read,
    kind="hang",
    rank_files=("",),  # torch names them nccl_trace_rank_0, without a suffix
)
