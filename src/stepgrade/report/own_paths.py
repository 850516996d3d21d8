"""Reports to share contain no paths of the machine that wrote them: home, user and mount are removed.

A path is shown from the topmost folder on that has a file in the report: of /home/me/proj/train.py and
/home/me/proj/pkg/model.py that is train.py and pkg/model.py. What is for the user alone, the terminal and the
JSON, keeps whole paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct, structs

_T = TypeVar("_T")
_NOT_INSIDE = r"(?<![\w.~/\\:-])"
# With a file's ending: names of operations begin with a slash as well. The ending is looked for later, so
# that no text takes the square of its length.
_LIKE_A_PATH = re.compile(rf"{_NOT_INSIDE}(?:[A-Za-z]:[\\/]|/)[^\s:*?\"'<>|`(),;]+")
_TO_AN_ENDING = re.compile(r"(?s:.*[^\\/])\.[A-Za-z]\w*")
_WHOLE = re.compile(r"(?:[A-Za-z]:[\\/]|[\\/])[^\n]*\.[A-Za-z]\w*(?::\d+)?")


class OwnPaths:
    """How the paths in a result are shown to others."""

    def __init__(self, result: object) -> None:
        texts: list[str] = []

        def collect(shown: str) -> str:
            if "/" in shown or "\\" in shown:
                texts.append(shown)
            return shown

        _mapped(result, collect)
        folders: set[str] = set()
        for text in texts:
            for name in text.split(", "):
                ends = map(_TO_AN_ENDING.match, _LIKE_A_PATH.findall(name))
                paths = [name] if _WHOLE.fullmatch(name) else [path[0] for path in ends if path]
                folders |= {re.sub(r"[\\/]+[^\\/]*$", "", path) for path in paths}
        folders.discard("")
        tops = [
            one
            for one in folders
            if not any(one.startswith((f"{other}/", f"{other}\\")) for other in folders)
        ]
        escaped = "|".join(re.escape(top) for top in sorted(tops, key=len, reverse=True))
        self._tops = re.compile(rf"{_NOT_INSIDE}(?:{escaped})[\\/]+") if tops else None
        home = os.path.expanduser("~").rstrip("/\\")  # as it is in texts
        self._home = re.compile(rf"{_NOT_INSIDE}{re.escape(home)}(?=[\\/]|$)") if len(home) > 1 else None

    def short(self, shown: str) -> str:
        """Return a text with its paths as others may see them."""
        if "/" not in shown and "\\" not in shown:
            return shown
        shown = self._tops.sub("", shown) if self._tops else shown
        return self._home.sub("~", shown) if self._home else shown

    def without(self, value: _T) -> _T:
        """Return a result, or a part of one, with its texts as others may see them."""
        return _mapped(value, self.short)


def _mapped(value: _T, change: Callable[[str], str]) -> _T:
    """Return a result, or a part of one, with every text in it changed."""
    changed: Any = value
    if isinstance(value, str):
        changed = change(value)
    elif isinstance(value, Struct):
        new = {
            name: _mapped(old, change) for name in value.__struct_fields__ if (old := getattr(value, name))
        }
        new = {name: part for name, part in new.items() if part is not getattr(value, name)}
        changed = structs.replace(value, **new) if new else value
    elif isinstance(value, dict):
        changed = {_mapped(key, change): _mapped(part, change) for key, part in value.items()}
    elif isinstance(value, list | tuple) and not all(isinstance(part, int | float) for part in value):
        parts = [_mapped(part, change) for part in value]
        changed = type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return changed  # type: ignore[no-any-return]


def without_own_paths(result: _T) -> _T:
    """Return a result as it may be passed on."""
    return OwnPaths(result).without(result)
