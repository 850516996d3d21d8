"""Processes that start with torch already imported: importing it takes longer than what is tested."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch", "torch.distributed.fsdp", "stepgrade.cli.record", "stepgrade.grading"]
)
TIMEOUT_SECONDS = 600  # against what hangs, not against what is slow


class Ran(NamedTuple):
    """How a process ended and what it wrote."""

    code: int
    out: str
    err: str


class Process:
    """A script or `stepgrade …` in a process of its own."""

    def __init__(self, command: list[str], cwd: Path, environment: dict[str, str]) -> None:
        self._texts = Path(tempfile.mkdtemp())
        self._process = _CONTEXT.Process(target=_run, args=(command, cwd, environment, self._texts))
        self._process.start()

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def wait(self) -> Ran:
        self._process.join(TIMEOUT_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError("the process did not end")
        out, err = ((self._texts / name).read_text() for name in ("out", "err"))
        return Ran(self._process.exitcode, out, err)


def start(*command: object, cwd: Path, **environment: str) -> Process:
    """Start `script arguments…` or `stepgrade arguments…`; `terminal` is what it has for stderr."""
    return Process([str(word) for word in command], cwd, environment)


def _run(command: list[str], cwd: Path, environment: dict[str, str], texts: Path) -> None:
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    terminal = environment.pop("terminal", None)
    os.environ.update(environment | {"GLOO_SOCKET_IFNAME": "lo"})
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(texts / name, os.O_WRONLY | os.O_CREAT), descriptor)
    if terminal is not None:
        os.dup2(os.open(terminal, os.O_WRONLY | os.O_NOCTTY), 2)
    if command[0] == "stepgrade":
        from stepgrade.cli.dispatch import run

        sys.path.insert(0, str(cwd))
        sys.exit(run(command[1:]))
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
