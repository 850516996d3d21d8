"""Dialects of one's own: [[dialect]] in stepgrade.toml, checked before any log is read with them.

A pattern from a stranger's file can take longer than the universe on one line. So none is taken that has a
repetition inside a repetition, or that takes more than its time on lines made to be hard for it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from stepgrade.config import DialectTable
from stepgrade.errors import BadConfig, did_you_mean
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
_NESTED = re.compile(r"\((?:[^()\\]|\\.)*[*+}](?:[^()\\]|\\.)*\)(?:[*+]|\{\d*,)")
_BACK_REFERENCE = re.compile(r"\\[1-9]|\(\?P=")
# A line of this many characters must be looked through in so many seconds; shorter ones come first.
_LONGEST, _MOST_S = 1024, 0.02
_HARD = ("a", "0", " ", ",", ".", "=", ":", "a ", "0 ", "0,", "a=", "x:0 ", "step 1 ")


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


def check_pattern(pattern: str, where: str) -> tuple[str, ...]:
    """Return the named groups of a pattern; raise BadConfig for one that is wrong or may take too long."""
    if len(pattern) > _MOST_PATTERN:
        raise BadConfig(f"is longer than {_MOST_PATTERN} characters", where=where)
    hint = "describe the line by fields instead, or repeat only what cannot be matched in two ways"
    if _NESTED.search(pattern) or _BACK_REFERENCE.search(pattern):
        raise BadConfig("repeats a repetition, or refers back: it may take forever", where=where, hint=hint)
    try:
        compiled = re.compile(pattern.encode())
    except (re.error, OverflowError, RecursionError) as error:
        raise BadConfig(f"is no pattern: {error}", where=where) from error
    size = 6.0
    while size <= _LONGEST:
        for part in (*_HARD, *re.findall(r"[A-Za-z]{2,12}", pattern)[:8]):
            line = (part * (int(size) // len(part) + 1))[: int(size)].encode() + b"\x00"
            begun = time.process_time()
            compiled.search(line)
            if time.process_time() - begun > _MOST_S:
                raise BadConfig("takes too long on lines that are hard for it", where=where, hint=hint)
        size *= 1.25
    return tuple(compiled.groupindex)
