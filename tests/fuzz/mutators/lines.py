"""Damage to text by its lines: logs, tables, configurations."""

from __future__ import annotations

import random
import re

from tests.fuzz.mutators.havoc import CANARY, NUMBERS, erased

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d|\d\d:\d\d:\d\d")
UNITS = (
    b"ms",
    b"s",
    b"us",
    b"ns",
    b"min",
    b"h",
    b"k",
    b"M",
    b"G",
    b"GiB",
    b"MB",
    b"tok/s",
    b"it/s",
    b"s/it",
    b"%",
    b"",
)
ODD_LINES = (
    b"", b" ", b"\t" * 300, b"\x1b[32mstep\x1b[0m 7", b"100%|##########| 60/60 [00:30<00:00,  2.00it/s]\r", b"\r" * 60, b"{", b"}",
    b"step: 1e308 loss: nan", b"step 5 " + b"9" * 4400, b"Traceback (most recent call last):", b"Epoch 1/3", b"Resuming from step 3",
    b"saving checkpoint", b"::error file=x::y", b"##vso[task.complete]x", (b"torch.OutOfMemoryError: CUDA out of memory. Tried to "
    b"allocate 99999999999999999999.00 GiB."), b"\xff\xfe\x00", b"step=1 step=2 step=3", b"a" * 70_000,
)  # fmt: skip
TOML_VALUES = (
    b"0", b"-1", b"1e308", b"nan", b"inf", b"-inf", b"true", b'""', b'"x"', b"[]", b"{}", b"[1, 2]", b"[[1]]", b'["a"]', b"2030-01-01",
    b"0001-01-01", b"9999-12-31T23:59:59Z", b"12:00:00", b"0x7fffffffffffffff", b"9223372036854775808", b"'''x\ny'''", b'"\\u0000"',
    b"{a = {b = 1}}", b'"' + b"x" * 3000 + b'"', b"0.5", b"1_000", b"'(a+)+$'", b"'[[:x'", b"'(?P<step>'",
)  # fmt: skip


def _safe(line: bytes) -> bool:
    return CANARY[:8] not in line


def mutate_lines(text: bytes, dice: random.Random, donor: bytes = b"") -> bytes:
    """Return text with lines split, joined, moved, mixed with another log's, or written another way."""
    lines = text.split(b"\n")
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        lines = _changed(lines, dice, erased(donor).split(b"\n")) or [b""]
    return _rewritten(b"\n".join(lines), dice)


