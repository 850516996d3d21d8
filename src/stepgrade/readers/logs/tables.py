"""Tables and documents of metrics: CSV, the Trainer's trainer_state.json, PEFT's benchmark results."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from stepgrade.readers.logs.names import meaning
from stepgrade.readers.logs.records import RecordLog
from stepgrade.readers.logs.values import figure_of

_MOST_COLUMNS = 4096
_MOST_CELL = 4096
_MOST_COUNT = 1 << 53
_EXPORTED = re.compile(r"^.{1,200}? - (?=[^-])")
_BOUNDS = ("__MIN", "__MAX")
_HEAD_BYTES = 1 << 16


def separator_of(head: bytes) -> str | None:
    """Return the column separator of a table with step columns; None for anything else."""
    line = head[:_HEAD_BYTES].lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    if not line or line[0] in "{[<":
        return None
    for separator in ",;\t":
        names = [_named(name) for name in line.split(separator)]
        known = {found[0] for name in names if (found := meaning(name)) is not None}
        if len(names) > 1 and "step" in known and len(known) > 1:
            return separator
    return None


def read_csv(chunks: Iterable[bytes], separator: str, log: RecordLog) -> None:
    """Add the rows of a table; empty cells and empty rows are left out."""
    rows = csv.reader(lines_of(chunks), delimiter=separator)
    wanted: list[tuple[int, str]] | None = None
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field of more than 128 kB, such as an unclosed quote
            continue
        if wanted is None:
            names = enumerate(map(_named, row[:_MOST_COLUMNS]))
            wanted = [(at, name) for at, name in names if name and (meaning(name) or name.startswith("val"))]
        else:
            log.add({name: row[at][:_MOST_CELL] for at, name in wanted if at < len(row) and row[at]})


def read_trainer_state(state: dict[str, Any], log: RecordLog) -> None:
    """Add what trainer_state.json keeps of a run: its log, its steps, its batch."""
    for name, known in (("train_batch_size", "micro_batch_size"), ("global_step", "total_steps")):
        value = state.get(name)
        if isinstance(value, int) and 0 < value < _MOST_COUNT:
            log.header.numbers[known] = float(value)
    history = state.get("log_history")
    for record in history if isinstance(history, list) else []:
        if isinstance(record, dict):
            log.add(record)
    flops, tokens = figure_of(state.get("total_flos")), figure_of(state.get("num_input_tokens_seen"))
    if flops and tokens and flops > 0 and tokens > 0:
        log.header.numbers["flops_per_token"] = flops / tokens


def read_peft(document: dict[str, Any], log: RecordLog) -> None:
    """Add the intervals of a benchmark of PEFT's; evaluation is timed apart from training."""
    log.set("gpu", _at(document, "meta_info", "system_info", "accelerator"))
    for name in ("dtype", "batch_size"):
        log.set(name, _at(document, "run_info", "train_config", name))
    metrics = _at(document, "train_info", "metrics")
    for record in metrics if isinstance(metrics, list) else []:
        if isinstance(record, dict):
            names = ("step", "tokens / sec", "eval time", "elapsed time", "train samples")
            row = {name: record[name] for name in names if name in record}
            log.add(row | {"loss": record.get("train loss"), "interval_s": record.get("train time")})
    peak = figure_of(_at(document, "train_info", "accelerator_memory_max"))
    if peak is not None and peak > 0:
        log.header.numbers["peak_bytes"] = peak


def _at(document: object, *keys: str) -> object:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _named(name: str) -> str:
    """Return the name of a column without the run that W&B puts before it; none for its bounds."""
    name = name.strip().strip('"')
    return "" if name.endswith(_BOUNDS) else _EXPORTED.sub("", name)


def lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines as text, without those that are longer than any row."""
    rest = b""
    for chunk in chain(chunks, (b"\n",)):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip() and len(line) <= _HEAD_BYTES * 16:
                text = line.strip(b"\r").replace(b"\r", b" ").replace(b"\0", b"")
                yield text.decode("utf-8-sig", "replace")
        rest = rest if len(rest) <= _HEAD_BYTES * 16 else b""
