"""Which reader reads a source: asked for by name, or found by what the bytes look like."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from stepgrade.errors import BadInput, UnknownFormat
from stepgrade.model import Baseline, Profile
from stepgrade.readers import scorecard
from stepgrade.readers.base import Reader
from stepgrade.readers.content import DEFAULT_MAX_BYTES, STANDARD_INPUT, Content, open_content

if TYPE_CHECKING:
    from stepgrade.model.events import Trace

# Asked in this order; the log takes any text, so it comes last.
BUILT_IN = ("parity_profile", "step_profile", "log")
KINETO = "kineto"
PLUG_IN_GROUP = "stepgrade.readers"


def read_profile(
    source: str | os.PathLike[str], *, input_format: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> Profile:
    """Return the profile in `source` (a path, or `-` for standard input)."""
    with open_content(source, max_bytes) as content:
        return _read(content, input_format)


def read_baseline(source: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Baseline | None:
    """Return the figures of a scorecard to compare with; None when the source is something else."""
    if os.path.isdir(source):  # noqa: PTH112  pathlib takes longer to import than a step profile to score
        return None
    with open_content(source, max_bytes) as content:
        if not scorecard.recognises(content):
            return None
        with _naming(content):
            return scorecard.read_baseline(content)


def read_json_text(source: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """Return the JSON text of a file, or of the profile inside a log, as contract v1 takes it."""
    with open_content(source, max_bytes) as content:
        if content.json_keys is not None:
            return content.document()
        from stepgrade.readers.log import find_profile  # noqa: PLC0415  not needed for most sources

        return find_profile(content).text


def read_traces(
    sources: Sequence[str | os.PathLike[str]],
    *,
    input_format: str | None = None,
    steps: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trace] | None:
    """Return the traces of a run's ranks; None when the sources are not traces.

    Several files, or a directory, are the ranks of one run.
    """
    if input_format not in (None, KINETO) or not (input_format == KINETO or _are_traces(sources)):
        return None
    from stepgrade.readers import kineto  # noqa: PLC0415  needs numpy, which takes longer than a step profile

    return kineto.read_traces([os.fspath(source) for source in sources], steps=steps, progress=progress)


def _are_traces(sources: Sequence[str | os.PathLike[str]]) -> bool:
    """Tell by the first bytes; a directory can only hold traces."""
    return all(_is_trace(os.fspath(source)) for source in sources)


def _is_trace(source: str) -> bool:
    if source == STANDARD_INPUT:
        return False
    if os.path.isdir(source):  # noqa: PTH112  pathlib takes longer to import than a step profile to score
        return True
    with open_content(source) as content:
        head = content.head
    if b'"ph"' not in head and b'"traceEvents"' not in head and b'"schemaVersion"' not in head:
        return False
    from stepgrade.readers.kineto import looks_like_kineto  # noqa: PLC0415  as above

    return looks_like_kineto(head)


def readers() -> dict[str, Reader]:
    """Return every reader by name: the built-in ones, then the plug-ins."""
    return {name: _built_in(name) for name in BUILT_IN} | _plug_ins()


def _read(content: Content, input_format: str | None) -> Profile:
    reader = _named(input_format) if input_format else _recognising(content)
    with _naming(content):
        return reader.read(content)


def _named(name: str) -> Reader:
    if name in BUILT_IN:
        return _built_in(name)
    known = readers()
    if name not in known:
        raise UnknownFormat(f"no reader called {name!r}", hint=f"known: {', '.join(known)}")
    return known[name]


def _recognising(content: Content) -> Reader:
    """Return the first reader that knows the bytes; a scorecard and an unknown binary are refused."""
    if scorecard.recognises(content):
        hint = "pass it as --baseline, or name the profile it was made from"
        raise UnknownFormat("is a scorecard, not a profile", where=content.name, hint=hint)
    for name in BUILT_IN[:-1]:
        if _built_in(name).recognises(content):
            return _built_in(name)
    for reader in _plug_ins().values():
        if reader.recognises(content):
            return reader
    if not content.is_text:
        hint = f"known formats: {', '.join(readers())}"
        raise UnknownFormat("is binary, in no format that stepgrade reads", where=content.name, hint=hint)
    return _built_in("log")


def _built_in(name: str) -> Reader:
    reader: Reader = import_module(f"stepgrade.readers.{name}")
    return reader


def _plug_ins() -> dict[str, Reader]:
    from importlib.metadata import entry_points  # noqa: PLC0415  slow to import, rarely needed

    return {point.name: point.load() for point in entry_points(group=PLUG_IN_GROUP)}


@contextmanager
def _naming(content: Content) -> Iterator[None]:
    """Put the source's name before the place of an error that does not carry it yet."""
    try:
        yield
    except BadInput as error:
        if error.where and error.where.startswith(content.name):
            raise
        raise error.at(content.name) from error
