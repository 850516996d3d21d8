"""Dialects of one's own: [[dialect]] in stepgrade.toml, checked before any log is read with them.

A pattern from a stranger's file can take longer than the universe on one line. So none is taken that repeats
what can be matched in several ways, or that takes more than its time on lines made to be hard for it; and
each has so many seconds for a whole log.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from stepgrade.config import DialectTable
from stepgrade.errors import BadConfig, BadInput, did_you_mean
from stepgrade.readers.logs.dialect import COLUMNS, GIB, MIB, Dialect, Field

# What a number is called in a file of settings, where its unit is not ours.
_UNITS = {
    "step_ms": ("step_s", 1e-3),
    "interval_ms": ("interval_s", 1e-3),
    "elapsed_ms": ("elapsed_s", 1e-3),
    "mfu_percent": ("mfu", 1e-2),
    "memory_gib": ("memory_bytes", GIB),
    "memory_mib": ("memory_bytes", MIB),
}
NAMES = (*COLUMNS, *_UNITS)
_MOST_PATTERN = 1000
# A line of this many bytes must be looked through in so many seconds of the processor, shorter ones first; of
# a longer line no more is seen.
_LONGEST, _MOST_S = 1024, 0.05
_SOON_S = 5e-5
# On all lines of a log together; a hundred thousand of them take seconds.
_MOST_LOG_S = 120.0
_HARD = (b"a", b"0", b" ", b",", b".", b"=", b":", b"a ", b"0 ", b"0,", b"a=", b"x:0 ", b"step 1 ")
_MOST_REPEATS = 24  # each that may be there or not doubles the ways
_MOST_COUNT = 64  # of a repetition inside another, which must be exact
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
Parsed = Sequence[tuple[Any, Any]]  # what Python makes of a pattern: operators and what they act on


def dialects_from(tables: Sequence[DialectTable]) -> tuple[Dialect, ...]:
    """Return the dialects that a stepgrade.toml describes; raise BadConfig at the one that is wrong."""
    return tuple(dialect_of(table, f"dialect[{number}]") for number, table in enumerate(tables))


def dialect_of(table: DialectTable, where: str) -> Dialect:
    """Return the dialect that one table describes; raise BadConfig at `where`."""
    if not table.contains.strip():
        raise BadConfig("needs some text that is in every line", where=f"{where}.contains")
    if bool(table.pattern) == bool(table.fields):
        raise BadConfig("needs either a pattern or fields", where=where)
    names = tuple(table.fields) or check_pattern(table.pattern, f"{where}.pattern")
    for name in names:
        if name not in NAMES:
            raise BadConfig(f"there is no {name!r}", where=where, hint=did_you_mean(name, NAMES))
    if "step" not in names:
        raise BadConfig("needs a step", where=where)
    fields = tuple(
        Field(re.escape(before), *_UNITS.get(name, (name, 1.0))) for name, before in table.fields.items()
    )
    return Dialect(
        name=f"own: {table.name}",
        framework=table.name,
        anchor=table.contains.encode(),
        fields=fields,
        pattern=table.pattern or None,
        mean=table.mean,
        rank=-1,
    )


def unit_of(name: str) -> tuple[str, float]:
    """Return the column that a group of a pattern is, and its unit in ours."""
    return _UNITS.get(name, (name, 1.0))


class OwnPattern:
    """A pattern of one's own on the lines of one log, for so many seconds in all."""

    def __init__(self, pattern: str, name: str) -> None:
        self._compiled = re.compile(pattern.encode())
        self._name = name
        self._left_s = _MOST_LOG_S

    def groups(self, line: bytes) -> dict[str, bytes]:
        """Return the named groups in a line, none where it does not match; raise BadInput past the time."""
        begun = time.process_time()
        found = self._compiled.search(line, 0, _LONGEST)
        self._left_s -= time.process_time() - begun
        if self._left_s < 0.0:
            problem = f"takes more than {_MOST_LOG_S:.0f} s on this log"
            raise BadInput(problem, where=f"the pattern of {self._name}", hint="describe the line by fields")
        return found.groupdict() if found else {}


