"""Dialects: how the step lines of one framework are recognised and read, as data."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from stepgrade.model.step_log import PauseKind
from stepgrade.patterns import regex
from stepgrade.readers.logs.bars import ProgressBars
from stepgrade.readers.logs.facts import LogHeader
from stepgrade.readers.logs.mlperf import MlperfEvents
from stepgrade.readers.logs.values import NUMBER, UNITS, Column, number

Row = dict[Column, float]
MOST_EVENTS = 20_000
# The layout of a line is learned from the first lines, and from every 64th after them.
_FIRST_LINES, _EVERY = 16, 64
# What may stand between two fields of a line.
BETWEEN = r"[^\n]{0,400}?"
# Dialects of this rank, such as progress bars, appear in logs of any framework.
LAST_RANK = 3
_NAME = regex(r"\{([a-z_]+)\}")
_SCALED = UNITS | {"thousand_tok_s": ("tok_s", 1e3)}


class LogEvent(Struct, frozen=True):
    """Something between two step lines: `at` is the offset of the later line."""

    kind: PauseKind
    at: float
    seconds: float | None = None
    failed: bool = False  # something crashed or was killed


class RunTotals(Struct, frozen=True):
    """The whole run's time and mean rates, which a trainer prints at its end."""

    runtime_s: float
    samples_s: float | None
    steps_s: float | None


class LogContext:
    """What a log says besides its step lines: its header, events between steps, totals at the end."""

    def __init__(self) -> None:
        self.header = LogHeader()
        self.events: list[LogEvent] = []
        self.totals: RunTotals | None = None
        self.mlperf = MlperfEvents(self.header)
        self.bars = ProgressBars()

    def add_event(self, kind: PauseKind, at: float, seconds: float | None, *, failed: bool = False) -> None:
        """Keep an event, unless there are too many."""
        if len(self.events) < MOST_EVENTS:
            self.events.append(LogEvent(kind, at, seconds, failed))


# Reads a line at an offset of the log; None for a line that is not a step line.
LineReader = Callable[[bytes, float, LogContext], Row | None]


class Field(Struct, frozen=True):
    """One number of a line: its column, its unit in ours, and a pattern with the number as its only group."""

    means: Column
    scale: float
    pattern: str


def fields(*templates: str) -> tuple[Field, ...]:
    """Return the fields of templates such as `iter {step}: … time {step_ms}ms`.

    Around each name is the pattern of the text before and after it; fields may come in any order.
    """
    found = []
    for template in " … ".join(templates).split(" … "):
        before, name, after = _NAME.split(template)
        found.append(Field(*_SCALED.get(name, (name, 1.0)), f"{before}\\s*({NUMBER}){after}"))
    return tuple(found)


class Variant(Struct, frozen=True, kw_only=True):
    """A framework that prints the same line as another one, recognised by its columns."""

    framework: str
    has: Column
    lacks: Column | None = None
    convention: str | None = None


class Dialect(Struct, frozen=True, kw_only=True):
    """How one framework prints its steps.

    `anchor` is in every step line: a line without it is never looked at.
    `mean` says what a printed time or rate is the mean of: the step itself, the steps since the last line
    ("interval"), or all steps so far ("running", which is never used as a step time).
    """

    framework: str
    anchor: bytes
    fields: tuple[Field, ...] = ()
    needs: tuple[Column, ...] = ("step", "step_s")  # fields without which a line is not a step line
    reader: LineReader | None = None  # for lines that are not read by `fields`
    mean: Literal["step", "interval", "running"] = "step"
    block: bool = False  # the numbers are in the indented lines, or the rows of a table, that follow
    line_bytes: int = 4096  # longer step lines are mixed with other output: only this much is read
    micro: bool = False  # a line is a micro-batch: several of them make a step
    restarts_at_epochs: bool = False  # the step counter restarts with each epoch
    counts_lines: bool = False  # there is no step number: lines are counted
    is_generic: bool = False  # words that any script may print: read only where no other dialect is found
    needs_evidence: bool = False  # what it counts may be something other than training steps
    has_own_events: bool = False  # evaluations and checkpoints are events of its own
    convention: str | None = None  # how the framework counts FLOPs, by its name in `hardware`
    variants: tuple[Variant, ...] = ()
    recompute_argument: str | None = None  # if this argument is True, printed TFLOP/s include recomputation
    mixes_fp8: bool = False  # with fp8, its utilisation is against a mix of fp8 and bf16 peaks
    peak_tflops: float | None = None  # the peak that its utilisation assumes, whatever the device
    untimed: str | None = None  # why there may be no step times
    rank: int = 0  # if two dialects read the same lines, the lower rank wins


class FieldReader:
    """Reads the fields of a line: with one pattern if the layout is the last line's, else one by one."""

    def __init__(self, dialect: Dialect) -> None:
        self._fields = [(field, re.compile(field.pattern.encode())) for field in dialect.fields]
        columns = {field.means for field in dialect.fields}
        self._needs = [name for name in dialect.needs if name in columns]
        self._counts_lines = dialect.counts_lines
        self._lines = 0
        self._order: list[Field] = []
        self._whole: re.Pattern[bytes] | None = None

    def read(self, line: bytes, _at: float, _context: LogContext) -> Row | None:
        """Return the numbers of a line by column, in our units; None if it is not a step line."""
        self._lines += 1
        is_looked_at = self._lines <= _FIRST_LINES or self._lines % _EVERY == 0
        if self._whole is not None and not is_looked_at and (match := self._whole.match(line)):
            return {
                field.means: number(text) * field.scale
                for field, text in zip(self._order, match.groups(), strict=True)
            }
        row: Row = {}
        found: list[tuple[int, int, Field]] = []
        for field, pattern in self._fields:
            if field.means not in row and (match := pattern.search(line)):
                row[field.means] = number(match[1]) * field.scale
                found.append((*match.span(), field))
        found.sort(key=lambda span: span[0])
        apart = all(end <= start for (_, end, _), (start, _, _) in pairwise(found))
        is_step = all(need in row for need in self._needs)
        # A line with fewer fields is not a layout for those with more; overlapping fields have none.
        if apart and is_step and len(found) > len(self._order):
            self._order = [field for _, _, field in found]
            # Atomic groups: each field is taken where it first occurs, and later occurrences, of which a
            # hostile line has many, are never tried.
            parts = (f"(?>{BETWEEN}{field.pattern})" for field in self._order)
            self._whole = re.compile("".join(parts).encode())
        return row if is_step or self._counts_lines else None
