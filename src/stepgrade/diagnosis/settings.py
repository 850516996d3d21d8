"""Limits and ignored rules of a stepgrade.toml that `load_config` has read."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stepgrade.config import Config, check_names
from stepgrade.config.limits import Limits
from stepgrade.decoding import from_builtins
from stepgrade.diagnosis.rules import RULE_NAMES
from stepgrade.errors import BadConfig


class Settings(Struct, frozen=True, kw_only=True):
    """Limits, and the rules to skip."""

    limits: Limits = Limits()
    ignored_rules: frozenset[str] = frozenset()


DEFAULT_SETTINGS = Settings()


def settings_from(config: Config) -> Settings:
    """Return `[limits]` and `[rules] ignore = [...]`; raise BadConfig at the key that is wrong."""
    where = config.where
    check_names(config.limits, Limits.__struct_fields__, f"{where}: [limits]")
    check_names(config.rules, ("ignore",), f"{where}: [rules]")
    ignored = config.rules.get("ignore", [])
    if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
        raise BadConfig("must be a list of names", where=f"{where}: rules.ignore")
    check_names(ignored, RULE_NAMES, f"{where}: rules.ignore")
    try:
        limits = from_builtins(config.limits, Limits)
    except msgspec.ValidationError as error:
        raise BadConfig(str(error).replace("$.", "limits."), where=where) from error
    return Settings(limits=limits, ignored_rules=frozenset(ignored))
