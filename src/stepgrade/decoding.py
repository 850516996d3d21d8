"""Build every typed decoder once, under a lock.

msgspec caches a Struct's layout on the class before the layout is complete; another thread that decodes the
class at that time crashes the process (docs/decisions.md). Encoding builds nothing and needs no lock.
"""

from __future__ import annotations

import os
from _thread import RLock  # what threading.RLock makes, without the import of threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_LOCK = RLock()  # not a plain lock: a finalizer or a signal handler may decode while its thread builds
_DECODERS: dict[tuple[type, object], Any] = {}

if hasattr(os, "register_at_fork"):  # no child inherits a half-built type, or a lock that nobody releases
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of JSON that holds a `kind`, for any number of threads."""
    decoder: msgspec.json.Decoder[T] = _decoder(msgspec.json.Decoder, kind)
    return decoder


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Return the `kind` that `text` holds; raise msgspec.DecodeError where it holds none."""
    return json_decoder(kind).decode(text)


def from_msgpack(data: bytes, kind: type[T]) -> T:
    """Return the `kind` that `data` holds; raise msgspec.DecodeError where it holds none."""
    decoder: msgspec.msgpack.Decoder[T] = _decoder(msgspec.msgpack.Decoder, kind)
    return decoder.decode(data)


def from_builtins(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Return the `kind` that dicts, lists and plain values hold; raise msgspec.ValidationError for others."""
    _decoder(msgspec.msgpack.Decoder, kind)  # builds the types that msgspec.convert reads
    return msgspec.convert(value, kind, strict=strict)


def _decoder(make: type, kind: object) -> Any:
    try:
        return _DECODERS[make, kind]
    except KeyError:
        pass
    with _LOCK:
        if (make, kind) not in _DECODERS:
            _DECODERS[make, kind] = make(kind)
        return _DECODERS[make, kind]
