"""Where a run stands: ceilings, long tails, groups of ranks."""

from __future__ import annotations

import pytest

import stepgrade as sg
from stepgrade.hardware.setup import Setup
from stepgrade.model.operations import Operation
from stepgrade.model.profile import RankRow
from stepgrade.scoring.charts import grouped, standings, tail_of
from tests.builders import make_profile


def test_the_share_of_every_ceiling() -> None:
    setup = Setup(peak_bw_gb_s=1.0, bytes_per_token=1e6, peak_tflops=1.0, flops_per_token=0.5e9)
    card = sg.score(make_profile(), throughput_tok_s=500.0, setup=setup)
    found = standings(card)
    assert [(one.ceiling.kind, one.counts) for one in found] == [("memory", True), ("compute", False)]
    assert [one.share for one in found] == pytest.approx([0.5, 0.25])


def test_several_devices_share_the_rate() -> None:
    setup = Setup(peak_bw_gb_s=1.0, bytes_per_token=1e6, devices=2)
    card = sg.score(make_profile(), throughput_tok_s=500.0, setup=setup)
    assert [one.share for one in standings(card)] == pytest.approx([0.25])


def test_without_a_rate_ceilings_have_no_share() -> None:
    card = sg.score(make_profile(), peak_bw_gb_s=1.0, bytes_per_token=1e6)
    assert [one.share for one in standings(card)] == [None]


def test_the_tail_is_summed_up() -> None:
    ops = tuple(Operation(name=str(n), ms=2.0, share=0.1) for n in range(5))
    tail = tail_of(ops, 3)
    assert tail is not None
    assert (tail.count, tail.ms, tail.share) == (2, 4.0, pytest.approx(0.2))
    assert tail_of(ops, 5) is None


def test_groups_name_the_greatest_and_cover_all() -> None:
    ranks = [RankRow(rank=n, ledger=None, step_ms=float(n % 5), wait_ms=None) for n in range(10)]
    groups = grouped(ranks, lambda row: row.step_ms, 3)
    assert [(one.first, one.last, one.rank) for one in groups] == [(0, 3, 3), (4, 7, 4), (8, 9, 9)]
    least = grouped(ranks, lambda row: row.step_ms, 3, least_counts=True)
    assert [(one.rank, one.value) for one in least] == [(0, 0.0), (5, 0.0), (8, 3.0)]
    assert grouped(ranks, lambda row: row.wait_ms, 3) == ()
