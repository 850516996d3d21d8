"""Every error that stepgrade raises on purpose.

    StepgradeError              printed as one line; `exit_code` ends the process
    ├── BadInput                a file or text that is not what it should be (a ValueError)
    │   ├── BadJson             a JSON text that does not decode; `where` is the JSON path
    │   ├── UnknownFormat       no reader recognises the text, or no reader has that name
    │   ├── TooLarge            more bytes than the limit allows
    │   ├── BadHistory          a history that cannot be opened, read or written
    │   ├── BadConfig           a stepgrade.toml that says something wrong
    │   └── UnknownArchitecture a model whose costs are not modelled
    ├── UnknownDevice           a device that is not in the catalogue (a LookupError)
    ├── BadOption               options that do not fit together or lack a partner
    ├── MissingExtra            an optional package that is not installed
    └── NotMeasured             the profile does not hold what the question needs

Anything else that escapes is a bug in stepgrade and keeps its traceback.
"""

from __future__ import annotations

from typing import Self

EXIT_OK = 0
EXIT_GATE = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_MEASURED = 3
EXIT_BUG = 70


class StepgradeError(Exception):
    """Say what is wrong, where, and what to do next."""

    exit_code = EXIT_BAD_INPUT

    def __init__(self, problem: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.problem}{advice}"

    def at(self, place: str) -> Self:
        """Return this error with `place` (a file name) put before where it already is."""
        where = f"{place}: {self.where}" if self.where else place
        return type(self)(self.problem, where=where, hint=self.hint)


class BadInput(StepgradeError, ValueError):
    """A file or text that is not what it should be."""


class BadJson(BadInput):
    """A JSON text that does not decode; `where` is the JSON path."""


class UnknownFormat(BadInput):
    """A text that no reader recognises, or a reader's name that does not exist."""


class TooLarge(BadInput):
    """More bytes than the limit allows."""


class BadHistory(BadInput):
    """A history that cannot be opened, read or written."""


class BadConfig(BadInput):
    """A stepgrade.toml that is not TOML, or says something that makes no sense."""


class UnknownArchitecture(BadInput):
    """A model whose costs are not modelled."""


class UnknownDevice(StepgradeError, LookupError):
    """A device that is not in the catalogue."""


class BadOption(StepgradeError, ValueError):
    """Options that do not fit together, or one that lacks its partner."""


class MissingExtra(StepgradeError, ImportError):
    """An optional package that is not installed; the hint says how to install it."""


class NotMeasured(StepgradeError):
    """The profile does not hold what the question needs."""

    exit_code = EXIT_NOT_MEASURED
