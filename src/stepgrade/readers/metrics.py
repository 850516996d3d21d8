"""Metric files: TensorBoard, Weights & Biases, tables of CSV, and the JSON that trainers keep of a run."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from stepgrade.contract.decode import decode_json
from stepgrade.errors import UnknownFormat
from stepgrade.model import Note
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

_STATE, _PEFT = "log_history", frozenset({"run_info", "train_info"})
_STATE_KEY = b'"log_history"'
_EVENTS = b"brain.Event:"
_WANDB = b":W&B"
_SQLITE = b"SQLite format 3\0"


def recognises(source: ByteSource) -> bool:
    """Tell by the first bytes, the keys of a document or the names of columns."""
    return _kind(source) is not None


def _kind(source: ByteSource) -> str | None:
    head = source.head
    by_sign = "wandb" if head.startswith(_WANDB) else "tensorboard" if _EVENTS in head[:64] else None
    if head.startswith(_SQLITE):
        from stepgrade.readers.logs.mlflow import SIGN, TABLE  # only for what is SQLite
        from stepgrade.readers.sqlite import has_table

        return "mlflow" if has_table(source, SIGN, TABLE) else None
    if by_sign is not None or not source.is_text:
        return by_sign
    if head.lstrip()[:1] == b"{":
        keys = source.json_keys or frozenset()
        # The state of a diverged run holds NaN, which is not valid JSON.
        is_state = _STATE in keys or (source.json_error is not None and _STATE_KEY in head)
        return "trainer_state" if is_state else "peft" if keys >= _PEFT else None
    if b"\n" in head and any(word in head[:4096].lower() for word in (b"step", b"iter", b"update")):
        from stepgrade.readers.logs.tables import separator_of  # only for what may be a table

        return "csv" if separator_of(head) is not None else None
    return None


def read(source: ByteSource) -> Part:
    """Return the run that the metrics describe."""
    # What needs numpy is imported only here.
    from stepgrade.readers.foreign import refusal
    from stepgrade.readers.logs import tables, tensorboard, wandb
    from stepgrade.readers.logs.assemble import profile_of_log
    from stepgrade.readers.logs.records import PRODUCERS, RecordLog
    from stepgrade.readers.registry import readers

    kind = _kind(source)
    if kind is None:
        raise refusal(source, readers())
    producer, runs = PRODUCERS[kind], 1
    log = RecordLog(producer)
    if kind == "wandb":
        wandb.read_wandb(source.chunks(), log)
    elif kind == "tensorboard":
        tensorboard.read_events(source.chunks(), log)
    elif kind == "mlflow":
        from stepgrade.readers.logs.mlflow import read_database
        from stepgrade.readers.sqlite import SqliteFile

        with SqliteFile.opened(source) as file:
            runs = read_database(file, source.name, log)
    elif kind == "csv":
        tables.read_csv(source.chunks(), tables.separator_of(source.head) or ",", log)
    else:
        from stepgrade.readers.logs.names import with_nan_quoted

        document = source.document()
        is_json = source.json_error is None
        decoded = decode_json(document if is_json else with_nan_quoted(document), dict[str, Any])
        (tables.read_trainer_state if kind == "trainer_state" else tables.read_peft)(decoded, log)
    profile = profile_of_log(log.scanned(), source.name, producer)
    if profile is None and kind in ("tensorboard", "wandb"):
        hint = "log a scalar, such as the loss, with its step number"
        raise UnknownFormat(f"is a {producer} file without scalars", where=source.name, hint=hint)
    if profile is None:
        raise refusal(source, readers())
    if runs > 1:
        text = f"the database contains {runs} runs; this is the latest"
        profile = structs.replace(profile, notes=(*profile.notes, Note("last_of_several", text)))
    return Part(log=profile)


READER = Reader(
    name="metrics",
    summary="metric files: TensorBoard, Weights & Biases, MLflow, CSV, trainer_state.json",
    recognises=recognises,
    read=read,
    kind="log",
)
