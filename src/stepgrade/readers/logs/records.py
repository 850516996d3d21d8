"""Metric records as the step lines of a log."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from stepgrade.readers.logs.dialect import Dialect, Row
from stepgrade.readers.logs.facts import ARGUMENTS, LogContext, RunTotals
from stepgrade.readers.logs.names import row_of, totals_of
from stepgrade.readers.logs.scan import Rows, ScannedLog

# Names of settings in trainers, and in our log header.
_SETTINGS = {
    "per_device_train_batch_size": "micro_batch_size",
    "batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "gradient_accumulation_steps": "accumulation",
    "sequence_length": "seq_length",
    "seq_len": "seq_length",
    "block_size": "seq_length",
    "world_size": "world",
    "num_gpus": "world",
    "gpu_count": "world",
    "n_gpus": "world",
    "max_steps": "total_steps",
    "tokens_per_step": "step_tokens",
}
_FLAGS = frozenset({"bf16", "fp16"})
_TEXTS = {
    "gpu": "device",
    "gpu_name": "device",
    "device_name": "device",
    "gpu_type": "device",
    "precision": "precision",
    "dtype": "precision",
    "model_name_or_path": "model",
    "model_name": "model",
}
_MOST_TEXT = 120
_EVALUATION = ("eval", "val_", "val/", "valid", "test/")


class RecordLog:
    """Collects records and settings; consecutive records of one step are merged."""

    def __init__(self, name: str, framework: str) -> None:
        dialect = Dialect(name=name, framework=framework, anchor=b"", mean="interval")
        self._context = LogContext()
        self.header = self._context.header
        self._rows = Rows(dialect)
        self._pending: Row = {}
        self._count = 0
        self._evaluated_at = -1

    def add(self, record: Mapping[str, object]) -> None:
        """Add one record, whose fields are known by name."""
        totals = totals_of(record)
        if totals is not None and "loss" not in record:
            self._context.totals = RunTotals(*totals)
            return
        row = row_of(record.items())
        is_evaluation = any(name.lower().startswith(_EVALUATION) for name in record)
        if is_evaluation and "eval_s" not in row and self._evaluated_at != self._count:
            self._evaluated_at = self._count
            self._add_evaluation(None)
        self.add_row(row)

    def add_row(self, row: Row) -> None:
        """Add a row in our units."""
        if (evaluated := row.pop("eval_s", None)) is not None:
            self._add_evaluation(evaluated)
        if "loss" in row and not isfinite(row["loss"]):
            row["loss"] = inf
        step = row.get("step")
        if step is None or not isfinite(step):
            return
        if self._pending and self._pending["step"] != step:
            self._flush()
        for column, value in row.items():
            self._pending.setdefault(column, value)

    def _add_evaluation(self, seconds: float | None) -> None:
        self._context.add_event("evaluation", float(self._count) + 1.5, seconds)

    def set(self, name: str, value: object) -> None:
        """Keep a setting of the run if it is relevant; the rest of a config is dropped."""
        if isinstance(value, bool) or (name in _FLAGS and value in ("True", "False")):
            if name in _FLAGS or name in ARGUMENTS:
                self.header.arguments[name] = str(value)
            return
        text = str(value) if isinstance(value, str | int | float) else ""
        if name in ARGUMENTS and text:
            self.header.arguments.setdefault(name, text[:_MOST_TEXT])
        if (known := _SETTINGS.get(name)) is not None:
            try:
                figure = float(text)
            except ValueError:
                return
            if isfinite(figure) and figure > 0.0:
                self.header.numbers.setdefault(known, figure)
        elif name in _TEXTS and text:
            shown = "".join(letter for letter in text[:_MOST_TEXT] if letter.isprintable())
            self.header.texts.setdefault(_TEXTS[name], shown)

    def scanned(self, size_bytes: int = 0) -> ScannedLog:
        """Return all records as a log."""
        self._flush()
        return ScannedLog(
            rows=[self._rows] if self._rows.count else [],
            header=self.header,
            events=self._context.events,
            totals=self._context.totals,
            times={},
            size_bytes=size_bytes,
        )

    def _flush(self) -> None:
        if self._pending:
            self._count += 1
            self._rows.add({**self._pending, "at": float(self._count)})
            self._pending = {}
