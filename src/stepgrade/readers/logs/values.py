"""The numbers, times and durations of a log line, and what a number can mean."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from math import isnan

from stepgrade.patterns import regex

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
# The parts of a step of RL post-training, and what they are called.
PARTS = {
    "rollout_s": "rollout",
    "reward_s": "reward",
    "reference_s": "reference",
    "advantage_s": "advantage",
    "update_s": "update",
    "sync_s": "weight sync",
}
Column = str
NUMBER = r"[-+]?(?:\d[\d,_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf)\w{0,5}"
GIB = float(2**30)
MIB = float(2**20)
# Names for numbers whose unit is not ours.
UNITS = {
    "step_ms": ("step_s", 1e-3),
    "interval_ms": ("interval_s", 1e-3),
    "elapsed_ms": ("elapsed_s", 1e-3),
    "mfu_percent": ("mfu", 1e-2),
    "memory_gib": ("memory_bytes", GIB),
    "memory_mib": ("memory_bytes", MIB),
}
_ESCAPES = regex(rb"\x1b(?:\[[0-9;:?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])?")
_THOUSANDS = regex(rb"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_LARGEST = 1e300


def plain(line: bytes) -> bytes:
    """Return the line without terminal escape codes."""
    return _ESCAPES.sub(b"", line) if b"\x1b" in line else line


def number(text: bytes) -> float:
    """Return the number in a text, with thousands separators or a decimal comma; nan without one."""
    if b"," in text:
        text = text.replace(b",", b"") if _THOUSANDS.fullmatch(text) else text.replace(b",", b".", 1)
    try:
        value = float(text)
    except ValueError:
        lowered = text.lower().lstrip(b"+-")
        return float("inf") if lowered.startswith(b"inf") else float("nan")
    return value if abs(value) < _LARGEST or isnan(value) else float("inf")


def figure_of(value: object) -> float | None:
    """Return a finite JSON number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return None
    return float(value)


# A timestamp within the first CLOCK_BYTES of a line.
_CLOCK = regex(
    rb"(?:(?P<date>\d{4}[-/]\d\d[-/]\d\d)[ T_-]{1,2}|(?P<us>\d\d/\d\d(?:/\d{2,4})?),?[ T]"
    rb"|\b[IWEF](?P<glog>\d{4}) )(?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d\b)?"
)
_BARE_CLOCK = regex(rb"^\W{0,4}(?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?\b(?!<)")
CLOCK_BYTES = 160
_DAY_S = 86_400
_DAY_1970 = date(1970, 1, 1).toordinal()
_YEAR_2001_S = 978_307_200


def clock_of(line: bytes) -> float:
    """Return the timestamp at the start of a line in seconds; nan without one."""
    match = _CLOCK.search(line, 0, CLOCK_BYTES)
    if match is None:
        match = _BARE_CLOCK.search(line, 0, CLOCK_BYTES)
        if match is None:
            return float("nan")
        return _second_of_day(match["clock"]) + _part(match["part"])
    try:
        day = _day(match["date"] or match["us"] or match["glog"])
    except ValueError:
        return float("nan")
    seconds = day * float(_DAY_S) + _second_of_day(match["clock"]) + _part(match["part"])
    zone = match["zone"]
    if zone is None or zone == b"Z":
        return seconds
    away = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return seconds - (away if zone[:1] == b"+" else -away)


def clock_kind(stamp: float) -> int:
    """Return how complete a timestamp is: 0 without a date, 1 without a year, 2 with both."""
    return 0 if stamp < _DAY_S else 1 if stamp < _YEAR_2001_S else 2


def _part(part: bytes | None) -> float:
    return float(b"0." + part[1:]) if part else 0.0


@lru_cache(maxsize=4096)
def _second_of_day(clock: bytes) -> int:
    return int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:8])


@lru_cache(maxsize=64)
def _day(text: bytes) -> int:
    """Return the day number of 2026-05-19, 05/19/2026, 05/19 or 0519; raise ValueError."""
    if text[4:5] in (b"-", b"/"):
        year, month, day = map(int, re.split(rb"[-/]", text))
    elif len(text) <= 5:  # glog and Detectron2 leave the year out
        year, month, day = 2000, int(text[:2]), int(text[-2:])
    else:
        month, day, year = map(int, text.split(b"/"))
        if len(text) == 8 and month > 12:  # Spark writes the year first: 26/05/19
            year, month, day = month, day, year
        year += 2000 if len(text) == 8 else 0
    return date(year, month, day).toordinal() - _DAY_1970


_PIECES = regex(rb"(\d{1,9}(?:\.\d{1,9})?)\s*(d|h|m|s)(?![a-z])")
_SECONDS = {b"d": 86_400.0, b"h": 3600.0, b"m": 60.0, b"s": 1.0}


def duration(text: bytes) -> float:
    """Return 1:25:51, 02:03, 12m 6s or 1 day, 2:03:04 in seconds; nan for anything else."""
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
