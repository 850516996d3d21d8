"""The analysis says the same of what the fast reader and the slow, obvious one have read."""

from __future__ import annotations

import msgspec
import pytest

from stepgrade.ranks.packed_ranks import RankProfile
from stepgrade.trace.profile import analyse_rank
from tests.kineto_traces import KINETO, read_sample, sample_names
from tests.samples import shared
from tests.timeline.changes import without_place
from tests.trace.slow_reader import read_slowly


def comparable(rank: RankProfile) -> RankProfile:
    """Return the rank without the words about the file itself and without its first moment."""
    plain = without_place(rank)
    activity = plain.profile.activity
    assert activity is not None
    # Lines are of Python frames, which the slow reader leaves out; tests/timeline/test_frames.py has them.
    waits = tuple(msgspec.structs.replace(wait, line=None) for wait in activity.waits)
    loop = activity.loop and msgspec.structs.replace(activity.loop, line=None)
    # Where no call or operation does, a frame says what the host was in.
    stalls = tuple(msgspec.structs.replace(row, cause="", inside=None) for row in activity.stalls)
    activity = msgspec.structs.replace(activity, lines={}, waits=waits, loop=loop, stalls=stalls)
    profile = msgspec.structs.replace(
        plain.profile,
        source=None,
        recorded=None,
        contents={},
        warnings=(),
        device=None,
        activity=activity,
        operations=tuple(
            msgspec.structs.replace(op, where=None, kernels=()) for op in plain.profile.operations
        ),
        memory=None,  # the slow reader does not read it
        peak_memory_bytes=None,
        modules=tuple(msgspec.structs.replace(module, memory_bytes=None) for module in plain.profile.modules),
        views=(),
        kernel_use=None,  # nor how kernels were launched
    )
    return msgspec.structs.replace(plain, profile=profile, base_ns=None)


def places(rank: RankProfile) -> dict[str, int]:
    """Return where in the file the longest piece of each operation starts."""
    return {op.name: op.longest.start_ns for op in rank.profile.operations if op.longest}


@pytest.mark.samples
def test_both_readers_give_the_same_facts() -> None:
    folder = shared(KINETO)
    small = [
        name for name in sample_names() if (folder / name).stat().st_size < 150_000 and "merged" not in name
    ]
    assert small
    for name in small:
        slow, fast = analyse_rank(read_slowly(folder / name)), analyse_rank(read_sample(name))
        assert comparable(slow) == comparable(fast), name
        assert places(slow) == places(fast), name
