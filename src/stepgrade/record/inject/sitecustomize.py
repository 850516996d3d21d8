"""Runs first in every Python started by `stepgrade record`, and starts recording once torch is imported.

Only small modules are imported before the script runs: what it sets for torch or numpy before importing them,
such as the number of threads, must still take effect.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SESSION = "STEPGRADE_SESSION"
_PR_SET_PDEATHSIG, _SIGTERM = 1, 15
_FRAMEWORKS = ("torch", "jax", "tensorflow", "mlx", "paddle", "mindspore")


class AfterTorch:
    """Finds torch like the default finders, and calls `record` when it has been imported."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._path = list(sys.path)  # before the script's folder is put first

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of torch, whose loader also starts recording; None for other modules."""
        if name in _FRAMEWORKS:
            self.leave(f".imported-{name}", "")
        if name != "torch":
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec: ModuleSpec | None = next((each for each in found if each is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader, load = spec.loader, spec.loader.exec_module

        def load_and_record(module: ModuleType) -> None:
            del vars(loader)["exec_module"]  # the class has it
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._record()

        vars(loader)["exec_module"] = load_and_record  # until it is called
        return spec

    def _record(self) -> None:
        """Start recording; errors are reported to the parent process."""
        path, sys.path[:] = sys.path[:], self._path
        try:
            from stepgrade.record.script import record_here  # not before torch

            record_here(self._session)
        except Exception as error:  # noqa: BLE001  the script must run in any case
            self.leave(".failed", f"{sys.executable}: {error!r}")
        finally:
            sys.path[:] = path

    def leave(self, name: str, text: str) -> None:
        """Leave a note for the parent process; ignore failures."""
        try:
            with open(os.path.join(self._session, name), "w", encoding="utf-8") as note:
                note.write(text)
        except OSError:
            pass


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    session = os.environ.get(_SESSION)
    if session is None or not os.path.isdir(session):
        return  # the command has ended before this process
    after_torch = AfterTorch(session)
    after_torch.leave(".python", "")
    if os.environ.get("STEPGRADE_PARENT") == str(os.getppid()) and sys.platform == "linux":
        import ctypes  # only in one process

        # Killing the command should also end the training.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGTERM)
    sys.meta_path.insert(0, after_torch)


_begin()
# Run the environment's own sitecustomize, if any.
_ours = sys.modules.pop("sitecustomize", None)
try:
    import_module("sitecustomize")
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    if _ours is not None:
        sys.modules["sitecustomize"] = _ours
