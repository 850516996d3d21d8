"""Untrusted TOML: input that would crash or stall the parser is refused with a message."""

from __future__ import annotations

import re
from typing import Any

MOST_BYTES = 2**18
# A key of thousands of parts takes the parser hours; ours have two parts.
_MOST_PARTS = 32
_LONG_KEY = re.compile(
    r"(?<![\w-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}" % _MOST_PARTS  # noqa: UP031
)
_LARGEST = 2**63


def parse_toml(raw: bytes) -> dict[str, Any]:
    """Return the tables of a TOML text; raise ValueError with what is wrong with it."""
    import tomllib

    if len(raw) > MOST_BYTES:
        raise ValueError(f"is too large: more than {MOST_BYTES // 1024} KiB")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ValueError("is not TOML, which is text in UTF-8") from None
    if _LONG_KEY.search(text):
        raise ValueError(f"has a key of more than {_MOST_PARTS} parts")
    try:
        document = tomllib.loads(text)
    except (RecursionError, tomllib.TOMLDecodeError) as error:
        too_deep = "brackets are nested too deeply"
        problem = too_deep if isinstance(error, RecursionError) else error
        raise ValueError(f"is not valid TOML: {problem}") from None
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend((f"{name}.{key}" if name else key, inner) for key, inner in value.items())
        elif isinstance(value, list):
            waiting.extend((name, inner) for inner in value)
        elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise ValueError(f"has an integer that is out of range: {name}")
        elif isinstance(value, float) and value != value:  # noqa: PLR0124  NaN alone differs from itself
            raise ValueError(f"has nan where a number is needed: {name}")
    return document
