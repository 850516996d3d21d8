"""A server on this machine that gives any bytes for an answer: odd ones to one call, sound ones to the others."""

from __future__ import annotations

import copy
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.web.conftest import card

DIGEST = "d" * 64
CARD = json.loads(card().to_json())
RUN = {
    "id": 1,
    "added_at": "2026-11-01T00:00:00+00:00",
    "digest": DIGEST,
    "commit": "c0ffee",
    "branch": "main",
    "labels": {"n": "1"},
    "source": "run.json",
    "grade": "A",
    "metrics": {"step_time_ms": 100.0},
}
ENTRY = {"run": RUN, "origin": {"key": "k-1", "added_by": "ci", "device_hours": 1.0}}
SOUND: dict[str, Any] = {
    "POST /runs": {"id": 7, "is_new": True, "alerts": []},
    "GET /runs": {"runs": [ENTRY], "next": None},
    "GET /runs/N": {**ENTRY, "card": CARD},
    "GET /series": {"points": [[1, 100.0]]},
    "GET /fingerprints": {DIGEST: CARD["fingerprint"] or {}},
}
Wire = bytes | Callable[[socket.socket], None]  # what is sent, or what is done with the connection


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Return a whole answer that closes its connection."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    return head.encode("latin-1") + body


def _drip(part: bytes) -> Callable[[socket.socket], None]:
    def send(peer: socket.socket) -> None:
        peer.sendall(
            b"HTTP/1.1 200 OK\r\n" if b":" in part else b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
        )
        while not _has_left(peer, 0.02):
            peer.sendall(part)

    return send


def _endless(start: bytes, part: bytes) -> Callable[[socket.socket], None]:
    def send(peer: socket.socket) -> None:
        peer.sendall(start)
        while True:
            peer.sendall(part)

    return send


def _silent(peer: socket.socket) -> None:
    while not _has_left(peer, 1.0):
        pass


def _has_left(peer: socket.socket, seconds: float) -> bool:
    peer.settimeout(seconds)
    try:
        return not peer.recv(4096)
    except TimeoutError:
        peer.settimeout(None)
        return False


OK = b"HTTP/1.1 200 OK\r\n"
# Answers that no call takes for its own, whatever it asked.
WIRES: dict[str, Wire] = {
    "nothing": b"",
    "silence": _silent,
    "a dripping body": _drip(b" "),
    "dripping headers": _drip(b"X-A: 1\r\n"),
    "endless headers": _endless(OK, b"X-A: 1\r\n" * 1000),
    "an endless header": _endless(OK + b"X-A: ", b"a" * 65536),
    "an endless status": _endless(b"HTTP/1.1 200 ", b"a" * 65536),
    "an endless body": _endless(OK + b"\r\n", b" " * 65536),
    "an endless chunked body": _endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"4\r\n    \r\n" * 1000),
    "endless 100 Continue": _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "a 101": answer(b"", "101 Switching Protocols"),
    "a 103": answer(b"", "103 Early Hints"),
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "binary": bytes(range(256)) * 20,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "HTTP/0.9": b"<html>hello</html>",
    "HTTP/2": b"HTTP/2 200\r\n\r\n{}",
    "HTTP/9.9": b"HTTP/9.9 200 OK\r\n\r\n{}",
    "a status of words": b"HTTP/1.1 OK\r\n\r\n{}",
    "status 0": b"HTTP/1.1 000 X\r\n\r\n{}",
    "status 999": b"HTTP/1.1 999 X\r\n\r\n{}",
    "status 99999": b"HTTP/1.1 99999 X\r\n\r\n{}",
    "a negative status": b"HTTP/1.1 -200 X\r\n\r\n{}",
    "a cut status": b"HTTP/1.1 2",
    "cut headers": OK + b"Content-Le",
    "a cut body": OK + b'Content-Length: 1000\r\n\r\n{"id": 1',
    "a negative length": OK + b"Content-Length: -5\r\n\r\n{}",
    "a length of words": OK + b"Content-Length: many\r\n\r\n{}",
    "a huge length": OK + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3000\r\n\r\n{}",
    "chunks of words": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a negative chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n",
    "a huge chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}\r\n",
    "a cut chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "headers without a colon": OK + b"nothing here\r\n\r\n{}",
    "a header with a NUL": OK + b"X-\x00: \x00\r\nContent-Length: 2\r\n\r\n{}",
    "a folded header": OK + b"X-A: 1\r\n 2\r\n\t3\r\nContent-Length: 2\r\n\r\n[]",
    "gzip that was not asked for": answer(b"\x1f\x8b\x08\x00garbage", headers="Content-Encoding: gzip\r\n"),
    "a login page": answer(b"<!doctype html><title>Sign in</title>", headers="Content-Type: text/html\r\n"),
    "a proxy's page": answer(b"<html>407</html>", "407 Proxy Authentication Required"),
    "no content": answer(b"", "204 No Content"),
    "no content, with a body": b'HTTP/1.1 204 No Content\r\n\r\n{"id": 1}',
    "not modified": answer(b"", "304 Not Modified", "ETag: x\r\n"),
    **{
        f"a redirect {status}": answer(b"", f"{status} Found", "Location: https://evil.example/x\r\n")
        for status in (301, 302, 303, 307, 308)
    },
    "a redirect to a file": answer(b"", "302 Found", "Location: file:///etc/passwd\r\n"),
    "an empty body": answer(b""),
    "a blank body": answer(b"  \n"),
    **{
        f"status {status}": answer(b"<html>", f"{status} X") for status in (400, 401, 402, 403, 404, 405, 409)
    },
    **{
        f"bare {status}": answer(b"", f"{status} X")
        for status in (410, 413, 418, 422, 451, 500, 501, 502, 503)
    },
    **{
        f"retry after {after!r}": answer(b"{}", "429 Too Many Requests", f"Retry-After: {after}\r\n")
        for after in ("-1", "0", "9" * 400, "1e9", "nan", "Wed, 21 Oct 2099 07:28:00 GMT", "soon", "", "\xb2")
    },
    "a problem of a proxy": answer(b'{"detail": "Not Found"}', "404 Not Found"),
    **{
        f"problem {problem}": answer(b'{"problem": %s}' % problem.encode(), "400 Bad Request")
        for problem in ("null", "1", "[]", "{}", '""', '"\\u001b[31m\\n::error::x"', f'"{"x" * 100_000}"')
    },
    "a problem that is a list": answer(b"[1, 2]", "409 Conflict"),
    "a problem that nests": answer(b"[" * 100_000, "400 Bad Request"),
}
_DEEP = b"[" * 5_000 + b"]" * 5_000
# Bodies that no call takes for its own, with a status that says that all is well.
BODIES: dict[str, bytes] = {
    **{text: text.encode() for text in ("null", "true", "0", "-1", "1e999", "NaN", "Infinity", '""', "[]")},
    **{
        text: text.encode()
        for text in ("[[]]", '"ok"', "[null]", '{"error": "x"}', '{"id": null}', '{"id": []}')
    },
    **{
        text: text.encode()
        for text in ('{"id": "7"}', '{"id": -7}', '{"id": 0}', '{"id": 7.5}', '{"id": true}')
    },
    **{text: text.encode() for text in ('{"runs": null}', '{"runs": {}}', '{"runs": [1]}', '{"points": 1}')},
    "an id of 400 digits": b'{"id": %s}' % (b"9" * 400),
    "deep lists": _DEEP,
    "deep objects": b'{"id":' * 5_000 + b"1" + b"}" * 5_000,
    "deep in the page": b'{"runs": %s, "next": null}' % _DEEP,
    "deep beside the id": b'{"x": %s}' % _DEEP,
    "not UTF-8": b'{"id": "\xff\xfe", "problem": "\xff"}',
    "UTF-16": '{"id": 7}'.encode("utf-16"),
    "a mark of order": b'\xef\xbb\xbf{"id": 7}',
    "half a surrogate": b'{"\\ud800": "\\ud800"}',
    "cut": b'{"id": 7',
    "two documents": b'{"id": 7}{"id": 7}',
    "a comment": b'/* ok */ {"id": 7}',
    "single quotes": b"{'id': 7}",
    "a proxy's JSON": b'{"status": "UP", "components": {"db": {"status": "UP"}}}',
    "an old server's page": json.dumps([RUN]).encode(),
    "an old server's run": json.dumps(RUN).encode(),
}
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    -0.0,
    "",
    "x",
    "\x1b[31m\u202e\x00",
    [],
    {},
    [[1]],
)


