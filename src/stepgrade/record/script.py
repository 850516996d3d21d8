"""Run an unchanged training script with a recorder around it."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from stepgrade.errors import BadInput, BadOption
from stepgrade.record.recorder import Recorder


class ScriptRecorder(Recorder):
    """A recorder that finds model, optimizer and loaders by itself, whenever the script makes them."""

    def start(self) -> ScriptRecorder:
        """Begin to record every optimizer and DataLoader, and look for the models."""
        self._counts_optimizer_steps = True
        super().start()
        recording = self._recording
        if recording is not None:
            recording.watch_every_optimizer()
            recording.watch_every_loader()
            recording.on_model = self.watch_model
            recording.watch_every_model()
        return self


def run_script(recorder: Recorder, command: list[str], *, as_module: bool = False) -> int:
    """Run `command` as `python` would, recorded; return its exit code, 130 when it was interrupted."""
    if not command:
        raise BadOption("there is no script to run", hint="stepgrade record train.py arguments…")
    if not as_module and not Path(command[0]).is_file():
        raise BadInput("no such file", where=command[0], hint="to run a module use -m")
    with _arguments(command, as_module=as_module), _termination_as_exit(), recorder:
        try:
            if as_module:
                runpy.run_module(command[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return end.code or 0
            print(end.code, file=sys.stderr)  # noqa: T201  as the interpreter does
            return 1
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
    return 0


@contextmanager
def _arguments(command: list[str], *, as_module: bool) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as `python` would for the script."""
    argv, path = sys.argv, sys.path[0]
    sys.argv = list(command)
    sys.path[0] = os.getcwd() if as_module else str(Path(command[0]).resolve().parent)  # noqa: PTH109
    try:
        yield
    finally:
        sys.argv, sys.path[0] = argv, path


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that what was recorded is written."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
