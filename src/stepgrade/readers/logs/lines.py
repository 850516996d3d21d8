"""Readers of step lines that are not a list of fields: bars, JSON, Python dicts, MLPerf, plain words."""

from __future__ import annotations

import re
from math import isfinite, nan

import msgspec

from stepgrade.patterns import regex
from stepgrade.readers.logs.dialect import LogContext, Row
from stepgrade.readers.logs.names import keep_totals, row_of, with_nan_quoted
from stepgrade.readers.logs.values import GIB, MIB, duration, number

_BAR = regex(
    rb"(\d{1,9})/(\d{1,9}) (?:\[((?:\d{1,4}:)?\d{1,4}:\d\d)<[^,\]]{1,20}, {0,8}"
    # Rich, as Lightning draws it, has a dot between elapsed and remaining time.
    rb"|(\d{1,4}:\d\d:\d\d) \xe2\x80\xa2 [-\d:]{1,12} )([\d.]{1,12})(s/it|it/s)"
)
_KERAS_BAR = regex(
    rb"(\d{1,9})/(\d{1,9}) [^\n\x08]{0,160}?\b\d{1,9}(?:s|m) (?:- )?"
    rb"(\d{1,9}(?:\.\d{1,9})?)(ms|us|\xc2\xb5s|s)/step"
    rb"(?:[^\n\x08]{0,160}?\bloss: ([-+.\de]{1,20}|nan))?"
)
_KERAS_UNITS = {b"s": 1.0, b"ms": 1e-3}
_EPOCH = regex(rb"(?i)\bepoch:?\s{0,3}\[?(\d{1,6})")
_PAIR = regex(rb"'([^'\n]{1,80})': ?(?:'([^'\n]{0,80})'|([-+.\deE]{1,40}|nan|inf|-inf))")
_TIMES = ("step_s", "elapsed_s", "time", "tok_s", "tok_s_device", "steps_s")
# Fewer lines may be anything, such as a recipe with three steps.
LEAST_LINES = 3


def _pattern(*parts: bytes) -> re.Pattern[bytes]:
    return re.compile(b"".join(parts), re.IGNORECASE)


