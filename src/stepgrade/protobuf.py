"""Protobuf's wire format, one message at a time. Damaged bytes end a message; nothing outside it is read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
Value = int | memoryview
_64_BITS: Final = (1 << 64) - 1
_FLOATS: Final = {4: "<f", 8: "<d"}  # by their bytes


class WireField(NamedTuple):
    """One field of a message."""

    number: int
    kind: int
    value: int  # for LENGTH and the fixed kinds: the offset of the bytes
    size: int  # in bytes; 0 for VARINT
    after: int  # offset of the next field


def varint(data: bytes | memoryview, offset: int, end: int) -> tuple[int, int]:
    """Return a number and the offset after it; raise ValueError if it is cut off or too long."""
    value = shift = 0
    while offset < end:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _64_BITS, offset
        shift += 7
        if shift > 63:
            break
    raise ValueError("damaged varint")


def field_at(
    data: bytes | memoryview, offset: int, end: int, *, may_be_cut: bool = False
) -> WireField | None:
    """Return the field at an offset; None if it is damaged or, unless it may be cut, ends after `end`."""
    try:
        key, offset = varint(data, offset, end)
        kind = key & 7
        if kind == VARINT:
            value, offset = varint(data, offset, end)
            return WireField(key >> 3, kind, value, 0, offset)
        if kind == LENGTH:
            size, offset = varint(data, offset, end)
        else:
            size = {FIXED64: 8, FIXED32: 4}[kind]
    except (ValueError, KeyError):
        return None
    if size > end - offset:
        if not may_be_cut or kind != LENGTH:
            return None
        size = end - offset
    return WireField(key >> 3, kind, offset, size, offset + size)


def walk(data: bytes | memoryview, offset: int, end: int, *, may_be_cut: bool = False) -> Iterator[WireField]:
    """Yield the fields of one message; stop at the first damaged field."""
    while offset < end:
        field = field_at(data, offset, end, may_be_cut=may_be_cut)
        if field is None:
            return
        yield field
        offset = field.after


def values(message: memoryview) -> Iterator[tuple[int, int, Value]]:
    """Yield number, kind and value of each field of a message; stop at the first damaged field."""
    for number, kind, value, _, after in walk(message, 0, len(message)):
        yield number, kind, value if kind == VARINT else message[value:after]


def last_values(message: memoryview) -> dict[tuple[int, int], Value]:
    """Return the values of a message by number and kind, the last of those that are repeated."""
    return {(number, kind): value for number, kind, value in values(message)}


def messages(message: Value | None, wanted: int) -> Iterator[memoryview]:
    """Yield the messages inside a message that have this number."""
    for number, kind, value in values(message) if isinstance(message, memoryview) else ():
        if number == wanted and kind == LENGTH and isinstance(value, memoryview):
            yield value


def text_of(value: Value | None, most: int = 1 << 20) -> str | None:
    """Return a field's text, at most so many bytes of it; None for a number."""
    return bytes(value[:most]).decode("utf-8", "replace") if isinstance(value, memoryview) else None


def float_of(value: Value | None) -> float | None:
    """Return a field of four or eight bytes as a number; None for another field."""
    if not isinstance(value, memoryview) or len(value) not in _FLOATS:
        return None
    return float(struct.unpack(_FLOATS[len(value)], value)[0])


def signed(value: int) -> int:
    """Return a 64-bit number with its sign."""
    return value - (1 << 64) if value >= 1 << 63 else value


def encode_varint(value: int) -> bytes:
    """Return a 64-bit number in groups of seven bits; a negative number takes ten bytes."""
    found = bytearray()
    value &= _64_BITS
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def encode_field(number: int, value: int | str | bytes) -> bytes:
    """Return a field: a number, or a text or message with its length."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    content = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return encode_varint(number << 3 | LENGTH) + encode_varint(len(content)) + content
