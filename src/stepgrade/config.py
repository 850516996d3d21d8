"""stepgrade.toml: what a project says about its gate, its budgets and its limits, read in one place.

[gate]        how sure, how sensitive; what counts as failing
[[budget]]    what a metric may do on a device
[[waiver]]    what is let through for now, until when and why
[limits]      thresholds of the findings, and
[rules]       which of them are not asked: analysis/limits_file.py checks both
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from stepgrade.errors import BadConfig

DEFAULT_PATH = "stepgrade.toml"
MOST_FILE_BYTES = 2**20


class GateTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table [gate]; shares are 0 to 1."""

    allow: float = 0.01
    detect: float = 0.10
    run_noise: float | None = None
    cannot_tell: Literal["fail", "pass"] = "fail"
    fail_on: tuple[str, ...] = ()
    allow_different: tuple[str, ...] = ()


class Budget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One [[budget]]: how much a metric may change, in which direction, and its absolute bounds."""

    metric: str
    device: str = "*"
    allow: float | None = None
    detect: float | None = None
    direction: Literal["worse", "up", "down", "both"] = "worse"
    at_most: float | None = None
    at_least: float | None = None


class Waiver(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One [[waiver]]: a failing metric that passes until a day, for a reason."""

    metric: str
    until: dt.date
    reason: str
    device: str = "*"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file; what it does not say has its default."""

    gate: GateTable = GateTable()
    budgets: tuple[Budget, ...] = field(name="budget", default=())
    waivers: tuple[Waiver, ...] = field(name="waiver", default=())
    limits: dict[str, Any] = {}
    rules: dict[str, Any] = {}


TABLES = ("gate", "budget", "waiver", "limits", "rules")


def decode_toml(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a stepgrade.toml; raise BadConfig when it is no TOML."""
    import tomllib  # noqa: PLC0415  only with a file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"is no TOML: {error}", where=where) from error


def load_config(path: str | None = None) -> Config:
    """Read a file; None is stepgrade.toml in this directory, if it is there. Raise BadConfig at the place."""
    if path is None and not os.path.isfile(DEFAULT_PATH):  # noqa: PTH113  pathlib is slow to import
        return Config()
    path = path or DEFAULT_PATH
    config = _converted(_decoded(path), path)
    _check(config, path)
    return config


def _decoded(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            text = stream.read(MOST_FILE_BYTES + 1)
        if len(text) > MOST_FILE_BYTES:
            raise BadConfig("is too large to be a configuration", where=path)
        return decode_toml(text.decode(), path)
    except OSError as error:
        raise BadConfig(f"cannot be read: {error.strerror or error}", where=path) from error
    except UnicodeDecodeError as error:
        raise BadConfig("is not UTF-8, as TOML must be", where=path) from error


def _converted(values: dict[str, Any], path: str) -> Config:
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        where = f"{path}: {place.strip('`.') or 'top level'}"
        raise BadConfig(problem[:1].lower() + problem[1:], where=where) from error


def _check(config: Config, path: str) -> None:
    for name in ("allow", "detect", "run_noise"):
        _check_share(getattr(config.gate, name), f"{path}: gate.{name}")
    for place, budget in enumerate(config.budgets):
        for name in ("allow", "detect"):
            _check_share(getattr(budget, name), f"{path}: budget[{place}].{name}")
    for place, waiver in enumerate(config.waivers):
        if not waiver.reason.strip():
            raise BadConfig("a waiver needs a reason", where=f"{path}: waiver[{place}].reason")


def _check_share(share: float | None, where: str) -> None:
    if share is not None and not 0.0 <= share <= 10.0:
        raise BadConfig(f"must be a share (0.05 is 5 %), not {share:g}", where=where)
