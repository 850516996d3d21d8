"""stepgrade.toml: a project's settings, read in one place.

[run]         defaults of the options that describe a run: cli/run_defaults.py checks it
[gate]        sensitivity of the gate, and what counts as failing
[[budget]]    how much a metric may change on a device
[[waiver]]    what may fail for now, until when and why
[[dialect]]   what the lines of your own logs mean: readers/logs/own.py checks it
[files]       who may read new files
[limits]      thresholds of the findings, and
[rules]       ignored rules: diagnosis/rules/__init__.py checks both
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from stepgrade.config.toml import MOST_BYTES, parse_toml
from stepgrade.decoding import from_builtins
from stepgrade.errors import BadConfig, did_you_mean

DEFAULT_PATH = "stepgrade.toml"
MOST_ROWS = 1000  # budgets, or waivers


class Sensitivity(Struct, frozen=True, kw_only=True):
    """Which changes count: none up to `allow`; one of `detect` must be noticed. Shares are 0 to 1."""

    allow: float = 0.01
    detect: float = 0.10
    run_noise: float | None = None  # used until there are enough runs to measure it


class GateTable(Sensitivity, frozen=True, kw_only=True):
    """Table [gate]."""

    cannot_tell: Literal["fail", "pass"] = "fail"
    probably_slower: Literal["fail", "pass"] = "pass"
    fail_on: tuple[str, ...] = ()
    allow_different: tuple[str, ...] = ()


class Budget(Struct, frozen=True, kw_only=True):
    """One [[budget]]: how much a metric may change, in which direction, and its absolute bounds."""

    metric: str
    device: str = "*"
    allow: float | None = None
    detect: float | None = None
    direction: Literal["worse", "up", "down", "both"] = "worse"
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_absolute(self) -> bool:
        """Return whether the budget has a bound that needs no earlier run."""
        return self.at_most is not None or self.at_least is not None


class Waiver(Struct, frozen=True, kw_only=True):
    """One [[waiver]]: a failing metric that passes until a day, for a reason."""

    metric: str
    until: dt.date
    reason: str
    device: str = "*"


class DialectTable(Struct, frozen=True, kw_only=True):
    """One [[dialect]]: text that is in every step line, and what its numbers mean.

    `fields` has the text before each number; `line` is a template of the whole line instead.
    """

    name: str
    contains: str
    fields: dict[str, str] = {}
    line: str = ""
    mean: Literal["step", "interval", "running"] = "step"


class FilesTable(Struct, frozen=True, kw_only=True):
    """Table [files]: who may read a new history, recording or journal, as far as the umask allows."""

    readable_by: Literal["owner", "group", "all"] = "owner"


class Config(Struct, frozen=True, kw_only=True):
    """A whole stepgrade.toml, with a default for every table; `where` is the file that it was read from."""

    run: dict[str, Any] = {}
    gate: GateTable = GateTable()
    budgets: tuple[Budget, ...] = field(name="budget", default=())
    waivers: tuple[Waiver, ...] = field(name="waiver", default=())
    dialects: tuple[DialectTable, ...] = field(name="dialect", default=())
    files: FilesTable = FilesTable()
    limits: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    where: str = DEFAULT_PATH


def read_config(text: str, where: str = DEFAULT_PATH) -> Config:
    """Return the settings in a TOML text; raise BadConfig at the key that is wrong."""
    try:
        document = parse_toml(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise BadConfig(str(error), where=where) from error
    check_names(document, _TABLES, where)
    config = _converted(document, where)
    _check(config, where)
    return msgspec.structs.replace(config, where=where)


def load_config(path: str | os.PathLike[str] | None = None) -> Config:
    """Read a stepgrade.toml, by default ./stepgrade.toml if it exists; raise BadConfig at the wrong key."""
    if path is None and not os.path.isfile(DEFAULT_PATH):
        return Config()
    path = os.fspath(path or DEFAULT_PATH)
    try:
        with open(path, "rb") as stream:
            text = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise BadConfig(f"cannot be read: {problem}", where=path) from error
    return read_config(text.decode("utf-8", "surrogateescape"), path)


def check_names(given: Iterable[str], known: Sequence[str], where: str) -> None:
    """Raise BadConfig for the first unknown name, with the nearest known one."""
    for name in given:
        if name not in known:
            raise BadConfig(f"unknown key {name!r}", where=where, hint=did_you_mean(name, known))


_ROWS = {"budget": Budget, "waiver": Waiver, "dialect": DialectTable}
_TABLES = ("run", "gate", *_ROWS, "files", "limits", "rules")


def _converted(document: dict[str, Any], path: str) -> Config:
    """Return the tables; unknown names are refused first, because the nearest known one is the best hint."""
    for name, table in (("gate", GateTable), ("files", FilesTable)):
        if isinstance(document.get(name), dict):
            check_names(document[name], table.__struct_fields__, f"{path}: [{name}]")
    for name, kind in _ROWS.items():
        rows = document.get(name)
        for number, row in enumerate(rows if isinstance(rows, list) else []):
            if isinstance(row, dict):
                if name == "dialect" and "pattern" in row:
                    hint = 'write a template instead: line = "step {step}/{total} loss {loss}"'
                    where = f"{path}: dialect[{number}].pattern"
                    raise BadConfig("regular expressions are no longer supported", where=where, hint=hint)
                check_names(row, kind.__struct_fields__, f"{path}: {name}[{number}]")
    try:
        return from_builtins(document, Config)
    except msgspec.ValidationError as error:
        problem, _, key = str(error).partition(" - at `$")
        where = f"{path}: {key.strip('`.') or 'top level'}"
        raise BadConfig(problem[:1].lower() + problem[1:], where=where) from error


def _check(config: Config, path: str) -> None:
    tables = {"gate": config.gate} | {f"budget[{number}]": row for number, row in enumerate(config.budgets)}
    for key, table in tables.items():
        for name in ("allow", "detect", "run_noise"):
            share = getattr(table, name, None)
            if share is not None and not 0.0 <= share <= 10.0:
                where = f"{path}: {key}.{name}"
                raise BadConfig(f"must be a share (0.05 is 5 %), not {share:g}", where=where)
        for name in ("at_most", "at_least"):
            bound = getattr(table, name, None)
            if bound is not None and not isfinite(bound):
                raise BadConfig(f"must be a number, not {bound:g}", where=f"{path}: {key}.{name}")
    for name in _ROWS:
        if len(getattr(config, f"{name}s")) > MOST_ROWS:
            raise BadConfig(f"more than {MOST_ROWS} entries", where=f"{path}: {name}")
    for number, waiver in enumerate(config.waivers):
        if not waiver.reason.strip():
            raise BadConfig("a waiver needs a reason", where=f"{path}: waiver[{number}].reason")
