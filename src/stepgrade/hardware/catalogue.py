"""The accelerators we know, and which of them a name, a driver or a file describes."""

from __future__ import annotations

import csv
import os
import re
from functools import cache
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from stepgrade.config.toml import MOST_BYTES, parse_toml
from stepgrade.decoding import from_builtins
from stepgrade.errors import BadInput, BadOption, UnknownDevice
from stepgrade.model import DeviceSeen
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
_PEAK_COLUMNS = {dtype: f"{dtype}_tflops" for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8")}
_PEAK_COLUMNS["int8"] = "int8_tops"


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
    chosen = []
    for device in all_devices().values():
        arch = device.arch or ""
        names = (
            device.key,
            device.name,
            device.vendor or "",
            arch,
            *ARCHITECTURES.get(arch, ()),
            *device.aliases,
        )
        # Folding every name takes longer than listing all devices.
        folded = [fold(name) for name in names] if wanted else []
        if all(any(word in name for name in folded) for word in wanted):
            chosen.append(device)
    if not chosen:
        raise BadOption(f"no device matches {words!r}", field="words", hint=nearest_hint(words or ""))
    return DeviceTable(devices=tuple(chosen), total=len(all_devices()), filter=words)


@cache
def all_devices() -> dict[str, Device]:
    """Return every device of the catalogue by its key, in the catalogue's order."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    return {
        key: Device(
            key=key,
            name=row["name"],
            vendor=row["vendor"],
            aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
            memory_gb=number(row["memory_gb"]),
            peak_bw_gb_s=number(row["peak_bw_gb_s"]),
            tdp_w=number(row["tdp_w"]),
            link_gb_s=number(row["interconnect_gb_s"]),
            peak_tflops={dtype: float(row[column]) for dtype, column in _PEAK_COLUMNS.items() if row[column]},
            achievable_tflops={"bf16": float(row["mamf_bf16_tflops"])} if row["mamf_bf16_tflops"] else {},
            link_kind=row["interconnect_kind"] or None,
            arch=row["arch"] or None,
            source=row["source"],
            confidence=row["confidence"],
            notes=row["notes"].strip(),
        )
        for key, row in _rows().items()
    }


def find_device(name: str) -> Device:
    """Return the device with that key, name or alias; raise UnknownDevice with the nearest names."""
    device = all_devices().get(name) or parts().get(name)
    if device is not None:
        return device
    problem = f"{name!r} is the name of several devices"
    if fold(name) not in SHARED_NAMES:
        keys = keys_called(name)
        if len(keys) == 1:
            return all_devices()[keys[0]]
        if keys:
            problem = f"{name!r} is the name of {' and '.join(keys)}"
            raise UnknownDevice(problem, hint="name one of them by its key")
        problem = f"no device called {name!r} in the catalogue"
    hint = nearest_hint(name) or "stepgrade devices lists them all"
    raise UnknownDevice(problem, hint=hint, supply=DESCRIBE_BY_HAND)


# Words that people leave out of a product's name: `4090` is the rtx-4090, not the laptop or the D version.
_SERIES = frozenset(
    {"nvidia", "amd", "intel", "apple", "google", "aws", "geforce", "tesla", "rtx", "gtx", "radeon"}
    | {"rx", "instinct", "tpu", "gpu"}
)


# What NVIDIA calls the architectures that drivers number.
ARCHITECTURES = {
    "sm_60": ("pascal",),
    "sm_61": ("pascal",),
    "sm_70": ("volta",),
    "sm_75": ("turing",),
    "sm_80": ("ampere",),
    "sm_86": ("ampere",),
    "sm_89": ("ada", "lovelace"),
    "sm_90": ("hopper",),
    "sm_100": ("blackwell",),
    "sm_103": ("blackwell",),
    "sm_120": ("blackwell",),
}


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
    of_one = [
        key for key, each in all_devices().items() if wanted[0] in ARCHITECTURES.get(each.arch or "", ())
    ]
    if of_one and len(wanted) == 1:
        return tuple(of_one)
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
        figures = ("memory_gb", "peak_bw_gb_s", "tdp_w", "link_gb_s")
        known = {name: value for name in figures if (value := getattr(whole, name)) is not None}
        found[f"{key}-{part}"] = structs.replace(
            whole,
            key=f"{key}-{part}",
            name=f"{whole.name}, one {part} of {count}",
            aliases=(),
            **{name: value / count for name, value in known.items()},
            peak_tflops={dtype: peak / count for dtype, peak in whole.peak_tflops.items()},
            achievable_tflops={dtype: rate / count for dtype, rate in whole.achievable_tflops.items()},
            source=f"1/{count} of {key}: {whole.source}",
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


BYTES_PER_GIB = 2**30
# Drivers report up to 8 % less than the nominal size (firmware), with ECC in the same memory up to 15 %, and
# never noticeably more.
LEAST_MEMORY, LEAST_WITH_ECC, MOST_MEMORY = 0.92, 0.85, 1.01
# What drivers report for unknown devices; anything else is a name, possibly shared by several devices.
NAMELESS = frozenset({"", "amdradeongraphics"})
NAMELESS_VENDOR = "AMD"
# Candidates whose figures differ by less give the same grade, so either may be taken.
SAME_FIGURES = 0.02


def identify(seen: DeviceSeen, arch: str | None = None) -> Device:
    """Return the catalogue's device for what a driver saw; raise UnknownDevice when none or several fit.

    `arch` is the architecture as the driver names it; it only helps where the name says nothing.
    """
    name = seen.name or ""
    if fold(name) in NAMELESS:
        # Found by memory and compute units, both of which must be known, or by architecture.
        makes = [device for device in all_devices().values() if device.vendor == NAMELESS_VENDOR]
        by_arch = [device for device in makes if arch and device.arch == arch.split(":")[0]]
        fitting = [
            device
            for device in (*makes, *parts().values())
            if (not by_arch or device.arch == by_arch[0].arch)
            and seen.memory_bytes is not None
            and seen.sm_count is not None
            and _fits_memory(device, seen.memory_bytes)
            and compute_units(device.key) == seen.sm_count
        ]
        if not fitting and len(by_arch) != 1:
            hint = nearest_hint(name) if name else None
            problem = f"{_described(seen)} matches no device in the catalogue"
            raise UnknownDevice(problem, hint=hint, supply=f"{{device}}, or {DESCRIBE_BY_HAND}")
        return _only(fitting or by_arch, seen)
    keys = keys_called(name)
    if not keys or (fold(name) in SHARED_NAMES and seen.memory_bytes is None):
        return find_device(name)
    known = [all_devices()[key] for key in keys]
    if seen.memory_bytes is not None:
        # Without the memory size a part cannot be distinguished from the whole product of the same name.
        known += [split[0] for split in map(part_of, keys) if split is not None]
    like = [
        device
        for device in known
        if seen.sm_count is None or compute_units(device.key) in (None, seen.sm_count)
    ]
    fitting = [device for device in like if _fits_memory(device, seen.memory_bytes)]
    if not fitting and fold(name) not in SHARED_NAMES:
        # The name decides; memory only distinguishes variants and parts.
        fitting = [device for device in like if _fits_memory(device, seen.memory_bytes, LEAST_WITH_ECC)]
    if not fitting:
        units = {key: compute_units(key) for key in keys}
        sizes = ", ".join(
            f"{key} has {all_devices()[key].memory_gb:g} GB"
            + (f" and {units[key]} compute units" if units[key] else "")
            for key in keys
        )
        problem = f"{_described(seen)} does not match the catalogue: {sizes}"
        raise UnknownDevice(problem, supply=DESCRIBE_BY_HAND)
    return _only(fitting, seen)


def _fits_memory(device: Device, memory_bytes: int | None, least: float = LEAST_MEMORY) -> bool:
    sizes = memory_sizes_gb(device)
    if memory_bytes is None or not sizes:
        return True
    return any(least < memory_bytes / BYTES_PER_GIB / size < MOST_MEMORY for size in sizes)


def _only(fitting: list[Device], seen: DeviceSeen) -> Device:
    """Return the first device if all give the same ceilings; else raise UnknownDevice."""
    first = fitting[0]
    for other in fitting[1:]:
        pairs = [(first.peak_bw_gb_s, other.peak_bw_gb_s)]
        pairs += [(first.peak_tflops.get(dtype), other.peak_tflops.get(dtype)) for dtype in ("bf16", "fp16")]
        is_close = (
            left is right
            if left is None or right is None
            else abs(left - right) <= SAME_FIGURES * max(left, right)
            for left, right in pairs
        )
        if not all(is_close):
            keys = ", ".join(device.key for device in fitting)
            raise UnknownDevice(f"{_described(seen)} could be any of {keys}", supply="{device}")
    return first


def _described(seen: DeviceSeen) -> str:
    shape = []
    if seen.memory_bytes is not None:
        shape.append(f"{seen.memory_bytes / BYTES_PER_GIB:.1f} GB")
    if seen.sm_count is not None:
        shape.append(f"{seen.sm_count} compute units")
    name = repr(seen.name) if seen.name else "a device without a name"
    return name + (f" with {' and '.join(shape)}" if shape else "")


def read_device(path: str) -> Device:
    """Return the device that a TOML file describes; raise BadInput at its field."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    try:
        document = parse_toml(raw)
    except ValueError as error:
        raise BadInput(str(error), where=path) from error
    name = document.get("name")
    known = {"key": name if isinstance(name, str) and name else path, "source": path, **document}
    try:
        device = from_builtins({**known, "is_by_hand": True}, Device)
    except msgspec.ValidationError as error:
        problem, _, location = str(error).partition(" - at ")
        field = location.rpartition("$.")[2].strip("`")
        fields = ", ".join(field.name for field in msgspec.structs.fields(Device)[:-1])
        where = f"{path}: {field}" if field else path
        raise BadInput(problem[:1].lower() + problem[1:], where=where, hint=f"fields: {fields}") from error
    if device.peak_bw_gb_s is None and not device.peak_tflops:
        raise BadInput("gives neither peak_bw_gb_s nor peak_tflops: no ceiling to grade against", where=path)
    return device
