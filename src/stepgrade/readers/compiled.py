"""The compiled library, where the installed package has one that this version can use."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctypes import CDLL

VERSION = 1  # of the interface, as in lane/lib.rs
PURE = "STEPGRADE_PURE"
_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
LIBRARY = os.path.join(os.path.dirname(__file__), "native", f"lane{_SUFFIX}")


@lru_cache(maxsize=1)
def _load(path: str) -> CDLL | None:
    if not os.path.exists(path):
        return None
    try:
        import ctypes  # numpy has loaded it; not every Python has it

        library = ctypes.CDLL(path)
        library.stepgrade_version.restype = ctypes.c_uint32
        return library if library.stepgrade_version() == VERSION else None
    except (ImportError, OSError, AttributeError):  # of another platform, or of another version
        return None


def load() -> CDLL | None:
    """Return the library; None without one, or if STEPGRADE_PURE is set."""
    return None if os.environ.get(PURE, "0") not in {"", "0"} else _load(LIBRARY)
