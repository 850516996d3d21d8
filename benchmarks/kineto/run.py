"""How fast traces are read and scored, and in how much memory, beside the tools that people use today.

Large traces are made by repeating a real one. All tools see the same file; the ratios are of the same run.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from generate import DEFAULT_SAMPLE, generate
from measure import Cost, measure
from peers import PEERS, command, install

STEPGRADE = str(Path(sys.executable).with_name("stepgrade"))
_OURS = ("stepgrade score", "read")
# What nothing that reads this file can beat: unpacking it, and unpacking and decoding it on one core.
_GUNZIP = """
import sys
from stepgrade.readers.source import ByteSource
with ByteSource(sys.argv[1]) as text:
    view = memoryview(bytearray(1 << 19))
    while text.fill(view):
        pass
"""
_DECODE = """
import mmap
import sys
from stepgrade.readers.kineto.decode import decode_events
from stepgrade.readers.kineto.header import read_head
from stepgrade.readers.source import ByteSource
from stepgrade.readers.kineto.chunks import SLOT_BYTES, Splitter
with ByteSource(sys.argv[1]) as text:
    head = read_head(text)
    splitter = Splitter(text, head.text, head.offset, mmap.mmap(-1, SLOT_BYTES))
    while chunk := splitter.next_chunk():
        decode_events(chunk.view)
        splitter.free.append(chunk.slot)
"""
_READ = """
import sys
from stepgrade.readers.kineto.reader import read_traces
from stepgrade.readers.source import ByteSource
with ByteSource(sys.argv[1]) as source:
    read_traces(source, int(sys.argv[2]) or None)
"""


def cases(trace: Path, options: argparse.Namespace, output: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the command of each thing to measure."""
    python = sys.executable
    yield "python -c pass", [python, "-c", "pass"]
    if not options.score_only:
        yield "gunzip alone", [python, "-c", _GUNZIP, str(trace)]
        yield "gunzip, decode, one core", [python, "-c", _DECODE, str(trace)]
        yield "read, one process", [python, "-c", _READ, str(trace), "1"]
        yield "read", [python, "-c", _READ, str(trace), "0"]
    if not options.read_only:
        yield "stepgrade score", [STEPGRADE, "score", str(trace), "--format", "json"]
    wanted = [peer for peer in PEERS if options.only_peers is None or peer.name in options.only_peers]
    for peer in wanted if options.peers else ():
        found = install(peer, options.environments)
        if found:
            yield peer.name, command(peer, found, trace, output)
        else:
            print(f"{peer.name} could not be installed", file=sys.stderr)


def run(size_mb: float, options: argparse.Namespace, directory: Path) -> None:
    """Measure all cases on a trace of about `size_mb` and print a table."""
    trace = directory / f"trace_{size_mb:g}.json.gz"
    text_bytes = generate(options.sample, trace, int(size_mb * 1e6))
    packed_bytes = trace.stat().st_size
    print(f"\n{text_bytes / 1e6:.0f} MB of text, {packed_bytes / 1e6:.1f} MB gzipped ({options.sample.name})")
    print(f"{'':26}{'seconds':>9}{'cpu':>8}{'MB/s':>7}{'peak MB':>9}{'time':>8}{'memory':>8}", flush=True)
    costs = _measure_all(list(cases(trace, options, directory / "out")), options)
    base = next(
        (cost for name in _OURS if name in costs and not (cost := _middle(costs[name])).problem), None
    )
    for name, found in costs.items():
        print(_row(name, _middle(found), base, text_bytes), flush=True)
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)
    trace.unlink()


def _measure_all(lines: list[tuple[str, list[str]]], options: argparse.Namespace) -> dict[str, list[Cost]]:
    """Measure the commands in turn, so that whoever else uses the machine disturbs all of them alike."""
    peers = {peer.name for peer in PEERS}
    limit = int(options.peer_gigabytes * 1e9)
    costs: dict[str, list[Cost]] = {name: [] for name, _ in lines}
    for turn in range(options.rounds):
        for name, line in lines:
            if name not in peers:
                costs[name].append(measure(line, timeout_s=options.timeout))
            elif turn < options.peer_rounds:
                costs[name].append(measure(line, timeout_s=options.timeout, most_bytes=limit))
    return costs


def _middle(found: list[Cost]) -> Cost:
    fine = [cost for cost in found if not cost.problem] or found
    return sorted(fine, key=lambda cost: cost.seconds)[len(fine) // 2]


def _row(name: str, cost: Cost, base: Cost | None, text_bytes: int) -> str:
    """Return one line; ratios are to the whole of ours."""
    if cost.problem:
        return f"{name:26}{cost.seconds:9.2f}  {cost.problem[:70]}"
    speed = text_bytes / 1e6 / cost.seconds
    spent = f"{cost.seconds:9.2f}{cost.processor_seconds:8.2f}{speed:7.0f}{cost.peak_bytes / 1e6:9.0f}"
    if base is None:
        return f"{name:26}{spent}"
    times, memory = cost.seconds / base.seconds, cost.peak_bytes / max(1, base.peak_bytes)
    return f"{name:26}{spent}{times:7.1f}x{memory:7.1f}x"


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=float, nargs="*", default=[10, 100, 500, 1000, 4000], help="MB of text")
    parser.add_argument("--sample", type=Path, default=DEFAULT_SAMPLE, help="the real trace to repeat")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command, the middle one counts")
    parser.add_argument(
        "--timeout", type=float, default=1800, help="seconds after which a command is stopped"
    )
    parser.add_argument("--peers", action="store_true", help="also run the tools that people use today")
    parser.add_argument("--only-peers", nargs="*", metavar="NAME", help="of these only the ones named")
    parser.add_argument("--peer-rounds", type=int, default=1, help="runs of each of them")
    parser.add_argument("--peer-gigabytes", type=float, default=20, help="memory that they may have")
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "stepgrade-peers")
    parser.add_argument("--read-only", action="store_true", help="the reader alone")
    parser.add_argument("--score-only", action="store_true", help="the whole command alone")
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="stepgrade-bench-") as directory:
        for size_mb in options.sizes:
            run(size_mb, options, Path(directory))


if __name__ == "__main__":
    main()
