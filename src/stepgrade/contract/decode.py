"""JSON text to the contract's types, refusing what the reference refuses."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from stepgrade.decoding import from_builtins, from_json
from stepgrade.errors import BadJson

T = TypeVar("T")

# Strings are matched first so that a "-0" inside one is left alone; so is an exponent's.
_STRING_OR_MINUS_ZERO = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(?<![eE])-0(?![.\deE])'
# Cheap to look for: a value, not the `-0` inside a date.
_MINUS_ZERO = rb"(?:^|[\s:,\[])-0(?:[\s,\]}]|$)"
_UNNAMED_KEY = "[...]"


def decode_json(text: str | bytes, kind: type[T]) -> T:
    """Decode `text` as a `kind`; raise BadJson with the JSON path and the reason."""
    raw = _as_bytes(text)
    try:
        from_json(raw, msgspec.Raw)  # what is no JSON is refused before it is looked into
        return from_json(_keep_minus_zero(raw), kind)
    except RecursionError as error:
        raise BadJson("brackets are nested too deeply", where="$") from error
    except UnicodeDecodeError as error:
        raise BadJson(f"text is not UTF-8: {error.reason}", where="$") from error
    except msgspec.ValidationError as error:
        raise _refusal(raw, kind, str(error)) from error
    except msgspec.DecodeError as error:
        is_cut = "truncated" in str(error)
        reason = str(error).replace("JSON is malformed", "not valid JSON")
        raise BadJson("the JSON ends too early" if is_cut else reason, where="$") from error


def _as_bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadJson("text holds a lone surrogate", where="$") from error


def _keep_minus_zero(raw: bytes) -> bytes:
    """Write `-0` as `-0.0`: the reference reads it as a float, msgspec as the integer 0."""
    if not re.search(_MINUS_ZERO, raw):
        return raw
    # Written piece by piece: a list of all pieces, which re.sub makes, takes many times the text's memory.
    written, done = bytearray(), 0
    for found in re.finditer(_STRING_OR_MINUS_ZERO, raw, flags=re.DOTALL):
        if found[0] == b"-0":
            written += raw[done : found.end()] + b".0"
            done = found.end()
    return bytes(written + raw[done:])


def _refusal(raw: bytes, kind: type[Any], message: str) -> BadJson:
    reason, _, path = message.rpartition(" - at ")
    if not reason:
        return BadJson(message, where="$")
    return BadJson(reason, where=_name_keys(raw, kind, message, path.strip("`")))


def _name_keys(raw: bytes, kind: type[Any], message: str, path: str) -> str:
    """Put the key into a path where msgspec writes `[...]`, by halving the map until one is left."""
    before, unnamed, after = path.partition(_UNNAMED_KEY)
    if not unnamed:
        return path
    try:
        document = msgspec.json.decode(_keep_minus_zero(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # broken beyond what was decoded
        return path
    holder, name = _descend(document, before)
    entries = holder[name]
    keys = list(entries)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        holder[name] = {key: entries[key] for key in half}
        keys = half if _fails_alike(document, kind, message) else keys[len(keys) // 2 :]
    return f"{before}[{msgspec.json.encode(keys[0]).decode()}]{after}"


def _descend(document: Any, path: str) -> tuple[Any, Any]:
    """Return the container that holds the last part of `path` (like `$.a[3].b`), and that part."""
    parts = [int(i) if i else name for name, i in re.findall(r"\.(\w+)|\[(\d+)\]", path)]
    for part in parts[:-1]:
        document = document[part]
    return document, parts[-1]


def _fails_alike(document: Any, kind: type[Any], message: str) -> bool:
    try:
        from_builtins(document, kind)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False
