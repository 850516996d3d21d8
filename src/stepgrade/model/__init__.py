"""What a run is: profiles and their parts. No files are read here and nothing is judged."""

from stepgrade.model.baseline import Baseline
from stepgrade.model.fingerprint import Fingerprint
from stepgrade.model.ledger import Ledger
from stepgrade.model.notes import Note
from stepgrade.model.profile import (
    RECORDER,
    DeviceSeen,
    LayerTime,
    OpTime,
    PhaseTime,
    Profile,
    RankTime,
    Recorded,
    Source,
    Span,
)

__all__ = [
    "RECORDER",
    "Baseline",
    "DeviceSeen",
    "Fingerprint",
    "LayerTime",
    "Ledger",
    "Note",
    "OpTime",
    "PhaseTime",
    "Profile",
    "RankTime",
    "Recorded",
    "Source",
    "Span",
]
