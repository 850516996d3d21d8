"""Measured ceilings of this machine, kept in the user's state folder with their date and spread."""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct

from stepgrade.decoding import from_json
from stepgrade.errors import BadInput
from stepgrade.files import state_folder, write_whole

SCHEMA_VERSION = 1
STATE_VARIABLE = "STEPGRADE_STATE"
_MOST_BYTES = 16 * 2**20


class Rate(Struct, frozen=True, kw_only=True):
    """One measured rate over several runs: the best, the median, and the spread of the best three.

    Only other programs slow a run down, so the best is the device's rate if the best three agree.
    """

    best: float
    median: float
    spread_share: float
    runs: int


class Measurement(Struct, frozen=True, kw_only=True):
    """What one device was measured to reach; `date` is UTC, `key` the catalogue's, or "cpu".

    `others_share` is the processor share of other programs meanwhile, None if unknown.
    """

    key: str
    name: str
    date: str
    method: str
    bandwidth_gb_s: Rate | None = None
    tflops: dict[str, Rate] = {}
    cores: int | None = None
    others_share: float | None = None


class _Kept(Struct, frozen=True, kw_only=True):  # both required, so that no other JSON file is overwritten
    schema_version: int
    measured: list[Measurement]


def state_path() -> str:
    """Return where measurements are kept: $STEPGRADE_STATE, else the XDG state folder."""
    return os.environ.get(STATE_VARIABLE) or os.path.join(state_folder(), "measured.json")


def load_measured(path: str | None = None) -> list[Measurement]:
    """Return the measurements of this machine, latest first; empty without a file."""
    state = path or state_path()
    try:
        with open(state, "rb") as file:
            kept = from_json(file.read(_MOST_BYTES + 1), _Kept)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=state) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        hint = "remove the file, then measure again"
        raise BadInput(f"not a measurements file: {error}", where=state, hint=hint) from error
    if kept.schema_version > SCHEMA_VERSION:
        raise BadInput("written by a newer stepgrade", where=state, hint="upgrade stepgrade")
    return sorted(kept.measured, key=lambda measurement: measurement.date, reverse=True)


def measured_for(key: str, path: str | None = None) -> Measurement | None:
    """Return the latest measurement of one device, or None."""
    return next((kept for kept in load_measured(path) if kept.key == key), None)


def keep_measured(measurement: Measurement, path: str | None = None) -> str:
    """Save a measurement, replacing the same device's; return the path."""
    state = path or state_path()
    others = [other for other in load_measured(state) if other.key != measurement.key]
    kept = _Kept(schema_version=SCHEMA_VERSION, measured=[measurement, *others])
    text = msgspec.json.format(msgspec.json.encode(kept), indent=2)
    try:
        os.makedirs(os.path.dirname(state) or ".", exist_ok=True)
        write_whole(os.path.realpath(state), text + b"\n")
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=state) from error
    return state
