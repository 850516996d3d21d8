"""Wall time and peak memory of a command with all the processes it starts."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

_EVERY_S = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Cost(NamedTuple):
    """What a command took; `problem` is its last line when it failed.

    The time of the processor, over all processes, tells more than the clock when others use the machine too.
    """

    seconds: float
    processor_seconds: float
    peak_bytes: int
    problem: str | None = None


def measure(command: list[str], *, timeout_s: float, most_bytes: int | None = None) -> Cost:
    """Run `command` and return its cost; memory is the sum over its process group, sampled.

    Beyond `most_bytes` of address space the command gets no more memory.
    """
    start, start_cpu = time.perf_counter(), _children_seconds()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    if most_bytes:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (most_bytes, most_bytes))
    watch = _Watch(process.pid)
    try:
        _, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        seconds = time.perf_counter() - start
        return Cost(seconds, 0.0, watch.stop(), f"stopped after {timeout_s:.0f} s")
    finally:
        _end(process)  # also when we are interrupted ourselves: it is in a group of its own
    seconds = time.perf_counter() - start
    lines = errors.decode(errors="replace").strip().splitlines()
    problem = (lines[-1] if lines else "failed") if process.returncode else None
    return Cost(seconds, _children_seconds() - start_cpu, watch.stop(), problem)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Watch(threading.Thread):
    """Samples the memory of a process group until stopped."""

    def __init__(self, group: int) -> None:
        super().__init__(daemon=True)
        self._group = group
        self._done = threading.Event()
        self._peak_bytes = 0
        self.start()

    def run(self) -> None:
        """Keep the highest sum seen."""
        while not self._done.wait(_EVERY_S):
            self._peak_bytes = max(self._peak_bytes, _resident_bytes(self._group))

    def stop(self) -> int:
        """Return the peak."""
        self._done.set()
        self.join()
        return self._peak_bytes


def _resident_bytes(group: int) -> int:
    return sum(_of_group(entry, group) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _of_group(entry: Path, group: int) -> int:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        if int(fields[2]) != group:
            return 0
        return int((entry / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0  # it ended while we looked
