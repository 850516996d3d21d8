"""The fields of a model's config.json, each checked as it is read."""

from __future__ import annotations

from typing import Any

from stepgrade.errors import BadInput

# The largest published models stay a hundredfold below this.
MOST_WIDE = 10_000_000
_MISSING: Any = object()


class Fields:
    """The fields of one config, with their path in the file."""

    def __init__(self, values: dict[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def whole(
        self, *names: str, default: int | None = _MISSING, most: int = MOST_WIDE, least: int = 1
    ) -> int:
        """Return the first of `names` that is there as a whole number; `default` when none is."""
        present = [name for name in names if name in self._values]
        name = next((name for name in present if self.has(name)), present[0] if present else None)
        value = self._values.get(name) if name else None
        if value is None and default is not _MISSING and default is not None:
            return default
        if value is None:
            raise self.refuse(names[0], "is missing" if name is None else "is null")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, f"must be a whole number, not {_shown(value)}")
        if not least <= value <= most:
            raise self.refuse(name, f"must be between {least:,} and {most:,}, not {value:,}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false, or `default` when it is absent."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, f"must be true or false, not {_shown(value)}")
        return value

    def text(self, name: str) -> str | None:
        """Return a text, or None when it is absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refuse(name, f"must be a text, not {_shown(value)}")
        return value

    def number(self, name: str, default: float, *, allows_zero: bool = False) -> float:
        """Return a positive number (or 0 where that makes sense), or `default` when it is absent."""
        value = self._values.get(name)
        if value is None:
            return default
        if allows_zero and value == 0 and not isinstance(value, bool):
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MOST_WIDE:
            raise self.refuse(name, f"must be a positive number, not {_shown(value)}")
        return float(value)

    def sequence(self, name: str) -> list[Any] | None:
        """Return a list, or None when it is absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.refuse(name, f"must be a list, not {_shown(value)}")
        return value

    def inner(self, name: str, defaults: dict[str, Any] | None = None) -> Fields | None:
        """Return the fields of an object inside this one over `defaults`, or None when it is absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, f"must be an object, not {_shown(value)}")
        return Fields({**(defaults or {}), **value}, f"{self._prefix}{name}.")

    def declares(self, name: str) -> bool:
        """Return whether a field is there, null or not."""
        return name in self._values

    def has(self, name: str) -> bool:
        """Return whether a field is there and not null."""
        return self._values.get(name) is not None

    def divides(self, part: int, whole: int, name: str, what: str) -> int:
        """Return whole / part; raise at field `name` if there is a remainder."""
        if whole % part:
            raise self.refuse(name, f"{part:,} does not divide {what} {whole:,}")
        return whole // part

    def refuse(self, name: str | None, problem: str) -> BadInput:
        """Return an error at field `name`."""
        return BadInput(problem, where=f"{self._prefix}{name}")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, (dict, list)) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."
