"""What callers give for a run: a profile or its traces as they are, or a path, which is read first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from stepgrade.errors import BadOption
from stepgrade.model.baseline import Baseline
from stepgrade.model.profile import Profile

if TYPE_CHECKING:
    from stepgrade.model.events import Trace

Path: TypeAlias = str | os.PathLike[str]


def profile_given(given: object) -> Profile:
    """Return the profile, read from its file where a path is given; raise BadOption for anything else."""
    if isinstance(given, Profile):
        return given
    if isinstance(given, str | os.PathLike):
        from stepgrade.readers.load import load  # readers are above this room

        return load(given)
    problem = f"{type(given).__name__} is not a profile"
    raise BadOption(problem, hint="give a path, or what stepgrade.load returns")


def baseline_given(given: object) -> Baseline | Profile:
    """Return the earlier run, read from its file where a path is given; raise BadOption for anything else."""
    if isinstance(given, Baseline | Profile):
        return given
    if isinstance(given, str | os.PathLike):
        from stepgrade.readers.load import load_baseline

        return load_baseline(given)
    problem = f"{type(given).__name__} is no earlier run"
    raise BadOption(problem, hint="give a path, a scorecard, or what stepgrade.load_baseline returns")


def traces_given(given: Path | Iterable[Trace]) -> Iterable[Trace]:
    """Return the traces of a run's ranks, read from their file or directory where a path is given."""
    if isinstance(given, str | os.PathLike):
        from stepgrade.readers.ranks import read_ranks

        return read_ranks([given])
    return given
