"""A device described by hand in a TOML file, for those that the catalogue does not have."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from stepgrade.errors import BadInput
from stepgrade.hardware.catalogue import Device

MOST_FILE_BYTES = 2**20
PEAK_DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")
_TEXTS = ("key", "name", "vendor", "link_kind", "arch", "source", "confidence", "notes")
_NUMBERS = ("memory_gb", "peak_bw_gb_s", "tdp_w", "link_gb_s")
_TABLES = ("peak_tflops", "achievable_tflops")
# A thousandfold above any device there is; beyond it somebody mixed up the unit.
_MOST_FIGURE = 1e7


def read_device(path: str) -> Device:
    """Return the device that a TOML file describes; raise BadInput at its field."""
    values = _decoded(path)
    unknown = [name for name in values if name not in (*_TEXTS, *_NUMBERS, *_TABLES)]
    if unknown:
        raise BadInput("is no field of a device", where=f"{path}: {unknown[0]}", hint=_all_fields())
    texts = {name: _text(path, name, values[name]) for name in _TEXTS if name in values}
    numbers = {name: _figure(path, name, values[name]) for name in _NUMBERS if name in values}
    tables = {name: _table(path, name, values[name]) for name in _TABLES if name in values}
    if "name" not in texts:
        raise BadInput("is missing", where=f"{path}: name", hint=_all_fields())
    if "peak_bw_gb_s" not in numbers and not tables.get("peak_tflops"):
        raise BadInput("gives neither peak_bw_gb_s nor peak_tflops: no ceiling to grade against", where=path)
    known = {"key": texts["name"], "source": path, **texts, **numbers, **tables}
    return msgspec.convert({**known, "is_by_hand": True}, Device)


def _decoded(path: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415  only needed with --device-file

    try:
        with open(path, "rb") as file:  # noqa: PTH123  pathlib costs 4 ms at start
            raw = file.read(MOST_FILE_BYTES + 1)
        if len(raw) > MOST_FILE_BYTES:
            raise BadInput("more than 1 MiB: not a description of a device", where=path)
        return tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not TOML: {error}", where=path) from error


def _text(path: str, name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadInput(f"must be a text, not {value!r}", where=f"{path}: {name}")
    return value


def _figure(path: str, name: str, value: object) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 < value < _MOST_FIGURE:  # type: ignore[arg-type, operator]  # narrowed by is_number
        raise BadInput(f"must be a positive number, not {value!r}", where=f"{path}: {name}")
    return float(value)  # type: ignore[arg-type]  # as above


def _table(path: str, name: str, value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise BadInput(f"must be a table, such as {{ bf16 = 120 }}, not {value!r}", where=f"{path}: {name}")
    for dtype in value:
        if dtype not in PEAK_DTYPES:
            hint = f"one of {', '.join(PEAK_DTYPES)}"
            raise BadInput("is no precision", where=f"{path}: {name}.{dtype}", hint=hint)
    return {dtype: _figure(path, f"{name}.{dtype}", figure) for dtype, figure in value.items()}


def _all_fields() -> str:
    return f"fields: {', '.join((*_TEXTS, *_NUMBERS, *_TABLES))}"
