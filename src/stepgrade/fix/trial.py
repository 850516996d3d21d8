"""One trial: the script in a process of its own, in a copy of its folder, with a witness inside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stepgrade.decoding import from_json
from stepgrade.errors import NotMeasured
from stepgrade.record.launch import INJECTED, OPTIONS, PARENT, SESSION
from stepgrade.statistics import mean

WARMUP = 3
_POLL_S, _TERMINATE_S = 0.05, 5.0
_MOST_COPIED_BYTES, _MOST_COPIED_FILES = 64 * 2**20, 5000  # of one entry of the folder
_NOT_COPIED = {".git", ".hg", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "node_modules"}
# Trackers stay offline, so that trials appear nowhere.
_OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "COMET_OFFLINE": "1",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONHASHSEED": "0",
}
_TRACKED_FOLDERS = {
    "WANDB_DIR": "wandb",
    "MLFLOW_TRACKING_URI": "mlruns",
    "TENSORBOARD_LOGDIR": "tensorboard",
}


class StepSeen(Struct, frozen=True, kw_only=True):
    """One step of a trial."""

    wall_ns: int
    processor_ns: int
    losses: tuple[float | None, ...]  # None for what JSON cannot hold
    backwards: int
    updates: int
    gradients: int


class Site(Struct, frozen=True, kw_only=True):
    """A call in the script's own code that a change would edit."""

    call: str
    file: str
    line: int
    calls: int
    arguments: dict[str, Any] = {}

    @property
    def place(self) -> tuple[str, int]:
        """Return file and line."""
        return self.file, self.line


class Witnessed(Struct, frozen=True, kw_only=True):
    """What a process of a trial did."""

    how: str
    applied: int  # how often the change was made
    rank: int
    world_size: int
    device: str
    threads: int
    steps: tuple[StepSeen, ...]
    batches: dict[str, int]
    shapes: int
    digests: tuple[str, ...]
    first_weights: tuple[tuple[float | None, ...], ...] | None
    last_weights: tuple[tuple[float | None, ...], ...]
    weights: str
    dtypes: tuple[str, ...]
    peak_bytes: float | None
    sites: tuple[Site, ...]

    @property
    def step_ms(self) -> float:
        """Return the mean time of the steps after the warm-up."""
        times = [step.wall_ns for step in self.steps[WARMUP - 1 :]]
        return (times[-1] - times[0]) / (len(times) - 1) / 1e6

    @property
    def processor_ms(self) -> float:
        """Return the processor time of the process in the same steps."""
        times = [step.processor_ns for step in self.steps[WARMUP - 1 :]]
        return mean([after - before for before, after in pairwise(times)]) / 1e6


class Trial(Struct, frozen=True, kw_only=True):
    """What one trial left."""

    code: int
    ranks: tuple[Witnessed, ...]
    files: frozenset[str]  # new ones in the copied folder
    seconds: float
    said: str  # its last line of standard error
    recording: tuple[str, ...] = ()


class TrialPlan(Struct, frozen=True, kw_only=True):
    """How a trial runs."""

    steps: int
    least_steps: int = WARMUP + 2
    seconds: float | None = None  # after which `least_steps` are enough
    settings: dict[str, Any] = {}
    other_seed: bool = False
    is_recorded: bool = False


