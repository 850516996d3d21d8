"""The top-level keys that we understand, before and after the events; all others are skipped unread."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct, field

from stepgrade.errors import BadInput
from stepgrade.model.events import TraceDevice
from stepgrade.readers.kineto.decode import DECODE_ERRORS
from stepgrade.readers.source import ByteSource

MAX_HEAD_BYTES: Final = 64 << 20
MAX_TAIL_BYTES: Final = 16 << 20
_BLOCK_BYTES: Final = 1 << 18
_MOST_TRIES: Final = 32  # bounds the time that a hostile text can take
_BOM: Final = b"\xef\xbb\xbf"
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_MAX_SALVAGE_BYTES: Final = 1 << 20
_scan = json.JSONDecoder(strict=False, parse_int=len, parse_float=len).raw_decode
_BLANK: Final = b" \t\r\n\0"

FLAGS: Final = {
    "record_shapes": "shapes",
    "with_stack": "stacks",
    "profile_memory": "memory",
    "with_modules": "modules",
    "with_flops": "flops",
}
_VERSIONS: Final = {
    "schema_version": "schemaVersion",
    "cuda_runtime_version": "cuda_runtime_version",
    "cuda_driver_version": "cuda_driver_version",
    "cupti_version": "cupti_version",
    "hip_runtime_version": "hip_runtime_version",
    "hip_driver_version": "hip_driver_version",
    "roctracer_version": "roctracer_version",
    "rocprofiler_version": "rocprofiler-sdk_version",
}


class _Header(Struct, omit_defaults=True):
    base_ns: Any = field(name="baseTimeNanoseconds", default=UNSET)
    time_unit: Any = field(name="displayTimeUnit", default=UNSET)
    distributed: Any = field(name="distributedInfo", default=UNSET)
    devices: Any = field(name="deviceProperties", default=UNSET)
    schema_version: Any = field(name="schemaVersion", default=UNSET)
    cuda_runtime_version: Any = UNSET
    cuda_driver_version: Any = UNSET
    cupti_version: Any = UNSET
    hip_runtime_version: Any = UNSET
    hip_driver_version: Any = UNSET
    roctracer_version: Any = UNSET
    rocprofiler_version: Any = field(name="rocprofiler-sdk_version", default=UNSET)
    record_shapes: Any = UNSET
    with_stack: Any = UNSET
    profile_memory: Any = UNSET
    with_modules: Any = UNSET
    with_flops: Any = UNSET


_decode = msgspec.json.Decoder(_Header).decode


class Head(NamedTuple):
    """Where the events begin: the keys before them, and the text of theirs that was already read."""

    keys: dict[str, Any]
    is_list: bool
    text: bytes
    offset: int
    lost: str | None = None


def read_head(source: ByteSource) -> Head:
    """Read up to the first event; BadInput when the text holds no array of events."""
    text = bytearray()
    block = bytearray(_BLOCK_BYTES)
    searched = 0
    while len(text) < MAX_HEAD_BYTES and (count := source.fill(memoryview(block))):
        text += block[:count]
        if head := _find_events(text, searched):
            return head
        searched = max(0, len(text) - 4096)
    return _salvage_head(bytes(text)) or _refuse(source, bytes(text[:64]))


def _find_events(text: bytearray, searched: int) -> Head | None:
    start = len(_BOM) if text.startswith(_BOM) else 0
    first = re.compile(rb"\s*(.)", re.DOTALL).match(text, start)
    if first and first[1] == b"[":
        return Head({}, is_list=True, text=bytes(text[first.end() :]), offset=first.end())
    for match in islice(_EVENTS.finditer(text, searched), _MOST_TRIES):
        # Only a key of the outermost object completes the text before it to a JSON object.
        keys = _keys(bytes(text[start : match.start()]) + b'"traceEvents":0}')
        if keys is not None:
            return Head(keys, is_list=False, text=bytes(text[match.end() :]), offset=match.end())
    return None


def _salvage_head(text: bytes) -> Head | None:
    match = _EVENTS.search(text)
    if not match:
        return None
    lost = "the keys before the events, which are not valid JSON"
    return Head({}, is_list=False, text=text[match.end() :], offset=match.end(), lost=lost)


def _refuse(source: ByteSource, start: bytes) -> Head:
    if not start.strip(_BLANK):
        raise BadInput(f"is empty{f': {source.damage}' if source.damage else ''}", where=source.name)
    raise BadInput("holds no array of trace events", where=source.name, hint=source.damage)


def _keys(text: bytes) -> dict[str, Any] | None:
    try:
        header = _decode(text)
    except DECODE_ERRORS:
        return None
    return {name: value for name in header.__struct_fields__ if (value := getattr(header, name)) is not UNSET}


def read_tail(text: bytes) -> tuple[dict[str, Any], str | None]:
    """Return the keys in the text after the events, and what was lost of it."""
    body = text.strip(_BLANK)
    keys = _keys(b'{"":0' + body)
    if keys is not None:
        return keys, _nul_note(text)
    if not body:
        return {}, "the end of the file: it stops right after the events"
    return _salvage_tail(body)


def _nul_note(text: bytes) -> str | None:
    return f"{text.count(0)} NUL bytes after the end" if b"\0" in text else None


def _salvage_tail(body: bytes) -> tuple[dict[str, Any], str]:
    closed = b'{"":0' + body[:_MAX_SALVAGE_BYTES]
    try:
        _, end = _scan(closed.decode("latin-1"))
    except (ValueError, RecursionError):
        return _salvage_open_tail(body[:_MAX_SALVAGE_BYTES])
    keys = _keys(closed[:end])
    return keys or {}, f"{len(body) + 5 - end} bytes after the end of the JSON"


def _salvage_open_tail(body: bytes) -> tuple[dict[str, Any], str]:
    for cut in _last(body, b","):
        keys = _keys(b'{"":0' + body[:cut] + b"}")
        if keys is not None:
            return keys, "the end of the file: it stops among the keys after the events"
    return {}, "the keys after the events, which are not valid JSON"


def _last(text: bytes, mark: bytes) -> list[int]:
    """Return the last places of `mark`, from the end."""
    places: list[int] = []
    at = len(text)
    while len(places) < _MOST_TRIES and (at := text.rfind(mark, 0, at)) >= 0:
        places.append(at)
    return places


class Header(Struct, frozen=True, kw_only=True):
    """What the top level says, with its types made sure of."""

    base_ns: int | None
    rank: int | None
    world_size: int | None
    backend: str | None
    devices: tuple[TraceDevice, ...]
    versions: dict[str, str]
    recorded: frozenset[str]
    names: frozenset[str]


def header_of(keys: dict[str, Any]) -> Header:
    """Return the keys of the outermost object by meaning."""
    spread = keys.get("distributed")
    spread = spread if isinstance(spread, dict) else {}
    backend = spread.get("backend")
    return Header(
        base_ns=whole(keys.get("base_ns")),
        rank=whole(spread.get("rank")),
        world_size=whole(spread.get("world_size")),
        backend=backend if isinstance(backend, str) else None,
        devices=_devices(keys.get("devices")),
        versions={name: str(keys[key]) for key, name in _VERSIONS.items() if _is_version(keys.get(key))},
        recorded=frozenset(FLAGS[key] for key in FLAGS if keys.get(key) in (1, "1")),
        names=frozenset(keys),
    )


def whole(value: object) -> int | None:
    """Return a count or an id, None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return value if fits else None  # type: ignore[return-value]  # `fits` says that it is an int


def _is_version(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 40)


def _devices(listed: object) -> tuple[TraceDevice, ...]:
    if not isinstance(listed, list):
        return ()
    return tuple(_device(place, one) for place, one in enumerate(listed) if isinstance(one, dict))


def _device(place: int, properties: dict[str, Any]) -> TraceDevice:
    name, index = properties.get("name"), whole(properties.get("id"))
    major, minor = whole(properties.get("computeMajor")), whole(properties.get("computeMinor"))
    return TraceDevice(
        index=place if index is None else index,
        name=name if isinstance(name, str) and name else None,
        memory_bytes=whole(properties.get("totalGlobalMem")),
        sm_count=whole(properties.get("numSms")),
        capability=None if major is None else f"{major}.{minor or 0}",
    )
