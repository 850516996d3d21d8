"""Damage to a pickle by its opcodes. Nothing here unpickles what was damaged."""

from __future__ import annotations

import contextlib
import pickle
import pickletools
import random
import struct
from functools import lru_cache

from tests.fuzz.mutators.havoc import erased
from tests.fuzz.mutators.trees import DEEP, mutate_tree

INSERTED = (
    b"(", b".", b"0", b"2", b"1", b"N", b"\x88", b"]", b"}", b")", b"e", b"a", b"u", b"s", b"t", b"\x85", b"\x86", b"\x94",
    b"h\x00", b"h\xff", b"j\xff\xff\xff\xff", b"q\x00", b"r\xff\xff\xff\x7f", b"R", b"b", b"\x81", b"\x92", b"Q",
    b"cos\nsystem\n", b"\x8c\x02os\x8c\x06system\x93", b"ios\nsystem\n", b"o", b"\x82\x01", b"Pabc\n", b"\x97", b"\x98",
    b"\x8b\xff\xff\xff\x7f", b"\x8a\xff" + b"\x7f" * 255, b"X\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"B\xff\xff\xff\xff",
    b"\x95" + b"\xff" * 8, b"\x95" + bytes(8), b"\x80\x05", b"\x80\xff", b"Fnan\n", b"F1e999\n", b"I99999999999999999999\n",
    b"L" + b"9" * 5000 + b"L\n", b"I01\n", b"G\x7f\xf8\0\0\0\0\0\0", b"\x8f", b"\x90", b"\x91", b"S'x'\n", b"V\\ud800\n",
    b"p4294967296\n", b"g-1\n", b"]q\x01h\x01a", b"]\x94h\x00a", b"}q\x02X\x01\0\0\0ah\x02s",
)  # fmt: skip


@lru_cache(8)
def _opcodes(data: bytes) -> tuple[bytes, ...]:
    """Return the opcodes of a pickle with their arguments, as far as they can be read."""
    places = []
    with contextlib.suppress(ValueError, IndexError, struct.error, UnicodeError):
        places.extend(at for _, _, at in pickletools.genops(data) if at is not None)
    ends = [*places[1:], len(data)]
    return tuple(data[at:end] for at, end in zip(places, ends, strict=True))


def mutate_pickle(data: bytes, dice: random.Random, donor: bytes = b"") -> bytes:
    """Return a pickle with opcodes removed, repeated, moved, inserted or given other arguments."""
    data = erased(data)
    found = [*_opcodes(data)]
    if not found:
        raise ValueError("no pickle")
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        at = dice.randrange(len(found))
        match dice.randrange(9):
            case 0:
                del found[at : at + dice.choice((1, 1, 3, 50))]
                found = found or [b"."]
            case 1:
                found[at:at] = found[at : at + dice.choice((1, 4))] * dice.choice((1, 20))
            case 2 | 3:
                found[at:at] = [dice.choice(INSERTED)]
            case 4:
                other = dice.randrange(len(found))
                found[at], found[other] = found[other], found[at]
            case 5 | 6:
                found[at] = _with_argument(found[at], dice)
            case 7:
                many = dice.choice((30, 900, 5000))
                found[at:at] = dice.choice(
                    ([b"]"] * many, [b"("] * many + [b"t"] * many, [b"]"] * many + [b"a"] * many)
                )
            case 8:
                other_ones = _opcodes(erased(donor)) if donor[:1] == b"\x80" else (b"N",)
                begin = dice.randrange(len(other_ones) or 1)
                found[at:at] = other_ones[begin : begin + dice.choice((1, 10, 100))]
    return b"".join(found)


def _with_argument(one: bytes, dice: random.Random) -> bytes:
    """Return an opcode with another argument of the same length, or one at the edge."""
    code, argument = one[:1], one[1:]
    if not argument:
        return dice.choice(INSERTED)
    if len(argument) in (1, 2, 4, 8):
        return code + dice.choice(
            (
                bytes(len(argument)),
                b"\xff" * len(argument),
                b"\x80" * len(argument),
                dice.randbytes(len(argument)),
            )
        )
    changed = bytearray(argument)
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return code + bytes(changed)


def mutate_pickled_value(data: bytes, dice: random.Random) -> bytes:
    """Return the pickle of a changed value; only for a pickle of our own, which is unpickled here."""
    value = mutate_tree(pickle.loads(data), dice)  # noqa: S301  made by samples.py
    deep: list[object] = []
    if DEEP in repr(value):
        for _ in range(dice.choice((20, 400))):
            deep = [deep]
        if isinstance(value, dict):
            value[dice.choice([*value, "deep"])] = deep
    try:
        return pickle.dumps(value, dice.choice((2, 3, 4, 5)))
    except (RecursionError, UnicodeError, pickle.PicklingError):
        return data[: len(data) // 2]
