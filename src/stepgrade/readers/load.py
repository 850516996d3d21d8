"""Read a run or a baseline: the format is found by content, and a trace becomes a profile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

from stepgrade.model import Baseline, Profile
from stepgrade.readers import registry
from stepgrade.readers.content import DEFAULT_MAX_BYTES
from stepgrade.readers.registry import Reading

PathLike: TypeAlias = str | os.PathLike[str]


def load(
    *sources: PathLike,
    input_format: str | None = None,
    steps: tuple[int, int] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Read a run from a path, or from standard input for `-`; the format is found by content.

    Several PyTorch traces, or a directory of them, are the ranks of one run. `steps` keeps only the
    steps from the first to the last number; `progress` is told the bytes read and the bytes to read.
    """
    how = Reading(input_format=input_format, steps=steps, max_bytes=max_bytes, progress=progress)
    found = registry.read_run(sources, how)
    if isinstance(found, Profile):
        return found
    from stepgrade.trace import profile_of_traces  # noqa: PLC0415  needs numpy

    return profile_of_traces(found)


def load_baseline(source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Baseline | Profile:
    """Read what to compare with: a scorecard's JSON or any profile."""
    return registry.read_baseline(source, max_bytes=max_bytes) or load(source, max_bytes=max_bytes)
