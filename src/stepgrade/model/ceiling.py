"""What the hardware allows, as a scorecard states it: all of a card that `estimate` and `devices` load."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["compute", "memory", "link"]
Basis = Literal["data_sheet", "measured", "given"]


class Ceiling(Struct, frozen=True, kw_only=True):
    """One limit on throughput in tok/s per device; the lowest that is not `measured` counts."""

    kind: Kind
    tok_s: float
    basis: Basis
    source: str
    convention: str


class Roof(Struct, frozen=True, kw_only=True):
    """What the device does per second at most: FLOPs (compute) or bytes (memory, link), and who says so."""

    kind: Kind
    per_s: float
    shown: str
    basis: Basis
    source: str
