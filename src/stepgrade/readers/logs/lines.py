"""Readers of step lines that are not a list of fields: progress bars, JSON, Python dicts, MLPerf events."""

from __future__ import annotations

import re
from math import isfinite, nan

import msgspec

from stepgrade.readers.logs.dialect import LineReader, Row
from stepgrade.readers.logs.facts import LogContext, RunTotals
from stepgrade.readers.logs.mlperf import MlperfEvents
from stepgrade.readers.logs.names import row_of, totals_of, with_nan_quoted
from stepgrade.readers.logs.values import duration, number

_BAR = re.compile(
    rb"(\d{1,9})/(\d{1,9}) (?:\[((?:\d{1,4}:)?\d{1,4}:\d\d)<[^,\]]{1,20}, {0,8}"
    # Rich, as Lightning draws it, has a dot between the time that was and the time that is left.
    rb"|(\d{1,4}:\d\d:\d\d) \xe2\x80\xa2 [-\d:]{1,12} )([\d.]{1,12})(s/it|it/s)"
)
_KERAS_BAR = re.compile(
    rb"(\d{1,9})/(\d{1,9}) [^\n\x08]{0,160}?\b\d{1,9}(?:s|m) (?:- )?"
    rb"(\d{1,9}(?:\.\d{1,9})?)(ms|us|\xc2\xb5s|s)/step"
    rb"(?:[^\n\x08]{0,160}?\bloss: ([-+.\de]{1,20}|nan))?"
)
_OF_KERAS = {b"s": 1.0, b"ms": 1e-3}
_EPOCH = re.compile(rb"(?i)\bepoch:?\s{0,3}\[?(\d{1,6})")
_PAIR = re.compile(rb"'([^'\n]{1,80})': ?(?:'([^'\n]{0,80})'|([-+.\deE]{1,40}|nan|inf|-inf))")
_TIMES = ("step_s", "elapsed_s", "time", "tok_s", "tok_s_device", "steps_s")


def progress_bar(_: LogContext) -> LineReader:
    """Return a reader of the last state of the progress bars in a line, as tqdm or Rich draws them."""
    return lambda line, _: bar_state(line)


def bar_state(line: bytes) -> Row | None:
    """Return the last state of the progress bars in a line."""
    row: Row | None = None
    for match in _BAR.finditer(line):
        elapsed = duration(match[3] or match[4])
        if isfinite(elapsed):
            shown = float(match[5]) if match[5].count(b".") < 2 and match[5] != b"." else nan
            row = {"step": float(match[1]), "total": float(match[2]), "elapsed_s": elapsed}
            if (epoch := _EPOCH.search(line)) is not None:
                row["epoch"] = float(epoch[1])
            row["shown_s"] = shown if match[6] == b"s/it" else 1.0 / shown if shown else nan
    return row


def keras_bar(_: LogContext) -> LineReader:
    """Return a reader of full Keras bars; each is the end of an epoch."""

    def read(line: bytes, at: float) -> Row | None:
        row: Row | None = None
        for match in _KERAS_BAR.finditer(line):
            step, total, took = float(match[1]), float(match[2]), float(match[3])
            if step == total:
                elapsed = step * took * _OF_KERAS.get(match[4], 1e-6)
                row = {"step": step, "total": total, "elapsed_s": elapsed, "epoch": at}
                if match[5]:
                    row["loss"] = number(match[5])
        return row

    return read


def json_object(context: LogContext) -> LineReader:
    """Return a reader of JSON objects, one to a line."""

    def read(line: bytes, at: float) -> Row | None:
        fields = _decoded(line)
        return None if fields is None else _row_of(fields, at, context)

    return read


def printed_dict(context: LogContext) -> LineReader:
    """Return a reader of dicts as Python prints them."""

    def read(line: bytes, at: float) -> Row | None:
        pairs = _PAIR.findall(line, line.find(b"{'"))
        fields: dict[str, object] = {
            key.decode("utf-8", "replace"): (quoted or bare).decode("utf-8", "replace")
            for key, quoted, bare in pairs
        }
        return _row_of(fields, at, context)

    return read


def mlperf_event(context: LogContext) -> LineReader:
    """Return a reader of MLPerf's events."""
    events = MlperfEvents(context.header)

    def read(line: bytes, at: float) -> Row | None:
        event = _decoded(line)
        if event is None:
            return None
        evaluated_s = events.evaluation_s(event)
        if evaluated_s is not None:
            context.add_event("evaluation", at, evaluated_s)
        return events.row(event)

    return read


def _decoded(line: bytes) -> dict[str, object] | None:
    """Return the JSON object in a line, if there is one."""
    text = line[line.find(b"{") : line.rfind(b"}") + 1]
    if b"NaN" in text or b"Infinity" in text:
        text = with_nan_quoted(text)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return found if isinstance(found, dict) else None


def _row_of(fields: dict[str, object], at: float, context: LogContext) -> Row | None:
    """Return the step of an object; totals and evaluations go to the context."""
    totals = totals_of(fields)
    if totals is not None and "loss" not in fields:
        context.totals = RunTotals(*totals)
        return None
    row = row_of(fields.items())
    if "eval_s" in row or ("eval_loss" in fields and "loss" not in row):
        context.add_event("evaluation", at, row.get("eval_s"))
        return None
    has_time = any(name in row for name in _TIMES)
    return row if "loss" in row or ("step" in row and has_time) else None
