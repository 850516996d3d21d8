"""From the parts of a run to its profile: what each kind of part becomes, and what it adds to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import structs

from stepgrade.errors import BadInput
from stepgrade.model import Baseline, Note, Profile
from stepgrade.readers import registry
from stepgrade.readers.base import Kind, Part
from stepgrade.readers.discover import RunFile, RunFiles
from stepgrade.readers.source import ByteSource, ReadOptions


def read_run(run: RunFiles, options: ReadOptions) -> Profile | Baseline:
    """Return the profile of a run from what its files hold, or the baseline that its only file is."""
    if run.read is not None:
        parts = [run.read]
    elif run.opened is not None:
        parts = [registry.read_source(run.opened, run.files[0].format)]
    elif run.files[0].kind == "traces":
        from stepgrade.loading.ranks import profile_of_files  # only for several files

        parts = [Part(profile=profile_of_files(run.files, options))]
    else:
        parts = _read(run.files, structs.replace(options, progress=None))
    whole = structs.replace(options, steps=None)
    quiet = structs.replace(whole, progress=None)
    found = combine([*parts, *_read(run.logs, whole), *_read(run.compile_logs, quiet)])
    if not run.logs_beside or isinstance(found, Baseline):
        return found
    try:
        return combine([Part(profile=found), *_read(run.logs_beside, quiet)])
    except BadInput as error:  # nobody asked for them
        note = Note("compile_log_unread", f"A log of torch.compile beside the traces is left out: {error}")
        return structs.replace(found, notes=(*found.notes, note))


def _read(files: Iterable[RunFile], options: ReadOptions) -> list[Part]:
    parts = []
    for file in files:
        with ByteSource(file.path, options, file.name) as source:
            parts.append(registry.read_source(source, file.format))
    return parts


def combine(parts: Sequence[Part]) -> Profile | Baseline:
    """Return the profile that the parts make up together, or the baseline that is among them."""
    kinds: tuple[Kind, ...] = ("baseline", "profile", "traces", "hang", "memory", "log", "compile_log")
    held = {kind: [found for part in parts if (found := getattr(part, kind)) is not None] for kind in kinds}
    main = next(kind for kind in kinds if held[kind])
    if len(parts) == 1 and main in ("baseline", "profile", "log"):
        only: Profile | Baseline = held[main][0]
        return only
    # What needs numpy is imported only here: it takes longer than a step profile to score.
    from stepgrade.ranks.hang import profile_of_flight_records
    from stepgrade.ranks.recorded_ranks import merge_recordings
    from stepgrade.trace.compile_logs import profile_of_compile_logs, with_compile_logs
    from stepgrade.trace.logged_run import with_log
    from stepgrade.trace.memory import profile_of_memory
    from stepgrade.trace.profile import profile_of_traces

    becomes: dict[Kind, Callable[[list[Any]], Profile]] = {
        "profile": lambda ranks: ranks[0] if len(ranks) == 1 else merge_recordings(ranks),
        "traces": lambda files: profile_of_traces(files[0]),
        "hang": profile_of_flight_records,
        "memory": lambda recordings: profile_of_memory(recordings[0]),
        "log": lambda logs: logs[0],
        "compile_log": profile_of_compile_logs,
    }
    adds: dict[Kind, Callable[[Profile, list[Any]], Profile]] = {
        "log": lambda profile, logs: with_log(profile, logs[0]),
        "compile_log": with_compile_logs,
    }
    profile = becomes[main](held[main])
    for kind, add in adds.items():
        if held[kind] and kind != main:
            profile = add(profile, held[kind])
    return profile
