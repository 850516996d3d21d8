"""Read request bodies: decompressed as they arrive, up to a limit."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import anyio
from starlette.requests import Request

from stepgrade.web.access import Refused

_SLOW_BODY_S = 60.0
_LEAST_BYTES_PER_S = 64 << 10


async def read_into(request: Request, take: Callable[[bytes], object], most: int) -> None:
    """Pass the decompressed parts of a body to `take`; raise Refused if it is too large."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:19]) > most:
        raise Refused(413, f"the body exceeds {most:,} bytes")
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding not in ("identity", "gzip"):
        raise Refused(415, "unsupported Content-Encoding: only gzip is supported")
    inflate = zlib.decompressobj(wbits=31) if coding == "gzip" else None
    size, packed = 0, 0
    try:
        with anyio.fail_after(_SLOW_BODY_S + most / _LEAST_BYTES_PER_S):
            async for chunk in request.stream():
                packed += len(chunk)
                try:
                    part = chunk if inflate is None else inflate.decompress(chunk, most - size + 1)
                except zlib.error:
                    raise Refused(400, "the body is not valid gzip") from None
                size += len(part)
                if size > most or packed > most:
                    raise Refused(413, f"the body exceeds {most:,} bytes")
                take(part)
    except TimeoutError:
        raise Refused(408, "timed out reading the body") from None
    if inflate is not None and not inflate.eof and packed:
        raise Refused(400, "incomplete request body")


async def read_body(request: Request, most: int) -> bytes:
    """Return the decompressed body; raise Refused if it is too large."""
    parts: list[bytes] = []
    await read_into(request, parts.append, most)
    return b"".join(parts)
