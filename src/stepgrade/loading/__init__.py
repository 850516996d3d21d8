"""Read a run or a baseline: find its files, read each, and combine what they hold into a profile."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stepgrade.config import DialectTable
from stepgrade.errors import BadOption, UnknownFormat
from stepgrade.loading.combine import read_run
from stepgrade.model import Baseline, Profile
from stepgrade.readers.discover import discover
from stepgrade.readers.source import (
    DEFAULT_MAX_BYTES,
    MOST_UNREADABLE,
    ByteSource,
    PathLike,
    Progress,
    ReadOptions,
)

if TYPE_CHECKING:
    from stepgrade.model.events import Trace


def load(
    *sources: PathLike,
    input_format: str | None = None,
    steps: tuple[int, int] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_memory: int | None = None,
    progress: Progress | None = None,
    rank_progress: Progress | None = None,
    dialects: Sequence[DialectTable] = (),
    engine: str | None = None,
    workers: int | None = None,
    most_unreadable: float = MOST_UNREADABLE,
    sample_ranks: int | None = None,
    cache: bool = True,
) -> Profile:
    """Read a run from a path, or from standard input for `-`; the format is detected from the content.

    Several traces, or a directory of them, are the ranks of one run; a log with them belongs to it. `steps`
    selects first to last step; `max_memory` limits the bytes decoded (default: a quarter of the machine's
    memory); `progress` is called with bytes read and in all, `rank_progress` with ranks; `dialects` describe
    your own log lines (`load_config`). `engine` is "here", "pool", "dask" or "dask://HOST:PORT", with so many
    `workers`; unreadable ranks are skipped up to a share of `most_unreadable`; `sample_ranks` reads only so
    many. Results per rank are cached unless `cache` is False.
    """
    if workers is not None and workers < 1:
        raise BadOption("must be 1 or more", field="workers")
    if sample_ranks is not None and sample_ranks < 2:
        raise BadOption("must be 2 or more", field="sample_ranks")
    if not 0.0 <= most_unreadable <= 1.0:
        raise BadOption("must be a share from 0 to 1", field="most_unreadable")
    options = ReadOptions(
        steps=steps,
        max_bytes=max_bytes,
        max_memory=max_memory,
        progress=progress,
        rank_progress=rank_progress,
        dialects=tuple(dialects),
        engine=engine,
        workers=workers,
        most_unreadable=most_unreadable,
        sample_ranks=sample_ranks,
        cache=cache,
    )
    with discover(sources, input_format, options) as run:
        found = read_run(run, options)
    if isinstance(found, Baseline):
        supply = "it as {baseline}, or the profile that it was made from"
        raise UnknownFormat("is a scorecard, not a profile", where=found.name, supply=supply)
    return found


def load_baseline(
    source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES, max_memory: int | None = None
) -> Baseline | Profile:
    """Read a baseline: a scorecard's JSON or any profile."""
    options = ReadOptions(max_bytes=max_bytes, max_memory=max_memory)
    with discover([source], None, options) as run:
        return read_run(run, options)


def read_json_text(
    source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES, max_memory: int | None = None
) -> bytes:
    """Return the JSON text of a file, or of the profile inside a log, as contract v1 takes it."""
    with ByteSource(source, ReadOptions(max_bytes=max_bytes, max_memory=max_memory)) as opened:
        if opened.json_keys is not None:
            return opened.document()
        from stepgrade.readers.log import find_profile  # not needed for most sources

        return find_profile(opened).text


def profile_given(given: object) -> Profile:
    """Return the profile, read from its file where a path is given; raise BadOption for anything else."""
    if isinstance(given, Profile):
        return given
    if isinstance(given, str | os.PathLike):
        return load(given)
    problem = f"{type(given).__name__} is not a profile"
    raise BadOption(problem, hint="give a path, or what stepgrade.load returns")


def baseline_given(given: object) -> Baseline | Profile:
    """Return the earlier run, read from its file where a path is given; raise BadOption for anything else."""
    if isinstance(given, Baseline | Profile):
        return given
    if isinstance(given, str | os.PathLike):
        return load_baseline(given)
    problem = f"{type(given).__name__} is not an earlier run"
    raise BadOption(problem, hint="give a path, a scorecard, or what stepgrade.load_baseline returns")


def traces_given(given: PathLike | Iterable[Trace]) -> Iterable[Trace]:
    """Return the traces of a run's ranks, read from their file or directory where a path is given."""
    if isinstance(given, str | os.PathLike):
        from stepgrade.readers.ranks import read_ranks  # needs numpy

        return read_ranks([given])
    return given
