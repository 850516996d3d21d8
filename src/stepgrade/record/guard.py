"""Scratch folders that outlive nobody: a second process removes them, and ends what runs for them.

It waits for the end of the process that made the folder, however that ends: nothing can tidy up after SIGKILL
in its own process. `python -m stepgrade.record.guard FOLDER` is that second process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stepgrade.files import is_mine, scratch_folder
from stepgrade.record.launch import SESSION

_DONE = b"done"
_MOST_ROUNDS = 20  # what is being ended may start others


@contextmanager
def guarded_folder() -> Iterator[str]:
    """Give a scratch folder; if this process fails or is killed, the sessions in it are ended too."""
    with scratch_folder() as folder:
        guard = _start(folder)
        try:
            yield folder
            if guard is not None and guard.stdin is not None:
                guard.stdin.write(_DONE)
        finally:
            if guard is not None and guard.stdin is not None:
                with suppress(OSError):
                    guard.stdin.close()
                guard.wait()


def _start(folder: str) -> subprocess.Popen[bytes] | None:
    with suppress(OSError):  # there is no other process; this one tidies up
        return subprocess.Popen(  # noqa: S603  this interpreter and our own code
            [sys.executable, "-P", "-m", "stepgrade.record.guard", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd=folder,
            start_new_session=True,  # Ctrl-C is not for it
        )
    return None


def end_session(folder: str) -> bool:
    """Kill the processes of the sessions in a folder, by their environments; False if those are not known."""
    mark = os.fsencode(f"{SESSION}={folder.rstrip(os.sep)}")
    for _ in range(_MOST_ROUNDS):
        try:
            numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        except OSError:
            return False
        if not sum(_end(number, mark) for number in numbers):
            break
    return True


def _end(number: int, mark: bytes) -> bool:
    """Kill a process if the mark is in its environment; a handle keeps its number from being another's."""
    if number == os.getpid() or not hasattr(os, "pidfd_open"):
        return False
    with suppress(OSError):
        if not is_mine(os.stat(f"/proc/{number}")):
            return False
        handle = os.pidfd_open(number)
        try:
            with open(f"/proc/{number}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if any(one == mark or one.startswith(mark + b"/") for one in variables):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def main(folder: str) -> None:
    """Wait for the end of the process that started this one, and tidy up unless it has."""
    if sys.stdin.buffer.read() != _DONE:
        end_session(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
