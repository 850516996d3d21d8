"""What makes two runs comparable: the same work, on the same machine, measured in the same way."""

from __future__ import annotations

from msgspec import Struct


class Fingerprint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The circumstances of a run; None and empty are what nobody said."""

    device: str | None = None
    devices: int | None = None
    model: str | None = None
    batch: int | None = None
    seq: int | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None  # where there are no tokens
    precision: str | None = None
    world_size: int | None = None
    versions: dict[str, str] = {}
    profiler: str | None = None
