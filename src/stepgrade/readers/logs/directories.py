"""Directories that are one run: MLflow's file store, TensorBoard's event files, a folder of W&B's."""

from __future__ import annotations

import os
from contextlib import suppress

from stepgrade.errors import BadInput
from stepgrade.memory import check
from stepgrade.model import Profile
from stepgrade.readers.logs.assemble import profile_of_log
from stepgrade.readers.logs.names import meaning
from stepgrade.readers.logs.records import PRODUCERS, RecordLog
from stepgrade.readers.logs.tables import lines_of
from stepgrade.readers.logs.tensorboard import read_events
from stepgrade.readers.logs.wandb import read_wandb
from stepgrade.readers.source import ByteSource, ReadOptions

_MOST_FILES = 2000
_VALUE_BYTES = 400  # a row with one value, measured and rounded up
_MOST_SETTING = 4096
_DEPTH = 3


def run_in(path: str, options: ReadOptions) -> Profile | None:
    """Return the run that a directory holds; None without metrics; raise BadInput for several runs."""
    stores = _stores(path)
    if len(stores) > 1:
        names = ", ".join(os.path.basename(store) for store in stores[:3])
        problem = f"contains {len(stores)} MLflow runs ({names}, …)"
        raise BadInput(problem, where=path, hint="pass the folder of one of them")
    if stores:
        log = RecordLog("MLflow")
        read_store(stores[0], log, options)
        return profile_of_log(log.scanned(), path, "MLflow")
    files = _files(path)
    for mark, kind, read in (("tfevents", "tensorboard", read_events), (".wandb", "wandb", read_wandb)):
        chosen = sorted(file for file in files if mark in os.path.basename(file))
        if chosen:
            log = RecordLog(PRODUCERS[kind])
            for file in chosen[:_MOST_FILES]:
                with ByteSource(file, options) as source:
                    read(source.chunks(), log)
            return profile_of_log(log.scanned(), path, PRODUCERS[kind])
    return None


def _files(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if _holds_something(entry.path)]


def _holds_something(path: str) -> bool:
    """Tell whether this is a regular file with content; reading a pipe or a device may never end."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _stores(path: str, depth: int = _DEPTH) -> list[str]:
    """Return the folders of MLflow's runs in a directory, or the directory itself."""
    if os.path.isfile(os.path.join(path, "meta.yaml")) and os.path.isdir(os.path.join(path, "metrics")):
        return [path]
    if not depth:
        return []
    try:
        with os.scandir(path) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [store for folder in folders[:_MOST_FILES] for store in _stores(folder, depth - 1)]


def read_store(store: str, log: RecordLog, options: ReadOptions) -> None:
    """Add the metrics of a run: a file each, with lines of milliseconds, value and step."""
    root = os.path.join(store, "metrics")
    rows: dict[int, dict[str, object]] = {}
    taken = 0
    for folder, _, names in os.walk(root):
        for name in sorted(names)[:_MOST_FILES]:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, root)
            if meaning(key) is not None and _holds_something(path):
                with ByteSource(path, options) as source:
                    for line in lines_of(source.chunks()):
                        with suppress(ValueError):
                            stamp, value, step = line[:200].split()[:3]
                            row = rows.setdefault(int(step), {"step": int(step), "timestamp": float(stamp)})
                            figure = float(value)
                            taken += key not in row
                            row[key] = figure
                        check(taken * _VALUE_BYTES, source.memory_bytes, path)
    for number in sorted(rows):
        log.add(rows[number])
    params = os.path.join(store, "params")
    for file in _files(params) if os.path.isdir(params) else []:
        with suppress(OSError), open(file, errors="replace") as opened:
            log.set(os.path.basename(file), opened.read(_MOST_SETTING).strip())
