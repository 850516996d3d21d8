"""Damage without knowledge of the format: bytes, numbers, names and pieces of a file.

Damage leaves a margin around the canary: it may be removed, but not moved to a place where a name is expected.
"""

from __future__ import annotations

import random
import re

CANARY = b"hf_canaryTOKEN0123456789"
HARMLESS = b"hf_erasedTOKEN0123456789"
MARGIN = 160
TOKENS = (
    b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"\\", b"NaN", b"null", b"true", b"-", b"1e999", b"\0", b"},{",
    b"\r\n", b"[" * 3000, b'{"a":' * 1500, b"\xff\xfe", b"\\ud83d", b"9" * 400, b"0x10", b"-0.0", b"1E5",
    b'"traceEvents":[', b'"_profiler":', b"[[budget]]\n", b"a.b.c=1\n", b"\x1b[2J", b"<script>", b"]]>", b"::error::",
)  # fmt: skip
NUMBERS = (
    b"0", b"-1", b"1", b"1e-300", b"1e308", b"-1e308", b"9223372036854775807", b"9223372036854775808",
    b"18446744073709551615", b"18446744073709551616", b"1" + b"0" * 400, b"1" + b"0" * 5000, b'"x"', b"null", b"[]",
    b"{}", b"true", b"0.0000001", b"1e18", b"4294967296", b"nan", b"inf", b"-9223372036854775808", b"2147483648",
)  # fmt: skip
NAMES = (
    b'""', b"null", b'"kernel"', b'"cpu_op"', b'"user_annotation"', b'"python_function"', b'"ProfilerStep#3"',
    b'"ProfilerStep#' + b"9" * 4301 + b'"', b'"M"', b'"Optimizer.step#A.step"', b'"nn.Module: Block_1"', b"5",
    b'"' + b"x" * 5000 + b'"', b'"\\u0000\\u001b[31m\\u202e"', b'"<b>&\\"]]>"', b'"::stop-commands::x"',
    b'"\xf0\x9f\x98\x80|`*_"', b'"aten::mm"', b'"aten::convolution"', b'"ncclDevKernel_AllReduce"', b'"nccl:all_reduce"',
)  # fmt: skip


def erased(text: bytes) -> bytes:
    """Return the text without the canary, for damage that may move it to where a name is shown."""
    return text.replace(CANARY, HARMLESS)


def damaged_text(text: bytes, dice: random.Random) -> bytes:
    """Return the text with a few bytes, numbers and names changed, removed, repeated or cut off."""
    body = bytearray(text)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8, 30))):
        dice.choice((_flip, _insert, _remove, _repeat, _renumber, _renumber, _rename, _cut))(body, dice)
    return bytes(body)


def damaged_bytes(data: bytes, dice: random.Random, most: int = 40) -> bytes:
    """Return a binary file with some bytes changed, runs of bytes or pages overwritten, or its end cut off."""
    body = bytearray(data or b"\0")
    for _ in range(dice.choice((1, 2, 5, most))):
        at = dice.randrange(len(body))
        if dice.random() < 0.5:
            body[at] = dice.randrange(256)
        else:
            piece = dice.choice((dice.randbytes(40), b"\xff" * 300, b"\0" * 4096))
            body[at : at + len(piece)] = piece
    if dice.random() < 0.1:
        del body[dice.randrange(len(body)) :]
    return bytes(body)


def spliced(text: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return the beginning of one file and the end of another."""
    return erased(text[: dice.randrange(len(text) + 1)] + other[dice.randrange(len(other) + 1) :])


def _place(body: bytearray, dice: random.Random) -> int:
    """Return a place that is not near the canary."""
    for _ in range(20):
        at = dice.randrange(len(body) + 1)
        low = max(0, at - MARGIN)
        if CANARY[:8] not in body[low : at + MARGIN]:
            return at
    return 0


def _flip(body: bytearray, dice: random.Random) -> None:
    at = _place(body, dice)
    if at < len(body):
        body[at] ^= 1 << dice.randrange(8)


def _insert(body: bytearray, dice: random.Random) -> None:
    at = _place(body, dice)
    body[at:at] = dice.choice((*TOKENS, bytes((dice.randrange(256),))))


def _remove(body: bytearray, dice: random.Random) -> None:
    low, high = sorted((_place(body, dice), _place(body, dice)))
    if dice.random() < 0.8:
        high = min(high, low + dice.choice((1, 3, 50, 2000)))
        if CANARY[:8] in body[max(0, high - MARGIN) : high + MARGIN]:
            return
    del body[low:high]


def _repeat(body: bytearray, dice: random.Random) -> None:
    at, low = _place(body, dice), _place(body, dice)
    piece = bytes(body[low : low + dice.choice((10, 300, 5000))])
    if CANARY[:8] not in piece and not piece.endswith(b"hf_"):
        body[at:at] = piece * dice.choice((1, 1, 3))


def _cut(body: bytearray, dice: random.Random) -> None:
    if dice.random() < 0.3:
        del body[_place(body, dice) :]


def _replace(body: bytearray, dice: random.Random, pattern: bytes, values: tuple[bytes, ...]) -> None:
    at = _place(body, dice)
    match = re.compile(pattern).search(body, at, at + 2000)
    if match and CANARY[:8] not in body[max(0, match.start() - MARGIN) : match.end() + MARGIN]:
        body[match.start() : match.end()] = dice.choice(values)


def _renumber(body: bytearray, dice: random.Random) -> None:
    _replace(body, dice, rb"-?\d+(\.\d+)?([eE][+-]?\d+)?", NUMBERS)


def _rename(body: bytearray, dice: random.Random) -> None:
    _replace(body, dice, rb'"[^"]{0,40}"', NAMES)
