"""A device described in a TOML file, for devices missing from the catalogue."""

from __future__ import annotations

import msgspec

from stepgrade.config.toml import MOST_BYTES, parse_toml
from stepgrade.decoding import from_builtins
from stepgrade.errors import BadInput
from stepgrade.hardware.catalogue import Device


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
