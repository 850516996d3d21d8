"""Damage to protobuf by its wire format, without a schema, and to the records that hold it."""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

from tests.fuzz.mutators.havoc import damaged_bytes, erased

VARINT, FIXED64, BYTES, START, END, FIXED32 = 0, 1, 2, 3, 4, 5
EDGES = (0, 1, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70)
ODD_BYTES = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"x" * 3000,
    b"\xf0\x9f\x98\x80",
    b"\x1b[31m<b>",
    b"\xed\xa0\x80",
    b"::error::",
    b"%s" * 9,
)


class Field(NamedTuple):
    """A field of a message: its number, how it is written, and its bytes without the key and the length."""

    number: int
    kind: int
    content: bytes


def varint(value: int, *, padded: int = 0) -> bytes:
    """Return a number as protobuf writes it; `padded` adds bytes that mean nothing."""
    found = bytearray()
    value &= 2**71 - 1
    while value > 127 or padded > 0:
        found.append(value & 127 | 128)
        value >>= 7
        padded -= value == 0
    found.append(value)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("no number")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def split(data: bytes) -> list[Field]:
    """Return the fields of a message; raise ValueError when the bytes are none."""
    fields, at = [], 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise ValueError("no field has the number 0")
        begin = at
        if kind == VARINT:
            _, at = _read_varint(data, at)
        elif kind == BYTES:
            size, begin = _read_varint(data, at)
            at = begin + size
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        elif kind not in (START, END):
            raise ValueError("no such wire type")
        if at > len(data):
            raise ValueError("the last field is cut off")
        fields.append(Field(number, kind, data[begin:at]))
    return fields


def joined(fields: list[Field]) -> bytes:
    """Return fields as a message."""
    parts = []
    for number, kind, content in fields:
        size = varint(len(content)) if kind == BYTES else b""
        parts.append(varint(number << 3 | kind) + size + content)
    return b"".join(parts)


def is_message(data: bytes) -> bool:
    """Return whether bytes can be read as a message; text seldom can."""
    try:
        return bool(split(data))
    except ValueError:
        return False


def mutate_message(data: bytes, dice: random.Random, donor: bytes = b"", depth: int = 0) -> bytes:
    """Return a message with a field of it, or of a message in it, changed; raise ValueError for none."""
    fields = split(data)
    if not fields:
        raise ValueError("no field")
    at = dice.randrange(len(fields))
    one = fields[at]
    if one.kind == BYTES and depth < 12 and dice.random() < 0.8 and is_message(one.content):
        inside = mutate_message(one.content, dice, donor, depth + 1)
        fields[at] = one._replace(content=inside)
        return joined(fields)
    before, after = joined(fields[:at]), joined(fields[at + 1 :])
    return before + _changed(one, fields, dice, donor) + after


def _changed(one: Field, fields: list[Field], dice: random.Random, donor: bytes) -> bytes:
    """Return a field after one change, as bytes: they need not be a field any longer."""
    match dice.randrange(14):
        case 0:
            return b""
        case 1:
            return joined([one] * dice.choice((2, 10, 300)))
        case 2:
            return joined(
                [one._replace(number=dice.choice((1, 2, 3, 15, 16, 2047, 2**29 - 1, one.number + 1)))]
            )
        case 3:
            return joined([one._replace(kind=dice.randrange(8))])
        case 4 | 5 | 6:
            return _edge(one, dice)
        case 7:  # a length that is not the content's
            size = len(one.content) + dice.choice((-1, 1, 100, 2**31, 2**40))
            return varint(one.number << 3 | BYTES) + varint(max(0, size)) + one.content
        case 8:  # deep in itself
            content = one.content
            for _ in range(dice.choice((5, 60, 400))):
                content = joined([Field(one.number, BYTES, content)])
                if len(content) > 60_000:
                    break
            return content
        case 9:
            return joined([Field(one.number, START, b"")]) * dice.choice((1, 200)) + joined([one])
        case 10:
            return joined([one, dice.choice(fields)]) + joined([Field(one.number, END, b"")])
        case 11:
            return varint(one.number << 3 | one.kind, padded=dice.choice((1, 5, 9, 12))) + one.content
        case 12:
            try:
                return joined([dice.choice(split(donor))])
            except (ValueError, IndexError):
                return bytes([0])
        case _:
            return joined([dice.choice(fields)._replace(number=one.number)])


def _edge(one: Field, dice: random.Random) -> bytes:
    """Return the field with a value at the edge of what it can hold."""
    if one.kind == VARINT:
        content = varint(dice.choice(EDGES))
    elif one.kind == FIXED64:
        content = struct.pack("<d", dice.choice((0.0, -1.0, 1e308, float("nan"), float("inf"), 5e-324)))
    elif one.kind == FIXED32:
        content = struct.pack("<f", dice.choice((0.0, -1.0, 3e38, float("nan"), float("inf"))))
    else:
        content = dice.choice(
            (*ODD_BYTES, one.content[:-1], one.content * 3, damaged_bytes(one.content, dice, 3))
        )
    return joined([one._replace(content=content)])


def mutate_protobuf(data: bytes, dice: random.Random, donor: bytes = b"") -> bytes:
    """Return a message with one to three changes."""
    data = mutate_message(erased(data), dice, erased(donor))
    for _ in range(dice.choice((0, 0, 1, 2))):
        try:
            data = mutate_message(data, dice, erased(donor))
        except ValueError:
            break
    return data


def mutate_tfevents(data: bytes, dice: random.Random, donor: bytes = b"") -> bytes:
    """Return an event file of TensorBoard with records changed, in their frames; raise ValueError for none."""
    records, at = [], 0
    while at + 16 <= len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        if at + 16 + size > len(data):
            break
        records.append(data[at + 12 : at + 12 + size])
        at += 16 + size
    if not records:
        raise ValueError("no record")
    _change_records(records, dice, donor)
    parts = []
    for record in records:
        size, odd = len(record), dice.random() < 0.02
        if odd:
            size = dice.choice((0, size + 1, size - 1, 2**31, 2**63, 2**64 - 1)) % 2**64
        parts.append(size.to_bytes(8, "little") + bytes(4) + record + bytes(4))
    return b"".join(parts)


def mutate_wandb(data: bytes, dice: random.Random, donor: bytes = b"") -> bytes:
    """Return an offline file of W&B with records changed, framed anew; raise ValueError for none."""
    if not data.startswith(b":W&B"):
        raise ValueError("no file of W&B")
    records, at = [], 7
    while at + 7 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        records.append(data[at + 7 : at + 7 + size])
        at += 7 + size
    _change_records(records, dice, donor)
    parts = [data[:7]]
    for record in records:
        kind = 1 if dice.random() < 0.97 else dice.choice((0, 2, 3, 4, 5, 255))
        checksum, size = dice.choice((bytes(4), b"\xff" * 4)), len(record) & 0xFFFF
        parts.append(checksum + size.to_bytes(2, "little") + bytes([kind]) + record)
    return b"".join(parts)


def _change_records(records: list[bytes], dice: random.Random, donor: bytes) -> None:
    """Change some records: their fields, their order, how many there are."""
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(records))
        match dice.randrange(6):
            case 0:
                records[at:at] = [records[at]] * dice.choice((1, 40))
            case 1:
                dice.shuffle(records)
            case 2:
                records[at : at + dice.choice((1, 20))] = [b""]
            case _:
                try:
                    records[at] = mutate_protobuf(records[at], dice, donor)
                except ValueError:
                    records[at] = damaged_bytes(records[at], dice, 4)
