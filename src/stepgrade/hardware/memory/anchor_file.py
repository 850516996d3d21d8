"""The peak memory of a measured run, from its JSON or from the lines that trainers print."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from stepgrade.decoding import from_json
from stepgrade.errors import BadInput, TooLarge
from stepgrade.hardware.memory.fit import Anchor

_MOST_BYTES = 64 * 2**20
_UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 2**20}
_FIGURE = r"(\d[\d,]{0,15}(?:\.\d{1,15})?)\s*(GiB|GB|MiB|MB)?"
_MOST_MEMORY = 2**60
_Bytes = Annotated[float, Meta(gt=0, lt=_MOST_MEMORY)]
_Count = Annotated[int, Meta(ge=1, lt=2**40)]
# What each trainer prints, which figure it is, and its unit if the line omits or misstates it.
_LINES: tuple[tuple[str, Literal["allocated", "reserved"], int | None], ...] = (
    (rf"\bmemory:\s*{_FIGURE}\s*\(", "reserved", None),  # torchtitan
    (rf"max allocated:\s*{_FIGURE}", "allocated", 2**20),  # Megatron-LM
    (rf"\bMax_MA\s+{_FIGURE}", "allocated", 2**30),  # DeepSpeed, whose GB are binary
    (rf"peak memory allocat(?:ed|ion):\s*{_FIGURE}", "allocated", None),  # torchtune, modded-nanogpt
    (rf"\bMemory used:\s*{_FIGURE}", "allocated", None),  # litgpt, whose GB are decimal
    (rf"\bmem\s+{_FIGURE}", "allocated", None),  # NeMo AutoModel
    (rf"memory/max_allocated \(GiB\)\W+{_FIGURE}", "allocated", 2**30),  # axolotl
)


class _Memory(Struct):
    """The peak memory in a JSON file."""

    reserved_bytes: _Bytes | None = None
    peak_bytes: _Bytes | None = None


class _Run(Struct):
    """The micro-batch in a JSON file."""

    batch: _Count | None = None
    seq: _Count | None = None


class _Document(Struct):
    """The parts of a scorecard or an estimate that are read."""

    memory: _Memory
    plan: _Run | None = None


def read_anchor(path: str) -> Anchor:
    """Return the peak of the run in a JSON with `memory`, or in a log; raise BadInput without one."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    if len(raw) > _MOST_BYTES:
        problem = f"larger than {_MOST_BYTES // 2**20} MiB: pass only the part of the log with the memory"
        raise TooLarge(problem, where=path)
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        document = from_json(raw, _Document)
        run, memory = document.plan or _Run(), document.memory
        if memory.reserved_bytes is not None:
            return Anchor(peak_bytes=memory.reserved_bytes, kind="reserved", batch=run.batch, seq=run.seq)
        if memory.peak_bytes is not None:
            return Anchor(peak_bytes=memory.peak_bytes, kind="allocated", batch=run.batch, seq=run.seq)
    log = raw.decode("utf-8", "replace")
    for pattern, kind, unit in _LINES:
        sizes = [
            float(figure.replace(",", "")) * (unit or _UNITS.get(name.casefold(), 2**30))
            for figure, name in re.findall(pattern, log)
        ]
        most = max(sizes, default=0.0)  # the first step has no optimizer states yet
        if 0 < most < _MOST_MEMORY:
            return Anchor(peak_bytes=most, kind=kind)
    hint = "pass JSON with memory.peak_bytes or memory.reserved_bytes, or a trainer's log that prints it"
    raise BadInput("no peak memory found", where=path, hint=hint)
