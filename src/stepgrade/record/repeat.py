"""Record commands repeatedly, in turns, so that all run under the same conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stepgrade.errors import NotMeasured
from stepgrade.record.launch import run_recorded


def run_in_turns(
    commands: Sequence[Sequence[str]],
    times: int,
    output: Path,
    options: dict[str, object],
    progress: Callable[[str], None],
) -> list[list[list[Path]]]:
    """Record each command several times, in turns; return the files of each run of each command.

    Commands take turns: what changes on the machine meanwhile, its temperature or its other work, then meets
    all of them alike. A command may begin with -m. Raise NotMeasured when a run ends without a recording.
    """
    files: list[list[list[Path]]] = [[] for _ in commands]
    for turn in range(1, times + 1):
        for index, command in enumerate(commands):
            letter = chr(ord("a") + index) if len(commands) > 1 else ""
            path = output.with_name(f"{output.stem}.{letter}{turn}{output.suffix}")
            progress(f"run {turn} of {times}{f' of command {letter}' if letter else ''}")
            as_module = list(command[:1]) == ["-m"]
            launched = run_recorded(command[as_module:], path, options, as_module=as_module)
            if not launched.recorded:
                problem = f"run {turn} ended with code {launched.code} and no recording"
                raise NotMeasured(problem, where=" ".join(command), hint=launched.problem)
            files[index].append([each.path for each in launched.recorded])
    return files
