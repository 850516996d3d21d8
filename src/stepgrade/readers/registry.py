"""Which reader reads a source: asked for by name, or found by what the bytes look like."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from stepgrade.errors import BadInput, UnknownFormat
from stepgrade.model import Baseline, Profile
from stepgrade.readers import scorecard
from stepgrade.readers.base import Reader
from stepgrade.readers.content import DEFAULT_MAX_BYTES, Content, open_content

# Asked in this order; the log takes any text, so it comes last.
BUILT_IN = ("parity_profile", "step_profile", "log")
PLUG_IN_GROUP = "stepgrade.readers"


def read_profile(
    source: str | os.PathLike[str], *, input_format: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> Profile:
    """Return the profile in `source` (a path, or `-` for standard input)."""
    with open_content(source, max_bytes) as content:
        return _read(content, input_format)


def read_baseline(
    source: str | os.PathLike[str], *, input_format: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> Baseline | Profile:
    """Return what to compare with: a scorecard's figures, or a profile still to be scored."""
    with open_content(source, max_bytes) as content:
        if scorecard.recognises(content):
            with _naming(content):
                return scorecard.read_baseline(content)
        return _read(content, input_format)


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
