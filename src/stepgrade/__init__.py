"""Grade a training run: how fast against what the hardware allows, what holds it back, what to do next.

>>> import stepgrade as sg
>>> card = sg.score(sg.load("profile.json"), device="rtx-4060-laptop", throughput_tok_s=194)
"""

from __future__ import annotations

from stepgrade._version import __version__

TYPE_CHECKING = False  # as type checkers read it; importing typing would double the time of --version
if TYPE_CHECKING:
    from stepgrade.api import (
        ParityReport,
        Scorecard,
        convert,
        inspect,
        load,
        load_baseline,
        parity,
        render,
        score,
    )
    from stepgrade.errors import StepgradeError
    from stepgrade.model import Profile
    from stepgrade.record import Recorder, watch

__all__ = [
    "ParityReport",
    "Profile",
    "Recorder",
    "Scorecard",
    "StepgradeError",
    "__version__",
    "convert",
    "inspect",
    "load",
    "load_baseline",
    "parity",
    "render",
    "score",
    "watch",
]

_HOMES = {
    "Profile": "stepgrade.model",
    "Recorder": "stepgrade.record",
    "StepgradeError": "stepgrade.errors",
    "watch": "stepgrade.record",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: `stepgrade --version` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'stepgrade' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_HOMES.get(name, "stepgrade.api")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
