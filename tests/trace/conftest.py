"""The real traces beside this clone, read once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from stepgrade.model.events import Trace
from tests.kineto_traces import read_file

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "kineto"


def sample_names() -> list[str]:
    """Return the names of the real traces, none if they are not there."""
    return sorted(path.name for path in SAMPLES.glob("*.json*")) if SAMPLES.is_dir() else []


@lru_cache(maxsize=4)
def read_sample(name: str) -> Trace:
    return read_file(SAMPLES / name)[0]


@pytest.fixture
def sample() -> Callable[[str], Trace]:
    """Return a function that reads the one real trace whose name holds a text."""

    def read(part: str) -> Trace:
        found = [name for name in sample_names() if part in name]
        if not found:
            pytest.skip("the real traces are not beside this clone")
        return read_sample(found[0])

    return read
