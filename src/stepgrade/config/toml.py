"""TOML that may come from a stranger: what the parser cannot take is refused before, or in words."""

from __future__ import annotations

import re
from typing import Any

MOST_BYTES = 2**18
# A key of thousands of parts takes the parser hours; ours have two.
_MOST_PARTS = 32
_LONG_KEY = re.compile(
    r"(?<![\w-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}" % _MOST_PARTS  # noqa: UP031
)
_LARGEST = 2**63


def parse_toml(raw: bytes) -> dict[str, Any]:
    """Return the tables of a text; raise ValueError that says what is wrong with it."""
    import tomllib  # noqa: PLC0415  only with a file

    if len(raw) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES // 1024} KiB")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8, as TOML must be") from None
    if _LONG_KEY.search(text):
        raise ValueError(f"a key of more than {_MOST_PARTS} parts")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
    waiting: list[object] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise ValueError("a whole number of more than 64 bits")
        elif isinstance(value, float) and value != value:  # noqa: PLR0124  NaN alone differs from itself
            raise ValueError("a number that is none (nan)")
    return document
