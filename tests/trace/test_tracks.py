"""Tracks of several ranks: which thread is which, and one clock for all of them."""

from __future__ import annotations

import msgspec
import pytest

from stepgrade.model.tracks import RanksTogether
from stepgrade.trace.tracks import RankCollector
from tests.trace_builder import Run, make_trace, play

MS = 1_000_000


def together(*bases_ns: int | None) -> RanksTogether:
    """Return two ranks, whose files begin at these times of their own clocks."""
    collector = RankCollector()
    for number, base_ns in enumerate(bases_ns):
        trace = make_trace(Run(rank=number, world_size=2, reduce_ns=50_000))
        collector.add(msgspec.structs.replace(trace, base_ns=base_ns, file=f"rank{number}.json"))
    return collector.together()


def test_the_thread_that_trains_is_named() -> None:
    threads = [track.name for track in RankCollector().add(make_trace()).tracks if track.kind == "thread"]
    assert sum("(training loop)" in name for name in threads) == 1
    assert len(threads) > 1


def test_ranks_without_a_common_clock_begin_their_first_common_step_together() -> None:
    found = together(None, None)
    begins = []
    for number in (0, 1):
        trace = make_trace(Run(rank=number, world_size=2, reduce_ns=50_000))
        steps = next(one for one in RankCollector().add(trace).tracks if one.kind == "steps")
        begins.append(int(steps.start_ns[0]))
    assert found.ranks == (0, 1)
    assert found.offsets_ns == (0, begins[1] - begins[0])
    assert "share no clock" in found.basis
    assert found.waits == ()


@pytest.mark.parametrize("ahead_ms", [0, 3])
def test_a_wait_ends_when_the_late_rank_arrives(ahead_ms: int) -> None:
    """Of two ranks on one clock, the one that loses 2 ms a step is the one that the other waits for."""
    collector = RankCollector()
    late = play(Run(rank=1, world_size=2, reduce_ns=50_000, delay_ns=2 * MS, kernel_ns=8_000))
    ends = [row[2] + row[3] for row in late.work if row[5] == 13]
    early = play(Run(rank=0, world_size=2, reduce_ns=50_000, sync=True, kernel_ns=8_000), ends)
    for trace in (early.trace(), late.trace()):
        base_ns = (trace.base_ns or 0) - (ahead_ms * MS if trace.rank == 1 else 0)
        collector.add(msgspec.structs.replace(trace, base_ns=base_ns, file=f"{trace.rank}.json"))
    found = collector.together()
    assert found.waits
    assert {(wait.rank, wait.late) for wait in found.waits if wait.dur_ns > MS} == {(0, 1)}
