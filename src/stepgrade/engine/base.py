"""What an engine is, what it runs, and how an error comes back from where it was raised."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from stepgrade import errors
from stepgrade._version import __version__
from stepgrade.decoding import from_msgpack
from stepgrade.errors import BadInput, EngineFailed, StepgradeError, TooLarge

TRIES = 2  # of an item whose process dies
_BETWEEN_REPORTS_BYTES = 4 << 20
Report = Callable[[int], None]  # how many bytes of an item are read
ReportItem = Callable[[int, int], None]  # as above, after the item's place


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of one item: a result, or the error that was raised in its place."""

    result: bytes | None = None
    error: str = ""  # the name of its class, as in `errors`
    problem: str = ""
    where: str | None = None
    hint: str | None = None
    field: str | None = None
    supply: str | None = None
    version: str = __version__

    def value(self) -> bytes:
        """Return the result, or raise the error as it was raised."""
        if self.result is not None:
            return self.result
        kind = getattr(errors, self.error, None)
        if isinstance(kind, type) and issubclass(kind, StepgradeError):
            raise kind(self.problem, where=self.where, hint=self.hint, field=self.field, supply=self.supply)
        raise RuntimeError(self.problem)  # a bug, with its traceback in its words


class Job(Struct, frozen=True, kw_only=True):
    """A function of ours by its name, such as "stepgrade.loading.ranks:analyse_file", and its items.

    The function takes an item and a `Report`, and returns bytes.
    """

    function: str
    items: Sequence[bytes]


class Done(NamedTuple):
    """An item that is done: its place, and what came of it."""

    place: int
    outcome: Outcome


class Engine(Protocol):
    """Where work is done."""

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield what becomes of each item, as it comes; report how far those are that take long."""
        ...

    def close(self) -> None:
        """Stop what still runs and leave nothing behind."""
        ...


def run_item(function: str, item: bytes, report: Report) -> Outcome:
    """Return what the function makes of the item, errors that were raised on purpose included."""
    module, _, name = function.partition(":")
    if not module.startswith("stepgrade."):
        raise ValueError(f"{function} is not ours")
    try:
        return Outcome(result=getattr(import_module(module), name)(item, report))
    except StepgradeError as error:
        return failure_of(error)
    except MemoryError:
        return failure_of(TooLarge("takes more memory than there is", supply="a larger {max_memory}"))
    except Exception:  # noqa: BLE001  a bug comes back with its traceback, and is raised again there
        import traceback  # only when something is wrong

        return Outcome(error="bug", problem=errors.crash_text(traceback.format_exc()))


def now_and_then(report: Report) -> Report:
    """Return the report, less often: what crosses processes would else take longer than reading."""
    told = 0

    def less_often(done_bytes: int) -> None:
        nonlocal told
        if done_bytes - told >= _BETWEEN_REPORTS_BYTES:
            told = done_bytes
            report(done_bytes)

    return less_often


def failure_of(error: StepgradeError) -> Outcome:
    """Return the error as an outcome."""
    return Outcome(
        error=type(error).__name__,
        problem=error.problem,
        where=error.where,
        hint=error.hint,
        field=error.field,
        supply=error.supply,
    )


def decode_outcome(data: bytes, who: str) -> Outcome:
    """Return what a worker sent; raise EngineFailed where it is of another version than this process."""
    try:
        outcome = from_msgpack(data, Outcome)
    except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError) as error:
        hint = f"install stepgrade {__version__} where the workers run"
        raise EngineFailed(f"{who} answers in another version's way", hint=hint) from error
    if outcome.version != __version__:
        problem = f"{who} has stepgrade {outcome.version}, this process {__version__}"
        raise EngineFailed(problem, hint="install the same version in both places")
    return outcome


class Here:
    """This process, one item after the other."""

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield what becomes of each item, in their order."""
        for place, item in enumerate(work.items):
            yield Done(place, run_item(work.function, item, partial(report, place)))

    def close(self) -> None:
        """Do nothing: nothing was started."""


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def died(how: str) -> Outcome:
    """Return the outcome of an item whose process ended again and again."""
    hint = "it may have run out of memory: fewer workers leave more to each"
    return failure_of(BadInput(f"the process that read it {how}", hint=hint))
