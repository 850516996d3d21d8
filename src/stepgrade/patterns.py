"""Regular expressions that are compiled at their first use: a small input needs few of them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Pattern:
    """Stands for a pattern; each of its methods is looked up once."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._given), name)
        setattr(self, name, found)
        return found


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what `re.compile` returns, compiled only when it is used."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
