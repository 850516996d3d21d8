"""The entry points of installed packages; importlib.metadata takes longer to import than a log to score."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def plug_ins(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group."""
    if not any(map(partial(_may_bring, group.encode()), sys.path)):
        return ()
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _may_bring(group: bytes, path: str) -> bool:
    """Return whether a package in this entry of sys.path may have some; only folders are searched."""
    if not os.path.isdir(path):
        return os.path.exists(path)
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(f"{entry.path}/entry_points.txt", "rb") as file:
                        if group in file.read():
                            return True
                except OSError:  # most have none
                    continue
    return False
