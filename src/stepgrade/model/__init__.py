"""What a run is: profiles and their parts. No files are read here and nothing is judged."""

from stepgrade.model.profile import (
    Baseline,
    DeviceSeen,
    LayerTime,
    LedgerTime,
    OpTime,
    PhaseTime,
    Profile,
    RankTime,
    Source,
    Span,
)

__all__ = [
    "Baseline",
    "DeviceSeen",
    "LayerTime",
    "LedgerTime",
    "OpTime",
    "PhaseTime",
    "Profile",
    "RankTime",
    "Source",
    "Span",
]
