"""Limits from the text of a stepgrade.toml; what it misspells is refused with the nearest name."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from stepgrade.analysis.limits import Limits
from stepgrade.errors import BadInput

FILE_NAME = "stepgrade.toml"


class Settings(Struct, frozen=True, kw_only=True):
    """What a stepgrade.toml says: limits that differ, and rules that are not to be asked."""

    limits: Limits = Limits()
    ignored_rules: frozenset[str] = frozenset()


DEFAULT_SETTINGS = Settings()


def settings_from(text: str, rules: tuple[str, ...], where: str = FILE_NAME) -> Settings:
    """Read `[limits]` and `[rules] ignore = [...]`; raise BadInput at the key that is wrong."""
    from stepgrade.config import TABLES, decode_toml  # noqa: PLC0415  only with a file

    document = decode_toml(text, where)
    _known(document, TABLES, where)
    chosen, asked = _table(document, "limits", where), _table(document, "rules", where)
    _known(chosen, Limits.__struct_fields__, f"{where}: [limits]")
    _known(asked, ("ignore",), f"{where}: [rules]")
    return Settings(limits=_limits(chosen, where), ignored_rules=_ignored(asked, rules, where))


def _table(document: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise BadInput("must be a table", where=f"{where}: {name}")
    return table


def _limits(chosen: dict[str, Any], where: str) -> Limits:
    figures = {name: float(value) if _is_whole(name, value) else value for name, value in chosen.items()}
    try:
        return msgspec.convert(figures, Limits)
    except msgspec.ValidationError as error:
        raise BadInput(str(error).replace("$.", "limits."), where=where) from error


def _is_whole(name: str, value: object) -> bool:
    """Tell whether a whole number was written where a number with digits is meant."""
    return type(value) is int and isinstance(getattr(Limits(), name), float)


def _ignored(asked: dict[str, Any], rules: tuple[str, ...], where: str) -> frozenset[str]:
    names = asked.get("ignore", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput("must be a list of names", where=f"{where}: rules.ignore")
    _known(dict.fromkeys(names), rules, f"{where}: rules.ignore")
    return frozenset(names)


def _known(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise BadInput for the first name that is not known, with the nearest that is."""
    from difflib import get_close_matches  # noqa: PLC0415  only with a file

    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)
            raise BadInput(f"nothing is called {name!r}", where=where, hint=f"the nearest is {near[0]}")
