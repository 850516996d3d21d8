"""The file of a recording: a journal while training runs, one whole JSON in its place at the end."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepgrade.files import write_whole

JOURNAL_VERSION = 1


class Journal:
    """Appends lines; what cannot be written is told by an OSError and leaves no half line behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun = False

    def check(self) -> None:
        """Raise OSError when the place cannot be written to, before anything was measured."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a directory")
        if not _is_special(self.path):
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass

    def append(self, head: dict[str, Any], line: dict[str, Any]) -> None:
        """Add one line; the first time a new journal with its head line takes the place of an older file."""
        if _is_special(self.path):
            return  # a pipe or a device gets the final JSON only
        if not self._begun:
            write_whole(self.path, _encoded(head) + _encoded(line))
            self._begun = True
            return
        with self.path.open("r+b") as stream:
            end = stream.seek(0, os.SEEK_END)
            try:
                stream.write(_encoded(line))
                stream.flush()
            except OSError:
                with suppress(OSError):
                    stream.truncate(end)
                raise

    def finish(self, document: dict[str, Any]) -> Path:
        """Write the final JSON in the journal's place; where that fails, into the temporary directory.

        Return where it is; raise OSError when neither could be written.
        """
        text = _encoded(document)
        try:
            write_whole(self.path, text)
        except OSError:
            elsewhere = Path(tempfile.gettempdir()) / self.path.name
            if elsewhere.resolve() == self.path.resolve() or _is_special(elsewhere):
                raise
            write_whole(elsewhere, text)
            return elsewhere
        return self.path


def rank_path(path: Path, rank: int, world_size: int) -> Path:
    """Return the file of one rank: `run.json` becomes `run.rank3.json` when there are several."""
    return path if world_size == 1 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _is_special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
