"""One trial: the script in a process of its own, in a copy of its folder, with a witness inside."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stepgrade.decoding import from_json
from stepgrade.errors import BadInput
from stepgrade.fix.copies import Original
from stepgrade.record.guard import end_session
from stepgrade.record.launch import OPTIONS, session_environment
from stepgrade.statistics import mean

WARMUP = 3
_TERMINATE_S = 5.0
_MOST_SAID_BYTES = 65_536
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
    evaluations: int  # how often a module was switched to evaluation


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
    sampled: int  # a checksum of some elements of all batches
    asked: tuple[int, ...]  # of the samples that the batches of each loader were made of
    first_weights: tuple[tuple[float | None, ...], ...] | None
    last_weights: tuple[tuple[float | None, ...], ...]
    weights: str
    dtypes: tuple[str, ...]
    peak_bytes: float | None
    flops: float | None  # of the second step; None if they cannot be counted
    sites: tuple[Site, ...]
    modules: tuple[str, ...]  # files of the user's folder that it ran

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

    code: int | None  # None if it was ended, because it took too long
    ranks: tuple[Witnessed, ...]
    files: frozenset[str]  # new ones in the copied folder
    seconds: float
    said: str  # its last line of standard error, or what ended it
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
    original: Original
    scratch: str
    most_s: float  # that a trial may take

    def run(self, plan: TrialPlan, edited: dict[str, str] | None = None) -> Trial:
        """Run the command once; `edited` has other texts for some of the folder's files."""
        number, folder = len(os.listdir(self.scratch)), self.original.folder
        place = Path(self.scratch, f"trial-{number}")
        copy, session, outside = place / os.path.basename(folder), place / "session", place / "out"
        for each in (session, outside):
            each.mkdir(parents=True)
        try:
            self.original.copy(str(copy), self.scratch)
        except OSError as error:
            problem = f"cannot be copied for a trial: {error.strerror or error}"
            hint = "set TMPDIR to a folder with more room"
            raise BadInput(problem, where=str(error.filename or folder), hint=hint) from error
        for path, text in (edited or {}).items():
            (copy / path).write_bytes(text.encode())
        before = self.original.files(str(copy))
        options = {
            "path": str(outside / "stepgrade.json"),
            "beside": "stepgrade.fix.witness",
            "plan": msgspec.to_builtins(plan) | {"copy": str(copy), "folder": folder},
        }
        (session / OPTIONS).write_text(json.dumps(options), encoding="utf-8")
        # What names a file of the folder names that of the copy.
        words = [re.sub(f"(^|=){re.escape(folder)}(?=/|$)", rf"\1{copy}", word) for word in self.words]
        began = time.monotonic()
        with open(outside / "stderr", "wb") as errors:
            code = self._wait(self._start(words, copy, session, errors.fileno()), str(session))
        with open(outside / "stderr", "rb") as stderr:
            stderr.seek(-min(_MOST_SAID_BYTES, os.fstat(stderr.fileno()).st_size), os.SEEK_END)
            *_, last = ["", *stderr.read().decode(errors="replace").strip().splitlines()]
        ranks = [from_json(path.read_bytes(), Witnessed) for path in session.glob("witness-*")]
        trial = Trial(
            code=code,
            ranks=tuple(sorted(ranks, key=lambda one: one.rank)),
            files=frozenset(self.original.files(str(copy)) - before),
            seconds=time.monotonic() - began,
            said=last if code is not None else f"did not end within {self.most_s:.0f} s",
            recording=tuple(str(path) for path in sorted(outside.glob("stepgrade*.json"))),
        )
        shutil.rmtree(copy, ignore_errors=True)
        return trial

    def _start(self, words: list[str], copy: Path, session: Path, errors: int) -> subprocess.Popen[bytes]:
        # A package that is installed from the folder comes from the copy.
        packages = [str(each) for each in (copy, copy / "src") if each.is_dir()]
        tracked = {name: str(session.parent / "out" / folder) for name, folder in _TRACKED_FOLDERS.items()}
        return subprocess.Popen(  # noqa: S603  what the user asked for
            words,
            cwd=copy,
            env={**os.environ, **_OFFLINE, **tracked, **session_environment(session, packages)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )

    def _wait(self, process: subprocess.Popen[bytes], session: str) -> int | None:
        """Wait for the end, None if it takes too long; what is left of the trial is ended in any case."""
        try:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(self.most_s)
            return None
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:  # else its number may be another's
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_TERMINATE_S)
            if not end_session(session):  # workers that torchrun gave a group of their own too
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
