"""A Hugging Face config.json to a ModelShape; an architecture we do not know is refused by name."""

from __future__ import annotations

import os

import msgspec

from stepgrade.errors import BadInput, BadJson, TooLarge, UnknownArchitecture
from stepgrade.hardware.models.decoders import ARCHITECTURES
from stepgrade.hardware.models.fields import Fields
from stepgrade.hardware.models.shape import ModelShape

# Real ones are a few kB; quantised checkpoints list every layer and stay below 1 MB.
MOST_CONFIG_BYTES = 4 * 2**20


def read_model(path: str) -> ModelShape:
    """Return the model of a config.json, or of the folder that holds one; raise BadInput at its field."""
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_CONFIG_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    try:
        return model_from_config(raw)
    except BadInput as error:
        raise error.at(path) from error


def model_from_config(raw: bytes | str) -> ModelShape:
    """Return the model that the text of a config.json describes."""
    if len(raw) > MOST_CONFIG_BYTES:
        raise TooLarge(f"larger than {MOST_CONFIG_BYTES // 2**20} MiB: not a model's config.json")
    try:
        values = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadJson(f"not a config.json: {error}") from error
    if not isinstance(values, dict):
        raise BadJson("not a config.json: the outermost value must be an object")
    fields = Fields(values)
    architecture = fields.text("model_type")
    if architecture is None:
        hint = "a Hugging Face config.json names its architecture"
        raise BadInput("is missing", where="model_type", hint=hint)
    if architecture not in ARCHITECTURES:
        name = architecture if len(architecture) <= 60 else f"{architecture[:57]}..."
        raise UnknownArchitecture(
            f"the architecture {name!r} is not modelled",
            where="model_type",
            hint=f"known: {', '.join(ARCHITECTURES)}",
            supply="{flops_per_token} or {bytes_per_token}",
        )
    return ARCHITECTURES[architecture](fields)
