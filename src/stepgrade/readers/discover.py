"""Which files a run consists of: the reader that each needs, and which of them belong together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from msgspec import Struct, structs

from stepgrade.errors import BadInput
from stepgrade.files import scratch_folder
from stepgrade.patterns import regex
from stepgrade.readers import registry
from stepgrade.readers.base import Kind, Part, Reader
from stepgrade.readers.source import ByteSource, PathLike, ReadOptions, shown_path

RANK_IN_NAME = regex(r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
_COMPILE_LOG = "torch_trace"


class RunFile(Struct, frozen=True, kw_only=True):
    """One file of a run."""

    path: str  # or URL
    name: str  # as it is shown
    format: str | None = None  # None where the reader is found only when the file is read
    kind: Kind = "traces"
    size_bytes: int = 0  # 0 where it is not known


class RunFiles(Struct, frozen=True, kw_only=True):
    """The files of one run, by what they are for."""

    files: tuple[RunFile, ...]  # what the profile is made of: all of one kind
    opened: ByteSource | None = None  # the file, where one was given: standard input can be read only once
    read: Part | None = None  # a directory of metrics, which is read as a whole
    logs: tuple[RunFile, ...] = ()  # of the same run: one at most
    compile_logs: tuple[RunFile, ...] = ()  # of torch.compile
    logs_beside: tuple[RunFile, ...] = ()  # the same, found in the directories of the traces


@contextmanager
def discover(
    sources: Sequence[PathLike], input_format: str | None, options: ReadOptions
) -> Iterator[RunFiles]:
    """Yield the files of the run in these sources; unpacked archives are deleted afterwards.

    All files are recognised before any is read, so that an unusable file is refused early.
    """
    paths = [os.fspath(source) for source in sources]
    if not paths:
        raise BadInput("no source given")
    quiet = structs.replace(options, progress=None)
    readers: dict[str, Reader] = {}
    if len(paths) > 1 and input_format is None:
        readers = {path: _reader_of(path, None, quiet) for path in paths if not os.path.isdir(path)}
    run, logs, compiled = (paths, [], []) if input_format else _by_purpose(paths, readers)
    beside = [] if input_format else [log for path in run for log in _compile_logs(path, alone=False)]

    def files_of(path: str, input_format: str | None) -> list[RunFile]:
        """Return the files in a directory or under a pattern, else the file itself."""
        files = _files_in(path, input_format)
        if files is not None:
            return files
        reader = readers.get(path) or _reader_of(path, input_format, quiet)
        file = _run_file(path, reader)
        if not reader.rank_files and path not in logs:
            raise not_a_trace(file.name)
        return [file]

    with ExitStack() as stack:
        if len(run) > 1:
            files = tuple(file for path in run for file in files_of(path, input_format))
            if odd := [file for file in files if file.kind != files[0].kind]:
                raise not_a_trace(next(file.name for file in (*files[:1], *odd) if file.kind != "traces"))
            found = RunFiles(files=files)
        else:
            found = _single_source(run[0], input_format, options, stack)
        beside = beside if found.files[0].kind != "compile_log" else []
        yield structs.replace(
            found,
            logs=tuple(file for path in logs for file in files_of(path, None)),
            compile_logs=tuple(file for path in compiled for file in files_of(path, _COMPILE_LOG)),
            logs_beside=tuple(file for path in beside for file in files_of(path, _COMPILE_LOG)),
        )


def _by_purpose(paths: list[str], readers: dict[str, Reader]) -> tuple[list[str], list[str], list[str]]:
    """Return what the profile is made of, the one log that goes with it, and logs of torch.compile."""
    kinds = {path: reader.kind for path, reader in readers.items()}
    kinds |= {path: "compile_log" for path in paths if _compile_logs(path, alone=True)}
    compiled = [path for path in paths if kinds.get(path) == "compile_log"]
    run = [path for path in paths if path not in compiled]
    if not run:
        return paths, [], []
    logs = [path for path in run if kinds.get(path) == "log"]
    if len(logs) != 1 or len(run) == 1:
        return run, [], compiled
    return [path for path in run if path not in logs], logs, compiled


def _single_source(path: str, input_format: str | None, options: ReadOptions, stack: ExitStack) -> RunFiles:
    """Return the run in one source: a file, a directory, a pattern, an archive, or standard input."""
    # A run of MLflow, TensorBoard or W&B is known by the names in its directory.
    names = _names_in(path) if input_format in (None, "metrics") else []
    is_metrics = any("tfevents" in name or name.endswith(".wandb") or name == "meta.yaml" for name in names)
    if is_metrics or (names and os.path.basename(os.path.normpath(path)) == "mlruns"):
        from stepgrade.readers.logs.directories import run_in  # only for such directories

        log = run_in(path, options)
        if log is not None:
            return RunFiles(files=(RunFile(path=path, name=path, kind="log"),), read=Part(log=log))
    files = _files_in(path, input_format)
    if files is not None:
        return RunFiles(files=tuple(files))
    opened = stack.enter_context(ByteSource(path, options))
    if input_format is not None or not opened.is_archive:
        reader = registry.reader_for(opened, input_format)
        file = RunFile(path=path, name=opened.name, format=reader.name, kind=reader.kind)
        return RunFiles(files=(file,), opened=opened)
    from stepgrade.readers.archives import unpack  # only for archives
    from stepgrade.readers.foreign import ARCHIVES, refusal, what_it_is

    known = what_it_is(opened.head)
    if known is None or known.what not in ARCHIVES:  # weights and arrays are zip archives too
        raise refusal(opened, registry.readers())
    files = _traces_among(unpack(opened, stack.enter_context(scratch_folder())), None)
    if not files:
        raise refusal(opened, registry.readers())
    return RunFiles(files=tuple(files))


def _reader_of(path: str, input_format: str | None, options: ReadOptions) -> Reader:
    if input_format in registry.BUILT_IN:
        return registry.built_in(input_format)
    with ByteSource(path, options) as opened:
        return registry.reader_for(opened, input_format)


def _run_file(path: str, reader: Reader, name: str | None = None) -> RunFile:
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    if name is None and "://" in path:
        from stepgrade.readers.remote import shown_url  # few sources are remote

        name = shown_url(path)
    name = name or shown_path(path)
    return RunFile(path=path, name=name, format=reader.name, kind=reader.kind, size_bytes=size)


def not_a_trace(name: str) -> BadInput:
    """Return the error for a file that is given as a rank and is none."""
    hint = "traces are of torch.profiler, Nsight Systems, JAX or ROCm; several are the ranks of one run"
    return BadInput("is not a trace", where=name, hint=hint)


def _files_in(path: str, input_format: str | None) -> list[RunFile] | None:
    """Return the files in a directory or under a pattern, rank10 after rank9; None for a single file."""
    if "://" in path:
        return _remote_files(path, input_format)
    if not os.path.isdir(path):
        return None
    try:
        with os.scandir(path) as entries:
            # Unlike entry.is_file(), this does not raise for a link that leads to itself.
            paths = [entry.path for entry in entries if os.path.isfile(entry.path)]
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=path) from error
    paths.sort(key=_naturally)
    files = _traces_among([(path, shown_path(path)) for path in paths], input_format)
    if files:
        return files
    from stepgrade.readers.foreign import what_it_is  # only for what cannot be read

    for first in paths[:8]:
        with suppress(BadInput), ByteSource(first) as opened:
            if found := what_it_is(opened.head):
                hint = f"{os.path.basename(first)} is {found.what}"
                break
    else:
        hint = "give a directory with the trace of each rank, or one trace"
    raise BadInput("contains no trace files", where=path, hint=hint)


def _naturally(path: str) -> list[tuple[int, str]]:
    """Return what sorts rank10 after rank9."""
    return [(len(part), part) for part in re.split(r"(\d+)", path)]


def _remote_files(url: str, input_format: str | None) -> list[RunFile] | None:
    """Return the files in a directory of a store or under a pattern; none of them is opened."""
    from stepgrade.readers.remote import find, is_url, shown_url  # few sources are remote

    found = find(url) if is_url(url) else None
    if found is None:
        return None
    readers = [reader for reader in registry.readers() if input_format in (None, reader.name)]
    endings = tuple(ending for reader in readers for ending in reader.rank_files)
    kind: Kind = readers[0].kind if input_format is not None and readers else "traces"
    files = [
        RunFile(path=file.url, name=file.name, format=input_format, kind=kind, size_bytes=file.size_bytes)
        for file in sorted(found, key=lambda file: _naturally(file.name))
        if file.name.endswith(endings)
    ]
    if not files:
        raise BadInput("contains no trace files", where=shown_url(url))
    return files


def _traces_among(paths: Sequence[tuple[str, str]], input_format: str | None) -> list[RunFile]:
    """Return the files of the first format that has any, given their paths and names."""
    for reader in registry.readers():
        files, found = [], False
        for path, name in paths if input_format in (None, reader.name) else ():
            if not path.endswith(reader.rank_files):
                continue
            try:
                with ByteSource(path) as opened:
                    is_trace = reader.recognises(opened)
                found = found or is_trace
            except BadInput:
                # Not a trace; but a file named like a rank is listed as unread.
                is_trace = RANK_IN_NAME.search(os.path.basename(path)) is not None
            if is_trace:
                files.append(_run_file(path, reader, name))
        if found:
            return files
    return []


def _names_in(folder: str) -> list[str]:
    """Return the names in a directory; none for anything else, which fails when it is read."""
    with suppress(OSError, ValueError):  # not a directory, or not a path
        return sorted(os.listdir(folder))
    return []


def _compile_logs(folder: str, *, alone: bool) -> list[str]:
    """Return the logs of torch.compile, by name, in a directory with only such files or with others too."""
    names = _names_in(folder)
    logs = [os.path.join(folder, name) for name in names if name.startswith("dedicated_log_torch_trace_")]
    logs = [path for path in logs if os.path.isfile(path)]
    return logs if (len(logs) == len(names)) is alone else []
