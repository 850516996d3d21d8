"""Metric records as the step lines of a log."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from stepgrade.readers.logs.dialect import Dialect, LogContext, Row
from stepgrade.readers.logs.facts import ARGUMENTS, clean
from stepgrade.readers.logs.names import keep_totals, row_of
from stepgrade.readers.logs.scan import Rows, ScannedLog

PRODUCERS = {
    "wandb": "Weights & Biases",
    "tensorboard": "TensorBoard",
    "trainer_state": "Hugging Face Trainer",
    "peft": "PEFT's benchmark",
    "csv": "a table of metrics",
    "mlflow": "MLflow",
}
# Settings in our log header, and their names in trainers.
_SETTINGS = {
    "micro_batch_size": "per_device_train_batch_size batch_size",
    "global_batch_size": "global_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "seq_length": "sequence_length seq_len block_size",
    "world": "world_size num_gpus gpu_count n_gpus",
    "total_steps": "max_steps",
    "step_tokens": "tokens_per_step",
}
_TEXTS = {
    "device": "gpu gpu_name device_name gpu_type",
    "precision": "precision dtype",
    "model": "model_name_or_path model_name",
}
_NUMBER_OF, _TEXT_OF = (
    {name: known for known, names in table.items() for name in names.split()} for table in (_SETTINGS, _TEXTS)
)
_FLAGS = frozenset({"bf16", "fp16"})
_MOST_TEXT = 120
_EVALUATION = ("eval", "val_", "val/", "valid", "test/")


class RecordLog:
    """Collects records and settings; consecutive records of one step are merged."""

    def __init__(self, framework: str) -> None:
        self._context = LogContext()
        self.header = self._context.header
        self._rows = Rows(Dialect(framework=framework, anchor=b"", mean="interval"))
        self._pending: Row = {}
        self._count = 0
        self._evaluated_at = -1

    def add(self, record: Mapping[str, object]) -> None:
        """Add one record, whose fields are known by name."""
        if keep_totals(record, self._context):
            return
        row = row_of(record.items())
        is_evaluation = any(name.lower().startswith(_EVALUATION) for name in record)
        if is_evaluation and "eval_s" not in row and self._evaluated_at != self._count:
            self._evaluated_at = self._count
            self._add_evaluation(None)
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
        if (known := _NUMBER_OF.get(name)) is not None:
            try:
                figure = float(text)
            except ValueError:
                return
            if isfinite(figure) and figure > 0.0:
                self.header.numbers.setdefault(known, figure)
        elif name in _TEXT_OF and text:
            self.header.texts.setdefault(_TEXT_OF[name], clean(text.encode("utf-8", "replace")))

    def scanned(self) -> ScannedLog:
        """Return all records as a log."""
        self._flush()
        return ScannedLog(
            rows=[self._rows] if self._rows.count else [],
            header=self.header,
            events=self._context.events,
            totals=self._context.totals,
            times={},
            bars=self._context.bars,
        )

    def _flush(self) -> None:
        if self._pending:
            self._count += 1
            self._rows.add({**self._pending, "at": float(self._count)})
            self._pending = {}
