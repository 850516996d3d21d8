"""The accelerators we know, with dense peaks, bandwidth, link, and where each figure comes from."""

from __future__ import annotations

import csv
import os
from functools import cache

from msgspec import Struct

from stepgrade.errors import UnknownDevice

_TABLE = os.path.join(os.path.dirname(__file__), "accelerators.csv")  # noqa: PTH118, PTH120
DESCRIBE_BY_HAND = "describe it with --peak-bw GB_S and --peak-tflops TFLOPS, or with --device-file my.toml"

# Names of the reference's own constructors (HardwareSpec::rtx_4060l, ::gb10).
_REFERENCE_NAMES = {"rtx4060l": "rtx-4060-laptop", "gb10": "gb10"}
# Names that drivers give to several products: they say nothing without memory and compute units.
SHARED_NAMES = frozenset({"", "nvidiah100", "amdradeongraphics"})
# Products that frameworks show as several devices: what one of them is called, and how many there are.
_PARTS = {
    "mi250": ("gcd", 2),
    "mi250x": ("gcd", 2),
    "gpu-max-1550": ("tile", 2),
    "tpu-v2": ("core", 2),
    "tpu-v3": ("core", 2),
    "tpu-7x": ("core", 2),
    "trainium1": ("core", 2),
    "trainium2": ("core", 8),
    "trainium3": ("core", 8),
    "inferentia2": ("core", 2),
}
_PEAK_COLUMNS = {
    "fp32": "fp32_tflops",
    "tf32": "tf32_tflops",
    "fp16": "fp16_tflops",
    "bf16": "bf16_tflops",
    "fp8": "fp8_tflops",
    "int8": "int8_tops",
}


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator: data-sheet figures (dense, never sparse), and where they come from.

    `memory_gb` is the size in the product's name (binary gigabytes on GPUs); `link_gb_s` is one
    direction; `achievable_tflops` holds the best matmul rates that people measured.
    """

    key: str
    name: str
    vendor: str | None = None
    aliases: tuple[str, ...] = ()
    memory_gb: float | None = None
    peak_bw_gb_s: float | None = None
    peak_tflops: dict[str, float] = {}
    achievable_tflops: dict[str, float] = {}
    tdp_w: float | None = None
    link_gb_s: float | None = None
    link_kind: str | None = None
    arch: str | None = None
    source: str = ""
    confidence: str = ""
    notes: str = ""
    is_by_hand: bool = False


@cache
def all_devices() -> dict[str, Device]:
    """Return every device of the catalogue by its key, in the catalogue's order."""
    with open(_TABLE, encoding="utf-8", newline="") as table:  # noqa: PTH123  pathlib costs 4 ms at start
        return {row["key"]: _device(row) for row in csv.DictReader(table)}


def find_device(name: str) -> Device:
    """Return the device with that key, name or alias; raise UnknownDevice with the nearest names."""
    device = all_devices().get(name) or parts().get(name)
    if device is not None:
        return device
    keys = keys_called(name)
    if fold(name) in SHARED_NAMES:
        raise UnknownDevice(f"{name!r} is the name of several devices", hint=_advice(name))
    if not keys:
        raise UnknownDevice(f"no device called {name!r} in the catalogue", hint=_advice(name))
    if len(keys) > 1:
        raise UnknownDevice(
            f"{name!r} is the name of {' and '.join(keys)}", hint="name one of them by its key"
        )
    return all_devices()[keys[0]]


def keys_called(name: str) -> tuple[str, ...]:
    """Return the keys of every device whose key, name or alias is `name`, whatever its case and marks."""
    return _by_any_name().get(fold(name), ())


@cache
def parts() -> dict[str, Device]:
    """Return the devices that frameworks show as parts of one product, with their share of its figures."""
    return {f"{key}-{part}": _part(all_devices()[key], part, count) for key, (part, count) in _PARTS.items()}


def part_of(key: str) -> tuple[Device, int] | None:
    """Return what a framework shows one product as, and how many of them, or None when it is one device."""
    if key not in _PARTS:
        return None
    part, count = _PARTS[key]
    return parts()[f"{key}-{part}"], count


def fold(name: str) -> str:
    """Drop case, trade marks and everything but letters and digits."""
    plain = name.casefold().replace("(r)", "").replace("(tm)", "")
    return "".join(filter(str.isalnum, plain))


def nearest_keys(name: str, count: int = 4) -> list[str]:
    """Return the keys of the catalogue that look most like `name`: those that contain it first."""
    from difflib import get_close_matches  # noqa: PLC0415  only needed when a name is wrong

    wanted = fold(name).removeprefix("nvidia")
    holding = [key for key in all_devices() if wanted and wanted in fold(key)]
    alike = get_close_matches(wanted, _by_any_name(), n=count, cutoff=0.5)
    return list(dict.fromkeys(holding + [key for match in alike for key in _by_any_name()[match]]))[:count]


def _device(row: dict[str, str]) -> Device:
    mamf = _number(row["mamf_bf16_tflops"])
    return Device(
        key=row["key"],
        name=row["name"],
        vendor=row["vendor"],
        aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
        memory_gb=_number(row["memory_gb"]),
        peak_bw_gb_s=_number(row["peak_bw_gb_s"]),
        peak_tflops={dtype: float(row[column]) for dtype, column in _PEAK_COLUMNS.items() if row[column]},
        achievable_tflops={} if mamf is None else {"bf16": mamf},
        tdp_w=_number(row["tdp_w"]),
        link_gb_s=_number(row["interconnect_gb_s"]),
        link_kind=row["interconnect_kind"] or None,
        arch=row["arch"] or None,
        source=row["source"],
        confidence=row["confidence"],
        notes=row["notes"].strip(),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def _part(whole: Device, part: str, count: int) -> Device:
    return Device(
        key=f"{whole.key}-{part}",
        name=f"{whole.name}, one {part} of {count}",
        vendor=whole.vendor,
        memory_gb=_share(whole.memory_gb, count),
        peak_bw_gb_s=_share(whole.peak_bw_gb_s, count),
        peak_tflops={dtype: peak / count for dtype, peak in whole.peak_tflops.items()},
        achievable_tflops={dtype: rate / count for dtype, rate in whole.achievable_tflops.items()},
        tdp_w=_share(whole.tdp_w, count),
        link_gb_s=_share(whole.link_gb_s, count),
        link_kind=whole.link_kind,
        arch=whole.arch,
        source=f"1/{count} of {whole.key}: {whole.source}",
        confidence=whole.confidence,
        notes=whole.notes,
    )


def _share(figure: float | None, count: int) -> float | None:
    return None if figure is None else figure / count


@cache
def _by_any_name() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {name: (key,) for name, key in _REFERENCE_NAMES.items()}
    for device in all_devices().values():
        for name in {fold(name) for name in (device.key, device.name, *device.aliases)}:
            names[name] = tuple(dict.fromkeys((*names.get(name, ()), device.key)))
    # A driver's name without its maker's, where nothing else has that name.
    for name, keys in list(names.items()):
        if name.startswith("nvidia") and name not in SHARED_NAMES:
            names.setdefault(name.removeprefix("nvidia"), keys)
    return names


def _advice(name: str) -> str:
    keys = nearest_keys(name)
    nearest = f"nearest: {', '.join(keys)}; or " if keys else ""
    return f"{nearest}{DESCRIBE_BY_HAND}"