_NUMBER = rb"(?P<value>\d{1,15}(?:,\d{3}){0,4}(?:\.\d{1,15})?(?:e[-+]?\d{1,3})?)"
_IS = rb"\s{0,3}[:=]?\s{0,8}"
_STEP = _pattern(
    rb"(?<![a-z/])(?:global[_ ]?|train(?:ing)?[_ ]?|optimizer[_ ]?)?(?:step|iter(?:ation)?)",
    rb"\s{0,3}[:=#]?\s{0,3}[\[(]?\s{0,8}(?P<step>\d{1,15})(?!\d*(?:\.\d|[a-z%]))(?:\s{0,4}/\s{0,4}(?P<total>\d{1,15}))?",
)
# Without such a word, a total is required: Batch 10/500, Epoch: [ 0/25] [  10/500].
_STEP_OF_TOTAL = _pattern(
    rb"(?<![a-z])(?:batch\s{0,3}[:=]?\s{0,3}[\[(]?|epoch\W{0,4}\d{1,6}(?:\s?/\s?\d{1,6})?\W{1,4}\[)\s{0,8}",
    rb"(?P<step>\d{1,15})\s{0,4}/\s{0,4}(?P<total>\d{1,15})(?![\d.])",
)
_PLAIN_EPOCH = _pattern(rb"(?<![a-z])epoch\s{0,3}[:=]?\s{0,3}[\[(]?\s{0,3}(?P<value>\d{1,6})(?!\d*\.\d)")
# Lines about something other than training, and progress bars, which are read separately.
_OTHER = _pattern(
    rb"(?<![a-z])(?:val(?:id(?:ation)?)?|eval(?:uat\w{1,6})?|test|inference|checkpoint|ckpt|sav(?:e|ed|ing)|",
    rb"load(?:ed|ing)?|compil\w{1,6}|resum\w{1,6})(?![a-z])|<[^,\]\n]{1,20}, {0,8}[\d.?]{1,12}(?:s/it|it/s)",
)
_UNIT = rb"ms(?:ecs?)?|milliseconds?|us|s(?:ecs?|econds?)?|m(?:ins?|inutes?)?(?!\s?\d)"
_IN_NAME = rb"(?:[ _]?[\[(/]?(?P<named>" + _UNIT + rb")[\])]?)?"
_TIME = _IN_NAME + _IS + _NUMBER + rb"\s{0,2}(?:(?P<unit>" + _UNIT + rb")(?![a-z/]))?(?!\d*(?::\d|[a-z]))"
_TIME_OF_STEP = _pattern(
    rb"(?<![a-z])(?:(?:step|iter(?:ation)?|batch)[ _]?(?:time|duration|latency)|dt|",
    rb"time[ _/](?:per[ _])?(?:step|iter(?:ation)?|batch))",
    _TIME,
)
_TIME_PER_STEP = _pattern(
    _NUMBER,
    rb"\s{0,2}(?P<unit>" + _UNIT + rb")\s?(?:/|per)\s?(?:step|it(?:er(?:ation)?)?|batch)(?![a-z])",
)
_TIME_SO_FAR = _pattern(rb"(?<![a-z])(?:elapsed(?:[ _]time)?|(?:total|wall|training)[ _]time)", _TIME)
_ANY_TIME = _pattern(rb"(?<![a-z_])(?<!data )(?:time|took|duration)(?:[ _]taken)?", _TIME)
_TIME_ALONE = _pattern(
    rb"(?:[|(,;]|\A)\s{0,3}", _NUMBER, rb"\s?(?P<unit>ms|s)(?![a-z/]|\s?(?:left|remain|eta))"
)
_RATE = (
    rb"(?P<what>tok(?:en)?s?|samples?|examples?|images?|imgs?|seqs?|sequences?|steps?|it(?:er(?:ation)?)?s?|"
    rb"batch(?:es)?)\s?(?:/|[ _]?per[ _]?)\s?s(?:ec(?:ond)?)?(?![a-z])"
    rb"(?P<each>[ _]?(?:/|per)[ _]?(?:gpu|device|rank|chip))?"
)
_THOUSANDS = rb"\s?(?P<times>[km](?![a-z]))?"
# A word before a colon is the name of the number after it, not the unit of the number before.
_RATES = (
    _pattern(rb"(?<![\w/.])", _RATE, rb"\s{0,3}[:=]\s{0,8}", _NUMBER, _THOUSANDS),
    _pattern(rb"[|,;(\[]\s{0,3}", _RATE, rb"\s{1,8}", _NUMBER, _THOUSANDS),
    _pattern(rb"(?<![a-z])(?P<what>tps|wps|tgs)", _IS, _NUMBER, _THOUSANDS),
    _pattern(_NUMBER, rb"\s?(?P<times>[km](?=[ t]))?\s{0,2}", _RATE),
)
_LOSS = _pattern(
    rb"(?<![a-z_])(?:(?:train(?:ing)?|avg|average|mean|total)[ _])?loss(?: so far)?(?: is)?",
    _IS,
    rb"(?P<value>[-+]?[\d.]{1,20}(?:e[-+]?\d{1,3})?|nan|inf)",
)
_MFU = _pattern(rb"(?<![a-z])mfu", _IS, _NUMBER, rb"\s?(?P<percent>%)?")
_MEMORY = _pattern(
    rb"(?<![a-z])mem(?:ory)?[^\d:=|,\n]{0,24}", _IS, _NUMBER, rb"\s?(?P<unit>GiB|GB|G|MiB|MB|M)(?![a-z])"
)
# Any `name: number` or `name=number`, as far as the names are known.
_NAMED = _pattern(
    rb"(?<![\w/.@])(?P<name>[a-z_][\w/.@-]{0,60}(?: [a-z][\w/.-]{0,30}){0,2})",
    rb"\s?[:=]\s{0,8}(?:np\.float\d\d\()?(?P<value>-?\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?)",
    rb"(?![\w%/]|\.\w)",
)
_AMBIGUOUS = frozenset({"step", "total", "elapsed_s", "time", "memory_bytes", "samples", "loss"})
_SECONDS = ((b"ms", 1e-3), (b"milli", 1e-3), (b"us", 1e-6), (b"m", 60.0), (b"", 1.0))
_MULTIPLES = {b"k": 1e3, b"m": 1e6}
# A time without a unit is in seconds, as in Python, unless it is too long for a step.
LONGEST_BARE_S = 60.0


