"""What can be rendered, and on what kind of page."""

from __future__ import annotations

from msgspec import Struct

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


class Page(Struct, frozen=True, kw_only=True):
    """The width in cells and whether there is colour; only the terminal looks at it."""

    width: int = 80
    color: bool = False


def kind_of(result: object) -> str:
    """Return the name of the kind of result, also for a class made from one of them."""
    names = [kind.__name__ for kind in type(result).__mro__]
    return next(name for name in names if name in KINDS)
