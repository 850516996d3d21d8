"""The peak memory of a measured run, from its JSON or from the lines that trainers print."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from stepgrade.errors import BadInput, TooLarge
from stepgrade.hardware.memory.fit import Anchor

_MOST_BYTES = 64 * 2**20
_UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 2**20}
_FIGURE = r"([\d.,]+)\s*(GiB|GB|MiB|MB)?"
# What each trainer prints, what the figure is, and its unit where the line does not say it, or wrongly.
_LINES: tuple[tuple[str, Literal["allocated", "reserved"], int | None], ...] = (
    (rf"\bmemory:\s*{_FIGURE}\s*\(", "reserved", None),  # torchtitan
    (rf"max allocated:\s*{_FIGURE}", "allocated", 2**20),  # Megatron-LM
    (rf"\bMax_MA\s+{_FIGURE}", "allocated", 2**30),  # DeepSpeed, whose GB are binary
    (rf"peak memory allocat(?:ed|ion):\s*{_FIGURE}", "allocated", None),  # torchtune, modded-nanogpt
    (rf"\bMemory used:\s*{_FIGURE}", "allocated", None),  # litgpt, whose GB are decimal
    (rf"\bmem\s+{_FIGURE}", "allocated", None),  # NeMo AutoModel
    (rf"memory/max_allocated \(GiB\)\W+{_FIGURE}", "allocated", 2**30),  # axolotl
)


def read_anchor(path: str) -> Anchor:
    """Return the peak of the run in a JSON with `memory`, or in a log; raise BadInput without one."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  pathlib costs 4 ms at start
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    if len(raw) > _MOST_BYTES:
        raise TooLarge(
            f"more than {_MOST_BYTES // 2**20} MiB: give the part of the log with the memory", where=path
        )
    anchor = _from_json(raw) or _from_log(raw.decode("utf-8", "replace"))
    if anchor is None:
        hint = (
            "give a JSON with memory.peak_bytes or memory.reserved_bytes, or a trainer's log that prints it"
        )
        raise BadInput("no peak memory in it", where=path, hint=hint)
    return anchor


def _from_json(raw: bytes) -> Anchor | None:
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    memory = document.get("memory") if isinstance(document, dict) else None
    if not isinstance(memory, dict):
        return None
    run = document.get("plan")
    shape = {name: _whole(run, name) for name in ("batch", "seq")}
    for name, kind in (("reserved_bytes", "reserved"), ("peak_bytes", "allocated")):
        value = memory.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 2**60:
            is_reserved = kind == "reserved"
            return Anchor(peak_bytes=value, kind="reserved" if is_reserved else "allocated", **shape)
    return None


def _whole(document: Any, name: str) -> int | None:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _from_log(text: str) -> Anchor | None:
    for pattern, kind, unit in _LINES:
        found = re.findall(pattern, text)
        sizes = [_bytes(figure, unit or _UNITS.get(name.casefold(), 2**30)) for figure, name in found]
        # The first step has no optimizer states yet: the most counts.
        most = max((size for size in sizes if size is not None), default=0.0)
        if most > 0:
            return Anchor(peak_bytes=most, kind=kind)
    return None


def _bytes(figure: str, unit: int) -> float | None:
    try:
        return float(figure.replace(",", "").rstrip(".")) * unit
    except ValueError:
        return None
