"""The top-level keys that we understand, before and after the events; all others are skipped unread."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from msgspec import UNSET, Struct, field

from stepgrade.decoding import json_decoder
from stepgrade.errors import BadInput
from stepgrade.model.events import SmLimits, TraceDevice
from stepgrade.readers.kineto.decode import DECODE_ERRORS, scan_value
from stepgrade.readers.source import ByteSource

MAX_HEAD_BYTES: Final = 16 << 20
MAX_TAIL_BYTES: Final = 16 << 20
_BLOCK_BYTES: Final = 1 << 18
_MOST_TRIES: Final = 32  # bounds the time that a hostile text can take
_BOM: Final = b"\xef\xbb\xbf"
_EVENTS_KEY: Final = b'"traceEvents":'
_EVENTS: Final = re.compile(rb'"traceEvents"\s{0,99}:\s{0,99}\[')
_LONGEST_KEY: Final = 220  # the events' key with its colon and bracket
_SPACE: Final = b" \t\r\n\v\f"
_SPACES: Final = re.compile(rb"\s*+")
_MARK: Final = re.compile(rb'["{}\[\]]')
_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_DEEPEST: Final = 900  # what is nested deeper cannot be decoded
_MAX_SALVAGE_BYTES: Final = 1 << 20
_MOST_DEVICES: Final = 1024
_BLANK: Final = b" \t\r\n\0"

_FLAGS: Final = {
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
    base_ns: object = field(name="baseTimeNanoseconds", default=UNSET)
    time_unit: object = field(name="displayTimeUnit", default=UNSET)
    distributed: object = field(name="distributedInfo", default=UNSET)
    devices: object = field(name="deviceProperties", default=UNSET)
    schema_version: object = field(name="schemaVersion", default=UNSET)
    cuda_runtime_version: object = UNSET
    cuda_driver_version: object = UNSET
    cupti_version: object = UNSET
    hip_runtime_version: object = UNSET
    hip_driver_version: object = UNSET
    roctracer_version: object = UNSET
    rocprofiler_version: object = field(name="rocprofiler-sdk_version", default=UNSET)
    record_shapes: object = UNSET
    with_stack: object = UNSET
    profile_memory: object = UNSET
    with_modules: object = UNSET
    with_flops: object = UNSET


_decode = json_decoder(_Header).decode


class Head(NamedTuple):
    """Where the events begin: the keys before them, and the event text already read."""

    keys: dict[str, object]
    is_list: bool
    text: bytes
    offset: int
    lost: str | None = None


def read_head(source: ByteSource) -> Head:
    """Read up to the first event; BadInput when the text holds no array of events."""
    text = bytearray()
    block = bytearray(_BLOCK_BYTES)
    outermost = _Outermost(text)
    first = 0
    while len(text) < MAX_HEAD_BYTES and (count := source.fill(memoryview(block))):
        text += block[:count]
        start = len(_BOM) if text.startswith(_BOM) else 0
        first = max(first, start)
        if space := _SPACES.match(text, first):
            first = space.end()
        if text[first : first + 1] == b"[":
            return Head({}, is_list=True, text=bytes(text[first + 1 :]), offset=first + 1)
        match = outermost.find_events()
        keys = _keys(bytes(text[start : match.start()]) + b'"traceEvents":0}') if match else None
        if match and keys is not None:
            return Head(keys, is_list=False, text=bytes(text[match.end() :]), offset=match.end())
        if match:
            break
    match = _EVENTS.search(text)
    if match:
        lost = "the keys before the events, which are not valid JSON"
        return Head({}, is_list=False, text=bytes(text[match.end() :]), offset=match.end(), lost=lost)
    if not bytes(text[:64]).strip(_BLANK):
        raise BadInput("is empty", where=source.name, hint=source.damage)
    raise BadInput("holds no array of trace events", where=source.name, hint=source.damage)


class _Outermost:
    """Tracks the brackets of a growing text to find the array of events in the first object."""

    def __init__(self, text: bytearray) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._in_string = False

    def find_events(self) -> re.Match[bytes] | None:
        """Return the key of the array with its bracket, None if the text read so far does not hold it."""
        text, at, depth = self._text, self._at, self._depth
        while depth <= _DEEPEST and at < len(text):
            if self._in_string:
                string = _STRING.match(text, at)
                at = string.end() if string else at
                if at >= len(text) - 1:  # a backslash may be the last byte
                    break
                self._in_string = False
                at += 1
            for mark in _MARK.finditer(text, at):
                sign = mark[0]
                if sign == b'"':
                    break
                depth += 1 if sign in b"{[" else -1
            else:
                at = len(text)
                break
            at = mark.end()
            if depth == 1:
                found = _EVENTS.match(text, mark.start())
                if found:
                    return found
                tail = bytes(text[mark.start() : mark.start() + _LONGEST_KEY])
                if len(tail) < _LONGEST_KEY and _EVENTS_KEY.startswith(tail.translate(None, _SPACE)):
                    at = mark.start()  # the key may go on in the next block
                    break
            self._in_string = True
        self._at, self._depth = at, depth
        return None


def _keys(text: bytes) -> dict[str, object] | None:
    try:
        header = _decode(text)
    except DECODE_ERRORS:
        return None
    return {name: value for name in header.__struct_fields__ if (value := getattr(header, name)) is not UNSET}


def read_tail(head: Head, text: bytes | None) -> tuple[dict[str, object], str | None]:
    """Return the keys in the text after the events (None: there is no such text), and what was lost of it."""
    if text is None:
        return {}, "the end of the file: it stops among the events"
    body = text.strip(_BLANK)
    if head.is_list:
        return {}, f"{len(body)} bytes after the end of the JSON" if body else None
    keys = _keys(b'{"":0' + body)
    if keys is not None:
        return keys, f"{text.count(0)} NUL bytes after the end" if b"\0" in text else None
    if not body:
        return {}, "the end of the file: it stops right after the events"
    closed = b'{"":0' + body[:_MAX_SALVAGE_BYTES]
    try:
        _, end = scan_value(closed.decode("latin-1"))
    except (ValueError, RecursionError):
        return _cut_keys(body[:_MAX_SALVAGE_BYTES])
    return _keys(closed[:end]) or {}, f"{len(body) + 5 - end} bytes after the end of the JSON"


def _cut_keys(body: bytes) -> tuple[dict[str, object], str]:
    """Return the whole keys of a text that is cut off, looking for its last whole one from the end."""
    cut = len(body)
    for _ in range(_MOST_TRIES):
        cut = body.rfind(b",", 0, cut)
        if cut < 0:
            break
        keys = _keys(b'{"":0' + body[:cut] + b"}")
        if keys is not None:
            return keys, "the end of the file: it stops among the keys after the events"
    return {}, "the keys after the events, which are not valid JSON"


class Header(Struct, frozen=True, kw_only=True):
    """The top-level keys, with checked types."""

    base_ns: int | None
    rank: int | None
    world_size: int | None
    backend: str | None
    devices: tuple[TraceDevice, ...]
    versions: dict[str, str]
    recorded: frozenset[str]
    names: frozenset[str]


def header_of(keys: dict[str, object]) -> Header:
    """Return the keys of the outermost object by meaning."""
    spread = keys.get("distributed")
    spread = spread if isinstance(spread, dict) else {}
    backend, listed = spread.get("backend"), keys.get("devices")
    devices = []
    for position, properties in enumerate(listed[:_MOST_DEVICES] if isinstance(listed, list) else ()):
        if not isinstance(properties, dict):
            continue
        name, index = properties.get("name"), whole(properties.get("id"))
        major, minor = whole(properties.get("computeMajor")), whole(properties.get("computeMinor"))
        device = TraceDevice(
            index=position if index is None else index,
            name=name if isinstance(name, str) and name else None,
            memory_bytes=whole(properties.get("totalGlobalMem")),
            sm_count=whole(properties.get("numSms")),
            capability=None if major is None else f"{major}.{minor or 0}",
            limits=sm_limits(properties),
        )
        devices.append(device)
    return Header(
        base_ns=whole(keys.get("base_ns")),
        rank=whole(spread.get("rank")),
        world_size=whole(spread.get("world_size")),
        backend=backend if isinstance(backend, str) else None,
        devices=tuple(devices),
        versions={
            name: str(value)
            for key, name in _VERSIONS.items()
            if isinstance(value := keys.get(key), int | float)
            or (isinstance(value, str) and len(value) <= 40)
        },
        recorded=frozenset(_FLAGS[key] for key in _FLAGS if keys.get(key) in (1, "1")),
        names=frozenset(keys),
    )


def sm_limits(properties: dict[str, object]) -> SmLimits | None:
    """Return the limits of a multiprocessor; None if one is missing, as on ROCm."""
    names = ("maxThreadsPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerMultiprocessor")
    threads, registers, shared = (whole(properties.get(name)) for name in names)
    if not threads or not registers or not shared:
        return None
    return SmLimits(threads=threads, registers=registers, shared_bytes=shared)


def whole(value: object) -> int | None:
    """Return a count or an id, None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return value if fits else None  # type: ignore[return-value]  # `fits` says that it is an int
