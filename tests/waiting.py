"""Waiting for what other processes do, on a machine however slow."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

_PATIENCE_S = 600.0  # against what never comes, not against what is slow


def wait_for(is_so: Callable[[], object]) -> None:
    """Wait until something is so; fail when it never is."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def running(word: str) -> list[str]:
    """Return the command lines that hold a word."""
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if word in line]
