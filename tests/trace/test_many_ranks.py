"""Planted faults are named as what they are: a rank, a host, a stage, a link, or somebody else in each step."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model.many_ranks import ManyRanks
from stepgrade.trace.mean_rank import show_numbers
from tests.cluster import Planned, write_ranks

MESH = {"world": 32, "tensor": 4, "pipeline": 2, "steps": 4}


def told(tmp_path: Path, **planned: object) -> tuple[ManyRanks, set[str]]:
    write_ranks(tmp_path, Planned(**planned))  # type: ignore[arg-type]
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
    ],
)
def test_planted_faults_are_named(tmp_path: Path, fault: dict[str, int], kind: str, ranks: str) -> None:
    many, codes = told(tmp_path, **MESH, **fault)
    assert [(part.kind, part.ranks) for part in many.slow] == [(kind, ranks)]
    assert codes == {f"slow_{kind}"}
    if kind != "link":
        assert many.slow[0].always == 1.0
        assert many.slow[0].slower > 0.3
    assert (many.ranks, many.hosts, many.per_host) == (32, 4, 8)
    assert {one.dimension: (one.groups, one.size) for one in many.groups} == {
        "tensor": (8, 4),
        "data": (8, 4),
        "pipeline": (16, 2),
    }


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
