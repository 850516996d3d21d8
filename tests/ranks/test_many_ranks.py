"""Planted faults are named as what they are: a rank, a host, a stage, a link, or somebody else in each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.model.ledger import ACCOUNTS, Ledger
from stepgrade.model.profile import Source
from stepgrade.model.ranks import ManyRanks
from stepgrade.ranks.collectives import Arrivals, CollectiveCall, ProcessGroup
from stepgrade.ranks.packed_ranks import RankProfile, RankStep
from stepgrade.ranks.ranks import merge_ranks
from stepgrade.readers.ranks import read_ranks
from stepgrade.trace.profile import analyse_rank
from stepgrade.units import show_numbers
from tests.cluster import BASE_NS, US, Planned, simulate, write_ranks

MESH = {"world": 32, "tensor": 4, "pipeline": 2, "steps": 4}


def told(
    tmp_path: Path, name: Callable[[int], str] = "rank{}.json".format, **planned: object
) -> tuple[ManyRanks, set[str]]:
    write_ranks(tmp_path, Planned(**planned), name)  # type: ignore[arg-type]
    profile = sg.load(tmp_path, engine="here")
    assert profile.many_ranks is not None
    return profile.many_ranks, {note.code for note in profile.notes if note.code.startswith("slow_")}


@pytest.mark.parametrize(
    ("fault", "kind", "ranks"),
    [
        ({"slow_rank": 13}, "rank", "13"),
        ({"slow_host": 2}, "host", "16, 17, 18, 19, 20, 21, 22, 23"),
        ({"slow_stage": 1}, "stage", "16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31"),
        ({"slow_link": 1}, "link", "1, 5, 9, 13"),
        (
            {"slow_hosts": range(1, 3)},
            "hosts",
            "8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23",
        ),
        (
            {"slow_switch": range(2, 4)},
            "switch",
            "16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
        ),
        ({"slow_ranks": range(8, 12)}, "neighbours", "8, 9, 10, 11"),
    ],
)
def test_planted_faults_are_named(tmp_path: Path, fault: dict[str, int], kind: str, ranks: str) -> None:
    many, codes = told(tmp_path, **MESH, **fault)
    assert [(part.kind, part.ranks) for part in many.slow] == [(kind, ranks)]
    assert codes == {f"slow_{kind}"}
    if kind not in ("link", "switch"):
        assert many.slow[0].always == 1.0
        assert many.slow[0].slower > 0.3
    assert (many.ranks, many.hosts, many.per_host) == (32, 4, 8)
    assert {one.dimension: (one.groups, one.size) for one in many.groups} == {
        "tensor": (8, 4),
        "data": (8, 4),
        "pipeline": (16, 2),
    }


def generated(folder: Path, plan: Planned) -> Iterator[RankProfile]:
    """Yield what each rank would leave behind, without a file for each."""
    write_ranks(folder, Planned(world=8, tensor=1, pipeline=1, steps=plan.steps))
    (trace,) = read_ranks([folder / "rank0.json"])
    any_rank = analyse_rank(trace)
    assert any_rank.profile.links is not None
    assert any_rank.profile.links.node_devices == 8
    for rank, events in simulate(plan):
        steps, calls = [], []
        for number in range(plan.steps):
            own = [event for event in events if event.step == number]
            start, end = min(one.start for one in own), max(one.start + one.dur for one in own)
            moving = sum(one.dur for one in own if one.group)
            dur_ns, moving_ns = round((end - start) * US), round(moving * US)
            times = dict.fromkeys(ACCOUNTS, 0) | {
                "compute": dur_ns - moving_ns,
                "exposed_communication": moving_ns,
            }
            steps.append(
                RankStep(
                    number=number,
                    start_ns=round(start * US),
                    dur_ns=dur_ns,
                    steady=True,
                    ledger=Ledger(**times),
                )
            )
            for one in own:
                if one.group:
                    size, listed = len(one.group.ranks), one.group.listed
                    group = ProcessGroup(name=one.group.name, size=size, ranks=listed)
                    call = CollectiveCall(name=one.name, group=group, bytes=2 * one.elements)
                    calls.append((call, number, BASE_NS + round(one.start * US), round(one.dur * US)))
        source = Source(format="kineto", files=(f"rank{rank}.json",))
        yield RankProfile(
            profile=structs.replace(any_rank.profile, source=source),
            rank=rank,
            base_ns=BASE_NS,
            steps=tuple(steps),
            arrivals=Arrivals.of(calls),
        )


@pytest.mark.parametrize(
    ("fault", "kind", "name"),
    [
        ({"slow_host": 77}, "host", "host 77 (ranks 616, 617, 618, 619, 620, 621, 622, 623)"),
        ({"slow_stage": 1}, "stage", "stage 1 (ranks 500 to 999)"),
        ({"slow_link": 1}, "link", "allreduce between ranks 1, 5, 9, 13 and 121 more"),
        ({"slow_hosts": range(40, 45)}, "hosts", "hosts 40 to 44 (ranks 320 to 359)"),
        ({"slow_rank": 999}, "rank", "rank 999"),
    ],
)
def test_planted_faults_are_named_among_a_thousand(
    tmp_path: Path, fault: dict[str, Any], kind: str, name: str
) -> None:
    plan = Planned(world=1000, tensor=4, pipeline=2, steps=2, layers=1, **fault)
    many = merge_ranks([*generated(tmp_path, plan)]).many_ranks
    assert many is not None
    assert (many.ranks, many.hosts, many.per_host) == (1000, 125, 8)
    assert [(part.kind, part.name) for part in many.slow] == [(kind, name)]
    assert many.slow[0].always == (None if kind == "link" else 1.0)


def test_hosts_are_those_that_the_files_are_named_by(tmp_path: Path) -> None:
    """Ranks were dealt out to four hosts in turn: their numbers alone would blame everybody or nobody."""

    def name(rank: int) -> str:
        return f"gpu-{'abcd'[rank % 4]}_{100 + rank}.{rank}.pt.trace.json"

    many, codes = told(tmp_path, name, world=16, tensor=1, pipeline=1, steps=3, slow_ranks=range(2, 16, 4))
    assert (many.hosts, many.per_host, codes) == (4, 4, {"slow_host"})
    assert [(part.kind, part.name) for part in many.slow] == [("host", "host gpu-c (ranks 2, 6, 10, 14)")]


def test_a_name_for_each_rank_is_no_hosts_name(tmp_path: Path) -> None:
    many, _ = told(tmp_path, lambda rank: f"pod{rank}_1.{rank}.pt.trace.json", **MESH, slow_host=2)
    assert (many.hosts, many.per_host) == (4, 8)
    assert [part.name for part in many.slow] == ["host 2 (ranks 16, 17, 18, 19, 20, 21, 22, 23)"]


def test_a_sound_run_has_nothing_slow(tmp_path: Path) -> None:
    many, codes = told(tmp_path, **MESH)
    assert (many.slow, many.wandering, codes) == ((), False, set())


def test_another_rank_in_each_step_is_nobodys_fault(tmp_path: Path) -> None:
    many, codes = told(tmp_path, world=16, tensor=1, pipeline=1, steps=8, wandering=True)
    assert many.wandering
    assert codes == {"slow_in_turns"}


def test_ranks_in_words() -> None:
    assert show_numbers([3, 1, 2]) == "1, 2, 3"
    assert show_numbers([*range(40), 50, 51]) == "0 to 39, 50, 51"
