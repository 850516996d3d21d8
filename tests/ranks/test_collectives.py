"""Rates of collectives over the time in which data moved, worked out by hand."""

from __future__ import annotations

import pytest

from stepgrade.hardware.ceilings import Figures
from stepgrade.model.ranks import CollectiveRow, Communication
from stepgrade.ranks.collectives import Arrivals, CollectiveCall, ProcessGroup
from stepgrade.ranks.matching import Matching
from stepgrade.scoring.links import bus_factor, collective_fits, collective_rows

GROUP = ProcessGroup(name="dp", size=2, ranks="[0, 1]")
US = 1000


def call(name: str, size: int) -> CollectiveCall:
    return CollectiveCall(name=name, group=GROUP, bytes=size)


def matched(*of_ranks: list[tuple[CollectiveCall, int, int, int]]) -> Communication:
    """Return what the ranks' calls (each with its step, start and duration) show together."""
    matching = Matching()
    for rank, rows in enumerate(of_ranks):
        matching.add(rank, Arrivals.of(rows))
    found = matching.match([1], 10**9)
    assert found is not None
    return Communication(collectives=found.rates, node_devices=8)


def test_rates_are_over_the_time_from_the_last_arrival() -> None:
    reduce = call("allreduce", 100_000_000)
    links = matched([(reduce, 1, 0, 900 * US)], [(reduce, 1, 400 * US, 500 * US)])
    (row,) = collective_rows(links, Figures())
    assert (row.bytes, row.calls, row.nodes, row.at_least) == (1e8, 1.0, "one", False)
    assert row.ms == pytest.approx(0.7)  # of the mean rank
    assert row.wait_ms == pytest.approx(0.2)
    assert row.algbw_gb_s == pytest.approx(0.1 / 0.0005)  # 100 MB in the 500 µs of the last to arrive
    assert row.busbw_gb_s == row.algbw_gb_s  # of two ranks: 2 (n - 1) / n


def test_sizes_are_distinguishable_and_fitted() -> None:
    rows = [
        (call("_allgather_base", size), 1, place * 10_000 * US, 20 * US + size // 400)
        for place, size in enumerate((1_000_000, 40_000_000, 400_000_000))
    ]
    links = matched(rows, rows)
    assert len(links.collectives) == 3
    (fit,) = collective_fits(links)
    assert fit.latency_us == pytest.approx(20.0, rel=1e-6)
    assert fit.gb_s == pytest.approx(400.0, rel=1e-6)


def test_one_rank_alone_gives_a_bound() -> None:
    one = CollectiveRow(name="allreduce", group="dp", group_size=16, calls=2.0, ms=2.0, bytes=1e8)
    (row,) = collective_rows(Communication(collectives=(one,), node_devices=8), Figures())
    assert (row.at_least, row.nodes, row.wait_ms, row.link_share) == (True, "several", None, None)
    assert row.algbw_gb_s == pytest.approx(100.0)
    assert row.busbw_gb_s == pytest.approx(100.0 * 2 * 15 / 16)


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [
        ("allreduce", 8, 1.75),
        ("_reduce_scatter_base", 8, 0.875),
        ("broadcast", 8, 1.0),
        ("allreduce", None, 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(name: str, ranks: int | None, factor: float) -> None:
    assert bus_factor(name, ranks) == factor


def test_messages_are_split_by_when_the_peer_sent() -> None:
    there = CollectiveCall(name="gloo:send", group=ProcessGroup(), peer=1)
    here = CollectiveCall(name="gloo:recv", group=ProcessGroup(), peer=0)
    matching = Matching()
    matching.add(0, Arrivals.of([(there, 1, 300 * US, 10 * US)]))
    matching.add(1, Arrivals.of([(here, 1, 100 * US, 250 * US)]))
    found = matching.match([1], 10**9)
    assert found is not None
    assert found.matched == 0
    assert [(one.rank, one.wait_ns, one.transfer_ns, one.sent) for one in found.messages] == [
        (0, 0, 0, {1: 1}),
        (1, 200 * US, 50 * US, {}),
    ]


def test_many_groups_alike_are_one_row() -> None:
    """A thousand ranks have hundreds of groups that do the same; the JSON says of how many a row is the mean."""
    groups = [
        CollectiveRow(
            name="allreduce",
            group="dp",
            group_size=4,
            ranks=f"[{4 * place}, {4 * place + 1}, {4 * place + 2}, {4 * place + 3}]",
            calls=2.0,
            ms=4.0 + place,
            wait_ms=1.0,
            moving_ms=2.0,
            bytes=1e6,
        )
        for place in range(5)
    ]
    other = CollectiveRow(name="allreduce", group="tp", group_size=4, calls=1.0, ms=9.0, bytes=1e6)
    rows = collective_rows(Communication(collectives=(other, *groups), node_devices=8), Figures())
    assert [(row.group, row.groups, row.ms) for row in rows] == [("tp", 1, 9.0), ("dp", 5, 6.0)]
    assert (rows[1].calls, rows[1].wait_ms) == (2.0, 1.0)
    assert rows[1].algbw_gb_s == pytest.approx(1.0)  # 2 MB in 2 ms
    few = collective_rows(Communication(collectives=tuple(groups[:4]), node_devices=8), Figures())
    assert [row.groups for row in few] == [1] * 4
