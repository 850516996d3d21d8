"""How a result shows itself: printed, or as the last value of a notebook cell.

Results are defined below the rooms that format them, so the package's `__init__` sets these functions.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `stepgrade/__init__`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    render: Callable[[Any, str], str]  # the result and the name of a format to its text
    render_cell: Callable[[Any], str | None]  # a compact HTML card; None without Jinja2
