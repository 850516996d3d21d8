"""Read request bodies, and score uploaded profiles in processes with limited time and memory."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct
from starlette.requests import Request

from stepgrade.model.scorecard import Scorecard
from stepgrade.web.access import Refused
from stepgrade.web.settings import ServerSettings

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


_MOST_WAITING = 4
_MOST_OF_TOKEN = 2
_MOST_PROCESSES = 2
_LEAST_MEMORY = 1 << 30  # of a process
_RETRY_S = 15
# The child sets its own limits: preexec_fn is not safe in a process with threads.
_SCORE = """
import os, resource, sys
path, device, most, seconds, memory, output = sys.argv[1], sys.argv[2] or None, *map(int, sys.argv[3:])
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_FSIZE, (output, output))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.nice(10)
import stepgrade as sg
profile = sg.load(path, max_bytes=most, cache=False)
sys.stdout.write(sg.score(profile, setup=sg.Setup(device=device) if device else None).to_json())
"""


class ReceivedTrace(Struct, frozen=True, kw_only=True):
    """An uploaded profile; `card` is None until it has been scored."""

    folder: str
    digest: str
    card: Scorecard | None = None


class Scoring:
    """The scoring processes and their queue."""

    def __init__(self, settings: ServerSettings) -> None:
        memory = settings.trace_memory // settings.workers
        size = max(1, min(_MOST_PROCESSES, memory // _LEAST_MEMORY))
        self.limiter = anyio.CapacityLimiter(size)
        self._settings, self._size, self._memory = settings, size, memory // size
        self._taken: Counter[str] = Counter()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_stopping = False

    @contextmanager
    def slot(self, who: str) -> Iterator[None]:
        """Hold a slot in the queue; raise Refused if there is none."""
        if self._taken[who] >= _MOST_OF_TOKEN:
            raise Refused(
                429,
                f"already scoring {_MOST_OF_TOKEN} profiles of this token",
                retry_after_s=_RETRY_S,
            )
        if self._taken.total() >= self._size + _MOST_WAITING:
            raise Refused(503, "too many profiles are being scored", retry_after_s=_RETRY_S)
        self._taken[who] += 1
        try:
            yield
        finally:
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]

    async def receive(self, request: Request, folder: str) -> ReceivedTrace:
        """Write the body to a folder; raise Refused if it is too large."""
        digest = hashlib.sha256()
        with Path(folder, "profile").open("wb") as file:

            def keep(part: bytes) -> None:
                digest.update(part)
                file.write(part)

            await read_into(request, keep, self._settings.most_trace_bytes)
        return ReceivedTrace(folder=folder, digest=digest.hexdigest())

    def score(self, trace: ReceivedTrace, device: str | None) -> Scorecard:
        """Return the scorecard of a profile; raise Refused if it is unreadable or exceeds a limit."""
        settings, output = self._settings, 4 * self._settings.most_bytes
        limits = (settings.most_trace_bytes * 20, int(settings.most_trace_s), self._memory, output)
        card = Path(trace.folder, "card")
        with card.open("wb") as written:  # a file: RLIMIT_FSIZE does not apply to pipes
            process = subprocess.Popen(  # noqa: S603  our own program
                [sys.executable, "-I", "-c", _SCORE, "profile", device or "", *map(str, limits)],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.DEVNULL,
                cwd=trace.folder,
                # Each BLAS thread takes address space, which is limited.
                env={
                    "PATH": os.defpath,
                    "HOME": trace.folder,
                    "TMPDIR": trace.folder,
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    "STEPGRADE_CACHE": "off",
                },
                start_new_session=True,
            )
            with self._lock:
                self._running.add(process)
            if self._is_stopping:
                _kill(process)
            try:
                process.wait(settings.most_trace_s)
            except subprocess.TimeoutExpired:
                raise Refused(422, f"scoring took more than {settings.most_trace_s:.0f} s") from None
            finally:
                _kill(process)
                with self._lock:
                    self._running.discard(process)
        if self._is_stopping:
            raise Refused(503, "the server is shutting down")
        try:
            return Scorecard.from_json(card.read_bytes())
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, TypeError):
            raise Refused(422, "the profile cannot be scored: try stepgrade inspect") from None

    def stop(self) -> None:
        """End every process."""
        with self._lock:
            self._is_stopping = True
            running = list(self._running)
        for process in running:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a running process and its children."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
