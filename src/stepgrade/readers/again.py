"""The traces of a run that was read before, read once more: a profile keeps their sums, not their events."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import structs

from stepgrade.errors import BadOption
from stepgrade.files import scratch_folder
from stepgrade.model import Source
from stepgrade.model.events import Trace
from stepgrade.readers import registry
from stepgrade.readers.archives import unpack
from stepgrade.readers.ranks import RankFile, are_traces, find_rank_files, traces_among, traces_of
from stepgrade.readers.source import STANDARD_INPUT, ByteSource, PathLike, ReadOptions
from stepgrade.readers.steps import only_steps


@contextmanager
def read_again(
    sources: Sequence[PathLike], read: Source, input_format: str | None, options: ReadOptions
) -> Iterator[Iterator[Trace]]:
    """Give the traces that a run was read from, each when it is asked for; a log beside them is left out."""
    if any(os.fspath(source) == STANDARD_INPUT for source in sources):
        raise BadOption("a timeline needs a file: standard input can be read only once", field="to")
    with scratch_folder() as folder:
        files = [file for file in _files(sources, input_format, options, folder) if file.name in read.files]
        if not files or not are_traces(files):
            raise BadOption("only a trace has a timeline", where=read.files[0], field="to")
        traces = traces_of(files, options)
        yield traces if options.steps is None else only_steps(traces, options.steps)


def _files(
    sources: Sequence[PathLike], input_format: str | None, options: ReadOptions, folder: str
) -> list[RankFile]:
    quiet = structs.replace(options, progress=None)
    if len(sources) == 1 and input_format is None and os.path.isfile(sources[0]):
        with ByteSource(sources[0], quiet) as source:
            if source.is_archive:
                return traces_among([(one.path, one.name) for one in unpack(source, folder)], None)
    traces = []
    for one in sources:
        if os.path.isfile(one):
            with ByteSource(one, quiet) as source:
                if not registry.reader_for(source, input_format).rank_files:
                    continue
        traces.append(one)
    return find_rank_files(traces, input_format, quiet) if traces else []
