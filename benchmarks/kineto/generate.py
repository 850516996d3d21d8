"""Build large traces by repeating a real one: every copy later in time, with ids and steps of its own."""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_H100 = _ROOT.parent / "shared" / "samples" / "kineto" / "modded-nanogpt_20251211_8xH100_rank0.json.gz"
# A trace of eight H100 where the samples are at hand, else the bundled one of a CPU.
DEFAULT_SAMPLE = _H100 if _H100.exists() else _ROOT / "examples" / "traces" / "gpt_fused.json.gz"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"\}\s*\]\s*(?:,|\})")
# A number that must differ from copy to copy: a time (it has a point), an id, or the number of a step.
_NUMBER = re.compile(
    rb'(?:"ts"\s*:\s*'
    rb'|"(?:id|External id|external id|correlation|Ev Idx|Record function id|Sequence number'
    rb'|Python id|Python parent id)"\s*:\s*'
    rb"|ProfilerStep#)(\d+(?:\.\d{1,3})?)"
)


class Sample:
    """A real trace taken apart into fixed text and the numbers that change."""

    def __init__(self, path: Path) -> None:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        start = _EVENTS.search(text)
        if start is None:
            sys.exit(f"{path}: no traceEvents")
        ends = [match.start() + 1 for match in _END.finditer(text, start.end())]
        self.head, events, self.tail = text[: start.end()], text[start.end() : ends[-1]], text[ends[-1] :]
        matches = list(_NUMBER.finditer(events))
        edges = [0, *(edge for match in matches for edge in match.span(1)), len(events)]
        self._fixed = [events[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]
        self._is_time = [match[0].startswith(b'"ts"') for match in matches]
        self._numbers = [_scaled(match[1]) if time else int(match[1]) for match, time in self._timed(matches)]
        self.has_point = any(b"." in match[1] for match, time in self._timed(matches) if time)
        times = [number for number, time in zip(self._numbers, self._is_time, strict=True) if time]
        self._span_ns = (max(times) - min(times)) * 11 // 10 // 1000 * 1000
        ids = [number for number, time in zip(self._numbers, self._is_time, strict=True) if not time]
        self._id_span = max(number for number in ids if number < 1 << 40) + 1
        self.bytes_per_copy = len(events)

    def _timed(self, matches: list[re.Match[bytes]]) -> Iterator[tuple[re.Match[bytes], bool]]:
        return zip(matches, self._is_time, strict=True)

    def copy(self, number: int) -> bytes:
        """Return the events once more, `number` spans later."""
        shift_ns, shift = number * self._span_ns, number * self._id_span
        parts = [b""] * (2 * len(self._numbers) + 1)
        parts[::2] = self._fixed
        parts[1::2] = [
            self._time(value + shift_ns) if time else b"%d" % (value + shift)
            for value, time in zip(self._numbers, self._is_time, strict=True)
        ]
        return b"".join(parts)

    def _time(self, nanoseconds: int) -> bytes:
        if not self.has_point:
            return b"%d" % (nanoseconds // 1000)
        return b"%d.%03d" % divmod(nanoseconds, 1000)


def _scaled(text: bytes) -> int:
    whole, _, part = text.partition(b".")
    return int(whole) * 1000 + int(part.ljust(3, b"0"))


def pieces(sample: Sample, size_bytes: int) -> Iterator[bytes]:
    """Yield the text of a valid trace of about `size_bytes`."""
    copies = max(1, round(size_bytes / sample.bytes_per_copy))
    yield sample.head
    for number in range(copies):
        yield (b"," if number else b"") + sample.copy(number)
    yield sample.tail


def generate(sample: Path, target: Path, size_bytes: int) -> int:
    """Write a trace to `target`, gzipped if its name says so, and return its size as text."""
    pack = zlib.compressobj(6, wbits=31) if target.suffix == ".gz" else None
    written = 0
    with target.open("wb") as file:
        for piece in pieces(Sample(sample), size_bytes):
            file.write(pack.compress(piece) if pack else piece)
            written += len(piece)
        if pack:
            file.write(pack.flush())
    return written


def main() -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--sample", type=Path, default=DEFAULT_SAMPLE)
    options = parser.parse_args()
    size = generate(options.sample, options.target, int(options.megabytes * 1e6))
    on_disk = options.target.stat().st_size
    print(f"{options.target}: {size / 1e6:.0f} MB of text, {on_disk / 1e6:.1f} MB on disk")


if __name__ == "__main__":
    main()
