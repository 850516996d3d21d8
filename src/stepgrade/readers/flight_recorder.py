"""Read dumps of PyTorch's Flight Recorder, one per rank: JSON, or pickles, which are never unpickled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepgrade.contract.decode import decode_json
from stepgrade.errors import BadInput
from stepgrade.model.ranks import FlightCall, FlightRecord
from stepgrade.naming.python_frames import read_frame
from stepgrade.patterns import regex
from stepgrade.readers.base import Part, Reader, text_of
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.readers.plain_pickle import Plain

# The first keys of the dict that a dump is, in protocol 2 (of C++) to 5.
_PICKLE = regex(rb"\A\x80[\x02-\x05](?s:.){0,200}(?:pg_config|pg_status|comm_lib_version|nccl_version)")
_KEYS = frozenset({"entries", "pg_config"})
_RANK_IN_NAME = regex(r"rank[-_. ]?(\d{1,6})(?!\d)|(\d{1,6})(?:\.[A-Za-z]+)*$", re.IGNORECASE)
_MESSAGE = regex(r"^(send|recv) ?(\d{1,6})(->|<-)(\d{1,6})$")
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
        raise BadInput("is a Flight Recorder dump without entries", hint="set TORCH_FR_BUFFER_SIZE=2000")
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
    # The rank in the dump, else in the file's name.
    stated = (document.get(key) for key in ("global_rank", "rank"))
    rank = next((value for value in stated if type(value) is int and 0 <= value < _LARGEST), None)
    names = [*_RANK_IN_NAME.finditer(source.name.replace("\\", "/").rsplit("/", 1)[-1])]
    if rank is None and names:
        found = next((found for found in names if found[1]), names[-1])
        rank = int(found[1] or found[2])
    record = FlightRecord(
        file=source.name,
        rank=rank,
        groups=groups,
        descriptions=descriptions,
        calls=tuple(calls),
        is_whole=not rows or _number(rows[0], "record_id") == 0,
    )
    return Part(hang=record)


def _call(row: Mapping[str, Plain], group: str, known: dict[int, str | None]) -> FlightCall:
    """Return one call; `known` keeps the innermost line of the user's own code for each stack."""
    name = text_of(row.get("profiling_name")).partition(":")[2] or text_of(row.get("profiling_name"))
    message = _MESSAGE.match(name)
    peers = None
    if message is not None:
        name, own, other = message[1], int(message[2]), int(message[4])
        peers = (own, other) if name == "send" else (other, own)
    stack = row.get("frames")
    if id(stack) not in known:  # frames of many entries may be one list
        lines = (
            read_frame(
                f"{text_of(frame.get('filename'), _LONGEST_PATH)}({_number(frame, 'line')}): "
                f"{text_of(frame.get('name'), _LONGEST_PATH)}"
            )
            for frame in (stack[:_MOST_FRAMES] if isinstance(stack, list) else ())
            if isinstance(frame, dict)
        )
        known[id(stack)] = next((line.where for line in lines if line.is_user), None)
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
        where=known[id(stack)],
        peers=peers,
    )


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
        if id(listed) not in known:  # PyTorch writes ranks as text or as a list
            digits = re.findall(r"\d{1,9}", listed) if isinstance(listed, str) else ()
            numbers = listed if isinstance(listed, list | tuple) else [*map(int, digits)]
            known[id(listed)] = tuple(rank for rank in numbers if type(rank) is int and 0 <= rank < _LARGEST)
        if members := known[id(listed)]:
            ranks[name] = members
        if description := text_of(group.get("desc")):
            descriptions[name] = description
    return ranks, descriptions


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
