"""Protobuf's wire format, as far as event files and W&B's need it; damaged bytes end a message, no more."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5
Value = int | bytes | memoryview
_MOST_FIELDS = 1 << 20
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return a number and where it ends; raise IndexError at the end of the data, ValueError if too long."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def fields(data: memoryview) -> Iterator[tuple[int, int, Value]]:
    """Yield number, kind and value of each field; stop where the bytes are damaged."""
    place, size = 0, len(data)
    for _ in range(_MOST_FIELDS):
        if place >= size:
            return
        try:
            key, place = varint(data, place)
            kind = key & 7
            if kind == VARINT:
                value, place = varint(data, place)
                yield key >> 3, kind, value
                continue
            if kind == BYTES:
                length, place = varint(data, place)
            elif kind in (DOUBLE, FLOAT):
                length = 8 if kind == DOUBLE else 4
            else:
                return
        except (IndexError, ValueError):
            return
        if length > size - place:
            return
        yield key >> 3, kind, data[place : place + length]
        place += length


def first(data: memoryview, number: int) -> Value | None:
    """Return the first field of that number."""
    return next((value for found, _, value in fields(data) if found == number), None)


def text_of(value: Value | None, most: int = 1 << 20) -> str | None:
    """Return a field's text; None for what is none."""
    if value is None or isinstance(value, int):
        return None
    return bytes(value[:most]).decode("utf-8", "replace")


def double_of(value: Value | None) -> float | None:
    """Return a field of eight bytes as a number."""
    is_double = value is not None and not isinstance(value, int) and len(value) == 8
    return float(_DOUBLE.unpack(value)[0]) if is_double and not isinstance(value, int) and value else None


def float_of(value: Value | None) -> float | None:
    """Return a field of four bytes as a number."""
    if value is None or isinstance(value, int) or len(value) != 4:
        return None
    return float(_FLOAT.unpack(value)[0])


def signed(value: int) -> int:
    """Return a number of 64 bits with its sign."""
    return value - (1 << 64) if value >= 1 << 63 else value
