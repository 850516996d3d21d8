"""The analysis says the same of what the fast reader and the slow, obvious one have read."""

from __future__ import annotations

import msgspec
import pytest

from stepgrade.trace import analyse_trace
from stepgrade.trace.facts import TraceFacts
from tests.trace.changes import without_place
from tests.trace.conftest import SAMPLES, read_sample, sample_names
from tests.trace.slow_reader import read_slowly

SMALL = [
    name for name in sample_names() if (SAMPLES / name).stat().st_size < 150_000 and "merged" not in name
]


def comparable(facts: TraceFacts) -> TraceFacts:
    """Return the facts without the words about the file itself and without its first moment."""
    return msgspec.structs.replace(
        without_place(facts), file="", base_ns=None, file_zero_ns=0, fitness=(), device=None
    )


def places(facts: TraceFacts) -> dict[str, int]:
    """Return where in the file the longest piece of each operation starts."""
    return {op.name: facts.file_zero_ns + op.longest_start_ns for op in facts.operations}


@pytest.mark.samples
@pytest.mark.skipif(not SMALL, reason="the real traces are not beside this clone")
def test_both_readers_give_the_same_facts() -> None:
    for name in SMALL:
        slow, fast = analyse_trace(read_slowly(SAMPLES / name)), analyse_trace(read_sample(name))
        assert comparable(slow) == comparable(fast), name
        assert places(slow) == places(fast), name
