"""The benchmark's steps in a process of its own: under traceml-ai's launcher, or plain as its control."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

BENCHMARK = Path(__file__).with_name("recorder.py")
TRACEML = Path(sys.executable).with_name("traceml")


class Worker:
    """A process that runs a block of steps whenever it is asked to."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def __call__(self, training: Any, count: int) -> list[float]:
        """Return how long each of `count` steps of the same training took there."""
        self._line.send((training.is_small, count))
        taken: list[float] = self._line.recv()
        return taken


@contextmanager
def worker(batch: int, *, traced: bool, wall: bool) -> Iterator[Worker]:
    """Start the process; end it when done."""
    with tempfile.TemporaryDirectory() as folder, Listener(f"{folder}/line", "AF_UNIX") as listener:
        own = ["--address", f"{folder}/line", "--batch", str(batch), *(["--wall"] if wall else [])]
        command = [sys.executable, __file__, *own]
        if traced:
            launcher = [str(TRACEML), "run", "--mode", "summary", "--logs-dir", folder, __file__]
            command = [*launcher, "--args", *own, "--traced"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            line = listener.accept()
            yield Worker(line)
            line.send(None)
            process.wait(timeout=120)


def main() -> None:
    """Answer the benchmark until it sends None."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip())
    parser.add_argument("--address", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--traced", action="store_true")
    parser.add_argument("--wall", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(BENCHMARK.parent))
    benchmark: Any = importlib.import_module("recorder")
    clock = benchmark.clock_of(wall=options.wall)
    trainings = [benchmark.Training(options.batch, clock, is_small=small) for small in (False, True)]
    run = benchmark.traced_by_traceml() if options.traced else benchmark.plain
    with Client(options.address, "AF_UNIX") as line:
        while asked := line.recv():
            is_small, count = asked
            line.send(run(trainings[is_small], count))


if __name__ == "__main__":
    main()
