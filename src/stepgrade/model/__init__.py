"""What a run is: profiles and their parts. No files are read here and nothing is judged."""

from stepgrade.model.baseline import Baseline
from stepgrade.model.fingerprint import Fingerprint
from stepgrade.model.layers import LayerStep, ModuleStep
from stepgrade.model.ledger import Ledger
from stepgrade.model.notes import Note
from stepgrade.model.operations import KernelRow, Operation, ShapeRow, Span
from stepgrade.model.profile import (
    RECORDER,
    DeviceSeen,
    PhaseShare,
    Profile,
    RankRow,
    Recorded,
    Source,
)

__all__ = [
    "RECORDER",
    "Baseline",
    "DeviceSeen",
    "Fingerprint",
    "KernelRow",
    "LayerStep",
    "Ledger",
    "ModuleStep",
    "Note",
    "Operation",
    "PhaseShare",
    "Profile",
    "RankRow",
    "Recorded",
    "ShapeRow",
    "Source",
    "Span",
]
