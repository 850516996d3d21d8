"""Read the top-level keys before and after the events; unknown keys are skipped unread."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

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
_EVENTS: Final = re.compile(rb'"traceEvents"\s{0,99}:\s{0,99}\[')
_LONGEST_KEY: Final = 220  # the events' key with its colon and bracket
_SPACES: Final = re.compile(rb"\s*+")
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
_VERSIONS: Final = (
    "schemaVersion",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
    "rocprofiler-sdk_version",
)
_DESCRIPTIONS: Final = ("baseTimeNanoseconds", "displayTimeUnit", "distributedInfo", "deviceProperties")
_decode = json_decoder(dict[str, Raw]).decode


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
    first = searched = tries = 0
    while len(text) < MAX_HEAD_BYTES and (count := source.fill(memoryview(block))):
        text += block[:count]
        start = len(_BOM) if text.startswith(_BOM) else 0
        if space := _SPACES.match(text, max(first, start)):
            first = space.end()
        if text[first : first + 1] == b"[":
            return Head({}, is_list=True, text=bytes(text[first + 1 :]), offset=first + 1)
        for found in islice(_EVENTS.finditer(text, searched), _MOST_TRIES - tries):
            # Inside another object, the text up to the key is not valid JSON.
            keys = _keys(bytes(text[start : found.start()]) + b'"traceEvents":0}')
            if keys is not None:
                return Head(keys, is_list=False, text=bytes(text[found.end() :]), offset=found.end())
            tries += 1
            searched = found.end()
        if tries >= _MOST_TRIES:
            break
        searched = max(searched, len(text) - _LONGEST_KEY)  # the key may go on in the next block
    match = _EVENTS.search(text)
    if match:
        lost = "the keys before the events, which are not valid JSON"
        return Head({}, is_list=False, text=bytes(text[match.end() :]), offset=match.end(), lost=lost)
    if not bytes(text[:64]).strip(_BLANK):
        raise BadInput("is empty", where=source.name, hint=source.damage)
    raise BadInput("contains no array of trace events", where=source.name, hint=source.damage)


def _keys(text: bytes) -> dict[str, object] | None:
    """Return the values of the keys that are used, None if the text is not valid JSON."""
    try:
        found = _decode(text)
        return {
            key: msgspec.json.decode(found[key])
            for key in (*_DESCRIPTIONS, *_VERSIONS, *_FLAGS)
            if key in found
        }
    except DECODE_ERRORS:
        return None


def read_tail(head: Head, text: bytes | None) -> tuple[dict[str, object], str | None]:
    """Return the keys in the text after the events, and what was lost; None if the events never end."""
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
    salvaged = b'{"":0' + body[:_MAX_SALVAGE_BYTES]
    with suppress(ValueError, RecursionError):
        _, end = scan_value(salvaged.decode("latin-1"))
        return _keys(salvaged[:end]) or {}, f"{len(body) + 5 - end} bytes after the end of the JSON"
    # The text is cut off: its last whole key is found from the end.
    cut = len(salvaged)
    for _ in range(_MOST_TRIES):
        cut = salvaged.rfind(b",", 5, cut)
        keys = _keys(salvaged[:cut] + b"}") if cut >= 0 else None
        if cut < 0 or keys is not None:
            break
    lost = "the end of the file: it stops among the keys after the events"
    return keys or {}, "the keys after the events, which are not valid JSON" if keys is None else lost


def fields_of(keys: dict[str, object]) -> dict[str, Any]:
    """Return the fields of a Trace that the keys of the outermost object hold, with checked types."""
    spread = keys.get("distributedInfo")
    spread = spread if isinstance(spread, dict) else {}
    backend, listed = spread.get("backend"), keys.get("deviceProperties")
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
    return {
        "base_ns": whole(keys.get("baseTimeNanoseconds")),
        "rank": whole(spread.get("rank")),
        "world_size": whole(spread.get("world_size")),
        "backend": backend if isinstance(backend, str) else None,
        "devices": tuple(devices),
        "versions": {
            name: str(value)
            for name in _VERSIONS
            if isinstance(value := keys.get(name), int | float)
            or (isinstance(value, str) and len(value) <= 40)
        },
        "recorded": frozenset(_FLAGS[key] for key in _FLAGS if keys.get(key) in (1, "1")),
    }


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
    return value if fits else None  # type: ignore[return-value]  # `fits` checks that it is an int