def progress_bar(line: bytes, _at: float, context: LogContext) -> Row | None:
    """Return the last state of the progress bars in a line, as tqdm or Rich draws them."""
    row: Row | None = None
    before = 0
    for match in _BAR.finditer(line):
        elapsed = duration(match[3] or match[4])
        if isfinite(elapsed):
            shown = float(match[5]) if match[5].count(b".") < 2 and match[5] != b"." else nan
            row = {"step": float(match[1]), "total": float(match[2]), "elapsed_s": elapsed}
            if (epoch := _EPOCH.search(line)) is not None:
                row["epoch"] = float(epoch[1])
            row["shown_s"] = shown if match[6] == b"s/it" else 1.0 / shown if shown else nan
            after = line[match.end() : match.end() + 400].split(b"]", 1)[0]
            row["bar"] = float(context.bars.index_of(line[before : match.start()], after))
        before = match.end()
    return row


def keras_bar(line: bytes, at: float, _context: LogContext) -> Row | None:
    """Return the last full Keras bar in a line; it is the end of an epoch."""
    row: Row | None = None
    for match in _KERAS_BAR.finditer(line):
        step, total, took = float(match[1]), float(match[2]), float(match[3])
        if step == total:
            elapsed = step * took * _KERAS_UNITS.get(match[4], 1e-6)
            row = {"step": step, "total": total, "elapsed_s": elapsed, "epoch": at}
            if match[5]:
                row["loss"] = number(match[5])
    return row


def read_json_line(line: bytes, at: float, context: LogContext) -> Row | None:
    """Return the step of a JSON object."""
    row = _row_of(_decoded(line), at, context)
    return row if "step" in row else None


def read_printed_dict(line: bytes, at: float, context: LogContext) -> Row | None:
    """Return the step of a dict as Python prints it, such as the Trainer's."""
    fields: dict[str, object] = {
        key.decode("utf-8", "replace"): (quoted or bare).decode("utf-8", "replace")
        for key, quoted, bare in _PAIR.findall(line, line.find(b"{'"))
    }
    row = _row_of(fields, at, context)
    return row if "loss" in row else None


def mlperf_event(line: bytes, at: float, context: LogContext) -> Row | None:
    """Return the step of an MLPerf event; evaluations go to the context."""
    event = _decoded(line)
    evaluated_s = context.mlperf.evaluation_s(event)
    if evaluated_s is not None:
        context.add_event("evaluation", at, evaluated_s)
    return context.mlperf.row(event)


def _decoded(line: bytes) -> dict[str, object]:
    """Return the JSON object in a line; an empty one if there is none."""
    text = line[line.find(b"{") : line.rfind(b"}") + 1]
    if b"NaN" in text or b"Infinity" in text:
        text = with_nan_quoted(text)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _row_of(fields: dict[str, object], at: float, context: LogContext) -> Row:
    """Return the numbers of a step, if these fields are one; totals and evaluations go to the context."""
    if keep_totals(fields, context):
        return {}
    row = row_of(fields.items())
    if "eval_s" in row or ("eval_loss" in fields and "loss" not in row):
        context.add_event("evaluation", at, row.get("eval_s"))
        return {}
    return row if "loss" in row or any(name in row for name in _TIMES) else {}


