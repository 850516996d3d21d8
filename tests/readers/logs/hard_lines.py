"""Lines on which a regular expression takes long, made from the expression itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_HARD = (b"a", b"0", b" ", b",", b".", b"=", b":", b"a ", b"0 ", b"0,", b"a=", b"x:0 ", b"step 1 ")
_REPEATS = (_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT)
_GROUPS = (_parser.SUBPATTERN, _parser.ATOMIC_GROUP, _parser.ASSERT, _parser.ASSERT_NOT)
_CHARACTERS = (_parser.LITERAL, _parser.NOT_LITERAL, _parser.ANY, _parser.IN)
_CATEGORIES = {
    _parser.CATEGORY_DIGIT: rb"\d",
    _parser.CATEGORY_NOT_DIGIT: rb"\D",
    _parser.CATEGORY_SPACE: rb"\s",
    _parser.CATEGORY_NOT_SPACE: rb"\S",
    _parser.CATEGORY_WORD: rb"\w",
    _parser.CATEGORY_NOT_WORD: rb"\W",
}
_EVERY_BYTE = frozenset(range(256))
Parsed = Sequence[tuple[Any, Any]]  # operators and what they act on


def parse(pattern: bytes, flags: int = 0) -> Parsed:
    """Return an expression as Python's own parser sees it."""
    parsed: Parsed = _parser.parse(pattern, flags)
    return parsed


def hard_lines(parsed: Parsed) -> Iterator[tuple[bytes, bytes]]:
    """Yield the beginnings of lines and what to repeat after them, so that a pattern has many ways to fail.

    They match as far as one of its repetitions and go on with what is repeated there, or begin the same again
    and again.
    """
    yield from ((b"", part) for part in _HARD)
    sets = [*character_sets(parsed)]
    members = sorted(
        {min(known & other) for known in sets for other in (*sets, _EVERY_BYTE) if known & other}
    )
    yield from ((b"", bytes([member])) for member in members[:64])
    before = b""
    for operator, of in _in_a_row(parsed):
        if before:
            yield b"", before
        if operator in _REPEATS and of[0] != of[1]:
            inner = shortest(of[2])
            yield before, inner or b"a"
            known = next(iter(character_sets(of[2])), frozenset())
            if len(inner) == 1:
                yield from ((before, bytes([member])) for member in members[:16] if member in known)
        before += shortest([(operator, of)])


def _inside(of: Any) -> Parsed:
    """Return what a group holds: of what Python keeps about it, the last."""
    inner: Parsed = of[-1] if isinstance(of, tuple) else of
    return inner


def _in_a_row(parsed: Parsed) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a pattern without the groups around them; what may be missing is there."""
    for operator, of in parsed:
        is_maybe = operator in _REPEATS and of[1] == 1 and len(of[2]) > 1
        if is_maybe or operator in (_parser.SUBPATTERN, _parser.ATOMIC_GROUP):
            yield from _in_a_row(_inside(of))
        else:
            yield operator, of


def shortest(parsed: Parsed) -> bytes:
    """Return a short text that a pattern matches, without what it looks for before or behind."""
    text = b""
    for operator, of in _in_a_row(parsed):
        if operator in _CHARACTERS:
            text += bytes([min(characters([(operator, of)]) - {10} or {10})])
        elif operator in _REPEATS:
            text += shortest(of[2]) * max(of[0], min(of[1], 1))
        elif operator is _parser.BRANCH:
            text += shortest(of[1][0])
    return text


def character_sets(parsed: Parsed) -> Iterator[frozenset[int]]:
    """Yield which bytes each character of a pattern stands for."""
    for operator, of in parsed:
        if operator in _CHARACTERS:
            yield characters([(operator, of)])
        elif operator is _parser.BRANCH:
            for branch in of[1]:
                yield from character_sets(branch)
        elif operator in _REPEATS or operator in _GROUPS:
            yield from character_sets(_inside(of))


def characters(items: Parsed) -> frozenset[int]:
    """Return which bytes stand for one of these characters, ranges and kinds."""
    known: set[int] = set()
    negated = False
    for operator, of in items:
        if operator is _parser.LITERAL:
            known.add(of)
        elif operator is _parser.NOT_LITERAL:
            known |= _EVERY_BYTE - {of}
        elif operator is _parser.ANY:
            known |= _EVERY_BYTE - {10}
        elif operator is _parser.RANGE:
            known |= {*range(of[0], of[1] + 1)}
        elif operator is _parser.CATEGORY:
            pattern = re.compile(_CATEGORIES.get(of, rb"."))
            known |= {byte for byte in _EVERY_BYTE if pattern.fullmatch(bytes([byte]))}
        elif operator is _parser.IN:
            known |= characters(of)
        negated = negated or operator is _parser.NEGATE
    return frozenset(_EVERY_BYTE - known if negated else known)