class Bench(Struct, frozen=True, kw_only=True):
    """Where trials run: copies of a folder, below a scratch folder."""

    words: tuple[str, ...]  # the command
    folder: str
    scratch: str
    deadline: float  # by the monotonic clock

    def run(self, plan: TrialPlan, edited: dict[str, str] | None = None) -> Trial:
        """Run the command once; `edited` has other texts for some of the folder's files."""
        number = len(os.listdir(self.scratch))
        place = Path(self.scratch, f"trial-{number}")
        copy, session, outside = place / os.path.basename(self.folder), place / "session", place / "out"
        for each in (session, outside):
            each.mkdir(parents=True)
        linked = copy_folder(self.folder, str(copy))
        for path, text in (edited or {}).items():
            (copy / path).write_text(text, encoding="utf-8")
        before = files_of(str(copy), linked)
        here = self.folder + os.sep  # what names a file of the folder names that of the copy

        def moved(path: str) -> str:
            return f"{copy}{os.sep}{path.removeprefix(here)}" if path.startswith(here) else path

        settings = {
            name: value | {"place": (moved(value["place"][0]), value["place"][1])}
            if isinstance(value, dict) and "place" in value
            else value
            for name, value in plan.settings.items()
        }
        words = [moved(word) for word in self.words]
        options = {
            "path": str(outside / "stepgrade.json"),
            "beside": "stepgrade.fix.witness",
            "plan": msgspec.to_builtins(plan) | {"settings": settings},
        }
        (session / OPTIONS).write_text(json.dumps(options), encoding="utf-8")
        began = time.monotonic()
        with open(outside / "stderr", "wb") as errors:
            code = self._wait(self._start(words, copy, session, errors.fileno()))
        said = (outside / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        ranks = [
            self._own(from_json(path.read_bytes(), Witnessed), str(copy))
            for path in session.glob("witness-*")
        ]
        trial = Trial(
            code=code,
            ranks=tuple(sorted(ranks, key=lambda one: one.rank)),
            files=frozenset(files_of(str(copy), linked) - before),
            seconds=time.monotonic() - began,
            said=said[-1] if said else "",
            recording=tuple(str(path) for path in sorted(outside.glob("stepgrade*.json"))),
        )
        shutil.rmtree(copy, ignore_errors=True)
        return trial

    def _own(self, seen: Witnessed, copy: str) -> Witnessed:
        """Return it with the paths of the user's own folder instead of the copy's."""
        real = os.path.realpath(copy)

        def own(path: str) -> str:
            for prefix in (copy, real):
                if path.startswith(prefix + os.sep):
                    return self.folder + path.removeprefix(prefix)
            return path

        return msgspec.structs.replace(
            seen, sites=tuple(msgspec.structs.replace(site, file=own(site.file)) for site in seen.sites)
        )

    def _start(self, words: list[str], copy: Path, session: Path, errors: int) -> subprocess.Popen[bytes]:
        before = os.environ.get("PYTHONPATH", "")
        folders = [os.fspath(INJECTED), *(before.split(os.pathsep) if before else ())]
        own = {SESSION: str(session), PARENT: str(os.getpid()), "PYTHONPATH": os.pathsep.join(folders)}
        tracked = {name: str(session.parent / "out" / folder) for name, folder in _TRACKED_FOLDERS.items()}
        return subprocess.Popen(  # noqa: S603  what the user asked for
            words,
            cwd=copy,
            env={**os.environ, **_OFFLINE, **tracked, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end; whatever is left of its group is ended, also when this is interrupted."""
        try:
            while process.poll() is None:
                if time.monotonic() > self.deadline:
                    raise NotMeasured("the budget ended during a trial", hint="give a larger {minutes}")
                time.sleep(_POLL_S)
            return process.returncode
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_TERMINATE_S)


def copy_folder(folder: str, copy: str) -> set[str]:
    """Copy a folder; return the names of its entries that are too large, which are linked.

    Pipes, devices and what may not be read are left out.
    """
    os.makedirs(copy)
    linked = set[str]()
    for entry in os.scandir(folder):
        target = os.path.join(copy, entry.name)
        if entry.name in _NOT_COPIED or os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
            continue
        if not _is_small(entry.path):
            os.symlink(entry.path, target)
            linked.add(entry.name)
        elif entry.is_dir(follow_symlinks=False):
            skipped = shutil.ignore_patterns(*_NOT_COPIED)
            shutil.copytree(entry.path, target, symlinks=True, ignore=skipped, copy_function=_copy_file)
        else:
            _copy_file(entry.path, target)
    return linked


def _copy_file(source: str, target: str) -> None:
    """Copy a regular file or a link."""
    if os.path.islink(source) or os.path.isfile(source):
        with suppress(PermissionError):
            shutil.copy2(source, target, follow_symlinks=False)


def _is_small(path: str) -> bool:
    count = size = 0
    for base, _, names in (
        os.walk(path) if os.path.isdir(path) else [(os.path.dirname(path), [], [os.path.basename(path)])]
    ):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(base, name)).st_size
            count += 1
        if size > _MOST_COPIED_BYTES or count > _MOST_COPIED_FILES:
            return False
    return True


def files_of(folder: str, linked: Sequence[str] | set[str]) -> set[str]:
    """Return the files below a folder, by their paths in it, without what is only linked."""
    found = set[str]()
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NOT_COPIED and name not in linked]
        found.update(os.path.relpath(os.path.join(base, name), folder) for name in names)
    return found
