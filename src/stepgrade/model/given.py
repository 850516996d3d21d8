"""What callers give for a run: a profile as it is, or the path of a file, which is read first."""

from __future__ import annotations

import os
from typing import TypeAlias

from stepgrade.errors import BadOption
from stepgrade.model.baseline import Baseline
from stepgrade.model.profile import Profile

Path: TypeAlias = str | os.PathLike[str]


def profile_given(given: object) -> Profile:
    """Return the profile, read from its file where a path is given; raise BadOption for anything else."""
    if isinstance(given, Profile):
        return given
    if isinstance(given, str | os.PathLike):
        from stepgrade.readers.load import load  # noqa: PLC0415  readers are above this room

        return load(given)
    problem = f"{type(given).__name__} is not a profile"
    raise BadOption(problem, hint="give a path, or what stepgrade.load returns")


def baseline_given(given: object) -> Baseline | Profile:
    """Return the earlier run, read from its file where a path is given; raise BadOption for anything else."""
    if isinstance(given, Baseline | Profile):
        return given
    if isinstance(given, str | os.PathLike):
        from stepgrade.readers.load import load_baseline  # noqa: PLC0415  as above

        return load_baseline(given)
    problem = f"{type(given).__name__} is no earlier run"
    raise BadOption(problem, hint="give a path, a scorecard, or what stepgrade.load_baseline returns")
