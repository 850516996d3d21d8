"""What a dialect is: how the lines of one framework are recognised, and what each number in them means."""

from __future__ import annotations

import re
from calendar import timegm
from datetime import date
from functools import lru_cache
from math import isnan
from typing import Literal

from msgspec import Struct

# What a number can mean. Rates and times are those of the whole run unless the name says device.
COLUMNS = (
    "step",
    "total",  # steps that the run is to have, or an epoch where the counter begins again with each
    "step_s",  # of one step, or the mean of the steps since the last line
    "interval_s",  # since the last line
    "elapsed_s",  # since the run began, or its training without pauses
    "time",  # of the clock, in seconds
    "tok_s",
    "tok_s_device",
    "samples_s",
    "samples_s_device",
    "steps_s",
    "tokens",  # consumed so far
    "samples",
    "step_tokens",
    "step_samples",
    "tflops_device",
    "mfu",
    "loss",
    "memory_bytes",
    "eval_s",
    "seq",
)
Column = str
NUMBER = r"[-+]?(?:\d[\d,_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf)\w{0,5}"
GIB = float(2**30)
MIB = float(2**20)
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-9;:?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])?"
)
_THOUSANDS = re.compile(rb"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_LARGEST = 1e300


class Field(Struct, frozen=True):
    """One number of a line: what stands before it, as a pattern, what it means, and its unit in ours."""

    before: str
    means: Column
    scale: float = 1.0
    after: str = ""  # what must follow it

    def compiled(self) -> re.Pattern[bytes]:
        """Return the pattern with the number as its only group."""
        return re.compile(f"{self.before}\\s*({NUMBER}){self.after}".encode())


class Dialect(Struct, frozen=True, kw_only=True):
    """How one framework prints its steps.

    `anchor` is in every line that tells a step: nothing else of a line is looked at where it is missing.
    `mean` says what a printed time or rate is the mean of: the step itself, the steps since the last line
    ("interval"), or all steps so far ("running", which is never taken for a step's own).
    """

    name: str
    framework: str
    anchor: bytes
    fields: tuple[Field, ...]
    needs: tuple[Column, ...] = ("step",)
    mean: Literal["step", "interval", "running"] = "step"
    block: bool = False  # the numbers are in the indented lines that follow
    micro: bool = False  # a line is a micro-batch: several of them make a step
    restarts_at_epochs: bool = False  # the step counter begins again with each epoch
    counts_lines: bool = False  # there is no step number: the lines are counted
    convention: str | None = None  # how the framework counts FLOPs, by its name in `hardware`
    printed_is: Literal["mfu", "hfu"] = "mfu"  # what its utilisation is
    peak_tflops: float | None = None  # which its utilisation is taken against, whatever the device
    pattern: str | None = None  # of one's own, with a named group for each number, instead of fields
    rank: int = 0  # of two dialects that read the same lines, the lower is taken


def plain(line: bytes) -> bytes:
    """Return the line without the codes that colour it or move the cursor."""
    return _ESCAPES.sub(b"", line) if b"\x1b" in line else line


def number(text: bytes) -> float:
    """Return the number that a text shows, with thousands separated or a decimal comma; nan for none."""
    if b"," in text:
        text = text.replace(b",", b"") if _THOUSANDS.fullmatch(text) else text.replace(b",", b".", 1)
    try:
        value = float(text)
    except ValueError:
        lowered = text.lower().lstrip(b"+-")
        return float("inf") if lowered.startswith(b"inf") else float("nan")
    return value if abs(value) < _LARGEST or isnan(value) else float("inf")


def figure_of(value: object) -> float | None:
    """Return a number of a JSON text as one that can be reckoned with; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return None
    return float(value)


# A clock at the beginning of a line, or anywhere in its first part.
_CLOCK = re.compile(
    rb"(?:(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T_-]{1,2}|(?P<us>\d\d/\d\d(?:/\d{2,4})?),?[ T]"
    rb"|\b[IWEF](?P<glog>\d{4}) )(?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d\b)?"
)
_BARE_CLOCK = re.compile(rb"^\W{0,4}(?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?\b(?!<)")
CLOCK_BYTES = 160
_DAY_S = 86_400
_YEAR_2001_S = 978_307_200


def clock_of(line: bytes) -> float:
    """Return when a line was written, in seconds, by the clock in its first part; nan without one."""
    match = _CLOCK.search(line, 0, CLOCK_BYTES)
    if match is None:
        match = _BARE_CLOCK.search(line, 0, CLOCK_BYTES)
        if match is None:
            return float("nan")
        return _second_of_day(match["clock"]) + _part(match["part"])
    try:
        day = _day(match["year"], match["month"], match["day"], match["us"], match["glog"])
    except ValueError:
        return float("nan")
    seconds = day * float(_DAY_S) + _second_of_day(match["clock"]) + _part(match["part"])
    zone = match["zone"]
    if zone is None or zone == b"Z":
        return seconds
    away = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return seconds - (away if zone[:1] == b"+" else -away)


def clock_kind(stamp: float) -> int:
    """Return which clock a time is of: 0 without a date, 1 without a year, 2 with both."""
    return 0 if stamp < _DAY_S else 1 if stamp < _YEAR_2001_S else 2


def _part(part: bytes | None) -> float:
    return float(b"0." + part[1:]) if part else 0.0


@lru_cache(maxsize=4096)
def _second_of_day(clock: bytes) -> int:
    return int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:8])


@lru_cache(maxsize=64)
def _day(
    year: bytes | None, month: bytes | None, day: bytes | None, us: bytes | None, glog: bytes | None
) -> int:
    """Return the number of the day; logs of glog and of Detectron2 do not say the year."""
    if us is not None and us.count(b"/") == 1:
        found = date(2000, int(us[:2]), int(us[3:]))
    elif us is not None:
        first, second, of_year = us.split(b"/")
        full = int(of_year) + (2000 if len(of_year) == 2 else 0)
        # 26/05/19 is a year first, as Spark writes it; else months come first.
        found = (
            date(2000 + int(first), int(second), int(of_year))
            if int(first) > 12 and len(of_year) == 2
            else date(full, int(first), int(second))
        )
    elif glog is not None:
        found = date(2000, int(glog[:2]), int(glog[2:]))
    else:
        found = date(int(year or 0), int(month or 0), int(day or 0))
    return timegm(found.timetuple()) // _DAY_S


_PIECES = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?)\s*(d|h|m|s)(?![a-z])")
_SECONDS = {b"d": 86_400.0, b"h": 3600.0, b"m": 60.0, b"s": 1.0}


def duration(text: bytes) -> float:
    """Return the seconds of 1:25:51, 02:03, 12m 6s or 1 day, 2:03:04; nan for anything else."""
    days, _, rest = text.rpartition(b", ")
    try:
        parts = [float(part) for part in rest.split(b":")]
    except ValueError:
        pieces = _PIECES.findall(text)
        return sum(float(count) * _SECONDS[unit] for count, unit in pieces) if pieces else float("nan")
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60.0 + part
    lead = re.match(rb"(\d{1,6}) day", days)
    return seconds + (float(lead[1]) * _DAY_S if lead else 0.0)
