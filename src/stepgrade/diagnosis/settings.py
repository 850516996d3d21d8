"""Limits and silenced rules from a stepgrade.toml, which stepgrade.config has read."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from msgspec import Struct

from stepgrade.config import DEFAULT_PATH, Config, check_names, load_config
from stepgrade.config.limits import Limits
from stepgrade.diagnosis.rules import RULE_NAMES
from stepgrade.errors import BadConfig


class Settings(Struct, frozen=True, kw_only=True):
    """What a stepgrade.toml says: limits that differ, and rules that are not to be asked."""

    limits: Limits = Limits()
    ignored_rules: frozenset[str] = frozenset()


DEFAULT_SETTINGS = Settings()


def settings_from(config: Config, where: str = DEFAULT_PATH) -> Settings:
    """Return `[limits]` and `[rules] ignore = [...]`; raise BadConfig at the key that is wrong."""
    check_names(config.limits, Limits.__struct_fields__, f"{where}: [limits]")
    check_names(config.rules, ("ignore",), f"{where}: [rules]")
    return Settings(limits=_limits(config.limits, where), ignored_rules=_ignored(config.rules, where))


def _limits(chosen: dict[str, Any], where: str) -> Limits:
    figures = {name: float(value) if _is_whole(name, value) else value for name, value in chosen.items()}
    try:
        return msgspec.convert(figures, Limits)
    except msgspec.ValidationError as error:
        raise BadConfig(str(error).replace("$.", "limits."), where=where) from error


def _is_whole(name: str, value: object) -> bool:
    """Tell whether a whole number was written where a number with digits is meant."""
    return type(value) is int and isinstance(getattr(Limits(), name), float)


def _ignored(asked: dict[str, Any], where: str) -> frozenset[str]:
    names = asked.get("ignore", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadConfig("must be a list of names", where=f"{where}: rules.ignore")
    check_names(names, RULE_NAMES, f"{where}: rules.ignore")
    return frozenset(names)


def load_settings(source: str | os.PathLike[str]) -> Settings:
    """Read limits and ignored rules from a stepgrade.toml; raise BadConfig at the key that is wrong."""
    name = os.fspath(source)
    return settings_from(load_config(name), name)