def read_plain_line(line: bytes, _at: float, _context: LogContext) -> Row | None:
    """Return the numbers of a line in the words that most scripts use; None unless it is a training step's.

    `step 4997, loss: 0.0144, time: 508.70ms, tokens/sec: 32207.8` belongs to no framework. Whether a time is
    that of a step, of an interval or of the run so far follows from the other lines.
    """
    step = _STEP.search(line) or _STEP_OF_TOTAL.search(line)
    if step is None or _OTHER.search(line):
        return None
    row: Row = {"step": float(step["step"])}
    if step["total"]:
        row["total"] = float(step["total"])
    if (epoch := _PLAIN_EPOCH.search(line)) is not None:
        row["epoch"] = float(epoch["value"])
    rest = _take_rates(line[: step.start()] + b"|" + line[step.end() :], row)
    _take_times(rest, row)
    named = ((name.decode(), float(number(value))) for name, value in _NAMED.findall(rest))
    for column, figure in row_of(named).items():
        if column not in _AMBIGUOUS:
            row.setdefault(column, figure)
    if (loss := _LOSS.search(rest)) is not None:
        row["loss"] = number(loss["value"])
    if (mfu := _MFU.search(rest)) is not None:
        row["mfu"] = number(mfu["value"]) * (0.01 if mfu["percent"] else 1.0)
    if (memory := _MEMORY.search(rest)) is not None:
        row["memory_bytes"] = number(memory["value"]) * (GIB if memory["unit"][:1] in b"gG" else MIB)
    return row if row.keys() - {"step", "total", "epoch", "mfu", "memory_bytes"} else None


def read_named_numbers(line: bytes, _at: float, _context: LogContext) -> Row | None:
    """Return the step of a line that is a list of `name:number`, as verl prints it."""
    named = _NAMED.findall(line)
    row = row_of((name.decode(), float(number(value))) for name, value in named)
    return row if {"step", "step_s"} <= row.keys() else None


def _take_rates(line: bytes, row: Row) -> bytes:
    """Add the rates of the line to the row, and return the line without them."""

    def take(found: re.Match[bytes]) -> bytes:
        groups = found.groupdict()
        what, times = groups["what"].lower(), (groups.get("times") or b"").lower()
        column = "tok_s" if what.startswith(b"tok") or what in (b"tps", b"wps", b"tgs") else "samples_s"
        if what.startswith((b"step", b"it", b"batch")):
            column = "steps_s"
        elif groups.get("each") or what == b"tgs":
            column += "_device"
        row.setdefault(column, number(found["value"]) * _MULTIPLES.get(times, 1.0))
        return b"|"

    for pattern in _RATES:
        line = pattern.sub(take, line)
    return line


def _take_times(line: bytes, row: Row) -> None:
    """Add the first time of each kind to the row: step time, elapsed time, or one that may be either.

    The last is called `line_s`, or `bare_s` where it has no unit.
    """
    kinds = (
        ("step_s", _TIME_OF_STEP),
        ("step_s", _TIME_PER_STEP),
        ("elapsed_s", _TIME_SO_FAR),
        ("line_s", _ANY_TIME),
        ("line_s", _TIME_ALONE),
    )
    for column, pattern in kinds:
        found = pattern.search(line)
        if column in row or found is None or (column == "line_s" and row.keys() & {"step_s", "elapsed_s"}):
            continue
        unit, value = (found["unit"] or found.groupdict().get("named") or b"").lower(), number(found["value"])
        if column == "line_s" and not unit:
            row["bare_s"] = value
        elif unit or value < LONGEST_BARE_S or column == "elapsed_s":
            row[column] = value * next(seconds for start, seconds in _SECONDS if unit.startswith(start))
