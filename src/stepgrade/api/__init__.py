"""The door that the command line, notebooks and scripts all go through: plain functions.

Each is imported when it is first asked for, so that a command loads no more than it needs.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it
if TYPE_CHECKING:
    from stepgrade.api.answering import convert, devices, estimate, inspect
    from stepgrade.api.comparing import ParityReport, parity, parity_matrix
    from stepgrade.api.contract_v1 import parity_v1, render_v1, score_v1
    from stepgrade.api.reading import PathLike, load, load_baseline, load_settings, settings_from
    from stepgrade.api.rendering import render
    from stepgrade.api.scoring import Scorecard, gate, score

_HOMES = {
    "answering": ("convert", "devices", "estimate", "inspect"),
    "comparing": ("ParityReport", "parity", "parity_matrix"),
    "contract_v1": ("parity_v1", "render_v1", "score_v1"),
    "reading": ("PathLike", "load", "load_baseline", "load_settings", "settings_from"),
    "rendering": ("render",),
    "scoring": ("Scorecard", "gate", "score"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ParityReport",
    "PathLike",
    "Scorecard",
    "convert",
    "devices",
    "estimate",
    "gate",
    "inspect",
    "load",
    "load_baseline",
    "load_settings",
    "parity",
    "parity_matrix",
    "parity_v1",
    "render",
    "render_v1",
    "score",
    "score_v1",
    "settings_from",
]


def __getattr__(name: str) -> object:
    """Import the part that holds `name`."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'stepgrade.api' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f"stepgrade.api.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
