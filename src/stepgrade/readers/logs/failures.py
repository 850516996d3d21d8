"""Out-of-memory messages of every version of PyTorch, JAX and the drivers."""

from __future__ import annotations

import re

from msgspec import structs

from stepgrade.model import Profile, Source
from stepgrade.model.memory import Memory, OutOfMemory
from stepgrade.model.notes import Note
from stepgrade.model.profile import LOG
from stepgrade.patterns import regex

SIGN = b"out of memory"
# The last of these is in the message; XLA and NCCL have their own wording.
_SIGNS = (SIGN, b"RESOURCE_EXHAUSTED", b"Failed to CUDA ", b"CUBLAS_STATUS_ALLOC_FAILED")
# Messages of the driver and its libraries, which have no figures.
_BARE_MESSAGE = regex(rb"(?:CUDA|HIP|XPU) error: (?:out of memory|hipErrorOutOfMemory)|_STATUS_ALLOC_FAILED")
_BEFORE = 40  # bytes of such a message before its sign
_LONGEST = 4000
_UNITS = {b"": 1.0, b"K": 2.0**10, b"M": 2.0**20, b"G": 2.0**30, b"T": 2.0**40}
_SIZE = rb"(\d{1,15}(?:\.\d{1,9})?) ?([KMGT]?)(?:i?B|bytes)\b"
_SHORT = rb"(\d{1,15}(?:\.\d{1,9})?)([KMGT])\b"  # as XLA writes it for TPUs
# What each figure follows, or comes before. 2017 to 2022 wrote "(GPU 0; 15.90 GiB total capacity; ...)".
_FIGURES = {
    "asked_bytes": (
        rb"[Tt]ried to allocate " + _SIZE,
        rb"trying to allocate " + _SIZE,
        rb"Out of memory allocating " + _SIZE,
        rb"Attempting to (?:allocate|reserve) " + _SHORT,
        rb"memory space hbm\. Used " + _SHORT,  # by a whole program
        rb"Failed to CUDA \w{1,20}(?: async)? " + _SIZE,
    ),
    # PyTorch 2.0 and 2.1 wrote "capacty".
    "capacity_bytes": (
        rb"total capaci?ty of " + _SIZE,
        _SIZE + rb" total capacity",
        rb"max allowed: " + _SIZE,
        rb"memory space hbm\. Used [\d.]{1,20}[KMGT] of " + _SHORT,
    ),
    "free_bytes": (
        rb"of which " + _SIZE + rb" is free",
        _SIZE + rb" free\b",
        rb"There are " + _SHORT + rb" free",
    ),
    "process_bytes": (rb"this process has " + _SIZE,),
    "allocated_bytes": (
        _SIZE + rb" is allocated by PyTorch",
        _SIZE + rb" already allocated",
        rb"MPS allocated: " + _SIZE,
    ),
    "beside_bytes": (rb"other allocations: " + _SIZE,),  # of this process, outside of PyTorch's own
    "unallocated_bytes": (
        _SIZE + rb" is reserved by PyTorch but unallocated",
        _SIZE + rb" cached",
    ),
    "reserved_bytes": (_SIZE + rb" reserved in total by PyTorch",),
}
_ANY_SIGN = regex(b"|".join(map(re.escape, _SIGNS)))
_PATTERNS = {name: [regex(pattern) for pattern in those] for name, those in _FIGURES.items()}
_OTHERS = regex(rb"Process \d{1,10} has " + _SIZE)


def last_failure(text: bytes) -> tuple[int, OutOfMemory] | None:
    """Return the offset and content of the last out-of-memory message; None without one."""
    last = max(text.rfind(sign) for sign in _SIGNS)
    if last < 0:
        return None
    # Further back there are words about memory, and no message. One pass finds all: looking back from each
    # for a sign that is not there would go through the whole text every time.
    begin = max(0, len(text) - 64 * _LONGEST)
    for at in (last, *(sign.start() for sign in reversed([*_ANY_SIGN.finditer(text, begin, last)]))):
        end = text.find(b"\n\n", at, at + _LONGEST)
        message = text[at : end if end >= 0 else at + _LONGEST]
        # Several ranks may have written messages: only the first is read.
        following = message.find(SIGN, len(SIGN))
        found = read_message(message[:following] if following >= 0 else message)
        if found is None and _BARE_MESSAGE.search(text, max(0, at - _BEFORE), at + _BEFORE):
            found = OutOfMemory()
        if found is not None:
            return at, found
    return None


def read_message(message: bytes) -> OutOfMemory | None:
    """Return the figures of a message; None without the requested size."""
    found: dict[str, float] = {}
    for name, patterns in _PATTERNS.items():
        match = next((match for pattern in patterns if (match := pattern.search(message))), None)
        if match is not None:
            found[name] = float(match[1]) * _UNITS[match[2]]
    if "asked_bytes" not in found:
        return None
    allocated = found.get("allocated_bytes")
    reserved, beside = found.pop("reserved_bytes", None), found.pop("beside_bytes", None)
    if reserved is not None and allocated is not None:
        found["unallocated_bytes"] = max(0.0, reserved - allocated)
    if beside is not None and allocated is not None:
        found["process_bytes"] = allocated + beside
    others = [float(number) * _UNITS[unit] for number, unit in _OTHERS.findall(message)]
    if allocated is not None and "process_bytes" not in found:
        # A process in a container does not find itself among those that it lists.
        own = [size for size in others if size >= allocated + found.get("unallocated_bytes", 0.0)]
        if own and sum(others) + allocated > found.get("capacity_bytes", float("inf")):
            found["process_bytes"] = min(own)
            others.remove(min(own))
    return structs.replace(OutOfMemory(other_processes_bytes=sum(others) or None), **found)


def with_failure(run: Profile | None, failed: OutOfMemory, name: str) -> Profile:
    """Return the run with the failed allocation that ended it, even without any step."""
    if run is None:
        text = "the run ran out of memory before its first step"
        run = Profile(
            source=Source(format=LOG, files=(name,), producer="log"),
            warnings=(Note("no_steps_before_failure", text, fatal=True),),
        )
    held = [size for size in (run.peak_memory_bytes, failed.allocated_bytes) if size is not None]
    peak = max(held, default=None)
    memory = Memory(peak_bytes=peak, out_of_memory=failed)
    return structs.replace(run, peak_memory_bytes=peak, memory=memory)
