"""The message of an allocation that failed, in the words of every era of PyTorch, JAX and the drivers."""

from __future__ import annotations

import re

from msgspec import structs

from stepgrade.model import Profile, Source
from stepgrade.model.memory import Memory, OutOfMemory
from stepgrade.model.notes import Note
from stepgrade.model.profile import LOG

SIGN = b"out of memory"
XLA_SIGN = b"RESOURCE_EXHAUSTED"
_LONGEST = 4000
_UNITS = {b"": 1.0, b"K": 2.0**10, b"M": 2.0**20, b"G": 2.0**30, b"T": 2.0**40}
_SIZE = rb"(\d{1,15}(?:\.\d{1,9})?) ?([KMGT]?)(?:i?B|bytes)\b"
# What each figure follows, or comes before. 2017 to 2022 wrote "(GPU 0; 15.90 GiB total capacity; ...)".
_FIGURES = {
    "asked_bytes": (rb"[Tt]ried to allocate " + _SIZE, rb"trying to allocate " + _SIZE),
    "capacity_bytes": (rb"total capacity of " + _SIZE, _SIZE + rb" total capacity"),
    "free_bytes": (rb"of which " + _SIZE + rb" is free", _SIZE + rb" free\b"),
    "process_bytes": (rb"this process has " + _SIZE,),
    "allocated_bytes": (_SIZE + rb" is allocated by PyTorch", _SIZE + rb" already allocated"),
    "unallocated_bytes": (
        _SIZE + rb" is reserved by PyTorch but unallocated",
        _SIZE + rb" cached",
    ),
    "reserved_bytes": (_SIZE + rb" reserved in total by PyTorch",),
}
_PATTERNS = {name: [re.compile(pattern) for pattern in those] for name, those in _FIGURES.items()}
_OTHERS = re.compile(rb"Process \d{1,10} has " + _SIZE)


def last_failure(text: bytes) -> tuple[int, OutOfMemory] | None:
    """Return where the last message of a failed allocation is, and what it says; None without one."""
    at = max(text.rfind(SIGN), text.rfind(XLA_SIGN))
    while at >= 0:
        end = text.find(b"\n\n", at, at + _LONGEST)
        message = text[at : end if end >= 0 else at + _LONGEST]
        # Of several messages, as the ranks write them, only the first of those at hand.
        following = message.find(SIGN, len(SIGN))
        found = _read(message[:following] if following >= 0 else message)
        if found is not None:
            return at, found
        at = max(text.rfind(SIGN, 0, at), text.rfind(XLA_SIGN, 0, at))
        if len(text) - at > 64 * _LONGEST:  # words about memory, and no message
            return None
    return None


def _read(message: bytes) -> OutOfMemory | None:
    found: dict[str, float] = {}
    for name, patterns in _PATTERNS.items():
        match = next((match for pattern in patterns if (match := pattern.search(message))), None)
        if match is not None:
            found[name] = float(match[1]) * _UNITS[match[2]]
    if "asked_bytes" not in found:
        return None
    reserved = found.pop("reserved_bytes", None)
    if reserved is not None and "allocated_bytes" in found:
        found["unallocated_bytes"] = max(0.0, reserved - found["allocated_bytes"])
    others = sum(float(number) * _UNITS[unit] for number, unit in _OTHERS.findall(message))
    return OutOfMemory(
        asked_bytes=found.get("asked_bytes"),
        free_bytes=found.get("free_bytes"),
        capacity_bytes=found.get("capacity_bytes"),
        process_bytes=found.get("process_bytes"),
        allocated_bytes=found.get("allocated_bytes"),
        unallocated_bytes=found.get("unallocated_bytes"),
        other_processes_bytes=others or None,
    )


def with_failure(run: Profile | None, failed: OutOfMemory, name: str) -> Profile:
    """Return the run with the allocation that ended it; one without a step has nothing else."""
    if run is None:
        text = "the run was out of memory before its first step"
        run = Profile(
            source=Source(format=LOG, files=(name,), producer="log"),
            warnings=(Note("no_steps_before_failure", text, fatal=True),),
        )
    held = [size for size in (run.peak_memory_bytes, failed.allocated_bytes) if size is not None]
    peak = max(held, default=None)
    memory = Memory(peak_bytes=peak, out_of_memory=failed)
    return structs.replace(run, peak_memory_bytes=peak, memory=memory)
