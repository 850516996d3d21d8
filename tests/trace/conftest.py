"""The real traces beside this clone, read once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest

from stepgrade.model.events import Trace
from tests.kineto_traces import read_file
from tests.samples import shared

KINETO = "samples/kineto"


def sample_names() -> list[str]:
    """Return the names of the real traces."""
    return sorted(path.name for path in shared(KINETO).glob("*.json*"))


@lru_cache(maxsize=4)
def read_sample(name: str) -> Trace:
    return read_file(shared(KINETO) / name)[0]


@pytest.fixture
def sample() -> Callable[[str], Trace]:
    """Return a function that reads the one real trace whose name holds a text."""

    def read(part: str) -> Trace:
        return read_sample(next(name for name in sample_names() if part in name))

    return read
