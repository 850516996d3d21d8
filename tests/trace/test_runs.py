"""Several ranks: who waits for whom, and the times of the slowest chain."""

from __future__ import annotations

import msgspec
import pytest

from stepgrade.model.events import Collective, Trace
from stepgrade.trace import analyse_run
from stepgrade.trace.collectives import Arrival, meet, message_bytes
from stepgrade.trace.run import RunFacts
from tests.trace_builder import COMMUNICATION_STREAM, Run, make_trace, play

MS = 1_000_000


def arrival(start: int, end: int, *, order: int = 0, step: int = 1, group: str = "0") -> Arrival:
    return Arrival(
        name="allreduce", group=group, step=step, order=order, start_ns=start * MS, end_ns=end * MS
    )


def test_before_the_last_arrival_is_waiting_and_after_it_transfer() -> None:
    ranks = {0: [arrival(10, 30)], 1: [arrival(25, 30)], 2: [arrival(12, 31)]}
    found = meet(ranks, {1}, 100 * MS)
    assert found is not None
    waits = {one.rank: (one.wait_ns // MS, one.transfer_ns // MS) for one in found.ranks}
    assert waits == {0: (15, 5), 1: (0, 5), 2: (13, 6)}
    assert found.straggler == 1
    assert found.evidence == (
        "Rank 1 arrives last in 1 of 1 collectives; the others wait 14.0 ms a step for it on average."
    )


def test_collectives_are_matched_by_group_and_order() -> None:
    ranks = {
        0: [arrival(10, 12), arrival(20, 22, order=1), arrival(30, 31, group="tp")],
        1: [arrival(11, 12), arrival(20, 22, order=1), arrival(40, 41, step=2)],
    }
    found = meet(ranks, {1, 2}, 100 * MS)
    assert found is not None
    assert (found.matched, found.unmatched) == (2, 2)


def test_small_waits_make_no_straggler() -> None:
    found = meet({0: [arrival(10, 12)], 1: [arrival(11, 12)]}, {1}, 1000 * MS)
    assert found is not None
    assert found.straggler is None


def test_clocks_that_differ_are_set_right_by_common_ends() -> None:
    late = [arrival(510 + 10 * i, 512 + 10 * i, order=i) for i in range(5)]
    early = [arrival(10 + 10 * i, 12 + 10 * i, order=i) for i in range(5)]
    third = [arrival(10 + 10 * i, 12 + 10 * i, order=i) for i in range(5)]
    found = meet({0: early, 1: late, 2: third}, {1}, 100 * MS)
    assert found is not None
    assert found.clock_offsets_ns == {1: 500 * MS}
    assert found.skew_ns == 0


def test_one_rank_meets_nobody() -> None:
    assert meet({0: [arrival(1, 2)]}, {1}, MS) is None


@pytest.mark.parametrize(
    ("said", "size"),
    [
        (Collective(in_elements=10, out_elements=80, dtype="BFloat16"), 160),
        (Collective(in_elements=10, out_elements=10, dtype="Float"), 40),
        (Collective(in_elements=10, out_elements=10, dtype="Odd"), None),
        (Collective(dtype="Float"), None),
    ],
)
def test_message_bytes(said: Collective, size: int | None) -> None:
    assert message_bytes(said) == size


def rank(number: int) -> Trace:
    return make_trace(Run(rank=number, world_size=2, reduce_ns=50_000))


def delayed_run() -> RunFacts:
    """Return two ranks: the second loses 2 ms of host time in each step, and the first waits for it."""
    late = play(Run(rank=1, world_size=2, reduce_ns=50_000, delay_ns=2 * MS, kernel_ns=8_000))
    ends = [row[2] + row[3] for row in late.work if row[5] == COMMUNICATION_STREAM]
    early = play(Run(rank=0, world_size=2, reduce_ns=50_000, sync=True, kernel_ns=8_000), ends)
    return analyse_run([early.trace(), late.trace()])


def test_a_run_names_its_straggler_and_its_trouble() -> None:
    facts = delayed_run()
    assert facts.meetings is not None
    assert facts.meetings.straggler == 1
    assert facts.notes[0].text.startswith("Rank 1 arrives last in ")
    assert "idle_host" in facts.notes[1].text
    assert [one.rank for one in facts.ranks] == [0, 1]


def test_the_run_is_as_slow_as_its_slowest_chain() -> None:
    facts = delayed_run()
    slow = [step.dur_ns for step in facts.traces[1].steps]
    assert facts.step_ns == pytest.approx(slow, rel=0.02)
    assert [one.wait_ns is not None and one.wait_ns > 1_500_000 for one in facts.ranks] == [True, False]


def test_the_ledger_of_a_run_is_the_sum_of_its_ranks() -> None:
    facts = delayed_run()
    assert facts.ledger is not None
    assert facts.ledger.total_ns == sum(one.ledger.total_ns for one in facts.ranks if one.ledger)


def test_missing_ranks_and_ranks_apart_are_said() -> None:
    codes = {one.code for one in analyse_run([rank(0)]).fitness}
    assert codes == {"ranks_missing"}
    apart = make_trace(Run(rank=1, world_size=2, first_step=50))
    assert {one.code for one in analyse_run([rank(0), apart]).fitness if one.fatal} == {"ranks_apart"}
    later = msgspec.structs.replace(rank(1), base_ns=(rank(1).base_ns or 0) + 10_000 * MS)
    assert "started_apart" in {one.code for one in analyse_run([rank(0), later]).fitness}


def test_ranks_without_numbers_get_their_place() -> None:
    traces = [msgspec.structs.replace(rank(number), rank=None) for number in (0, 1)]
    facts = analyse_run(traces)
    assert [one.rank for one in facts.ranks] == [0, 1]
    assert "in the order of the files" in facts.notes[0].text


def test_ranks_of_one_merged_file_share_its_clock() -> None:
    traces = [msgspec.structs.replace(rank(number), base_ns=None) for number in (0, 1)]
    assert analyse_run(traces).meetings is not None
    named = [msgspec.structs.replace(one, file=f"{place}.json") for place, one in enumerate(traces)]
    assert analyse_run(named).meetings is None
