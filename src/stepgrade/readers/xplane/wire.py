"""Protobuf's wire format in bulk: the fields of many messages at once, in numpy columns.

Each round takes the next field of every message that has one left, so that Python does a step for each field
of a message and not for each message. Messages may have their fields in any order. What is damaged ends its
message: no field is read beyond the message that it lies in.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.events import Longs

Bytes: TypeAlias = NDArray[np.uint8]
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10
# Messages have a dozen fields; what has more is walked alone, so that time grows with bytes only.
_ROUNDS: Final = 40


class Round(NamedTuple):
    """One field of each of several messages."""

    message: Longs  # its place among those that were given
    number: Longs
    kind: Longs
    value: Longs  # of a length: where the bytes begin
    size: Longs  # in bytes, of a length

    def taking(self, number: int, kind: int) -> tuple[Longs, Longs, Longs]:
        """Return message, value and size of the fields with this number and of this kind."""
        chosen = (self.number == number) & (self.kind == kind)
        return self.message[chosen], self.value[chosen], self.size[chosen]


def varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends; raise ValueError if it is cut off or too long."""
    value = shift = 0
    while place < end:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
        shift += 7
        if shift > 63:
            break
    raise ValueError("a damaged number")


class WireField(NamedTuple):
    """One field of one message."""

    number: int
    kind: int
    value: int  # of a length: where the bytes begin
    size: int  # in bytes, of a length
    after: int  # where the next field begins


def field_at(data: bytes, place: int, end: int, *, may_be_cut: bool = False) -> WireField | None:
    """Return the field at a place; None if it is damaged, or longer than its message unless it may be cut."""
    try:
        key, place = varint(data, place, end)
        kind = key & 7
        if kind == VARINT:
            value, place = varint(data, place, end)
            return WireField(key >> 3, kind, value, 0, place)
        if kind == LENGTH:
            size, place = varint(data, place, end)
        else:
            size = {FIXED64: 8, FIXED32: 4}[kind]
    except (ValueError, KeyError):
        return None
    if size > end - place:
        if not may_be_cut or kind != LENGTH:
            return None
        size = end - place
    return WireField(key >> 3, kind, place, size, place + size)


def walk(data: bytes, place: int, end: int, *, may_be_cut: bool = False) -> Iterator[WireField]:
    """Yield the fields of one message; stop where it is damaged."""
    while place < end:
        field = field_at(data, place, end, may_be_cut=may_be_cut)
        if field is None:
            return
        yield field
        place = field.after


def run_of(data: bytes, place: int, end: int, tag: int, found: array[int]) -> int:
    """Add where the messages that follow each other under a tag begin and end; return where the run ends."""
    add = found.append
    while place + 4 < end and data[place] == tag:
        size = data[place + 1]
        begins = place + 2
        if size > 0x7F:
            more = data[begins]
            if more > 0x7F:
                break  # longer than 16 KB
            begins += 1
            size = (size & 0x7F) | more << 7
        if size > end - begins:
            break
        place = begins + size
        add(begins)
        add(place)
    return place


def rounds(
    data: bytes, starts: Longs, ends: Longs, dropped: NDArray[np.bool_] | None = None
) -> Iterator[Round]:
    """Yield the fields of all messages: the first of each, then the second of each, and so on.

    A message that is marked in `dropped` in between has no more fields.
    """
    octets: Bytes = np.frombuffer(data, np.uint8)
    message = np.arange(len(starts), dtype=np.int64)
    place, end = starts, ends
    for _ in range(_ROUNDS):
        left = place < end
        if dropped is not None:
            left &= ~dropped[message]
        if not left.all():
            message, place, end = message[left], place[left], end[left]
        if not len(message):
            return
        key, place, sound = _varints(octets, place, end)
        kind, number = key & 7, key >> 3
        value, after, readable = _varints(octets, place, end)
        size = np.zeros(len(place), np.int64)
        is_length = kind == LENGTH
        size[is_length] = value[is_length]
        fixed = (kind == FIXED64) | (kind == FIXED32)
        size[fixed] = np.where(kind[fixed] == FIXED64, 8, 4)
        begins = np.where(is_length, after, place)
        is_number = kind == VARINT
        sound &= fixed | ((is_number | is_length) & readable)
        sound &= is_number | ((size >= 0) & (size <= end - begins))
        if not sound.all():
            message, end = message[sound], end[sound]
            number, kind, value, size = number[sound], kind[sound], value[sound], size[sound]
            begins, after, is_number = begins[sound], after[sound], is_number[sound]
        yield Round(message, number, kind, np.where(is_number, value, begins), size)
        place = np.where(is_number, after, begins + size)
    rest: list[tuple[int, int, int, int, int]] = []
    for index, first, last in zip(message.tolist(), place.tolist(), end.tolist(), strict=True):
        for field in walk(data, first, last):
            signed = field.value - (1 << 64) if field.value >= 1 << 63 else field.value
            rest.append((index, min(field.number, 1 << 31), field.kind, signed, field.size))
    if rest:
        yield Round(*np.array(rest, np.int64).T)


def _varints(octets: Bytes, place: Longs, end: Longs) -> tuple[Longs, Longs, NDArray[np.bool_]]:
    """Return the numbers at these places, where they end, and which of them are sound."""
    sound = place < end
    byte = octets[np.where(sound, place, 0)] if len(octets) else np.zeros(len(place), np.uint8)
    value = (byte & 0x7F).astype(np.int64)
    after = place + 1
    more = np.flatnonzero((byte > 0x7F) & sound)
    for index in range(1, _LONGEST_VARINT):
        if not len(more):
            break
        at = place[more] + index
        inside = at < end[more]
        sound[more[~inside]] = False
        more, at = more[inside], at[inside]
        byte = octets[at]
        value[more] |= (byte & 0x7F).astype(np.int64) << (7 * index)
        after[more] = at + 1
        more = more[byte > 0x7F]
    sound[more] = False
    return value, after, sound


def doubles(data: bytes, places: Longs) -> NDArray[np.float64]:
    """Return the numbers of eight bytes at these places."""
    octets: Bytes = np.frombuffer(data, np.uint8)
    parts = octets[places[:, None] + np.arange(8)] if len(places) else np.zeros((0, 8), np.uint8)
    return np.ascontiguousarray(parts).view("<f8").reshape(-1).astype(np.float64)
