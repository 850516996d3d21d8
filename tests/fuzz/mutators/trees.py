"""Damage to what a file says: values of JSON, or of a pickle, that is still one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from tests.fuzz.mutators.havoc import CANARY

SECRET = CANARY.decode()
DEEP = "deep in each other"  # replaced by brackets once the rest is text
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, 1e-300, 1e308, -1e308, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63),
    -(2**70), float("nan"), float("inf"), float("-inf"), -0.0, "", "12", "NaN", "1e999", "x" * 999,
    "\x00\x1b[31m\u202e", '<b>&"]]>', "::error::x", "\ud800", [], {}, [[]], {"a": None}, [1, 2, 3], ["a"], DEEP,
    "ProfilerStep#" + "9" * 4301, "kernel", "cpu_op", "aten::mm", "nccl:all_reduce", "c10::BFloat16", "cuda_runtime",
    "gpu_memcpy", "ProfilerStep#1", "python_function", "Trace", "cpu_instant_event", "[memory]", "X", "B", "E", "i", "M",
    "s", "f", "C", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30T25:00:00Z", "2026-01-01", "https://h..x/y",
    "https://[::1]/x", "a\nb", "é" * 300, "\u0130",
)  # fmt: skip
FACTORS = (0, -1, 0.5, 1e3, 1e6, 1e-6, 1e-12, 1e300, 2**40, -1e6)


class Place:
    """A value in a tree: what holds it, and under which key."""

    def __init__(self, holder: Any, key: Any) -> None:
        self.holder, self.key = holder, key

    @property
    def value(self) -> Any:
        return self.holder[self.key]

    def put(self, value: Any) -> None:
        self.holder[self.key] = value


def _holds_secret(value: Any) -> bool:
    return SECRET in str(value) if isinstance(value, str | bytes) else False


def a_place(root: Any, dice: random.Random, depth: float = 0.85) -> Place | None:
    """Return a random place in the tree that is not the canary's; deep ones are likelier."""
    holder = root
    while isinstance(holder, dict | list) and holder:
        keys = [*holder] if isinstance(holder, dict) else range(len(holder))
        key = keys[dice.randrange(len(keys))]
        inner = holder[key]
        if isinstance(inner, dict | list) and inner and dice.random() < depth:
            holder = inner
            continue
        return None if _holds_secret(inner) or SECRET in str(key) else Place(holder, key)
    return None


def _has_secret(value: Any) -> bool:
    return SECRET in str(value)


def _replace(at: Place, dice: random.Random, other: Any) -> None:
    if not _has_secret(at.value):
        at.put(deepcopy(dice.choice(VALUES)))


def _scale(at: Place, dice: random.Random, other: Any) -> None:
    if isinstance(at.value, int | float):
        try:
            value = at.value * dice.choice(FACTORS)
            at.put(int(value) if isinstance(at.value, int) and dice.random() < 0.7 else value)
        except (OverflowError, ValueError):
            at.put(10**400)
    else:
        _replace(at, dice, other)


