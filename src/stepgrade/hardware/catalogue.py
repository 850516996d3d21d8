"""The accelerators we know, and how to find one by the names people and drivers use."""

from __future__ import annotations

import csv
import os
from functools import cache

from msgspec import Struct

from stepgrade.errors import UnknownDevice

_TABLE = os.path.join(os.path.dirname(__file__), "accelerators.csv")  # noqa: PTH118, PTH120

# Names of the reference's own constructors (HardwareSpec::rtx_4060l, ::gb10).
_REFERENCE_NAMES = {"rtx4060l": "rtx-4060-laptop", "gb10": "gb10"}


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator's data-sheet figures, with where they come from."""

    key: str
    name: str
    aliases: tuple[str, ...]
    peak_bw_gb_s: float
    source: str
    confidence: str


@cache
def devices() -> dict[str, Device]:
    """Return every device of the catalogue by its key."""
    with open(_TABLE, encoding="utf-8") as table:  # noqa: PTH123  pathlib takes longer to import than to read it
        return {row["key"]: _device(row) for row in csv.DictReader(table)}


def find_device(name: str) -> Device:
    """Return the device with that key, name or alias; raise UnknownDevice with the nearest names."""
    known = devices()
    if name in known:
        return known[name]
    key = _by_any_name().get(_fold(name))
    if key is None:
        raise UnknownDevice(f"no device called {name!r} in the catalogue", hint=_advice(name))
    return known[key]


def _device(row: dict[str, str]) -> Device:
    return Device(
        key=row["key"],
        name=row["name"],
        aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
        peak_bw_gb_s=float(row["peak_bw_gb_s"]),
        source=row["source"],
        confidence=row["confidence"],
    )


@cache
def _by_any_name() -> dict[str, str]:
    names = dict(_REFERENCE_NAMES)
    for device in devices().values():
        for name in (device.key, device.name, *device.aliases):
            names.setdefault(_fold(name), device.key)
    return names


def _fold(name: str) -> str:
    """Drop case and everything but letters and digits."""
    return "".join(c for c in name.casefold() if c.isalnum())


def _advice(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  only needed when a name is wrong

    near = get_close_matches(_fold(name), _by_any_name(), n=3, cutoff=0.5)
    keys = list(dict.fromkeys(_by_any_name()[match] for match in near))
    nearest = f"nearest: {', '.join(keys)}; " if keys else ""
    return f"{nearest}or describe it with --peak-bw GB_S and --bytes-per-token B"
