"""Which reader reads a source: asked for by name, or found by what the bytes look like."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, BinaryIO, cast

from msgspec import Struct

from stepgrade.errors import BadInput, BadOption, UnknownFormat
from stepgrade.model import Baseline, Profile
from stepgrade.readers import scorecard
from stepgrade.readers.base import Reader
from stepgrade.readers.content import DEFAULT_MAX_BYTES, Content, open_content

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from stepgrade.model.events import Trace

# Asked in this order; the log takes any text, so it comes last.
BUILT_IN = ("journal", "parity_profile", "step_profile", "log")
KINETO = "kineto"
PLUG_IN_GROUP = "stepgrade.readers"


class Reading(Struct, frozen=True, kw_only=True):
    """How sources are read: as which format, which steps of a trace, how much, and who is told how far."""

    input_format: str | None = None
    steps: tuple[int, int] | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    progress: Callable[[int, int], None] | None = None


def read_run(sources: Sequence[str | os.PathLike[str]], how: Reading) -> Profile | Iterable[Trace]:
    """Return the run in `sources`: a profile, or the traces of its ranks, to be taken one by one."""
    names = [os.fspath(source) for source in sources]
    if len(names) > 1 or _is_directory(names[0]):
        return _read_ranks(names, how)
    with open_content(names[0], how.max_bytes) as content:
        if how.input_format == KINETO or (how.input_format is None and _is_trace(content)):
            return _read_trace(names[0], content, how)
        if how.steps is not None:
            raise BadOption("--steps picks steps from a trace, and this source is none")
        return _read(content, how.input_format)


def read_profile(source: str | os.PathLike[str], how: Reading = Reading()) -> Profile:  # noqa: B008  frozen
    """Return the profile in a source that is no trace (a path, or `-` for standard input)."""
    with open_content(source, how.max_bytes) as content:
        return _read(content, how.input_format)


def _read_ranks(names: list[str], how: Reading) -> Iterable[Trace]:
    for name in names:
        if not _is_directory(name):
            with open_content(name, how.max_bytes) as content:
                if how.input_format != KINETO and not _is_trace(content):
                    hint = "several sources are the ranks of one run, and only traces have ranks"
                    raise BadInput("is not a trace of torch.profiler", where=name, hint=hint)
    from stepgrade.readers import kineto  # noqa: PLC0415  needs numpy, which takes longer than a step profile

    return kineto.read_traces(names, steps=how.steps, progress=how.progress, max_bytes=how.max_bytes)


def _read_trace(name: str, content: Content, how: Reading) -> list[Trace]:
    """Read one trace file; what can be read only once goes on behind the head that was looked at."""
    from stepgrade.readers.kineto.reader import read_file  # noqa: PLC0415  as above

    source = name if os.path.isfile(name) else cast("BinaryIO", content.stream())  # noqa: PTH113  as below
    return read_file(source, steps=how.steps, progress=how.progress, max_bytes=how.max_bytes)


def _is_directory(name: str) -> bool:
    return os.path.isdir(name)  # noqa: PTH112  pathlib takes longer to import than a step profile to score


def _is_trace(content: Content) -> bool:
    """Tell by the head; its first words decide whether the reader, which needs numpy, is asked at all."""
    head = content.head
    if not any(word in head for word in (b'"ph"', b'"traceEvents"', b'"schemaVersion"')):
        return False
    from stepgrade.readers.kineto import looks_like_kineto  # noqa: PLC0415  as above

    return looks_like_kineto(head)


def read_baseline(source: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Baseline | None:
    """Return the figures of a scorecard to compare with; None when the source is something else."""
    if _is_directory(os.fspath(source)):
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

    return {point.name: _loaded(point) for point in entry_points(group=PLUG_IN_GROUP)}


def _loaded(point: EntryPoint) -> Reader:
    try:
        reader: Reader = point.load()
    except (ImportError, AttributeError) as error:
        hint = "mend or uninstall the package that brings it"
        raise UnknownFormat(f"the reader {point.name!r} cannot be loaded: {error}", hint=hint) from error
    return reader


@contextmanager
def _naming(content: Content) -> Iterator[None]:
    """Put the source's name before the place of an error that does not carry it yet."""
    try:
        yield
    except BadInput as error:
        if error.where and f"{error.where}: ".startswith(f"{content.name}: "):
            raise
        raise error.at(content.name) from error
