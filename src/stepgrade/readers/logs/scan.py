"""One pass over a log: the step lines of every dialect, the header, and what happens between steps.

A line is parsed only if it contains the anchor of a dialect, so that the rest of a log costs no more
than searching for a few words. Memory does not grow with the log: with very many step lines, neighbours are
joined, and then only every second, fourth, … one is read in full.
"""

from __future__ import annotations

import re
from array import array
from math import inf, isfinite, nan

from msgspec import Struct

from stepgrade.model.memory import OutOfMemory
from stepgrade.model.step_log import PauseKind
from stepgrade.readers.logs.dialect import LAST_RANK, Dialect, LineReader, Row
from stepgrade.readers.logs.facts import LogContext, LogEvent, LogHeader, RunTotals
from stepgrade.readers.logs.failures import last_failure
from stepgrade.readers.logs.frameworks import DIALECTS
from stepgrade.readers.logs.plain_lines import LEAST_LINES
from stepgrade.readers.logs.values import Column, clock_kind, clock_of, plain

MOST_ROWS = 1 << 16
# Longer step lines are mixed with other output: only the part around the anchor is read.
LINE_BYTES = 4096
_BLOCK_LINES = 80
_CARRIED_BYTES = 1 << 16
# All dialects are searched for in so many bytes, and later in one chunk of eight until one is found.
_PROBE_BYTES = 8 << 20
_PROBE_EVERY = 8
_HEADER_BYTES = 4 << 20
# Text searched between two step lines for the cause of a delay.
_GAP_BYTES = 1 << 16
# After so many lines without a timestamp, only one in as many is searched for it.
_CLOCKLESS = 64
# The cause of a delay is searched for if a step line is this much later than usual.
_LATE = 1.08
_RANK = re.compile(
    rb"^\s{0,4}(?:\[(?:rank|default)?[ _]?(\d{1,6})\]:?|(\d{1,6}):\s?|(?:worker|rank)[-_ ]?(\d{1,6})[:\]])"
)
_OLMO_RANK = re.compile(rb"\brank=(\d{1,6})\]")
_TIMES = frozenset(
    {"time", "step_s", "line_s", "bare_s", "elapsed_s", "steps_s", "tok_s", "tok_s_device"}
    | {"samples_s", "samples_s_device"}
)
_CHECKPOINT = re.compile(
    rb"(?i)(?:sav(?:e|ed|ing)|writ(?:e|ing|ten)|wrote|upload(?:ed|ing)?)\b[^\n]{0,60}?"
    rb"(?:checkpoint|ckpt|state|model|weights)"
    rb"|(?:checkpoint|ckpt)[^\n]{0,60}?(?:sav(?:e|ed|ing)|written|took|done|finish)|save-checkpoint"
)
_EVALUATION = re.compile(
    rb"(?i)\bval(?:id(?:ation)?)?[ _/-]{0,3}(?:loss|ppl|bpb|acc|step|metric|set)|\bvalidat(?:e|ion|ing)\b"
    rb"|\beval(?:uat\w{1,6})?\b"
    rb"|eval_(?:loss|runtime)|perplexity|\bCORE\b metric|^\[V\] step|evaluate"
)
_RESTART = re.compile(
    rb"(?i)Traceback \(most recent call last\)|out of memory|NCCL (?:error|timeout)|\bSIG(?:TERM|KILL|ABRT)\b"
    rb"|resum(?:e|ed|ing)\b|load(?:ed|ing)? (?:the )?checkpoint|restart(?:ed|ing)?\b|Training starts at step"
    rb"|srun: error|torchrun|slurmstepd|world size"
)
_COMPILE = re.compile(rb"(?i)recompil|torch\._dynamo|compiling|autotun(?:e|ing)|cudagraph|XLA compil")
_SECONDS = re.compile(
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
        self.columns: dict[Column, array[float]] = {}
        self.count = 0
        self.seen = 0
        self.stride = 1
        self._order: tuple[Column, ...] = ()
        self._in_order: list[array[float]] = []

    def add(self, row: Row) -> None:
        """Add a line; a new column is filled with nan for earlier lines."""
        if tuple(row) == self._order:  # same columns as the last line
            for column, value in zip(self._in_order, row.values(), strict=True):
                column.append(value)
            self.count += 1
            if self.count >= MOST_ROWS:
                self._join()
            return
        for name, value in row.items():
            if name not in self.columns:
                self.columns[name] = array("d", [nan]) * self.count
            self.columns[name].append(value)
        self.count += 1
        for column in self.columns.values():
            if len(column) < self.count:
                column.append(nan)
        self._order = tuple(row) if len(row) == len(self.columns) else ()
        self._in_order = [self.columns[name] for name in self._order]
        if self.count >= MOST_ROWS:
            self._join()

    def _join(self) -> None:
        """Keep every second row, averaging its time with the row before."""
        durations = self.columns.get("step_s")
        if durations is not None:
            for offset in range(0, self.count - 1, 2):
                durations[offset + 1] = (durations[offset] + durations[offset + 1]) / 2.0
        for name in self.columns:
            self.columns[name] = self.columns[name][1::2]
        self.count = len(next(iter(self.columns.values())))
        self.stride *= 2
        self._order = ()


class _Clocks:
    """Finds the timestamp of a line; logs without timestamps are soon skipped."""

    def __init__(self) -> None:
        self._lines = 0
        self._found = 0

    def read(self, line: bytes) -> float:
        """Return the timestamp of a line; nan without one."""
        self._lines += 1
        if not self._found and self._lines > _CLOCKLESS and self._lines % _CLOCKLESS:
            return nan
        stamp = clock_of(line)
        self._found += isfinite(stamp)
        return stamp


class ScannedLog(Struct, frozen=True, kw_only=True):
    """What one pass over a log found."""

    rows: list[Rows]
    header: LogHeader
    events: list[LogEvent]
    totals: RunTotals | None  # the last
    times: dict[int, tuple[float, float]]  # by the kind of clock: the first and the last of the log
    size_bytes: int
    failed: OutOfMemory | None = None  # a failed allocation after the last step


class LogScanner:
    """Reads a log chunk by chunk; `result` is what was found so far."""

    def __init__(self, own: tuple[Dialect, ...] = ()) -> None:
        self._dialects = (*own, *DIALECTS)
        self._context = LogContext()
        self._readers: dict[str, LineReader] = {}
        self._clocks = _Clocks()
        self._active: dict[str, Rows] = {}
        self._carried = b""
        self._offset = 0  # of what is carried, in the log
        self._chunks = 0
        self._found_at: int | None = None
        self._times: dict[int, list[float]] = {}  # by the kind of clock: the first and the last
        self._pace: dict[str, tuple[float, float, float]] = {}  # time, step, usual seconds of a step
        self._failed: tuple[int, OutOfMemory] | None = None  # where, and what the message says
        self._ends: dict[str, int] = {}  # where the last step line of a dialect ends

    def feed(self, chunk: bytes) -> None:
        """Read the next chunk."""
        text = self._carried + chunk if self._carried else chunk
        cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if any(rows.dialect.block for rows in self._active.values()):
            cut = before_open_block(text, cut)
        if len(text) - cut > _CARRIED_BYTES:
            cut = len(text) - LINE_BYTES  # an endless line
        self._read(text[:cut])
        self._carried = text[cut:]

    def result(self, *, is_whole: bool = True) -> ScannedLog:
        """Return what was found; the last line, possibly truncated, is read only if the log is complete."""
        if self._carried and is_whole:
            self._read(self._carried + b"\n")
            self._carried = b""
        return ScannedLog(
            rows=[
                rows
                for rows in self._active.values()
                if rows.count >= (LEAST_LINES if rows.dialect.is_generic else 1)
            ],
            header=self._context.header,
            events=self._context.events,
            totals=self._context.totals,
            times={kind: (first, last) for kind, (first, last) in self._times.items()},
            size_bytes=self._offset,
            failed=self._last_failure(),
        )

    def _last_failure(self) -> OutOfMemory | None:
        """Return the failed allocation that ended the run, if no step line follows it."""
        ends = [self._ends.get(name, 0) for name, rows in self._active.items() if rows.count]
        last_step = max(ends, default=0)
        return self._failed[1] if self._failed is not None and self._failed[0] >= last_step else None

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
            known = self._active.get(dialect.name)
            others = (rows.dialect for rows in self._active.values() if rows.dialect is not dialect)
            if dialect.is_generic and any(other.rank <= dialect.rank for other in others):
                continue
            if (known is not None or is_probed) and dialect.anchor in text:
                rows = known or Rows(dialect)
                self._read_lines(rows, text)
                if known is None and rows.count:
                    self._active[dialect.name] = rows
                    if self._found_at is None and dialect.rank < LAST_RANK:
                        self._found_at = self._offset
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
                known = self._times.setdefault(clock_kind(stamp), [stamp, stamp])
                known[1] = stamp

    def _read_lines(self, rows: Rows, text: bytes) -> None:
        dialect, anchor, has_returns = rows.dialect, rows.dialect.anchor, b"\r" in text
        read = self._readers.get(dialect.name) or self._readers.setdefault(
            dialect.name, dialect.open(self._context)
        )
        offset = done = 0
        before = min(self._ends.get(dialect.name, 0) - self._offset, 0)
        while (hit := text.find(anchor, offset)) >= 0:
            low = max(done, hit - LINE_BYTES)
            start = text.rfind(b"\n", low, hit) + 1 or low
            end = text.find(b"\n", hit, hit + LINE_BYTES)
            end = min(hit + LINE_BYTES, len(text)) if end < 0 else end
            if has_returns:
                start = max(start, text.rfind(b"\r", low, hit) + 1)
                back = text.find(b"\r", hit, end)
                end = back if back >= 0 else end
            if dialect.block:
                end = block_end(text, end)
            offset = done = max(end, hit + len(anchor))
            rows.seen += 1
            if rows.stride > 1:
                # The mean distance of step lines so far in this log.
                offset = passed_by(rows, text, offset, (self._offset + hit) // rows.seen)
            line = plain(text[start:end])
            at = float(self._offset + hit)
            row = self._row(dialect, read(line, at), line)
            if row is None:
                continue
            row["at"] = at
            self._note_delay(dialect, row, text[max(0, before, start - _GAP_BYTES) : start])
            before = end
            rows.add(row)
        self._ends[dialect.name] = self._offset + max(before, 0)

    def _row(self, dialect: Dialect, row: Row | None, line: bytes) -> Row | None:
        """Return the row with the timestamp and rank of its line; None if it is not a step's."""
        if row and "loss" in row and not isfinite(row["loss"]):
            row["loss"] = inf  # nan is a line without a loss
        if not row or any(need not in row for need in dialect.needs if not dialect.counts_lines):
            return None
        if "time" not in row and isfinite(stamp := self._clocks.read(line)):
            row["time"] = stamp
        rank = _RANK.match(line) or _OLMO_RANK.search(line, 0, 200)
        if rank is not None:
            found = float(next(group for group in rank.groups() if group is not None))
            # A custom loop may begin its lines with the step number.
            if not dialect.is_generic or found != row["step"]:
                row["rank"] = found
        # Generic words count as a step line only with a time or a rate.
        return row if not dialect.is_generic or row.keys() & _TIMES else None

    def _note_delay(self, dialect: Dialect, row: Row, gap: bytes) -> None:
        """Record events between this step line and the previous one if it came later than usual."""
        step, stamp = row.get("step", nan), row.get("time", nan)
        took = row.get("step_s", nan)
        last, last_step, usual = self._pace.get(dialect.name, (nan, nan, nan))
        # A clock that was set back is ignored: the usual time stays.
        spent = (stamp - last) / max(step - last_step, 1.0) if step > last_step and stamp >= last else nan
        longest = (
            max(spent, took) if isfinite(spent) and isfinite(took) else spent if isfinite(spent) else took
        )
        went_back = step < last_step
        if not isfinite(longest):
            is_late = bool(gap)
        else:
            is_late = not isfinite(usual) or longest > _LATE * usual
            shorter = min(longest, usual) if isfinite(usual) else longest
            usual = 0.9 * usual + 0.1 * longest if isfinite(usual) and longest < 2.0 * usual else shorter
        self._pace[dialect.name] = (stamp, step, usual)
        if not gap or dialect.has_own_events or not (is_late or went_back):
            return
        for kind, pattern in EVENTS:
            every = list(pattern.finditer(gap))
            if every:
                found = every[-1]  # which has the duration, if any
                rest = gap[found.start() : found.end() + 200].split(b"\n", 1)[0]
                took_text = _SECONDS.search(rest)
                unit = {b"ms": 1e-3, b"mi": 60.0}.get(took_text[2][:2].lower(), 1.0) if took_text else 1.0
                self._context.add_event(kind, row["at"], float(took_text[1]) * unit if took_text else None)


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


def before_open_block(text: bytes, cut: int) -> int:
    """Return where the last line begins whose indented lines may go on in the next chunk."""
    start = cut
    for _ in range(_BLOCK_LINES):
        start = text.rfind(b"\n", 0, max(start - 1, 0)) + 1
        if text[start : start + 1] not in (b" ", b"\t"):
            return start or cut
    return cut


def block_end(text: bytes, end: int) -> int:
    """Return where the indented lines after a line end."""
    for _ in range(_BLOCK_LINES):
        if text[end + 1 : end + 2] not in (b" ", b"\t"):
            break
        following = text.find(b"\n", end + 1)
        if following < 0:
            return len(text)
        end = following
    return end