def _changed(lines: list[bytes], dice: random.Random, donor: list[bytes]) -> list[bytes]:
    at = dice.randrange(len(lines))
    end = at + dice.choice((1, 3, 20, len(lines)))
    some = lines[at:end]
    match dice.randrange(13):
        case 0:
            return [*lines[:at], *(line for line in some if not _safe(line)), *lines[end:]]
        case 1:
            return [
                *lines[:at],
                *[line for line in some if _safe(line)] * dice.choice((2, 5, 30)),
                *lines[end:],
            ]
        case 2 if all(map(_safe, some)):
            return [*lines[:at], b"".join(some), *lines[end:]]
        case 3 if _safe(lines[at]):
            cut = dice.randrange(len(lines[at]) + 1)
            return [*lines[:at], lines[at][:cut], lines[at][cut:], *lines[at + 1 :]]
        case 4:  # times that go backwards
            return [*lines[:at], *reversed(some), *lines[end:]]
        case 5:
            mixed = list(some)
            dice.shuffle(mixed)
            return [*lines[:at], *mixed, *lines[end:]]
        case 6:  # two processes that write into one file
            woven = [
                one
                for pair in zip(some, donor * (1 + len(some) // max(1, len(donor))), strict=False)
                for one in pair
            ]
            return [*lines[:at], *woven, *lines[end:]]
        case 7:
            return [*lines[:at], dice.choice(ODD_LINES), *lines[at:]]
        case 8:  # numbers of a column, everywhere
            return [*lines[:at], *_renumbered(some, dice), *lines[end:]]
        case 9:  # units
            unit = dice.choice(UNITS)
            return [
                *lines[:at],
                *(
                    re.sub(rb"(?<=\d) ?(ms|s|GiB|GB|MB|%)\b", unit, one) if _safe(one) else one
                    for one in some
                ),
                *lines[end:],
            ]
        case 10:
            moment = dice.choice(
                (b"00:00:00", b"99:99:99", b"1970-01-01 00:00:00", b"2026-02-30 25:61:61", b"")
            )
            return [
                *lines[:at],
                *(_TIME.sub(moment, one) if _safe(one) else one for one in some),
                *lines[end:],
            ]
        case 11:
            return [
                *lines[:at],
                *(b"\x1b[1;3%dm%s\x1b[0m" % (dice.randrange(8), one) for one in some),
                *lines[end:],
            ]
        case _:  # fields of a table
            return [*lines[:at], *(_recelled(one, dice) if _safe(one) else one for one in some), *lines[end:]]


def _renumbered(lines: list[bytes], dice: random.Random) -> list[bytes]:
    """Replace the n-th number of each line: by one value, by counting, or by a multiple."""
    which, value, factor, how = (
        dice.randrange(6),
        dice.choice(NUMBERS),
        dice.choice((0.0, -1.0, 1e6, 1e-9, 1e300)),
        dice.randrange(3),
    )
    found = []
    for place, line in enumerate(lines):
        numbers = list(_NUMBER.finditer(line))
        if which >= len(numbers) or not _safe(line):
            found.append(line)
            continue
        match = numbers[which]
        if how == 0:
            put = value
        elif how == 1:
            put = b"%d" % (len(lines) - place)
        else:
            put = repr(float(match[0][:300]) * factor).encode()
        found.append(line[: match.start()] + put + line[match.end() :])
    return found


def _recelled(line: bytes, dice: random.Random) -> bytes:
    sign = next((sign for sign in (b",", b"\t", b";", b"|", b" ") if sign in line), b",")
    cells = line.split(sign)
    at = dice.randrange(len(cells))
    match dice.randrange(6):
        case 0:
            del cells[at]
        case 1:
            cells[at:at] = [cells[at]] * dice.choice((1, 40))
        case 2:
            dice.shuffle(cells)
        case 3:
            cells[at] = dice.choice((b'"', b'"a', b'""', b'"a\nb"', b"=1+1", b"NaN", b"", b"1,5"))
        case 4:
            cells[at] = dice.choice(NUMBERS)
        case _:
            return dice.choice((b";", b"\t", b", ", b" | ")).join(cells)
    return sign.join(cells)


def _rewritten(text: bytes, dice: random.Random) -> bytes:
    """Return the text with other line ends, another encoding, or a mark in front, now and then."""
    chance = dice.random()
    if chance < 0.8:
        return text
    if chance < 0.85:
        return text.replace(b"\n", b"\r\n")
    if chance < 0.88:
        return text.replace(b"\n", b"\r")
    if chance < 0.9:
        return text.replace(b"\n", dice.choice((b"\x0b", b"\x85", b"\xe2\x80\xa8", b"\n\n\n", b"\0")))
    if chance < 0.93:
        return b"\xef\xbb\xbf" + text
    coding = dice.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037"))
    return erased(text).decode("utf-8", "replace").encode(coding, "replace")


def mutate_toml(text: bytes, dice: random.Random, donor: bytes = b"") -> bytes:
    """Return a configuration with other values, keys or tables, most of which is still TOML."""
    lines = text.split(b"\n")
    for _ in range(dice.choice((1, 1, 2, 3))):
        at = dice.randrange(len(lines))
        key, sign, _ = lines[at].partition(b" = ")
        match dice.randrange(7):
            case 0 | 1 | 2 if sign and _safe(lines[at]):
                lines[at] = key + b" = " + dice.choice(TOML_VALUES)
            case 3:
                lines[at:at] = [
                    dice.choice(
                        (
                            b"extra = 1",
                            b"[gate]",
                            b"[[budget]]",
                            b"[limits]",
                            b"[a.b.c]",
                            b'"" = 1',
                            key or b"x",
                        )
                    )
                ]
            case 4:
                lines[at:at] = lines[dice.randrange(len(lines)) :][: dice.choice((1, 5, 40))]
            case 5:
                del lines[at]
                lines = lines or [b""]
            case _:
                begin = dice.randrange(len(lines))
                lines[at], lines[begin] = lines[begin], lines[at]
    if donor and dice.random() < 0.05:
        lines += erased(donor)[:2000].split(b"\n")
    return b"\n".join(lines)