def check_pattern(pattern: str, where: str) -> tuple[str, ...]:
    """Return the named groups of a pattern; raise BadConfig for one that is wrong or may take too long."""
    if len(pattern) > _MOST_PATTERN:
        raise BadConfig(f"is longer than {_MOST_PATTERN} characters", where=where)
    hint = "describe the line by fields instead, or repeat only what cannot be matched in two ways"
    try:
        parsed = _parser.parse(pattern.encode())
        if not is_plain(parsed):
            problem = "repeats a repetition or a choice, or refers back: it may take forever"
            raise BadConfig(problem, where=where, hint=hint)
        compiled = re.compile(pattern.encode())
    except (re.error, OverflowError, RecursionError) as error:
        raise BadConfig(f"is no pattern: {error}", where=where) from error
    if (
        sum(1 for operator, of in _in_a_row(parsed) if operator in _REPEATS and of[0] != of[1])
        > _MOST_REPEATS
    ):
        raise BadConfig(f"has more than {_MOST_REPEATS} repetitions", where=where, hint=hint)
    least = int(parsed.getwidth()[0])  # what is shorter fails at once, and says nothing
    for part, repeated in hard_lines(parsed):
        more = 4.0
        while (size := least + int(more)) <= _LONGEST:
            line = (part + repeated * (size // len(repeated) + 1))[:size] + b"\x00"
            took = _search_s(compiled, line)
            if took > _MOST_S and _search_s(compiled, line) > _MOST_S:  # twice: a machine may be busy once
                raise BadConfig("takes too long on lines that are hard for it", where=where, hint=hint)
            more *= 1.6 if took < _SOON_S else 1.25
    return tuple(compiled.groupindex)


def _search_s(compiled: re.Pattern[bytes], line: bytes) -> float:
    begun = time.process_time()
    compiled.search(line)
    return time.process_time() - begun


def is_plain(parsed: Parsed, *, is_repeated: bool = False) -> bool:
    """Tell whether what is repeated can be matched in one way: characters in a row, each so many times.

    Then the ways to match a line are no more than the lengths of its repetitions, one by one: a power of the
    line's length, which `hard_lines` show, and never two to that length.
    """
    for operator, of in parsed:
        if operator in _REPEATS:
            least, most, inner = of
            is_count = least == most <= _MOST_COUNT and all(part in _CHARACTERS for part, _ in inner)
            if (is_repeated and not is_count) or least > _LONGEST:
                return False
            if not is_plain(inner, is_repeated=is_repeated or most > 1):
                return False
        elif operator is _parser.BRANCH:
            if is_repeated or not all(map(is_plain, of[1])):
                return False
        elif operator in _GROUPS:
            if not is_plain(_inside(of), is_repeated=is_repeated):
                return False
        elif operator not in (*_CHARACTERS, _parser.AT):
            return False  # what refers back, or what a later Python adds
    return True


def hard_lines(parsed: Parsed) -> Iterator[tuple[bytes, bytes]]:
    """Yield the beginnings of lines and what to repeat after them, so that a pattern has many ways to fail.

    They match as far as one of its repetitions and go on with what is repeated there, or begin the same again
    and again.
    """
    yield from ((b"", part) for part in _HARD)
    sets = [*character_sets(parsed)]
    places = sorted({min(known & other) for known in sets for other in (*sets, _EVERY_BYTE) if known & other})
    yield from ((b"", bytes([place])) for place in places[:64])
    before = b""
    for operator, of in _in_a_row(parsed):
        if before:
            yield b"", before
        if operator in _REPEATS and of[0] != of[1]:
            inner = shortest(of[2])
            yield before, inner or b"a"
            known = next(iter(character_sets(of[2])), frozenset())
            if len(inner) == 1:
                yield from ((before, bytes([place])) for place in places[:16] if place in known)
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
            known |= {place for place in _EVERY_BYTE if pattern.fullmatch(bytes([place]))}
        elif operator is _parser.IN:
            known |= characters(of)
        negated = negated or operator is _parser.NEGATE
    return frozenset(_EVERY_BYTE - known if negated else known)
