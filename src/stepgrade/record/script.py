"""Run an unchanged training script with a recorder around it."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from stepgrade.errors import BadInput, BadOption
from stepgrade.record.recorder import Recorder
from stepgrade.record.timeline import BACKWARD

if TYPE_CHECKING:
    from torch.nn import Module

# A model that has not been called by then is not part of the steps.
_STEPS_TO_LOOK_FOR_MODELS = 2


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
            self._search = _ModelSearch(self)
        return self

    @property
    def is_in_backward(self) -> bool:
        """Tell whether gradients are being computed: modules called then are recomputation."""
        return self._recording is not None and self._recording.timeline.direction == BACKWARD

    def close(self) -> None:
        """End the search and the recording."""
        if self._recording is not None:
            self._search.end()
        super().close()


class _ModelSearch:
    """Finds the outermost modules that are called with gradients: the models of the training loop."""

    def __init__(self, recorder: ScriptRecorder) -> None:
        from stepgrade.record.patches import Patches  # noqa: PLC0415  needs torch

        self._recorder = recorder
        self._known: set[Module] = set()  # the models found, and all that is inside them
        self._over = False
        self._patches = Patches()
        self._wrap_calls()

    def end(self) -> None:
        self._over = True
        self._known.clear()
        self._patches.undo()

    def _wrap_calls(self) -> None:
        from torch.nn import Module  # noqa: PLC0415  an extra

        self._patches.wrap(Module, "__call__", self._call)

    def _call(
        self, original: Callable[..., object], module: Module, /, *args: object, **kwargs: object
    ) -> object:
        import torch  # noqa: PLC0415  an extra

        if self._over or torch.compiler.is_compiling():  # a compiled model may have kept this function
            return original(module, *args, **kwargs)
        self._patches.undo()  # what is called inside should see torch unchanged
        if (
            module not in self._known
            and torch.is_grad_enabled()
            and not self._recorder.is_in_backward
            and any(parameter.requires_grad for parameter in module.parameters())
        ):
            self._known |= set(module.modules())
            self._recorder.watch_model(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            if not self._over and self._recorder.steps < _STEPS_TO_LOOK_FOR_MODELS:
                self._wrap_calls()


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
