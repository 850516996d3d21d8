"""The profile of one trace or log, read once: the second time it comes from the cache, without numpy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from stepgrade.costs.own import has_own_costs
from stepgrade.decoding import from_msgpack
from stepgrade.engine.cache import Cache, cache_folder, key_of
from stepgrade.errors import BadInput
from stepgrade.model import Profile
from stepgrade.model.scorecard import Baseline
from stepgrade.readers import registry
from stepgrade.readers.base import Part
from stepgrade.readers.discover import RunFile
from stepgrade.readers.remote import is_url
from stepgrade.readers.source import ByteSource, ReadOptions

_MOST_BYTES = 64 << 20  # the key is a hash of the whole file, which takes time


def folder_for(path: str) -> str | None:
    """Return the folder of the cache, if the result of this file depends on nothing else."""
    if is_url(path) or not os.path.isfile(path) or has_own_costs():
        return None
    return cache_folder()


def read_once(
    source: ByteSource,
    file: RunFile,
    options: ReadOptions,
    combine: Callable[[Sequence[Part]], Profile | Baseline],
) -> Part:
    """Return the profile of a trace or a log from the cache, else what `combine` makes of it, to be kept."""
    folder = folder_for(file.path) if options.cache and file.format in registry.BUILT_IN else None
    profile, key = None, ""
    if folder is not None and 0 < source.size_bytes <= _MOST_BYTES:
        key = key_of(file.path, ("profile", file.format, file.name, options.steps, options.dialects))
        with suppress(msgspec.DecodeError, BadInput):  # what does not decode is read again
            profile, tokens = from_msgpack(Cache(folder).get(key) or b"", tuple[Profile, int | float | None])
            profile = msgspec.structs.replace(profile, tokens_per_step=tokens)  # a whole number stays one
    if profile is None:
        found = combine([registry.read_source(source, file.format)])
        assert isinstance(found, Profile)  # noqa: S101  for the type checker
        profile = found
        if folder is not None and key and not source.was_written():
            with suppress(OverflowError):  # of a number of more than 64 bits
                Cache(folder).put(key, msgspec.msgpack.encode((profile, profile.tokens_per_step)))
    return Part(log=profile) if file.kind == "log" else Part(profile=profile)
