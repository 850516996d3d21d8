"""Recognise a PyTorch profiler trace by its first bytes."""

from __future__ import annotations

import re
import zlib
from typing import Final

from stepgrade.readers.kineto.eras import USED_CATEGORIES
from stepgrade.readers.kineto.source import GZIP_MAGIC

_MOST_BYTES: Final = 1 << 20
_KEYS: Final = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo|trace_id)"\s*:'
)
_CATEGORY: Final = re.compile(
    rb'"cat"\s*:\s*"(?:' + b"|".join(re.escape(c.encode()) for c in sorted(USED_CATEGORIES)) + rb')"'
)
_OTHER: Final = re.compile(rb'"(?:rocprofiler-sdk-tool|highres-ticks)"\s*:')


def looks_like_kineto(head: bytes) -> bool:
    """Tell from the first bytes of a file (64 KB are plenty), gzipped or not, whether Kineto wrote it."""
    text = _gunzip(head) if head.startswith(GZIP_MAGIC) else head
    start = text.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start == b"[":
        return _CATEGORY.search(text) is not None
    if start != b"{" or (_OTHER.search(text) and not _CATEGORY.search(text)):
        return False
    return _CATEGORY.search(text) is not None or (_KEYS.search(text) is not None and _is_first_level(text))


def _is_first_level(text: bytes) -> bool:
    # A key of ours before any other object opens, or the array of events itself.
    key = _KEYS.search(text)
    return b'"traceEvents"' in text or (key is not None and text.count(b"{", 0, key.start()) == 1)


def _gunzip(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(packed, _MOST_BYTES)
    except zlib.error:
        return b""
