"""Run a training as it is and under `stepgrade record`, and hold the two beside each other."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import stepgrade as sg
from tests.conftest import ROOT

TIMEOUT_SECONDS = 400
only_in_full = pytest.mark.skipif(
    "STEPGRADE_SCRIPTS" not in os.environ, reason="takes long: `make test-scripts` runs it"
)

# What can hold up a loop that loads nothing and talks to nobody. The models are so small that it is mostly the
# host, but on a busy machine operations are interrupted and look as long as those of large tensors.
ALONE = frozenset({"host", "compute", "memory_bw", "unknown"})
FED = ALONE | {"input"}  # from a DataLoader
JOINED = ALONE | {"communication"}


class Ended(NamedTuple):
    """How a process ended, what it wrote, and the files that it left."""

    code: int
    out: str
    err: str
    files: list[str]


def run(words: list[str], folder: Path) -> Ended:
    """Run a command in a folder, with one thread and no network beyond this machine."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "PYTHONSTARTUP")
    }
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONHASHSEED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "NO_COLOR": "1",
    }
    ran = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    files = sorted(
        str(found.relative_to(folder))
        for found in folder.rglob("*")
        if found.is_file() and "__pycache__" not in found.parts
    )
    return Ended(ran.returncode, ran.stdout, ran.stderr, files)


def run_both(
    tmp_path: Path, words: list[str], files: list[Path], launcher: tuple[str, ...] = ()
) -> tuple[Ended, Ended]:
    """Return how a command ends by itself and under `record`; `launcher` is what runs it by itself."""
    ended = []
    for before in (launcher or (sys.executable,), (sys.executable, "-m", "stepgrade", "record", *launcher)):
        # The same name of the folder both times, for scripts that print it.
        folder = tmp_path / "here"
        folder.mkdir()
        for file in files:
            if file.is_dir():
                shutil.copytree(file, folder / file.name)
            else:
                shutil.copy(file, folder)
        # `--` is for `record`, not for Python.
        own = words[1:] if words[0] == "--" and not ended else words
        ended.append(run([*before, *own], folder))
        folder.rename(tmp_path / f"ran-{len(ended)}")
    return ended[0], ended[1]


def recordings(tmp_path: Path) -> dict[str, sg.Profile]:
    """Return what the recorded run left, by name."""
    return {path.name: sg.load(path) for path in sorted((tmp_path / "ran-2").glob("stepgrade*.json"))}


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def is_graded(card: sg.Scorecard) -> bool:
    """Tell whether a card says how good the run is: a grade, or the best that it can have."""
    return card.grade in tuple("ABCDF") or card.grade_at_most in tuple("ABCDF")
