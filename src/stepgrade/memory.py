"""Limit the memory that reading may take: by default to a quarter of the machine's.

The limit is on decoded objects, not on text: 100 kB of gzip can hold 100 million numbers. The costs below
were measured from the file to the written result, and rounded up.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from stepgrade.errors import TooLarge
from stepgrade.units import show_bytes

_SHARE = 4  # one part in so many of the machine's or container's memory
_UNKNOWN_BYTES = 8 << 30  # if the system does not report its memory
_OWN_BYTES = 512 << 20  # for the interpreter and its libraries
_FIELD_BYTES = 1300  # of `"name": value`: an operation becomes several objects on its way to a report
_VALUE_BYTES = 100
_CHARACTER_BYTES = 4
_LONG_BYTES = 32
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def default_limit() -> int:
    """Return a quarter of the memory that this machine, or the container in it, has."""
    known = []
    with suppress(ValueError, OSError, AttributeError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _LIMITS:
        with suppress(OSError, ValueError), open(path) as file:
            known.append(int(file.read(32)))  # "max" is not a number
    return min((size for size in known if size > 0), default=_UNKNOWN_BYTES) // _SHARE


def json_bytes(text: bytes) -> int:
    """Return how much memory a JSON text may take once it is decoded, scored and written."""
    fields, values = text.count(b":"), sum(map(text.count, (b",", b"[", b"{")))
    return fields * _FIELD_BYTES + values * _VALUE_BYTES + len(text) * _CHARACTER_BYTES


def check_json(text: bytes, most_bytes: int, where: str | None = None) -> None:
    """Raise TooLarge when decoding the text, which is valid JSON, may take more memory than `most_bytes`."""
    needed = json_bytes(text)
    if needed > most_bytes and text.count(b'"') * _LONG_BYTES < len(text):
        # Commas and colons inside strings are not values; short strings hold few of them.
        inside = (string[0] for string in _STRING.finditer(text))
        needed -= sum(json_bytes(string) - len(string) * _CHARACTER_BYTES for string in inside)
    check(needed, most_bytes, where)


def check(needed: int, most_bytes: int, where: str | None = None) -> None:
    """Raise TooLarge when `needed` is more than the limit."""
    if needed > most_bytes:
        limit = f"the limit is {show_bytes(most_bytes)}"
        problem = f"would take {show_bytes(needed)} of memory once decoded, and {limit}"
        raise TooLarge(problem, where=where, supply="a larger {max_memory} if you trust the file")


def limit_process(most_bytes: int) -> None:
    """Limit the memory of this process and its children; beyond it Python raises MemoryError. Linux only."""
    with suppress(ImportError, ValueError, OSError, AttributeError):
        import resource  # not on Windows

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most_bytes + _OWN_BYTES
        if os.name == "posix" and os.uname().sysname == "Linux" and (soft < 0 or most < soft):
            resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
