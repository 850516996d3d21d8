"""Weights & Biases' offline files: LevelDB's log format around protobuf records."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from stepgrade.protobuf import LENGTH, text_of, values
from stepgrade.readers.logs.records import RecordLog

SIGN = b":W&B"
_HEADER, _BLOCK, _CHUNK = 7, 32_768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_FRAME = struct.Struct("<IHB")
# A record may go over many blocks; a longer one is not history.
_MOST_RECORD = 16 << 20
_HISTORY, _CONFIG, _RUN = 2, 5, 17
_RUN_CONFIG = 4


def read_wandb(chunks: Iterable[bytes], log: RecordLog) -> None:
    """Add the history and the settings of the run; a file that is cut off ends there."""
    for record in records(chunks):
        for number, kind, value in values(record):
            if kind != LENGTH or isinstance(value, int):
                continue
            if number == _HISTORY:
                log.add({key: item for key, item in _items(value) if key is not None})
            elif number == _CONFIG:
                _settings(value, log)
            elif number == _RUN:
                for inner, inner_kind, config in values(value):
                    if inner == _RUN_CONFIG and inner_kind == LENGTH and not isinstance(config, int):
                        _settings(config, log)


def records(chunks: Iterable[bytes]) -> Iterator[memoryview]:
    """Yield whole records; invalid data ends its block."""
    held = bytearray()
    parts = bytearray()
    is_first = True
    for chunk in chain(chunks, (None,)):
        if chunk is not None:
            held += chunk
        while len(held) >= _BLOCK or (chunk is None and held):
            block, held = held[:_BLOCK], held[_BLOCK:]
            offset = _HEADER if is_first else 0
            is_first = False
            while offset + _CHUNK <= len(block):
                _, length, kind = _FRAME.unpack_from(block, offset)
                offset += _CHUNK
                if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or offset + length > len(block):
                    break
                if kind in (_FULL, _FIRST):
                    parts.clear()
                if len(parts) + length <= _MOST_RECORD:
                    parts += block[offset : offset + length]
                if kind in (_FULL, _LAST):
                    yield memoryview(bytes(parts))
                    parts.clear()
                offset += length


def _items(message: memoryview) -> Iterator[tuple[str | None, object]]:
    """Yield names and values of a record's items, and its step."""
    for number, kind, value in values(message):
        if kind != LENGTH or isinstance(value, int):
            continue
        if number == 1:
            keys: list[str] = []
            decoded: object = None
            for inner, _, item in values(value):
                if inner in (1, 2):
                    keys.append(text_of(item, 400) or "")
                elif inner == 16:
                    decoded = _json(text_of(item))
            yield "/".join(keys) or None, decoded
        elif number == 2:
            step = next((item for inner, _, item in values(value) if inner == 1), 0)
            yield "_step", step if isinstance(step, int) else None


def _settings(message: memoryview, log: RecordLog) -> None:
    for name, value in _items(message):
        inner = value.get("value", value) if isinstance(value, dict) else value
        if name is not None:
            log.set(name, inner)


def _json(text: str | None) -> object:
    try:
        return msgspec.json.decode(text or "")
    except (msgspec.DecodeError, RecursionError):
        return {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.get(text or "")
