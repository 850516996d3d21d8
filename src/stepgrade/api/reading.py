"""Profiles, baselines and settings from files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from stepgrade.analysis.limits_file import Settings
from stepgrade.model import Baseline, Profile
from stepgrade.readers import registry
from stepgrade.readers.content import DEFAULT_MAX_BYTES
from stepgrade.readers.registry import Reading

if TYPE_CHECKING:
    from stepgrade.config import Config

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
    from stepgrade.analysis.trace.summary import profile_of_traces  # noqa: PLC0415  needs numpy

    return profile_of_traces(found)


def load_baseline(source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Baseline | Profile:
    """Read what to compare with: a scorecard's JSON or any profile."""
    return registry.read_baseline(source, max_bytes=max_bytes) or load(source, max_bytes=max_bytes)


def load_settings(source: PathLike) -> Settings:
    """Read limits and ignored rules from a stepgrade.toml; raise BadConfig at the key that is wrong."""
    from stepgrade.config import load_config  # noqa: PLC0415  as little as a command needs

    name = os.fspath(source)
    return settings_from(load_config(name), name)


def settings_from(config: Config, name: str) -> Settings:
    """Return the limits and ignored rules of a configuration that was read from the file `name`."""
    from stepgrade.analysis.limits_file import settings_of  # noqa: PLC0415  as little as a command needs
    from stepgrade.analysis.rules import RULE_NAMES  # noqa: PLC0415  as above

    return settings_of(config, RULE_NAMES, name)
