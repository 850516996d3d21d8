"""Run recordings again and again, several commands in turns, so that all meet the same machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from stepgrade.errors import NotMeasured


def run_in_turns(
    commands: Sequence[Sequence[str]], times: int, output: Path, progress: Callable[[str], None]
) -> list[list[Path]]:
    """Record each command so often, one after the other; return the files of each, in order.

    A command is what follows `stepgrade record -o FILE`. Commands take turns: what changes on the machine
    meanwhile, its temperature or its other work, then meets all of them alike. Raise NotMeasured when a run
    ends without a recording.
    """
    files: list[list[Path]] = [[] for _ in commands]
    for turn in range(1, times + 1):
        for place, command in enumerate(commands):
            letter = chr(ord("a") + place) if len(commands) > 1 else ""
            path = output.with_name(f"{output.stem}.{letter}{turn}{output.suffix}")
            path.unlink(missing_ok=True)
            progress(f"run {turn} of {times}{f', command {letter}' if letter else ''}")
            ran = subprocess.run(  # noqa: S603  the user's own command, as without us
                [sys.executable, "-m", "stepgrade", "record", "--quiet", "-o", str(path), *command],
                check=False,
            )
            ranks = sorted(path.parent.glob(f"{path.stem}.rank*{path.suffix}"))
            if not path.exists() and not ranks:
                problem = f"run {turn} ended with code {ran.returncode} and no recording"
                raise NotMeasured(problem, where=" ".join(command))
            files[place].append(path if path.exists() else ranks[0])
    return files
