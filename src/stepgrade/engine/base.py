"""What an engine is, what it runs, and how errors come back from other processes."""

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

TRIES = 2  # for an item whose process dies
_BETWEEN_REPORTS_BYTES = 4 << 20
Report = Callable[[int], None]  # bytes of an item read so far
ReportItem = Callable[[int, int], None]  # the item's index, and as above


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one item: its result, or the error that was raised instead."""

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
        raise RuntimeError(self.problem)  # a bug; the text has its traceback


class Job(Struct, frozen=True, kw_only=True):
    """The name of one of our functions, such as "stepgrade.loading.ranks:analyse_file", and its items.

    The function takes an item and a `Report`, and returns bytes.
    """

    function: str
    items: Sequence[bytes]


class Done(NamedTuple):
    """A finished item: its index and outcome."""

    item: int  # its index
    outcome: Outcome


class Engine(Protocol):
    """Something that runs jobs."""

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield the outcome of each item as it arrives, and report the progress of slow ones."""
        ...

    def close(self) -> None:
        """Stop everything and leave nothing behind."""
        ...


def run_item(function: str, item: bytes, report: Report) -> Outcome:
    """Return the outcome of the function for the item, including deliberate errors."""
    module, _, name = function.partition(":")
    if not module.startswith("stepgrade."):
        raise ValueError(f"not one of our functions: {function}")
    try:
        return Outcome(result=getattr(import_module(module), name)(item, report))
    except StepgradeError as error:
        return failure_of(error)
    except MemoryError:
        return failure_of(TooLarge("needs more memory than is available", supply="a larger {max_memory}"))
    except Exception:  # noqa: BLE001  a bug comes back with its traceback, and is raised again by `value`
        import traceback  # only when something is wrong

        return Outcome(error="bug", problem=errors.crash_text(traceback.format_exc()))


def now_and_then(report: Report) -> Report:
    """Return a report that is sent less often, as messages between processes are expensive."""
    reported = 0

    def less_often(done_bytes: int) -> None:
        nonlocal reported
        if done_bytes - reported >= _BETWEEN_REPORTS_BYTES:
            reported = done_bytes
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
    """Return the outcome that a worker sent; raise EngineFailed if its version differs from ours."""
    try:
        outcome = from_msgpack(data, Outcome)
    except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError) as error:
        hint = f"install stepgrade {__version__} where the workers run"
        raise EngineFailed(
            f"{who} sent an unreadable response, perhaps from another version", hint=hint
        ) from error
    if outcome.version != __version__:
        problem = f"{who} has stepgrade {outcome.version}, this process {__version__}"
        raise EngineFailed(problem, hint="install the same version in both places")
    return outcome


class Here:
    """This process, one item after another."""

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield the outcome of each item, in order."""
        for index, item in enumerate(work.items):
            yield Done(index, run_item(work.function, item, partial(report, index)))

    def close(self) -> None:
        """Do nothing: nothing was started."""


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def died(how: str) -> Outcome:
    """Return the outcome of an item whose process died on every try."""
    hint = "it may have run out of memory: use fewer workers, so that each has more"
    return failure_of(BadInput(f"the process that read it {how}", hint=hint))
