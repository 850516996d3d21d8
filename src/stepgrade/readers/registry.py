"""Find the reader of a source, by name or by content."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from stepgrade.errors import BadInput, BadOption, MissingExtra, UnknownFormat, did_you_mean
from stepgrade.plug_ins import plug_ins
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

# Asked in this order: what the first bytes show, then JSON objects by their keys, then any text.
BUILT_IN = (
    *(
        "kineto",
        "nsys",
        "rocprof",
        "xplane",
        "xla_trace",
        "snapshot",
        "memory_timeline",
        "journal",
        "flight_recorder",
        "torch_trace",
        "scorecard",
    ),
    *("parity_profile", "step_profile", "metrics", "log"),
)
PLUG_IN_GROUP = "stepgrade.readers"


def readers() -> Iterator[Reader]:
    """Yield every reader in the order in which they are tried; the log reader takes any text and is last."""
    for name in BUILT_IN[:-1]:
        yield built_in(name)
    hint = "repair or uninstall the package that provides it"
    for point in plug_ins(PLUG_IN_GROUP):
        try:
            reader = point.load()
        except (ImportError, AttributeError) as error:
            raise UnknownFormat(f"the reader {point.name!r} cannot be loaded: {error}", hint=hint) from error
        if not isinstance(reader, Reader):
            problem = f"the reader {point.name!r} is not a stepgrade.readers.base.Reader"
            raise UnknownFormat(problem, hint=hint)
        yield reader
    yield built_in(BUILT_IN[-1])


def read_source(source: ByteSource, input_format: str | None = None) -> Part:
    """Read the source with the reader of that name, or with the first that recognises it.

    Traces are cut to the steps in the source's options; raise BadOption if there are no traces to cut.
    """
    reader = reader_for(source, input_format)
    try:
        part = reader.read(source)
    except BadInput as error:
        if error.where and f"{error.where}: ".startswith(f"{source.name}: "):
            raise
        raise error.at(source.name) from error
    except ModuleNotFoundError as error:
        if reader.requires is None:
            raise
        problem = f"reading {reader.name} needs {error.name}"
        raise MissingExtra(problem, where=source.name, hint=f"pip install '{reader.requires}'") from error
    if source.options.steps is None:
        return part
    if part.traces is None:
        raise BadOption("selects steps of a trace, and this source is not a trace", field="steps")
    from stepgrade.readers.steps import only_steps  # needs numpy

    return Part(traces=only_steps(part.traces, source.options.steps))


def reader_for(source: ByteSource, input_format: str | None = None) -> Reader:
    """Return the reader of that name, else the first that recognises the source; raise UnknownFormat."""
    if input_format in BUILT_IN:
        return built_in(input_format)
    for reader in readers():
        if reader.name == input_format or (input_format is None and reader.recognises(source)):
            return reader
    if input_format is not None:
        hint = did_you_mean(input_format, (reader.name for reader in readers()))
        raise UnknownFormat(f"no reader called {input_format!r}", field="input_format", hint=hint)
    from stepgrade.readers.foreign import refusal  # only for what cannot be read

    raise refusal(source, readers())


def built_in(name: str) -> Reader:
    """Return the reader of that name, which is one of BUILT_IN."""
    reader: Reader = import_module(f"stepgrade.readers.{name}").READER
    return reader
