"""Weights & Biases' offline files: LevelDB's log format around protobuf records."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from stepgrade.protobuf import messages, text_of, values
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
        for history in messages(record, _HISTORY):
            log.add({key: item for key, item in _items(history) if key is not None})
        in_runs = (messages(run, _RUN_CONFIG) for run in messages(record, _RUN))
        for config in chain(messages(record, _CONFIG), *in_runs):
            for name, value in _items(config):
                if name is not None:
                    log.set(name, value.get("value", value) if isinstance(value, dict) else value)


def records(chunks: Iterable[bytes]) -> Iterator[memoryview]:
    """Yield whole records; invalid data ends its block."""
    held, parts, offset = bytearray(), bytearray(), _HEADER
    for chunk in chain(chunks, (None,)):
        held += chunk or b""
        while len(held) >= _BLOCK or (chunk is None and held):
            block, held = held[:_BLOCK], held[_BLOCK:]
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
            offset = 0


def _items(message: memoryview) -> Iterator[tuple[str | None, object]]:
    """Yield names and values of a record's items, and its step."""
    for item in messages(message, 1):
        fields = list(values(item))
        keys = [text_of(value, 400) or "" for number, _, value in fields if number in (1, 2)]
        texts = [text_of(value) or "" for number, _, value in fields if number == 16]
        found: object = None
        try:
            found = msgspec.json.decode(texts[-1]) if texts else None
        except (msgspec.DecodeError, RecursionError):
            found = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.get(texts[-1])
        yield "/".join(keys) or None, found
    for item in messages(message, 2):
        step = next((value for number, _, value in values(item) if number == 1), 0)
        yield "_step", step if isinstance(step, int) else None
