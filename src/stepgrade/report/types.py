"""What can be rendered, and on what kind of page."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

# Only for type checkers: a command pays for the results it makes, not for all there are.
if TYPE_CHECKING:
    from stepgrade.compare.matrix import ParityMatrix
    from stepgrade.compare.parity import ParityReport
    from stepgrade.hardware.answers import DeviceFacts, DeviceTable
    from stepgrade.hardware.detect import Detection
    from stepgrade.hardware.estimate import Estimate
    from stepgrade.hardware.measure import Measured
    from stepgrade.model.comparison import GateReport
    from stepgrade.model.scorecard import Scorecard
    from stepgrade.scoring.inspection import Inspection

KINDS = (
    "Scorecard",
    "GateReport",
    "ParityReport",
    "ParityMatrix",
    "Inspection",
    "DeviceTable",
    "DeviceFacts",
    "Detection",
    "Measured",
    "Estimate",
)
Result: TypeAlias = (
    "Scorecard | ParityReport | ParityMatrix | Inspection | DeviceTable | DeviceFacts | Detection | "
    "Measured | Estimate"
)
Renderable: TypeAlias = "Result | GateReport"  # a gate has formats of its own besides


class Page(Struct, frozen=True, kw_only=True):
    """The width in cells and whether there is colour; only the terminal looks at it."""

    width: int = 80
    color: bool = False


def kind_of(result: object) -> str:
    """Return the name of the kind of result, also for a class made from one of them."""
    names = [kind.__name__ for kind in type(result).__mro__]
    return next(name for name in names if name in KINDS)