def _nudge(at: Place, dice: random.Random, other: Any) -> None:
    """Put another value of the same type, so that what reads it goes on."""
    value = at.value
    if isinstance(value, bool):
        at.put(not value)
    elif isinstance(value, int):
        at.put(
            dice.choice(
                (
                    0,
                    1,
                    -1,
                    value + 1,
                    value - 1,
                    -value,
                    2**31,
                    2**53,
                    2**62,
                    2**63 - 1,
                    -(2**63),
                    value * 1000,
                )
            )
        )
    elif isinstance(value, float):
        at.put(
            dice.choice(
                (
                    0.0,
                    -0.0,
                    -value,
                    value * 1e6,
                    value / 1e6,
                    1e-300,
                    1e300,
                    1e18,
                    -1e18,
                    float(int(value) if abs(value) < 1e300 else 0),
                )
            )
        )
    elif isinstance(value, str) and not _has_secret(value):
        rows = (
            [row for row in other[1][:200] if isinstance(row.get(at.key), str)]
            if isinstance(at.holder, dict)
            else []
        )
        texts = [row[at.key] for row in rows if not _has_secret(row[at.key])]
        odd = (
            value + "x",
            value[: len(value) // 2],
            value.upper(),
            value * 50,
            "",
            value + "#9",
            " " + value,
        )
        at.put(dice.choice((*odd, *dice.sample(texts, min(5, len(texts))))))
    else:
        _scale(at, dice, other)


def _delete(at: Place, dice: random.Random, other: Any) -> None:
    del at.holder[at.key]


def _repeat(at: Place, dice: random.Random, other: Any) -> None:
    if isinstance(at.holder, list) and not _has_secret(at.value):
        at.holder[at.key : at.key] = [deepcopy(at.value) for _ in range(dice.choice((1, 3, 50, 400)))]
    elif isinstance(at.holder, dict) and isinstance(at.key, str) and not _has_secret(at.value):
        for number in range(dice.choice((1, 40, 2000))):
            at.holder[f"{at.key}{number}"] = deepcopy(at.value)


def _retype(at: Place, dice: random.Random, other: Any) -> None:
    value = at.value
    if _has_secret(value):
        return
    if isinstance(value, dict):
        at.put(
            dice.choice(
                (
                    list(value.values()),
                    [value],
                    json.dumps(value, default=str),
                    list(map(list, value.items())),
                )
            )
        )
    elif isinstance(value, list):
        at.put(
            dice.choice(
                (dict(enumerate(map(str, value))), value[0] if value else None, {"0": value}, str(value))
            )
        )
    else:
        at.put(dice.choice(([value], {"a": value}, str(value), None if value else 1, bool(value), [[value]])))


def _rename(at: Place, dice: random.Random, other: Any) -> None:
    """Give a value the key of its neighbour, or an odd one."""
    if isinstance(at.holder, dict) and not _has_secret(at.value):
        value = at.holder.pop(at.key)
        odd = ("", "ts", "dur", "a.b", "x" * 500, "__class__", "\x00", str(at.key).upper(), str(at.key) + " ")
        others = [key for key in at.holder if not _has_secret(at.holder[key])]
        at.holder[dice.choice((*others, *odd))] = value


def _reorder(at: Place, dice: random.Random, other: Any) -> None:
    if isinstance(at.holder, list):
        dice.choice((dice.shuffle, list.reverse))(at.holder)
    elif isinstance(at.value, list):
        dice.shuffle(at.value)
    else:
        _rename(at, dice, other)


def _cut(at: Place, dice: random.Random, other: Any) -> None:
    if isinstance(at.holder, list):
        del at.holder[at.key :]
    else:
        for key in [*at.holder][len(at.holder) // 2 :]:
            del at.holder[key]


def _column(at: Place, dice: random.Random, other: Any) -> None:
    """Change the same key of all rows, as a clock that is wrong or a field that a new version writes otherwise."""
    rows = other[1]
    if not rows:
        return
    keys = sorted({key for row in rows[:50] for key in row if isinstance(key, str)})
    key = dice.choice(keys or [""])
    value, factor, shift = (
        dice.choice(VALUES),
        dice.choice(FACTORS),
        dice.choice((0, -1500, 5e4, -5e4, 1e5, -1e9, -1e15, 1e15, 2**62, 0.5)),
    )
    how = dice.randrange(6)
    for row in _some_rows(rows, keys, dice):
        inner = row.get(key)
        if _has_secret(inner):
            continue
        if how == 0 and key in row:
            del row[key]
        elif how == 1:
            row[key] = value
        elif how in (2, 3) and isinstance(inner, int | float):
            row[key] = inner * factor if how == 2 else inner + shift
        elif how == 4 and key in row:
            row[key] = str(inner)
        elif how == 5:
            row[key] = (
                row.get(dice.choice(keys))
                if not _has_secret(row.get(keys[0])) and not _has_secret(row)
                else inner
            )


def _some_rows(rows: list[dict[Any, Any]], keys: list[str], dice: random.Random) -> list[dict[Any, Any]]:
    """Return all rows, those from one on, a part of them, or those of one process, name or kind."""
    match dice.randrange(6):
        case 0 | 1:
            return rows
        case 2:
            return rows[dice.randrange(len(rows)) :]
        case 3:
            share = dice.choice((0.5, 0.1))
            return [row for row in rows if dice.random() < share]
        case _:
            by = dice.choice(
                [key for key in ("pid", "tid", "cat", "name", "ph") if key in keys] or keys or [""]
            )
            wanted = dice.choice(rows).get(by)
            return [row for row in rows if row.get(by) == wanted]


def _cross(at: Place, dice: random.Random, other: Any) -> None:
    """Take a value from another file, or rows of it among these."""
    donor = other[0]
    found = a_place(donor, dice, 0.7) if donor is not None else None
    if found is None or _has_secret(found.value) or _has_secret(at.value):
        return
    if isinstance(at.holder, list) and isinstance(found.holder, list):
        some = [
            one
            for one in found.holder[found.key : found.key + dice.choice((1, 5, 60))]
            if not _has_secret(one)
        ]
        at.holder[at.key : at.key] = deepcopy(some)
    else:
        at.put(deepcopy(found.value))


Change = Callable[[Place, random.Random, Any], None]
CHANGES: tuple[Change, ...] = (
    _replace, _replace, _scale, _scale, _nudge, _nudge, _nudge, _nudge, _nudge, _delete, _delete, _repeat, _retype, _rename, _reorder, _cut, _column,
    _column, _column, _cross, _cross,
)  # fmt: skip


def rows_of(root: Any, depth: int = 3) -> list[dict[Any, Any]]:
    """Return the objects of the longest list in the tree."""
    best: list[dict[Any, Any]] = []
    if depth and isinstance(root, list):
        best = [one for one in root if isinstance(one, dict)]
    for inner in root.values() if isinstance(root, dict) else root[:20] if isinstance(root, list) else ():
        if depth and isinstance(inner, dict | list):
            found = rows_of(inner, depth - 1)
            best = found if len(found) > len(best) else best
    return best


def mutate_tree(root: Any, dice: random.Random, donor: Any = None) -> Any:
    """Return the tree with one to eight changes made in place."""
    around = {"root": root}
    for _ in range(dice.choice((1, 1, 1, 2, 2, 3, 8))):
        at = a_place(around, dice, 0.97)
        if at is not None:
            dice.choice(CHANGES)(at, dice, (donor, rows_of(around["root"])))
        if "root" not in around:
            around["root"] = {}
    return around["root"]


def json_text(value: Any, dice: random.Random) -> bytes:
    """Return a tree as JSON text, of one of the ways to write it."""
    indent, ascii_only = dice.choice((None, None, 1)), dice.random() < 0.7
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, default=str)
    except (ValueError, RecursionError):
        return b"{}"
    if DEEP in text:
        many = dice.choice((50, 600, 3000))
        deep = dice.choice(("[" * many + "]" * many, '{"a":' * many + "1" + "}" * many, "[" * many))
        text = text.replace(f'"{DEEP}"', deep)
    return text.encode("utf-8", "surrogatepass")


def mutate_json(text: bytes, dice: random.Random, donor: bytes = b"") -> bytes:
    """Return JSON text with changes of its values; raise ValueError for what is none."""
    other = None
    if donor[:1] in (b"{", b"["):
        try:
            other = json.loads(donor)
        except (ValueError, RecursionError):
            other = None
    return json_text(mutate_tree(json.loads(text), dice, other), dice)


def mutate_json_lines(text: bytes, dice: random.Random, donor: bytes = b"") -> bytes:
    """Return lines of JSON with some of them changed, moved or repeated; raise ValueError for none."""
    lines = text.splitlines(keepends=True)
    if not lines or not any(line.lstrip()[:1] == b"{" for line in lines[:40]):
        raise ValueError("no line is an object")
    for _ in range(dice.choice((1, 2, 4))):
        at = dice.randrange(len(lines))
        match dice.randrange(6):
            case 0 | 1 | 2:
                try:
                    lines[at] = (
                        json_text(mutate_tree(json.loads(lines[at]), dice), dice).replace(b"\n", b" ") + b"\n"
                    )
                except (ValueError, RecursionError):
                    continue
            case 3:
                lines[at:at] = [lines[dice.randrange(len(lines))]] * dice.choice((1, 30))
            case 4:
                other = lines[dice.randrange(len(lines))]
                lines[at] = lines[at].rstrip() + other
            case 5:
                del lines[at]
                lines = lines or [b"\n"]
    if donor and dice.random() < 0.2:
        lines[len(lines) // 2 : 0] = donor.replace(CANARY, b"x" * len(CANARY)).splitlines(keepends=True)[:50]
    return b"".join(lines)
