"""A device described by hand in a TOML file, for those that the catalogue does not have."""

from __future__ import annotations

import msgspec

from stepgrade.errors import BadInput
from stepgrade.hardware.catalogue import Device

MOST_FILE_BYTES = 2**20


def read_device(path: str) -> Device:
    """Return the device that a TOML file describes; raise BadInput at its field."""
    import tomllib  # noqa: PLC0415  only needed with a file

    try:
        with open(path, "rb") as file:  # noqa: PTH123  pathlib costs 4 ms at start
            raw = file.read(MOST_FILE_BYTES + 1)
        if len(raw) > MOST_FILE_BYTES:
            raise BadInput("more than 1 MiB: not a description of a device", where=path)
        document = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not TOML: {error}", where=path) from error
    name = document.get("name")
    known = {"key": name if isinstance(name, str) and name else path, "source": path, **document}
    try:
        device = msgspec.convert({**known, "is_by_hand": True}, Device)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        field = place.rpartition("$.")[2].strip("`")
        fields = ", ".join(field.name for field in msgspec.structs.fields(Device)[:-1])
        where = f"{path}: {field}" if field else path
        raise BadInput(problem[:1].lower() + problem[1:], where=where, hint=f"fields: {fields}") from error
    if device.peak_bw_gb_s is None and not device.peak_tflops:
        raise BadInput("gives neither peak_bw_gb_s nor peak_tflops: no ceiling to grade against", where=path)
    return device
