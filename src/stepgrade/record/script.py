"""The recorder in a process started by `stepgrade record`: it detects everything itself."""

from __future__ import annotations

import ctypes
import json
import mmap
import multiprocessing.util
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from stepgrade.record.journal import Journal
from stepgrade.record.launch import COUNTER, OPTIONS
from stepgrade.record.recorder import Recorder


class ScriptRecorder(Recorder):
    """A recorder that detects model, optimizer and loaders whenever the script creates them.

    In a session of `stepgrade record` it logs nothing: its notes are in the recording.
    """

    def __init__(self, session: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._session, self._in_session = session, session is not None
        self._options = options
        self._counter: ctypes.c_int64 | None = None
        self._claim: Path | None = None

    def start(self) -> ScriptRecorder:
        """Start recording all optimizers and DataLoaders, and detect models."""
        self._counts_optimizer_steps = True
        super().start()
        recording = self._recording
        if recording is not None:
            recording.watch_every_optimizer()
            recording.watch_every_loader()
            recording.on_model = self.watch_model
            recording.watch_every_model()
            # Processes of multiprocessing exit without running atexit functions.
            end = multiprocessing.util.Finalize
            multiprocessing.util.register_after_fork(
                self, lambda recorder: end(None, recorder.close, exitpriority=0)
            )
        return self

    def _gives_way(self) -> bool:
        """Stop in favour of a recorder that the script starts before its first step."""
        recording = self._recording
        if self._session is None or self.steps or recording is None:
            return False
        super()._leave_to_parent()
        return True

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        ScriptRecorder(self._session, **self._options).start()

    def _name_file(self) -> None:
        """Reserve a unique file in the session; the parent reads the step count from it."""
        super()._name_file()
        if self._session is None:
            return
        number, path = 1, self.path
        while self._counter is None:
            claim = Path(self._session, path.name)
            try:
                handle = os.open(claim, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                number += 1
                path = self.path.with_name(f"{self.path.stem}-{number}{self.path.suffix}")
                continue
            except OSError:
                return  # the command has already ended
            os.ftruncate(handle, COUNTER.size)
            self._counter, self._claim = _shared_number(handle), claim
            os.close(handle)
        self.path = path
        self._journal = Journal(path, self._readable_by)

    def close(self) -> None:
        """Write the profile, and report its path to the parent if it had to go elsewhere."""
        named = self.path
        super().close()
        if self._claim is not None and self.path != named:
            with suppress(OSError), self._claim.open("ab") as claim:
                claim.write(os.fsencode(self.path))

    def _after_failure(self, error: Exception) -> None:
        """Leave a note for the parent if there will be no recording to hold it."""
        super()._after_failure(error)
        if self._session is not None and not self.steps:
            with suppress(OSError):
                Path(self._session, ".failed").write_text(self.notes[-1].text, encoding="utf-8")

    def _after_step(self, step: int) -> None:
        super()._after_step(step)
        if self._counter is not None:
            self._counter.value = step


def _shared_number(handle: int) -> ctypes.c_int64:
    """Map the number at the start of a file into memory; raise OSError.

    Python's `mmap` keeps the file open, which would change the descriptors that the script gets.
    """
    if sys.platform == "win32":
        return ctypes.c_int64.from_buffer(mmap.mmap(handle, COUNTER.size))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, COUNTER.size, protection, mmap.MAP_SHARED, handle, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "cannot be mapped")
    return ctypes.c_int64.from_address(address)


def record_here(session: str) -> None:
    """Start recording this process with the session's options."""
    options = json.loads(Path(session, OPTIONS).read_bytes())
    from stepgrade.record.patches import without_ours  # needs torch

    if (beside := options.pop("beside", None)) is not None:  # a module that watches the training too
        plan = options.pop("plan")
        import_module(beside).begin(session, plan)
        if not plan["is_recorded"]:
            return
    ScriptRecorder(session, **options).start()
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for each in _chain(error):
            each.__traceback__ = without_ours(each.__traceback__)
        shown(kind, error, error.__traceback__ if trace is not None else None)

    sys.excepthook = show
    if shown is sys.__excepthook__:
        sys.__excepthook__ = show  # some code checks whether it was replaced


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__]
