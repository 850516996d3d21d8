"""Protobuf's wire format in bulk: the fields of many messages at once, in numpy columns.

Each round takes the next field of every message that has one left, so that Python loops over the fields of a
message and not over messages. Damaged bytes end their message; no field is read beyond its message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.events import Longs
from stepgrade.protobuf import FIXED32, FIXED64, LENGTH, VARINT, signed, walk

Bytes: TypeAlias = NDArray[np.uint8]
_LONGEST_VARINT: Final = 10
# Messages have a dozen fields; what has more is walked alone, so that time grows with bytes only.
_ROUNDS: Final = 40


class Round(NamedTuple):
    """One field of each of several messages."""

    message: Longs  # its index among the given messages
    number: Longs
    kind: Longs
    value: Longs  # for LENGTH: the offset of the bytes
    size: Longs  # in bytes, for LENGTH
    is_uniform: bool = False  # all have the same number and kind, as they mostly do

    def taking(self, number: int, kind: int) -> tuple[Longs, Longs, Longs]:
        """Return message, value and size of the fields with this number and of this kind."""
        if self.is_uniform and len(self.number):
            if self.number[0] == number and self.kind[0] == kind:
                return self.message, self.value, self.size
            return self.message[:0], self.value[:0], self.size[:0]
        chosen = (self.number == number) & (self.kind == kind)
        return self.message[chosen], self.value[chosen], self.size[chosen]


def run_of(data: bytes, offset: int, end: int, tag: int) -> tuple[Longs, Longs, int]:
    """Return where the messages that follow each other under a tag begin and end, and where the run ends."""
    found = array("q")
    add, last = found.append, end - 4
    while offset < last and data[offset] == tag:
        size = data[offset + 1]
        after = offset + 2 + size
        if size > 0x7F:
            more = data[offset + 2]
            if more > 0x7F:
                break  # longer than 16 KB
            after += (more << 7) - 0x7F
        if after > end:
            break
        add(offset)
        offset = after
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), offset
    records = np.frombuffer(found, np.int64)
    octets: Bytes = np.frombuffer(data, np.uint8)
    return records + 2 + (octets[records + 1] > 0x7F), np.append(records[1:], offset), offset


def rounds(
    data: bytes, starts: Longs, ends: Longs, dropped: NDArray[np.bool_] | None = None
) -> Iterator[Round]:
    """Yield the fields of all messages: the first of each, then the second of each, and so on.

    A message that is marked in `dropped` in between has no more fields.
    """
    octets: Bytes = np.frombuffer(data, np.uint8)
    message = np.arange(len(starts), dtype=np.int64)
    offset, end = starts, ends
    for _ in range(_ROUNDS):
        left = offset < end
        if dropped is not None:
            left &= ~dropped[message]
        if not left.all():
            message, offset, end = message[left], offset[left], end[left]
        if not len(message):
            return
        tag = octets[offset]
        first = int(tag[0])
        if first < 0x80 and first & 7 in (VARINT, LENGTH) and (tag == first).all():
            is_uniform = True
            number, kind = np.broadcast_to([[first >> 3], [first & 7]], (2, len(message)))
            value, after, sound = _varints(octets, offset + 1, end)
            size = np.broadcast_to(0, len(message))
            if first & 7 == LENGTH:
                size, value = value, after
                after = after + size
                sound &= (size >= 0) & (after <= end)
        else:
            is_uniform = False
            key, offset, sound = _varints(octets, offset, end)
            number, kind = key >> 3, key & 7
            value, after, readable = _varints(octets, offset, end)
            is_number, is_length = kind == VARINT, kind == LENGTH
            fixed = (kind == FIXED64) | (kind == FIXED32)
            size = np.where(is_length, value, np.where(fixed, np.where(kind == FIXED64, 8, 4), 0))
            begins = np.where(is_length, after, offset)
            sound &= fixed | ((is_number | is_length) & readable)
            sound &= is_number | ((size >= 0) & (size <= end - begins))
            value, after = np.where(is_number, value, begins), np.where(is_number, after, begins + size)
        if not sound.all():
            message, end = message[sound], end[sound]
            number, kind, value, size = number[sound], kind[sound], value[sound], size[sound]
            after = after[sound]
        yield Round(message, number, kind, value, size, is_uniform)
        offset = after
    rest = [  # of messages with very many fields
        (index, min(field.number, 1 << 31), field.kind, signed(field.value), field.size)
        for index, first, last in zip(message.tolist(), offset.tolist(), end.tolist(), strict=True)
        for field in walk(data, first, last)
    ]
    if rest:
        yield Round(*np.array(rest, np.int64).T)


_EIGHT: Final = 8
_STOPS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)
# Seven bits of every byte move together in three steps: pairs, fours, eights.
_FOLDS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)


def _varints(octets: Bytes, offset: Longs, end: Longs) -> tuple[Longs, Longs, NDArray[np.bool_]]:
    """Return the numbers at these offsets, where they end, and which are valid."""
    if not len(offset) or len(octets) < _EIGHT:
        return _varints_by_byte(octets, offset, end)
    sound = offset < end
    byte = octets.take(offset, mode="clip")
    value = byte.astype(np.int64)
    after = offset + 1
    longer = np.flatnonzero(byte > 0x7F)
    if not len(longer):
        return value, after, sound
    # Eight bytes from every offset are one number; the first without its highest bit ends the varint.
    at = offset[longer]
    inside = at + _EIGHT <= len(octets)
    words = np.lib.stride_tricks.as_strided(
        octets[:_EIGHT].view("<u8"), shape=(len(octets) - _EIGHT + 1,), strides=(1,), writeable=False
    )
    word = words[np.where(inside, at, 0)]
    stop = ~word & _STOPS
    stop &= ~stop + _ONE  # its lowest bit
    word &= (stop << _ONE) - _ONE
    for low, high, shift in _FOLDS:
        word = (word & low) | ((word & high) >> shift)
    value[longer] = word.view(np.int64)
    after[longer] = at + (np.frexp(stop.astype(np.float64))[1] >> 3)
    sound[longer] &= after[longer] <= end[longer]
    slow = longer[~inside | (stop == 0)]
    if len(slow):  # more than eight bytes, or the last of the file
        value[slow], after[slow], sound[slow] = _varints_by_byte(octets, offset[slow], end[slow])
    return value, after, sound


def _varints_by_byte(octets: Bytes, offset: Longs, end: Longs) -> tuple[Longs, Longs, NDArray[np.bool_]]:
    """Return the same of varints of any length, byte by byte."""
    sound = offset < end
    byte = octets[np.where(sound, offset, 0)] if len(octets) else np.zeros(len(offset), np.uint8)
    value = (byte & 0x7F).astype(np.int64)
    after = offset + 1
    more = np.flatnonzero((byte > 0x7F) & sound)
    for index in range(1, _LONGEST_VARINT):
        if not len(more):
            break
        at = offset[more] + index
        inside = at < end[more]
        sound[more[~inside]] = False
        more, at = more[inside], at[inside]
        byte = octets[at]
        value[more] |= (byte & 0x7F).astype(np.int64) << (7 * index)
        after[more] = at + 1
        more = more[byte > 0x7F]
    sound[more] = False
    return value, after, sound
