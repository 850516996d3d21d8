"""Run a training at two commits in turns, on this machine, until the gate can tell them apart or time is up.

The earlier commit is checked out into a folder of its own, which is removed at the end; the checkout and its
.git stay as they are. The new side is the checkout itself, with changes that are not committed.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, structs

from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.compare.turns import compare_in_turns, is_decided
from stepgrade.config import Config
from stepgrade.errors import BadOption, NotMeasured
from stepgrade.gating.budgets import judge
from stepgrade.gating.fail_on import grade_conditions
from stepgrade.grading import score
from stepgrade.hardware.setup import Setup
from stepgrade.loading import load
from stepgrade.model.comparison import GateReport
from stepgrade.model.scorecard import Baseline, Scorecard
from stepgrade.record.guard import guarded_folder
from stepgrade.record.launch import Place, run_recorded, turns
from stepgrade.store.git import copy_at, fork_of, top_here

MOST_PAIRS = 12
_STANDARD_ERROR = 2


class TurnLimits(Struct, frozen=True, kw_only=True):
    """How many pairs of runs are made at most, and how long it may take."""

    pairs: int = MOST_PAIRS
    minutes: float | None = None


def gate_in_turns(
    command: str,
    base: str,
    *,
    limits: TurnLimits | None = None,
    config: Config | None = None,
    setup: Setup | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> GateReport:
    """Run a training command here and at the commit where this code left `base`, in turns, and judge.

    No pair is begun that would end after the limit. Raise NotMeasured if a run fails or records nothing.
    """
    words, config, limits = shlex.split(command), config or Config(), limits or TurnLimits()
    if not words:
        raise BadOption("no command", field="run", hint="such as 'python train.py'")
    if limits.pairs < 2:
        raise BadOption("must be at least 2", field="pairs")
    conditions, allowed = grade_conditions(config.gate.fail_on), allowed_fields(config.gate.allow_different)
    made: list[tuple[Baseline, Baseline]] = []
    until = time.monotonic() + (limits.minutes or math.inf) * 60.0
    with guarded_folder() as scratch:
        commit, places = _places(base, scratch)
        for turn, is_backwards in turns(limits.pairs, until):
            found: dict[int, Baseline] = {}
            for side in (1, 0) if is_backwards else (0, 1):
                progress(f"pair {turn} of at most {limits.pairs}: {'this code' if side else base}")
                path = Path(scratch) / f"run-{turn}-{side}.json"
                card, found[side] = _run(words, path, places[side], setup)
                if side:
                    newest = card
            made.append((found[0], found[1]))
            comparison = compare_in_turns(made, config.gate, allowed)
            if is_decided(comparison):
                break
    count = f"{len(made)} pair{'s' if len(made) != 1 else ''} of runs in turns"
    comparison = structs.replace(comparison, baseline=f"{base} ({commit[:10]}), {count}")
    return judge(newest, comparison, config, conditions, dt.date.today())  # noqa: DTZ011


def _places(base: str, scratch: str) -> tuple[str, tuple[Place, Place]]:
    """Return the commit where this code left `base`, and where both sides run, after checking it out."""
    top = top_here()
    if top is None:
        raise BadOption("this folder is not in a git checkout", field="base")
    commit = fork_of(base)
    if not commit:
        hint = "fetch it, with its history: fetch-depth: 0 on GitHub, GIT_DEPTH: 0 on GitLab"
        raise BadOption(f"{base!r} is no commit that this checkout has", field="base", hint=hint)
    copy = os.path.join(scratch, "base")
    if not copy_at(top, commit, copy):
        raise NotMeasured(f"commit {commit[:10]} cannot be checked out", where=top)
    inside = os.path.join(copy, os.path.relpath(os.path.realpath(os.getcwd()), os.path.realpath(top)))
    if not os.path.isdir(inside):
        raise NotMeasured("this folder is not there", where=f"commit {commit[:10]}")
    return commit, (_place(copy, inside, scratch), _place(top, os.getcwd(), scratch))


def _place(top: str, folder: str, scratch: str) -> Place:
    """Return where a side runs; packages that are installed from the checkout come from the side itself."""
    packages = tuple(each for each in (folder, top, os.path.join(top, "src")) if os.path.isdir(each))
    output = subprocess.DEVNULL if sys.stderr is None else _STANDARD_ERROR  # a notebook's has no number
    return Place(folder=folder, packages=tuple(dict.fromkeys(packages)), output=output, scratch=scratch)


def _run(words: list[str], path: Path, place: Place, setup: Setup | None) -> tuple[Scorecard, Baseline]:
    launched = run_recorded(words, path, {}, place=place)
    launched.leave_if_asked()
    if launched.code or not launched.recorded:
        problem = f"ended with code {launched.code}" if launched.code else "recorded no step"
        raise NotMeasured(problem, where=" ".join(words), hint=launched.problem)
    profile = load(*(each.path for each in launched.recorded))
    card = score(profile, setup=setup)
    # The processor time decides where the processor computes; beside an accelerator it is the host's alone.
    samples = profile.processor_samples_ms if card.device is None else ()
    return card, structs.replace(Baseline.of(card), processor_samples_ms=samples)
