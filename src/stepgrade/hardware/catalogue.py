"""The accelerators we know, with dense peaks, bandwidth, link, and where each figure comes from."""

from __future__ import annotations

import csv
import os
import re
from functools import cache
from typing import Annotated

from msgspec import Meta, Struct

from stepgrade.errors import BadOption, UnknownDevice
from stepgrade.model.notes import Result

_TABLE = os.path.join(os.path.dirname(__file__), "accelerators.csv")
DESCRIBE_BY_HAND = "{peak_bw_gb_s} and {peak_tflops}, or {device_file}"

# Names of the reference's own constructors (HardwareSpec::rtx_4060l, ::gb10).
_REFERENCE_NAMES = {"rtx4060l": "rtx-4060-laptop", "gb10": "gb10"}
# Names that drivers give to several products: ambiguous without memory and compute units.
SHARED_NAMES = frozenset({"", "nvidiah100", "amdradeongraphics"})
# Products that frameworks show as several devices: the name of one device, and how many there are.
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
_PART_COMPUTE_UNITS = {"mi250-gcd": 104, "mi250x-gcd": 110}
_ANY_MEMORY = "any"
_LARGEST_CACHE_MB = 408.0
_NEAREST = 4
_PEAK_COLUMNS = {
    "fp32": "fp32_tflops",
    "tf32": "tf32_tflops",
    "fp16": "fp16_tflops",
    "bf16": "bf16_tflops",
    "fp8": "fp8_tflops",
    "int8": "int8_tops",
}


# Upper bounds for a device file: a thousand times any device means that a unit was mixed up.
_Figure = Annotated[float, Meta(gt=0, lt=1e7)]
_Text = Annotated[str, Meta(min_length=1)]
_Precision = Annotated[str, Meta(pattern="^(fp32|tf32|fp16|bf16|fp8|int8)$")]


