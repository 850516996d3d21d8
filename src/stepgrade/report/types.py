"""What can be rendered, and on what kind of page."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from stepgrade.analysis import Scorecard
from stepgrade.analysis.inspection import Inspection
from stepgrade.compare.parity import ParityReport

Result: TypeAlias = Scorecard | ParityReport | Inspection


class Page(Struct, frozen=True, kw_only=True):
    """The width in cells and whether there is colour; only the terminal looks at it."""

    width: int = 80
    color: bool = False
