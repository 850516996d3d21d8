"""One pass over a log: the step lines of every dialect, the header, and what happens between steps.

A line is parsed only if it contains the anchor of a dialect, so that the rest of a log costs no more
than searching for a few words. Memory does not grow with the log: with very many step lines, neighbours are
joined, and then only every second, fourth, … one is read in full.
"""

from __future__ import annotations

import re
from array import array
from itertools import pairwise
from math import inf, isfinite, nan

from msgspec import Struct

from stepgrade.model.memory import OutOfMemory
from stepgrade.model.step_log import PauseKind
from stepgrade.patterns import regex
from stepgrade.readers.logs.bars import ProgressBars
from stepgrade.readers.logs.dialect import (
    LAST_RANK,
    Dialect,
    FieldReader,
    LogContext,
    LogEvent,
    Row,
    RunTotals,
)
from stepgrade.readers.logs.facts import LogHeader
from stepgrade.readers.logs.failures import last_failure
from stepgrade.readers.logs.frameworks import DIALECTS
from stepgrade.readers.logs.lines import LEAST_LINES
from stepgrade.readers.logs.values import Column, clock_kind, clock_of, plain

MOST_ROWS = 1 << 16
# A longer line is searched for a timestamp in its first part only.
LINE_BYTES = 4096
_BLOCK_LINES = 80
_INDENTED = regex(rb"(?:\n(?:[ \t]|\| )[^\n]*+){0,80}+")
_CARRIED_BYTES = 1 << 16
# All dialects are searched for in the first bytes, and later in every eighth chunk until one is found.
_PROBE_BYTES = 8 << 20
_PROBE_EVERY = 8
_HEADER_BYTES = 4 << 20
# Text searched between two step lines for the cause of a delay.
_GAP_BYTES = 1 << 16
# After this many lines without a timestamp, only every 64th line is searched for one.
_CLOCKLESS = 64
# The cause of a delay is searched for if a step line is this much later than usual.
_LATE = 1.08
_RANK = regex(
    rb"^\s{0,4}(?:\[(?:rank|default)?[ _]?(\d{1,6})\]:?|(\d{1,6}):\s?|(?:worker|rank)[-_ ]?(\d{1,6})[:\]])"
)
_OLMO_RANK = regex(rb"\brank=(\d{1,6})\]")
_TIMES = frozenset(
    {"time", "step_s", "line_s", "bare_s", "elapsed_s", "steps_s", "tok_s", "tok_s_device"}
    | {"samples_s", "samples_s_device"}
)
_CHECKPOINT = regex(
    rb"(?i)(?:sav(?:e|ed|ing)|writ(?:e|ing|ten)|wrote|upload(?:ed|ing)?)\b[^\n]{0,60}?"
    rb"(?:checkpoint|ckpt|state|model|weights)"
    rb"|(?:checkpoint|ckpt)[^\n]{0,60}?(?:sav(?:e|ed|ing)|written|took|done|finish)|save-checkpoint"
)
_EVALUATION = regex(
    rb"(?i)\bval(?:id(?:ation)?)?[ _/-]{0,3}(?:loss|ppl|bpb|acc|step|metric|set)|\bvalidat(?:e|ion|ing)\b"
    rb"|\beval(?:uat\w{1,6})?\b"
    rb"|eval_(?:loss|runtime)|perplexity|\bCORE\b metric|^\[V\] step|evaluate"
)
_FAILURE = (
    rb"Traceback \(most recent call last\)|out of memory|NCCL (?:error|timeout)|\bSIG(?:TERM|KILL|ABRT|INT)\b"
    rb"|srun: error|slurmstepd|\bKilled\b|KeyboardInterrupt|\bpreempted\b"
)
_FAILED = regex(rb"(?i)" + _FAILURE)
_RESTART = regex(
    rb"(?i)" + _FAILURE + rb"|resum(?:e|ed|ing)\b|load(?:ed|ing)? (?:the )?checkpoint|restart(?:ed|ing)?\b"
    rb"|Training starts at step|torchrun|world size"
)
_COMPILE = regex(rb"(?i)recompil|torch\._dynamo|compiling|autotun(?:e|ing)|cudagraph|XLA compil")
_SECONDS = regex(
    rb"(?i)(?:in|took|time[:=]?|runtime'?:?)\s{0,3}'?(\d{1,9}(?:\.\d{1,9})?)\s?(ms|s\b|sec|min|'|,|\})"
)
EVENTS: tuple[tuple[PauseKind, re.Pattern[bytes]], ...] = (
    ("checkpoint", _CHECKPOINT),
    ("evaluation", _EVALUATION),
    ("restart", _RESTART),
    ("compile", _COMPILE),
)