def nested(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value in a document, of lists only to the first two."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, one in inner:
        yield (*path, key)
        yield from nested(one, (*path, key))


def mutations(call: str) -> Iterator[tuple[str, bytes]]:
    """Yield the sound answer to a call with one value missing, or something odd in its place."""
    for path in nested(SOUND[call]):
        for odd in (*ODD_VALUES, ...):
            document = copy.deepcopy(SOUND[call])
            at = document
            for key in path[:-1]:
                at = at[key]
            if odd is ...:
                del at[path[-1]]
            else:
                at[path[-1]] = odd
            yield (
                f"{'.'.join(map(str, path))} {'missing' if odd is ... else repr(odd)}",
                json.dumps(document).encode(),
            )


class Hostile:
    """The server: `odd` is what it gives to `call`, to the others it gives what is sound."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/llm"
        self.call = ""
        self.odd: Wire | Callable[[str], bytes] = b""
        self.seen: list[bytes] = []  # requests, with their headers
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(threading.Thread(target=self._answer, args=(peer,)))
            self._threads[-1].start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            peer.settimeout(30.0)
            head = b""
            while b"\r\n\r\n" not in head:
                more = peer.recv(65536)
                if not more:
                    return
                head += more
            head, _, body = head.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            while length and len(body) < int(length[1]):
                body += peer.recv(65536)
            self.seen.append(head)
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            path = re.sub(r".*/projects/llm", "", target.partition("?")[0])
            path = re.sub(r"/runs/\d+$", "/runs/N", re.sub(r"(/series)/.*", r"\1", path))
            call = f"{method} {path}"
            if self.call not in ("", call):
                peer.sendall(answer(json.dumps(SOUND[call]).encode()))
            elif isinstance(self.odd, bytes):
                peer.sendall(self.odd)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(
                    65536
                ):  # else what was not read resets the connection before it is read there
                    pass
            else:
                self.odd(peer)

    def close(self) -> None:
        """End it, and every thread of it."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for thread in self._threads:
            thread.join()


@contextmanager
def hostile_server() -> Iterator[Hostile]:
    """Start one for a `with` block."""
    server = Hostile()
    try:
        yield server
    finally:
        server.close()
