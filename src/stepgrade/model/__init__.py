"""What a run is: profiles and their parts. No files are read here and nothing is judged."""

from stepgrade.model.ledger import Ledger
from stepgrade.model.notes import Note
from stepgrade.model.operations import KernelRow, LayerStep, ModuleStep, Operation, ShapeRow, Span
from stepgrade.model.profile import (
    RECORDER,
    DeviceSeen,
    Machine,
    PhaseShare,
    Profile,
    RankRow,
    Recorded,
    Source,
)

__all__ = [
    "RECORDER",
    "DeviceSeen",
    "KernelRow",
    "LayerStep",
    "Ledger",
    "Machine",
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
