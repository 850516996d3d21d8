"""Directories that are one run: MLflow's file store, TensorBoard's event files, a folder of W&B's."""

from __future__ import annotations

import os
from contextlib import suppress

from stepgrade.errors import BadInput, TooLarge
from stepgrade.model import Profile
from stepgrade.readers.logs.assemble import profile_of_log
from stepgrade.readers.logs.names import meaning
from stepgrade.readers.logs.records import RecordLog
from stepgrade.readers.logs.tensorboard import read_events
from stepgrade.readers.logs.wandb import read_wandb
from stepgrade.readers.source import ByteSource, ReadOptions

_MOST_FILES = 2000
_MOST_STEPS = 1 << 20
_MOST_SETTING = 4096
_DEPTH = 3


def run_in(path: str, options: ReadOptions) -> Profile | None:
    """Return the run that a directory holds; None without metrics; raise BadInput for several runs."""
    stores = _stores(path)
    if len(stores) > 1:
        names = ", ".join(os.path.basename(store) for store in stores[:3])  # noqa: PTH119  pathlib imports slowly
        problem = f"holds {len(stores)} runs of MLflow ({names}, …)"
        raise BadInput(problem, where=path, hint="give the folder of one of them")
    if stores:
        log = RecordLog("mlflow", "MLflow")
        read_store(stores[0], log)
        return profile_of_log(log.scanned(), path, "MLflow")
    files = _files(path)
    for mark, name, producer, read in (
        ("tfevents", "tensorboard", "TensorBoard", read_events),
        (".wandb", "wandb", "Weights & Biases", read_wandb),
    ):
        chosen = sorted(file for file in files if mark in os.path.basename(file))  # noqa: PTH119  as above
        if chosen:
            log = RecordLog(name, producer)
            for file in chosen[:_MOST_FILES]:
                with (
                    suppress(BadInput),
                    ByteSource(file, options) as source,
                ):  # an empty file of another writer
                    read(source.chunks(), log)
            return profile_of_log(log.scanned(), path, producer)
    return None


def _files(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_file()]


def _stores(path: str, depth: int = _DEPTH) -> list[str]:
    """Return the folders of MLflow's runs in a directory, or the directory itself."""
    if os.path.isfile(os.path.join(path, "meta.yaml")) and os.path.isdir(os.path.join(path, "metrics")):  # noqa: PTH112, PTH113, PTH118
        return [path]
    if not depth:
        return []
    try:
        with os.scandir(path) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [store for folder in folders[:_MOST_FILES] for store in _stores(folder, depth - 1)]


def read_store(store: str, log: RecordLog) -> None:
    """Add the metrics of a run: a file each, with lines of milliseconds, value and step."""
    root = os.path.join(store, "metrics")  # noqa: PTH118  as above
    rows: dict[int, dict[str, object]] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            key = os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118  as above
            if meaning(key) is not None:
                _read_metric(os.path.join(folder, name), key, rows)  # noqa: PTH118  as above
    for step in sorted(rows):
        log.add(rows[step])
    params = os.path.join(store, "params")  # noqa: PTH118  as above
    for file in _files(params) if os.path.isdir(params) else []:  # noqa: PTH112  as above
        with suppress(OSError), open(file, errors="replace") as opened:  # noqa: PTH123  as above
            log.set(os.path.basename(file), opened.read(_MOST_SETTING).strip())  # noqa: PTH119  as above


def _read_metric(path: str, key: str, rows: dict[int, dict[str, object]]) -> None:
    with open(path, errors="replace") as lines:  # noqa: PTH123  as above
        for line in lines:
            parts = line[:200].split()
            with suppress(ValueError, IndexError):
                stamp, value, step = float(parts[0]), float(parts[1]), int(parts[2])
                row = rows.setdefault(step, {"step": step, "timestamp": stamp})
                row[key] = value
            if len(rows) > _MOST_STEPS:
                raise TooLarge(f"has metrics of more than {_MOST_STEPS:,} steps", where=path)