class Device(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator: data-sheet figures (dense, never sparse), and where they come from.

    `memory_gb` is the size in the product's name (binary gigabytes on GPUs); `link_gb_s` is one
    direction; `achievable_tflops` holds the best measured matmul rates.
    """

    key: _Text
    name: _Text
    vendor: str | None = None
    aliases: tuple[str, ...] = ()
    memory_gb: _Figure | None = None
    peak_bw_gb_s: _Figure | None = None
    peak_tflops: dict[_Precision, _Figure] = {}
    achievable_tflops: dict[_Precision, _Figure] = {}
    tdp_w: _Figure | None = None
    link_gb_s: _Figure | None = None
    link_kind: str | None = None
    arch: str | None = None
    source: str = ""
    confidence: str = ""
    notes: str = ""
    is_by_hand: bool = False


class DeviceTable(Result, frozen=True, kw_only=True):
    """The devices of the catalogue that match a filter."""

    devices: tuple[Device, ...]
    total: int
    filter: str | None = None


def devices(words: str | None = None) -> DeviceTable:
    """Return the catalogue's devices whose key, name, alias, vendor or architecture contains all words.

    Raise BadOption with the nearest keys if there is none.
    """
    wanted = [fold(word) for word in (words or "").split()]
    chosen = list(all_devices().values())
    if wanted:  # folding every name takes longer than listing all devices
        found, chosen = chosen, []
        for device in found:
            names = (device.key, device.name, device.vendor or "", device.arch or "", *device.aliases)
            folded = [fold(name) for name in names]
            if all(any(word in name for name in folded) for word in wanted):
                chosen.append(device)
    if not chosen:
        raise BadOption(f"no device matches {words!r}", field="words", hint=nearest_hint(words or ""))
    return DeviceTable(devices=tuple(chosen), total=len(all_devices()), filter=words)


@cache
def all_devices() -> dict[str, Device]:
    """Return every device of the catalogue by its key, in the catalogue's order."""
    return {key: _device(row) for key, row in _rows().items()}


def find_device(name: str) -> Device:
    """Return the device with that key, name or alias; raise UnknownDevice with the nearest names."""
    device = all_devices().get(name) or parts().get(name)
    if device is not None:
        return device
    keys = keys_called(name)
    if len(keys) == 1 and fold(name) not in SHARED_NAMES:
        return all_devices()[keys[0]]
    if len(keys) > 1 and fold(name) not in SHARED_NAMES:
        raise UnknownDevice(
            f"{name!r} is the name of {' and '.join(keys)}", hint="name one of them by its key"
        )
    problem = f"{name!r} is the name of several devices"
    if fold(name) not in SHARED_NAMES:
        problem = f"no device called {name!r} in the catalogue"
    hint = nearest_hint(name) or "stepgrade devices lists them all"
    raise UnknownDevice(problem, hint=hint, supply=DESCRIBE_BY_HAND)


# Words that people leave out of a product's name: `4090` is the rtx-4090, not the laptop or the D version.
_SERIES = frozenset(
    {"nvidia", "amd", "intel", "apple", "google", "aws", "geforce", "tesla", "rtx", "gtx", "radeon"}
    | {"rx", "instinct", "tpu", "gpu"}
)


def meant_device(name: str) -> Device:
    """Return the device that a user means: as `find_device`, or the only one that matches all the words.

    Raise UnknownDevice with all that match, else with the nearest names.
    """
    try:
        return find_device(name)
    except UnknownDevice:
        keys = keys_meant(name)
        if len(keys) == 1:
            return all_devices()[keys[0]]
        if not keys:
            raise
    problem = f"{name!r} is the name of {len(keys)} devices"
    raise UnknownDevice(problem, hint=f"name one of them: {', '.join(keys)}") from None


def keys_meant(name: str) -> tuple[str, ...]:
    """Return the keys that have all the words of `name`; only the exact one if there is one."""
    wanted = [word for word in re.split(r"[^a-z0-9]+", name.casefold()) if word and word not in _SERIES]
    if not wanted:
        return ()
    words = {key: [word for word in key.split("-") if word not in _SERIES] for key in all_devices()}
    whole = [key for key, parts in words.items() if "".join(parts) == "".join(wanted)]
    exact = [key for key, parts in words.items() if set(wanted) <= set(parts)]
    # `sxm` matches sxm5, and `mi300` matches mi300a and mi300x, but `b2` does not match b200.
    begun = [re.compile(re.escape(word) + r"(?!\d)" * word[-1].isdigit()) for word in wanted]
    fitting = [
        key
        for key, parts in words.items()
        if all(any(pattern.match(part) for part in parts) for pattern in begun)
    ]
    return tuple(whole if len(whole) == 1 else exact or fitting)


def keys_called(name: str) -> tuple[str, ...]:
    """Return the keys of every device whose key, name or alias is `name`, ignoring case and punctuation."""
    return _by_any_name().get(fold(name), ())


@cache
def parts() -> dict[str, Device]:
    """Return the devices that frameworks show as parts of one product, with their share of its figures."""
    found = {}
    for key, (part, count) in _PARTS.items():
        whole = all_devices()[key]
        found[f"{key}-{part}"] = Device(
            key=f"{key}-{part}",
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
            source=f"1/{count} of {key}: {whole.source}",
            confidence=whole.confidence,
            notes=whole.notes,
        )
    return found


def part_of(key: str) -> tuple[Device, int] | None:
    """Return what a framework shows one product as, and how many of them, or None when it is one device."""
    if key not in _PARTS:
        return None
    part, count = _PARTS[key]
    return parts()[f"{key}-{part}"], count


def compute_units(key: str) -> int | None:
    """Return how many SMs (NVIDIA) or CUs (AMD) a device reports; None if the count is ambiguous."""
    if key in _PART_COMPUTE_UNITS:
        return _PART_COMPUTE_UNITS[key]
    count = _rows()[key]["compute_units"] if key in _rows() else ""
    return int(count) if count else None


def cache_bytes(device: Device | None) -> float:
    """Return the size of a device's last-level cache; the largest known size for an unknown device.

    The sizes are those of NVIDIA's and AMD's architecture white papers; AMD's is the Infinity Cache.
    """
    size = _rows()[device.key]["cache_mb"] if device and device.key in _rows() else ""
    return (float(size) if size else _LARGEST_CACHE_MB) * 2**20


def memory_sizes_gb(device: Device) -> tuple[float, ...]:
    """Return the memory sizes sold under the device's name; none if the buyer can choose any size."""
    row = _rows().get(device.key)
    variants = row["memory_variants_gb"] if row else ""
    if variants == _ANY_MEMORY or device.memory_gb is None:
        return ()
    return tuple(float(size) for size in variants.split(";")) if variants else (device.memory_gb,)


def fold(name: str) -> str:
    """Drop case, trade marks and everything but letters and digits."""
    plain = name.casefold().replace("(r)", "").replace("(tm)", "")
    return "".join(filter(str.isalnum, plain))


def nearest_hint(name: str) -> str | None:
    """Return the keys that look most like an unknown name, those that contain it first; None without any."""
    from difflib import get_close_matches  # only needed when a name is wrong

    wanted = fold(name).removeprefix("nvidia")
    containing = [key for key in all_devices() if wanted and wanted in fold(key)]
    alike = get_close_matches(wanted, _by_any_name(), n=_NEAREST, cutoff=0.5)
    found = containing + [key for match in alike for key in _by_any_name()[match]]
    keys = list(dict.fromkeys(found))[:_NEAREST]
    return f"nearest: {', '.join(keys)}" if keys else None


@cache
def _rows() -> dict[str, dict[str, str]]:
    with open(_TABLE, encoding="utf-8", newline="") as table:
        return {row["key"]: row for row in csv.DictReader(table)}


def _device(row: dict[str, str]) -> Device:
    def number(column: str) -> float | None:
        return float(row[column]) if row[column] else None

    achievable = number("mamf_bf16_tflops")
    return Device(
        key=row["key"],
        name=row["name"],
        vendor=row["vendor"],
        aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
        memory_gb=number("memory_gb"),
        peak_bw_gb_s=number("peak_bw_gb_s"),
        peak_tflops={dtype: float(row[column]) for dtype, column in _PEAK_COLUMNS.items() if row[column]},
        achievable_tflops={} if achievable is None else {"bf16": achievable},
        tdp_w=number("tdp_w"),
        link_gb_s=number("interconnect_gb_s"),
        link_kind=row["interconnect_kind"] or None,
        arch=row["arch"] or None,
        source=row["source"],
        confidence=row["confidence"],
        notes=row["notes"].strip(),
    )


def _share(figure: float | None, count: int) -> float | None:
    return None if figure is None else figure / count


@cache
def _by_any_name() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {name: (key,) for name, key in _REFERENCE_NAMES.items()}
    for device in all_devices().values():
        for name in {fold(name) for name in (device.key, device.name, *device.aliases)}:
            names[name] = tuple(dict.fromkeys((*names.get(name, ()), device.key)))
    # A driver's name without the vendor, if it is unique.
    for name, keys in list(names.items()):
        if name.startswith("nvidia") and name not in SHARED_NAMES:
            names.setdefault(name.removeprefix("nvidia"), keys)
    return names
