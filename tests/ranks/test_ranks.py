"""Several ranks: who waits for whom, and the times of the slowest chain."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.model.activity import Straggler
from stepgrade.model.events import Collective, Trace
from stepgrade.model.profile import Profile
from stepgrade.model.scorecard import Scorecard
from stepgrade.ranks.collectives import Arrivals, CollectiveCall, ProcessGroup, message_bytes
from stepgrade.ranks.matching import MatchedCollectives, Matching
from stepgrade.ranks.packed_ranks import PackedRank, RankProfile
from stepgrade.ranks.ranks import join_recordings, merge_ranks
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.intervals import Spans
from stepgrade.trace.profile import analyse_rank, profile_of_traces
from tests.trace_builder import COMMUNICATION_STREAM, Run, make_trace, play

MS = 1_000_000


Row = tuple[CollectiveCall, int, int, int]
Pairs = list[tuple[int, int]]


def arrival(start: int, end: int, *, step: int = 1, group: str = "0", size: int = 0, ranks: str = "") -> Row:
    call = CollectiveCall(name="allreduce", group=ProcessGroup(name=group, size=size, ranks=ranks))
    return call, step, start * MS, (end - start) * MS


def match_collectives(
    of_ranks: dict[int, list[Row]], steps: set[int], total_ns: int
) -> MatchedCollectives | None:
    matching = Matching()
    for rank, rows in sorted(of_ranks.items()):
        matching.add(rank, Arrivals.of(rows))
    return matching.match(sorted(steps), total_ns)


def test_before_the_last_arrival_is_waiting() -> None:
    ranks = {0: [arrival(10, 30)], 1: [arrival(25, 30)], 2: [arrival(12, 31)]}
    found = match_collectives(ranks, {1}, 100 * MS)
    assert found is not None
    assert {one.rank: one.wait_ns // MS for one in found.ranks} == {0: 15, 1: 0, 2: 13}
    assert {one.rank: one.caused_ns // MS for one in found.ranks} == {0: 0, 1: 14, 2: 0}
    assert found.straggler is None  # some rank is always last: once says nothing
    steps = range(1, 6)
    often = {
        rank: [arrival(row[2] // MS, 30, step=step) for step in steps for row in rows]
        for rank, rows in ranks.items()
    }
    found = match_collectives(often, set(steps), 500 * MS)
    assert found is not None
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.last, found.straggler.caused_ns) == (1, 5, 70 * MS)


def late_in_turn(is_late: list[bool], waits_ms: list[int]) -> MatchedCollectives | None:
    """Return what two ranks show of which the second, or else the first, is late by these times."""
    rows: dict[int, list[Row]] = {0: [], 1: []}
    for step, (late, wait) in enumerate(zip(is_late, waits_ms, strict=True)):
        begin = 1000 * step
        for rank, own in rows.items():
            own.append(arrival(begin + (wait if late == (rank == 1) else 0), begin + wait + 1, step=step))
    return match_collectives(rows, set(range(len(is_late))), 1000 * len(is_late) * MS)


@pytest.mark.parametrize(
    ("is_late", "waits_ms", "straggler"),
    [
        ([True, False] * 49 + [True, True], [100] * 100, None),  # 51 of 100
        ([True] * 12 + [False] * 8, [100] * 20, None),
        ([True] * 18 + [False] * 2, [100] * 20, 1),
        ([False] * 6, [100] * 6, 0),
        ([True, False] * 9 + [True], [900, 1] * 9 + [900], 1),  # 10 of 19, but all of the waiting
        ([True, False] * 20, [900] + [90] * 39, None),  # one long wait
    ],
)
def test_a_straggler_is_more_than_chance(
    is_late: list[bool], waits_ms: list[int], straggler: int | None
) -> None:
    found = late_in_turn(is_late, waits_ms)
    assert found is not None
    assert (found.straggler.rank if found.straggler else None) == straggler


def test_collectives_are_matched_by_group_and_order() -> None:
    ranks = {
        0: [arrival(10, 12), arrival(20, 22), arrival(30, 31, group="tp")],
        1: [arrival(11, 12), arrival(20, 22), arrival(40, 41, step=2)],
    }
    found = match_collectives(ranks, {1, 2}, 100 * MS)
    assert found is not None
    assert found.matched == 2


def test_small_waits_make_no_straggler() -> None:
    found = match_collectives({0: [arrival(10, 12)], 1: [arrival(11, 12)]}, {1}, 1000 * MS)
    assert found is not None
    assert found.straggler is None


def test_clocks_that_differ_are_set_right_by_common_ends() -> None:
    late = [arrival(510 + 10 * i, 512 + 10 * i) for i in range(5)]
    early = [arrival(10 + 10 * i, 12 + 10 * i) for i in range(5)]
    third = [arrival(10 + 10 * i, 12 + 10 * i) for i in range(5)]
    found = match_collectives({0: early, 1: late, 2: third}, {1}, 100 * MS)
    assert found is not None
    assert found.clock_offsets_ns == {1: 500 * MS}
    assert found.skew_ns == 0


def test_of_an_even_number_of_clocks_the_middle_lies_between_two() -> None:
    ahead = [arrival(14 + 10 * i, 16 + 10 * i) for i in range(5)]
    behind = [arrival(10 + 10 * i, 12 + 10 * i) for i in range(5)]
    found = match_collectives({0: behind, 1: ahead, 2: ahead, 3: behind}, {1}, 100 * MS)
    assert found is not None
    assert found.clock_offsets_ns == {0: -2 * MS, 1: 2 * MS, 2: 2 * MS, 3: -2 * MS}


def test_one_rank_meets_nobody() -> None:
    assert match_collectives({0: [arrival(1, 2)]}, {1}, MS) is None


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


def straggler_of(profile: Profile) -> Straggler | None:
    return profile.activity.straggler if profile.activity else None


def skew_of(profile: Profile) -> float | None:
    return profile.activity.skew_ms if profile.activity else None


def rank(number: int) -> Trace:
    return make_trace(Run(rank=number, world_size=2, reduce_ns=50_000))


def delayed_ranks() -> list[RankProfile]:
    """Return two ranks: the second loses 2 ms of host time in each step, and the first waits for it."""
    late = play(Run(rank=1, world_size=2, reduce_ns=50_000, delay_ns=2 * MS, kernel_ns=8_000))
    ends = [row[2] + row[3] for row in late.work if row[5] == COMMUNICATION_STREAM]
    early = play(Run(rank=0, world_size=2, reduce_ns=50_000, sync=True, kernel_ns=8_000), ends)
    return [analyse_rank(early.trace()), analyse_rank(late.trace())]


def test_a_run_names_its_straggler_and_its_trouble() -> None:
    profile = merge_ranks(delayed_ranks())
    straggler = straggler_of(profile)
    assert straggler is not None
    assert (straggler.rank, straggler.trouble) == (1, "idle_host")
    assert profile.notes[0].text.startswith("Rank 1 arrives last in ")
    assert f"the others wait {straggler.caused_ms:.1f} ms a step for it" in profile.notes[0].text
    assert "waits for the host for" in profile.notes[1].text
    assert [one.rank for one in profile.ranks] == [0, 1]


def test_the_run_is_as_slow_as_its_slowest_chain() -> None:
    ranks = delayed_ranks()
    profile = merge_ranks(ranks)
    slow = [step.dur_ns / MS for step in ranks[1].steps if step.steady]
    assert profile.samples_ms == pytest.approx(slow, rel=0.02)
    assert [one.wait_ms is not None and one.wait_ms > 1.5 for one in profile.ranks] == [True, False]


def test_the_ledger_of_a_run_is_the_sum_of_its_ranks() -> None:
    profile = merge_ranks(delayed_ranks())
    assert profile.ledger is not None
    assert profile.ledger.total == sum(one.ledger.total for one in profile.ranks if one.ledger)


def test_missing_ranks_and_ranks_apart_are_said() -> None:
    codes = {note.code for note in profile_of_traces([rank(0)]).warnings}
    assert codes == {"ranks_missing"}
    apart = make_trace(Run(rank=1, world_size=2, first_step=50))
    assert {note.code for note in profile_of_traces([rank(0), apart]).unfit} == {"ranks_apart"}
    later = msgspec.structs.replace(rank(1), base_ns=(rank(1).base_ns or 0) + 10_000 * MS)
    assert "started_apart" in {note.code for note in profile_of_traces([rank(0), later]).warnings}


def test_ranks_without_numbers_get_their_place() -> None:
    traces = [msgspec.structs.replace(rank(number), rank=None) for number in (0, 1)]
    profile = profile_of_traces(traces)
    assert [one.rank for one in profile.ranks] == [0, 1]
    assert "in file order" in profile.notes[0].text


def test_ranks_of_one_merged_file_share_its_clock() -> None:
    traces = [msgspec.structs.replace(rank(number), base_ns=None) for number in (0, 1)]
    assert skew_of(profile_of_traces(traces)) is not None
    named = [msgspec.structs.replace(one, file=f"{place}.json") for place, one in enumerate(traces)]
    assert skew_of(profile_of_traces(named)) is None


def test_what_several_ranks_say_is_said_once() -> None:
    traces = [msgspec.structs.replace(rank(number), lost=("an event", "the end")) for number in (0, 1)]
    texts = [str(note) for note in profile_of_traces(traces).warnings if note.code == "truncated"]
    assert texts == ["an event (The same on 1 more rank.)", "the end (The same on 1 more rank.)"]


def test_the_figures_of_a_run_are_those_of_its_mean_rank() -> None:
    ranks = delayed_ranks()
    first, second = (one.profile for one in ranks)
    merged = merge_ranks(ranks)
    for op in merged.operations:
        own = [one.ms for profile in (first, second) for one in profile.operations if one.name == op.name]
        assert op.ms == pytest.approx(sum(own) / 2)
    assert merged.activity
    assert first.activity
    assert second.activity
    kernels = [one.kernels for one in (first.activity, second.activity, merged.activity) if one.kernels]
    assert kernels[2].ms == pytest.approx((kernels[0].ms + kernels[1].ms) / 2)
    assert [copy.calls for copy in merged.activity.copies] == [copy.calls for copy in first.activity.copies]


def test_what_some_ranks_say_names_them() -> None:
    def said(*damaged: int) -> list[str]:
        ranks = [rank(number) for number in range(8)]
        for number in damaged:
            ranks[number] = msgspec.structs.replace(ranks[number], lost=(f"event {number}",))
        card = sg.score(profile_of_traces(ranks))
        again = Scorecard.from_json(card.to_json())
        assert again.fitness == card.fitness
        return [str(note) for note in card.fitness if note.code == "lost"]

    assert said() == []
    assert said(3) == ["lost in reading: event 3 (on rank 3)"]
    assert said(3, 5) == ["lost in reading: event 3 (on rank 3; similar on 1 more: 5)"]
    assert said(1, 2, 3, 4) == ["lost in reading: event 1 (on rank 1; similar on 3 more: 2, 3, 4)"]
    assert said(*range(1, 8)) == ["lost in reading: event 1 (on rank 1; similar on 6 more: 2, 3, 4, …)"]
    assert said(*range(8)) == ["lost in reading: event 0 (The same on 7 more ranks.)"]


def test_groups_are_distinguishable_by_name_size_and_ranks() -> None:
    """Kineto lists the first 30 ranks of a group: of two that begin alike the size may be all that differs."""
    cut = "[0, 1, 2, ...]"
    large, small = (
        {"group": "0", "size": 64, "ranks": cut},
        {"group": "0", "size": 32, "ranks": cut},
    )
    ranks = {
        0: [arrival(10, 12, **large), arrival(20, 22, **small)],
        1: [arrival(11, 12, **large)],
        2: [arrival(19, 22, **small)],
    }
    found = match_collectives(ranks, {1}, 100 * MS)
    assert found is not None
    assert found.matched == 2


def test_ranks_with_different_collectives_meet_in_those_they_share() -> None:
    """A rank whose list is longer, or has others in between, still meets the others where they meet."""
    ranks = {
        0: [arrival(10, 12), arrival(20, 22, step=2), arrival(30, 33, step=3)],
        1: [arrival(11, 12), arrival(31, 33, step=3), arrival(32, 33, step=3)],
        2: [arrival(12, 12, group="1")],
    }
    found = match_collectives(ranks, {1, 2, 3}, 100 * MS)
    assert found is not None
    assert found.matched == 2
    assert {one.rank for one in found.ranks} == {0, 1}


@given(st.data())
def test_matching_in_blocks_is_what_the_obvious_loops_give(data: st.DataObject) -> None:
    """Who waited for whom, by loops over ranks and collectives as one would write them down."""
    starts = data.draw(
        st.lists(st.lists(st.integers(0, 400), min_size=5, max_size=5), min_size=2, max_size=5), "starts"
    )
    missing = data.draw(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4))), "missing")
    of_ranks = {
        rank: [
            (CollectiveCall(name="r", group=ProcessGroup()), step, at, 500 - at)
            for step, at in enumerate(line)
            if (rank, step) not in missing
        ]
        for rank, line in enumerate(starts)
    }
    waits: dict[int, int] = {}
    met = 0
    for step in range(5):
        there = {rank: row[2] for rank, rows in of_ranks.items() for row in rows if row[1] == step}
        met += len(there) > 1
        for rank, at in there.items() if len(there) > 1 else ():
            waits[rank] = waits.get(rank, 0) + max(there.values()) - at
    for block_rows in (1, 1 << 22):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stepgrade.ranks.matching._BLOCK_ROWS", block_rows)
            found = match_collectives(of_ranks, set(range(5)), MS)
        assert (found.matched if found else 0) == met
        assert {one.rank: one.wait_ns for one in found.ranks} == waits if found else waits == {}


@given(st.data())
def test_messages_in_columns_are_what_the_obvious_loops_give(data: st.DataObject) -> None:
    """Each rank sends to others in some steps; what was recorded of one side only counts for nobody."""
    rank, step = st.integers(0, 3), st.integers(0, 2)
    sent = data.draw(st.lists(st.tuples(rank, rank, step, st.integers(0, 400)), max_size=12), "sent")
    unseen = data.draw(st.sets(st.integers(0, 11)), "unseen on the receiving side")
    of_ranks: dict[int, list[Row]] = {one: [] for one in range(4)}
    waits = {source: [0, 0] for source, _, at_step, _ in sent if at_step < 2}
    unmatched = {sent[place][:3] for place in unseen if place < len(sent)}
    for place, (source, target, at_step, at) in enumerate(sent):
        group = ProcessGroup()
        of_ranks[source].append(
            (CollectiveCall(name="send", group=group, peer=target), at_step, at * MS, 10 * MS)
        )
        if place in unseen:
            continue
        there = CollectiveCall(name="recv", group=group, peer=source)
        of_ranks[target].append((there, at_step, 200 * MS, 50 * MS))
        if at_step < 2 and (source, target, at_step) not in unmatched:
            wait = min(max(at - 200, 0), 50) * MS
            pair = waits.setdefault(target, [0, 0])
            pair[0] += wait
            pair[1] += 50 * MS - wait
    for block_rows in (1, 1 << 22):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stepgrade.ranks.matching._BLOCK_ROWS", block_rows)
            found = match_collectives(of_ranks, {0, 1}, MS)
        messages = found.messages if found else ()
        assert {one.rank: [one.wait_ns, one.transfer_ns] for one in messages} == waits
        for one in messages:
            to = [target for source, target, at_step, _ in sent if source == one.rank and at_step < 2]
            assert one.sent == {target: to.count(target) for target in to}


def test_times_that_need_64_bits_are_kept_exactly() -> None:
    """One rank stops for an hour in between: what is kept in 32 bits of the others is not of it."""
    hour = 3_600_000
    early = [arrival(10, 12), arrival(20, 20 + hour), arrival(hour + 30, hour + 32)]
    late = [arrival(11, 12), arrival(hour + 19, hour + 20), arrival(hour + 31, hour + 32)]
    found = match_collectives({0: early, 1: late, 2: early}, {1}, 100 * MS)
    assert found is not None
    assert {one.rank: one.wait_ns for one in found.ranks} == {0: hour * MS + MS, 1: 0, 2: hour * MS + MS}


def test_packed_ranks_give_the_same_run_bit_for_bit() -> None:
    ranks = delayed_ranks()
    packed = [PackedRank.of(one) for one in ranks]
    assert [one.unpacked() for one in packed] == ranks
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=list[PackedRank])
    assert merge_ranks(sent) == merge_ranks(ranks)
    assert sum(len(one.body) for one in sent) < 20_000


def test_ranks_are_the_same_run_in_whatever_order_they_come() -> None:
    ranks = delayed_ranks()
    forth, back = merge_ranks(ranks), merge_ranks(ranks[::-1])
    assert msgspec.structs.replace(back, source=forth.source) == forth


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=6)


@given(st.lists(st.tuples(SPANS, SPANS), min_size=2, max_size=4))
def test_waiting_alone_is_counted_nanosecond_by_nanosecond(ranks: list[tuple[Pairs, Pairs]]) -> None:
    matching = Matching()
    exposed: dict[int, set[int]] = {}
    for rank, (rows, alone) in enumerate(ranks):
        calls = [(arrival(0, 0)[0], 1, start, dur) for start, dur in sorted(rows)]
        matching.add(rank, Arrivals.of(calls))
        exposed[rank] = {at for start, dur in alone for at in range(start, start + dur)}
    found = matching.match(
        [1],
        100,
        lambda rank: iv.union(*np.array([(at, at + 1) for at in sorted(exposed[rank])] or [(0, 0)]).T),
    )
    expected = {}
    for rank, (rows, _) in enumerate(ranks):
        waiting: set[int] = set()
        for index, (start, dur) in enumerate(sorted(rows)):
            starts = [sorted(own)[index][0] for own, _ in ranks if index < len(own)]
            if len(starts) > 1:
                waiting.update(range(start, min(max(starts), start + dur)))
        expected[rank] = len(waiting & exposed[rank])
    assert (found.waited_alone_ns if found else {}) == (expected if found else {})


def test_a_message_that_was_not_sent_yet_is_waited_for() -> None:
    group = ProcessGroup(name="pp", size=2)
    send = CollectiveCall(name="send", group=group, peer=1), 1, 50 * MS, 4 * MS
    receive = CollectiveCall(name="recv", group=group, peer=0), 1, 10 * MS, 45 * MS
    matching = Matching()
    matching.add(0, Arrivals.of([send]))
    matching.add(1, Arrivals.of([receive]))
    alone = Spans(np.array([30 * MS]), np.array([55 * MS]))
    found = matching.match([1], 100 * MS, lambda _: alone)
    assert found is not None
    assert found.waited_alone_ns == {0: 0, 1: 20 * MS}


def recordings(*lengths: int) -> list[Trace]:
    """Return recordings of one process: each counts its steps from the same number, and begins later."""
    traces = []
    for number, steps in enumerate(lengths):
        trace = make_trace(Run(rank=0, steps=steps, kernel_ns=60_000 * (number + 1)))
        base_ns = (trace.base_ns or 0) + number * 1000 * MS
        traces.append(
            msgspec.structs.replace(trace, base_ns=base_ns, process="host 1", file=f"{number}.json")
        )
    return traces


def test_recordings_of_one_process_keep_all_their_steps() -> None:
    ranks = [analyse_rank(trace) for trace in recordings(4, 4, 6)]
    (joined,) = join_recordings(ranks)
    steps = joined.unpacked().steps
    assert len(steps) == sum(len(rank.steps) for rank in ranks)
    numbers = [step.number for step in steps]
    assert numbers == sorted(set(numbers))
    assert [step.start_ns for step in steps] == sorted(step.start_ns for step in steps)


def test_operations_of_recordings_are_the_mean_of_their_steps() -> None:
    ranks = [analyse_rank(trace) for trace in recordings(4, 8)]
    (joined,) = join_recordings(ranks)
    profiles = [rank.profile for rank in ranks]
    steps = sum(profile.steps or 0 for profile in profiles)
    assert steps
    for op in joined.unpacked().profile.operations:
        totals = [
            (one.ms or 0.0) * (profile.steps or 0)
            for profile in profiles
            for one in profile.operations
            if one.name == op.name
        ]
        assert op.ms == pytest.approx(sum(totals) / steps)
        assert op.ms