class Rows:
    """The step lines of one dialect in columns; nan for missing values."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.read = dialect.reader or FieldReader(dialect).read
        self.end = 0  # of the last step line, in the log
        self.pace = (nan, nan, nan)  # time and step of the last line, usual seconds of a step
        self.columns: dict[Column, array[float]] = {}
        self.count = 0
        self.seen = 0
        self.stride = 1
        self._names: tuple[Column, ...] = ()  # of the last line, with their columns and the others
        self._given: list[array[float]] = []
        self._missing: list[array[float]] = []

    def add(self, row: Row) -> None:
        """Add a line; a new column is filled with nan for earlier lines."""
        if tuple(row) != self._names:
            self._names = tuple(row)
            for name in row:
                self.columns.setdefault(name, array("d", [nan]) * self.count)
            self._given = [self.columns[name] for name in row]
            self._missing = [column for name, column in self.columns.items() if name not in row]
        for column, value in zip(self._given, row.values(), strict=True):
            column.append(value)
        for column in self._missing:
            column.append(nan)
        self.count += 1
        if self.count >= MOST_ROWS:  # keep every second row, averaging its time with the row before
            durations = self.columns.get("step_s", array("d"))
            for later in range(1, len(durations), 2):
                durations[later] = (durations[later - 1] + durations[later]) / 2.0
            self.columns = {name: column[1::2] for name, column in self.columns.items()}
            self.count //= 2
            self.stride *= 2
            self._names = ()


class ScannedLog(Struct, frozen=True, kw_only=True):
    """What one pass over a log found."""

    rows: list[Rows]
    header: LogHeader
    events: list[LogEvent]
    totals: RunTotals | None  # the last
    times: dict[int, tuple[float, float]]  # by the kind of clock: the first and the last of the log
    bars: ProgressBars
    failed: OutOfMemory | None = None  # a failed allocation after the last step


class LogScanner:
    """Reads a log chunk by chunk; `result` is what was found so far."""

    def __init__(self, own: tuple[Dialect, ...] = ()) -> None:
        self._dialects = (*own, *DIALECTS)
        self._context = LogContext()
        self._active: list[Rows] = []
        self._carried = b""
        self._offset = 0  # of what is carried, in the log
        self._chunks = 0
        self._found_at: int | None = None
        self._times: dict[int, tuple[float, float]] = {}  # by the kind of clock: the first and the last
        self._lines = 0  # step lines without a time of their own, and how many have a timestamp
        self._stamped = 0
        self._failed: tuple[int, OutOfMemory] | None = None  # where, and what the message says

    def feed(self, chunk: bytes) -> None:
        """Read the next chunk."""
        text = self._carried + chunk if self._carried else chunk
        cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if any(rows.dialect.block for rows in self._active):
            start = cut  # of the last line whose indented lines may go on in the next chunk
            for _ in range(_BLOCK_LINES):
                start = text.rfind(b"\n", 0, max(start - 1, 0)) + 1
                if text[start : start + 1] not in (b" ", b"\t", b"|"):
                    cut = start or cut
                    break
        if len(text) - cut > _CARRIED_BYTES:
            cut = len(text) - LINE_BYTES  # an endless line
        self._read(text[:cut])
        self._carried = text[cut:]

    def result(self, *, is_whole: bool = True) -> ScannedLog:
        """Return what was found; the last line, possibly truncated, is read only if the log is complete."""
        if self._carried and is_whole:
            self._read(self._carried + b"\n")
            self._carried = b""
        last_step = max((rows.end for rows in self._active), default=0)
        failed_at, failed = self._failed or (-1, None)
        return ScannedLog(
            rows=[
                rows for rows in self._active if rows.count >= (LEAST_LINES if rows.dialect.is_generic else 1)
            ],
            header=self._context.header,
            events=self._context.events,
            totals=self._context.totals,
            times=self._times,
            bars=self._context.bars,
            failed=failed if failed_at >= last_step else None,
        )

    def _read(self, text: bytes) -> None:
        if not text:
            return
        self._chunks += 1
        is_probed = (
            self._offset < _PROBE_BYTES + (self._found_at or 0)
            if self._found_at is not None or self._offset < _PROBE_BYTES
            else self._chunks % _PROBE_EVERY == 0
        )
        for dialect in self._dialects:
            known = next((rows for rows in self._active if rows.dialect is dialect), None)
            others = (rows.dialect for rows in self._active if rows is not known)
            if dialect.is_generic and any(other.rank <= dialect.rank for other in others):
                continue
            if (known is not None or is_probed) and dialect.anchor in text:
                rows = known or Rows(dialect)
                self._read_lines(rows, text)
                if known is None and rows.count:
                    self._active.append(rows)
                    if self._found_at is None and dialect.rank < LAST_RANK:
                        self._found_at = self._offset
        if self._offset < _HEADER_BYTES or any(rows.dialect.needs_evidence for rows in self._active):
            self._context.bars.look_for_training(text)
        if self._offset < _HEADER_BYTES:
            self._context.header.read(text)
        self._note_times(text)
        failure = last_failure(text)
        if failure is not None:
            self._failed = (self._offset + failure[0], failure[1])
        self._offset += len(text)

    def _note_times(self, text: bytes) -> None:
        """Keep the first and the last time of every kind of clock that the log has."""
        lines = text[-LINE_BYTES:].split(b"\n")
        if self._offset < _CARRIED_BYTES or not self._times:
            lines = text[:_CARRIED_BYTES].split(b"\n") + lines
        for line in lines:
            stamp = clock_of(plain(line[:LINE_BYTES]))
            if isfinite(stamp):
                first, _ = self._times.get(clock_kind(stamp), (stamp, stamp))
                self._times[clock_kind(stamp)] = first, stamp

    def _read_lines(self, rows: Rows, text: bytes) -> None:
        dialect, anchor, has_returns = rows.dialect, rows.dialect.anchor, b"\r" in text
        offset = done = 0
        longest = dialect.line_bytes
        before = min(rows.end - self._offset, 0)
        while (hit := text.find(anchor, offset)) >= 0:
            low = max(done, hit - longest)
            start = text.rfind(b"\n", low, hit) + 1 or low
            end = text.find(b"\n", hit, hit + longest)
            end = min(hit + longest, len(text)) if end < 0 else end
            if has_returns:
                start = max(start, text.rfind(b"\r", low, hit) + 1)
                back = text.find(b"\r", hit, end)
                end = back if back >= 0 else end
            if dialect.block and (indented := _INDENTED.match(text, end)):
                end = indented.end()
            offset = done = max(end, hit + len(anchor))
            rows.seen += 1
            if rows.stride > 1:
                # The mean distance of step lines so far in this log.
                offset = passed_by(rows, text, offset, (self._offset + hit) // rows.seen)
            line = plain(text[start:end])
            at = float(self._offset + hit)
            row = self._row(dialect, rows.read(line, at, self._context), line)
            if row is None:
                continue
            row["at"] = at
            self._note_delay(rows, row, text[max(0, before, start - _GAP_BYTES) : start])
            before = end
            rows.add(row)
        rows.end = self._offset + max(before, 0)

    def _row(self, dialect: Dialect, row: Row | None, line: bytes) -> Row | None:
        """Return the row with the timestamp and rank of its line; None if it is not a step's."""
        if not row:
            return None
        if "loss" in row and not isfinite(row["loss"]):
            row["loss"] = inf  # nan is a line without a loss
        if "time" not in row:
            self._lines += 1
            if self._stamped or self._lines <= _CLOCKLESS or self._lines % _CLOCKLESS == 0:
                stamp = clock_of(line)
                if isfinite(stamp):
                    self._stamped += 1
                    row["time"] = stamp
        rank = _RANK.match(line) or _OLMO_RANK.search(line, 0, 200)
        if rank is not None:
            found = float(next(group for group in rank.groups() if group is not None))
            # A custom loop may begin its lines with the step number.
            if not dialect.is_generic or found != row["step"]:
                row["rank"] = found
        # Generic words count as a step line only with a time or a rate.
        return row if not dialect.is_generic or row.keys() & _TIMES else None

    def _note_delay(self, rows: Rows, row: Row, gap: bytes) -> None:
        """Record events between this step line and the previous one if it came later than usual."""
        step, stamp = row.get("step", nan), row.get("time", nan)
        last, last_step, usual = rows.pace
        # A clock that was set back is ignored: the usual time stays.
        spent = (stamp - last) / max(step - last_step, 1.0) if step > last_step and stamp >= last else nan
        took = max(filter(isfinite, (spent, row.get("step_s", nan))), default=nan)
        is_late = not took <= _LATE * usual  # or either is unknown
        if took < 2.0 * usual:
            usual = 0.9 * usual + 0.1 * took
        elif not isfinite(usual):
            usual = took
        rows.pace = (stamp, step, usual)
        if not gap or rows.dialect.has_own_events or not (is_late or step < last_step):
            return
        for kind, pattern in EVENTS:
            every = list(pattern.finditer(gap))
            if every:
                found = every[-1]  # which has the duration, if any
                rest = gap[found.start() : found.end() + 200].split(b"\n", 1)[0]
                took_text = _SECONDS.search(rest)
                unit = {b"ms": 1e-3, b"mi": 60.0}.get(took_text[2][:2].lower(), 1.0) if took_text else 1.0
                seconds = float(took_text[1]) * unit if took_text else None
                failed = kind == "restart" and _FAILED.search(gap) is not None
                self._context.add_event(kind, row["at"], seconds, failed=failed)
        if step < last_step and isfinite(stamp):
            # Another run begins with the first line after the longest silence.
            between = (clock_of(plain(line[:LINE_BYTES])) for line in gap.split(b"\n"))
            stamps = [last, *(time for time in between if last <= time <= stamp), stamp]
            row["begun"] = max(pairwise(stamps), key=lambda pair: pair[1] - pair[0])[1]


def passed_by(rows: Rows, text: bytes, offset: int, apart_bytes: int) -> int:
    """Return where to search for the next step line, after skipping those that are not read in full."""
    anchor, passed = rows.dialect.anchor, 0
    while passed < rows.stride - 1 and offset < len(text):
        # They are about as far apart as they were so far; how many there were is counted. The last
        # one of a chunk is always read: it may be that of the log.
        further = min(len(text), offset + max(apart_bytes, 1) * (rows.stride - 1 - passed))
        found = text.count(anchor, offset, further)
        if not found:
            return further
        if text.find(anchor, further) < 0:
            return text.rfind(anchor, offset)
        passed += found
        rows.seen += found
        offset = further
    return offset
