"""The ranks of a run: each file read by the chosen engine, and all merged to one profile.

What is made of a file is the same wherever it is read, and ranks are merged in the order of their numbers: so
the profile does not depend on how many workers there were, which of them read what, or who came first.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

import msgspec
from msgspec import Struct, structs

from stepgrade.decoding import from_msgpack
from stepgrade.engine import Job, cores, open_engine
from stepgrade.engine.base import Report, run_item
from stepgrade.engine.cache import Cache, key_of
from stepgrade.errors import BadInput, EngineFailed, TooLarge
from stepgrade.loading.cached import folder_for
from stepgrade.memory import default_limit
from stepgrade.model.notes import Note
from stepgrade.model.profile import Profile
from stepgrade.ranks.packed_ranks import PackedRank
from stepgrade.ranks.ranks import merge_ranks
from stepgrade.readers import registry
from stepgrade.readers.discover import RunFile
from stepgrade.readers.ranks import Processes, RankRecording, traces_in
from stepgrade.readers.source import ByteSource, ReadOptions, shown_path
from stepgrade.trace.profile import analyse_rank

SCHEMA = 8  # of what a worker sends and a cache keeps; increase it when a field changes
# Below this a pool takes longer to start than the files take to read.
LEAST_BYTES_FOR_POOL = 8 << 20
# What reading a file takes at most, of its size: text in memory, and its events in columns beside it.
_MEMORY_PER_BYTE = 2
_MEMORY_PER_PACKED_BYTE = 28
_PACKED = (".gz", ".zst")
_ANALYSE = "stepgrade.loading.ranks:analyse_file"
_MOST_LISTED = 3
_STILL_WRITTEN = "was written to while it was read"


class FileTask(Struct, frozen=True, kw_only=True):
    """The task of a worker: which file to read, and how."""

    file: RunFile
    steps: tuple[int, int] | None
    max_bytes: int
    max_memory: int
    cache: bool = False
    path: bytes = b""  # of the file, whose name need not be text


class FileRanks(Struct, frozen=True, kw_only=True):
    """The answer of a worker: the ranks of the file, each packed, and how each was recorded."""

    schema: int
    ranks: tuple[PackedRank, ...]
    recordings: tuple[RankRecording, ...]
    is_unfinished: bool = False  # the file was written to while it was read


def analyse_file(item: bytes, report: Report) -> bytes:
    """Return the ranks of one file in few bytes, read now or cached earlier; engines run this."""
    task = from_msgpack(item, FileTask)
    if task.path:
        task = structs.replace(task, file=structs.replace(task.file, path=os.fsdecode(task.path)))
    folder = folder_for(task.file.path) if task.cache else None
    if folder is None:
        return msgspec.msgpack.encode(_analyse(task, report))
    cache, name = Cache(folder), os.path.basename(task.file.name)  # which may contain the rank
    key = key_of(task.file.path, (SCHEMA, task.file.format, task.steps, name))
    with suppress(msgspec.DecodeError, BadInput, zlib.error):  # what does not decode is read again
        found = from_msgpack(cache.get(key) or b"", FileRanks)
        for rank in found.ranks:
            rank.unpacked()
        recordings = tuple(structs.replace(one, name=task.file.name) for one in found.recordings)
        return msgspec.msgpack.encode(structs.replace(found, recordings=recordings))
    ranks = _analyse(task, report)
    result = msgspec.msgpack.encode(ranks)
    if not ranks.is_unfinished:
        cache.put(key, result)
    return result


def _analyse(task: FileTask, report: Report) -> FileRanks:
    options = ReadOptions(
        steps=task.steps,
        max_bytes=task.max_bytes,
        max_memory=task.max_memory,
        progress=lambda done_bytes, _: report(done_bytes),
    )
    ranks, recordings = [], []
    with ByteSource(task.file.path, options, task.file.name) as source:
        if task.file.format is None and not registry.reader_for(source).rank_files:
            return FileRanks(schema=SCHEMA, ranks=(), recordings=())  # not a trace
        try:
            traces = traces_in(source, task.file.format)
            while trace := list(islice(traces, 1)):  # keeps none of them
                recordings.append(RankRecording.of(trace[0], task.file.name))
                ranks.append(analyse_rank(trace.pop()))
        except BadInput as error:
            if not source.was_written():
                raise
            raise BadInput(error.problem, where=error.where, hint=f"it {_STILL_WRITTEN}") from error
        is_unfinished = source.was_written()
    if is_unfinished:
        note = Note("still_written", f"{task.file.name} {_STILL_WRITTEN}: its end may be missing.")
        profiles = [structs.replace(rank.profile, warnings=(note, *rank.profile.warnings)) for rank in ranks]
        ranks = [structs.replace(rank, profile=own) for rank, own in zip(ranks, profiles, strict=True)]
    return FileRanks(
        schema=SCHEMA,
        ranks=tuple(map(PackedRank.of, ranks)),
        recordings=tuple(recordings),
        is_unfinished=is_unfinished,
    )


def profile_of_files(files: Sequence[RunFile], options: ReadOptions) -> Profile:
    """Return the profile of the run whose ranks are in these files."""
    if options.sample_ranks is not None and options.sample_ranks < len(files):
        last = len(files) - 1
        indices = {round(index * last / (options.sample_ranks - 1)) for index in range(options.sample_ranks)}
        looked_at = [files[index] for index in sorted(indices)]
        text = (
            f"{len(looked_at)} of {len(files)} ranks were looked at, spread over all: a slow rank, host or "
            "link among the others is not seen, and waiting for it shows without its cause."
        )
        profile = profile_of_files(looked_at, structs.replace(options, sample_ranks=None))
        others = (note for note in profile.warnings if note.code != "ranks_missing")  # the new note covers it
        return structs.replace(profile, warnings=(Note("ranks_sampled", text), *others))
    read, unread = read_files(files, options)
    processes = Processes()
    ranks = []
    for index, found in sorted(read.items()):
        for rank, own in zip(found.ranks, found.recordings, strict=True):
            known = rank
            if len(files) > 1:
                known = structs.replace(rank, rank=own.rank, process=processes.process_of(own), host=own.host)
            ranks.append(structs.replace(known, files=(files[index].name,)))
    if not ranks:
        raise BadInput("contains no trace files", where=files[0].name)
    profile = merge_ranks(ranks)
    if not unread:
        return profile
    listed = "; ".join(str(error) for _, error in sorted(unread.items())[:_MOST_LISTED])
    more = f"; and {len(unread) - _MOST_LISTED} more" if len(unread) > _MOST_LISTED else ""
    text = f"{len(unread)} of {len(files)} ranks could not be read, and are left out: {listed}{more}."
    return structs.replace(profile, warnings=(Note("ranks_unreadable", text), *profile.warnings))


def read_files(
    files: Sequence[RunFile], options: ReadOptions
) -> tuple[dict[int, FileRanks], dict[int, BadInput]]:
    """Return the ranks in each file, and why some could not be read; raise BadInput for too many of those."""
    memory = default_limit() if options.max_memory is None else options.max_memory
    # As many workers as cores, files and memory allow.
    sizes = [
        file.size_bytes * (_MEMORY_PER_PACKED_BYTE if file.path.endswith(_PACKED) else _MEMORY_PER_BYTE)
        for file in files
    ]
    fitting = max(1, memory // max(sizes)) if any(sizes) else len(files)
    workers = min(options.workers or cores(), len(files), fitting)
    is_large = sum(file.size_bytes for file in files) >= LEAST_BYTES_FOR_POOL
    name = options.engine or ("pool" if workers > 1 and is_large else "here")
    workers = 1 if name == "here" else workers
    tasks = [
        FileTask(
            file=structs.replace(file, path=shown_path(file.path)),
            steps=options.steps,
            max_bytes=options.max_bytes,
            max_memory=memory // workers,
            cache=options.cache,
            path=os.fsencode(file.path),
        )
        for file in files
    ]
    total_bytes = sum(file.size_bytes for file in files)
    done_bytes = [0] * len(files)
    read: dict[int, FileRanks] = {}
    unread: dict[int, BadInput] = {}
    known: dict[bytes, bytes] = {}

    def report(index: int, done: int) -> None:
        done_bytes[index] = done
        if options.progress is not None:
            options.progress(sum(done_bytes), total_bytes)
        if options.rank_progress is not None:
            options.rank_progress(len(read) + len(unread), len(files))

    engine = open_engine(name, workers)
    try:
        work = Job(function=_ANALYSE, items=[msgspec.msgpack.encode(task) for task in tasks])
        for index, outcome in engine.map(work, report):
            answer = outcome
            if workers > 1 and outcome.error == TooLarge.__name__:
                # A file too large for one of many workers may fit with all the memory.
                alone = structs.replace(tasks[index], max_memory=memory)
                answer = run_item(_ANALYSE, msgspec.msgpack.encode(alone), partial(report, index))
            try:
                found = from_msgpack(answer.value(), FileRanks)
                shared = tuple(rank.sharing(known) for rank in found.ranks)
                read[index] = structs.replace(found, ranks=shared)
            except BadInput as error:
                unread[index] = error
            except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError) as error:
                raise EngineFailed("a worker returned an unexpected result") from error
            if len(unread) > options.most_unreadable * len(files):
                first = unread[min(unread)]
                if len(unread) == 1:
                    raise first
                problem = (
                    f"{first.problem}; {len(unread) - 1} more of {len(files)} ranks could not be read either"
                )
                raise BadInput(
                    problem, where=first.where, hint=first.hint, supply="a larger {most_unreadable}"
                )
            report(index, files[index].size_bytes)
    finally:
        engine.close()
    return read, unread
