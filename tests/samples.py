"""Real files that are not part of this repository: where they are, and which tests may read them.

They lie in a folder `shared` beside a clone. A test that reads them is marked `samples`, and `tests/conftest.py`
skips what is so marked where they are absent; nobody else asks whether they are there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

_SHARED = Path(__file__).resolve().parents[2] / "shared"
ARE_HERE = (_SHARED / "samples" / "INDEX.tsv").is_file()  # a folder of this name may be anybody's

reader_is_marked = False  # of the test that runs; set by tests/conftest.py


def shared(path: str) -> Path:
    """Return a file or folder of the samples, to a test that is marked `samples`."""
    assert reader_is_marked, (
        "mark this test with pytest.mark.samples: it reads what is not in this repository"
    )
    return _SHARED / path


def each_of(*patterns: str) -> list[Any]:
    """Return a parameter for each file of the samples that a pattern matches; where they are absent, one that is skipped."""
    if not ARE_HERE:
        return [pytest.param(None, id="absent", marks=pytest.mark.samples)]
    found = sorted(path for pattern in patterns for path in _SHARED.glob(pattern))
    assert found, patterns
    return [pytest.param(path, id=path.name, marks=pytest.mark.samples) for path in found]
