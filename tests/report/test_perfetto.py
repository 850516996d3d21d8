"""The annotated timeline, loaded by Perfetto's own trace processor: nothing dropped, all on one clock."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.cli import main
from stepgrade.trace.tracks import MOST_LAYERS, lay
from tests.cluster import Planned, kineto_of, simulate
from tests.conftest import ROOT
from tests.trace_processor import fields, query

TRACE = ROOT / "examples" / "traces" / "gpt_naive.json.gz"
PROBLEMS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value <> 0"
SLICES = "SELECT count(*) AS slices, sum(dur < 0) AS unfinished, min(ts) AS first FROM slice"
ARROWS = """
SELECT ready.name AS wait, ready.dur AS dur, extract_arg(ready.arg_set_id, 'debug.collective') AS collective, late.name AS late,
  parent.name AS rank
FROM flow JOIN slice AS ready ON ready.id = flow.slice_out JOIN slice AS late ON late.id = flow.slice_in
  JOIN track ON track.id = late.track_id JOIN track AS parent ON parent.id = track.parent_id
WHERE ready.name LIKE 'waits for rank%'
"""
ENDS = """
SELECT parent.name AS rank, slice.ts + slice.dur AS ended FROM slice JOIN track ON track.id = slice.track_id
  JOIN track AS parent ON parent.id = track.parent_id
WHERE slice.name LIKE 'nccl%' AND track.name LIKE 'stream%' ORDER BY rank, ended
"""


def begun(trace: bytes) -> int:
    """Return how many slices a file begins, by its packets."""
    count = 0
    for _, packet in fields(trace):
        assert isinstance(packet, bytes)
        for number, event in fields(packet):
            if number == 11 and isinstance(event, bytes):
                count += (9, 1) in [*fields(event)]
    return count


def test_a_trace_loads_without_a_dropped_event(browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "run.pftrace.gz"
    assert main(["score", str(TRACE), "--format", "perfetto", "-o", str(out)]) == 0
    trace = gzip.decompress(out.read_bytes())
    tracks = "SELECT track.name AS name, max(depth) AS depth FROM slice JOIN track ON track_id = track.id GROUP BY 1"
    problems, slices, found = query(browser, trace, PROBLEMS, SLICES, tracks)
    assert problems == []
    assert slices[0]["slices"] == begun(trace) > 10_000
    assert slices[0]["unfinished"] == 0
    depths = {row["name"]: row["depth"] for row in found}
    assert {"stepgrade: the run", "steps", "the host's time", "phases"} <= set(depths)
    assert max(depths.values()) > 2  # operations lie in each other


def test_ranks_are_on_one_clock_and_arrows_lead_to_the_late_one(browser: Any, tmp_path: Path) -> None:
    plan = Planned(world=4, tensor=2, pipeline=1, steps=5, slow_rank=1)
    paths = []
    for rank, events in simulate(plan):
        paths.append(tmp_path / f"rank{rank}.json")
        # The clock of one host is ahead by far more than any collective takes.
        paths[-1].write_bytes(kineto_of(rank, events, plan, ahead_ns=50_000_000 if rank == 2 else 0))
    out = tmp_path / "run.pftrace"
    assert main(["score", *map(str, paths), "--no-cache", "--format", "perfetto", "-o", str(out)]) == 0
    trace = out.read_bytes()
    problems, slices, arrows, ends = query(browser, trace, PROBLEMS, SLICES, ARROWS, ENDS)
    assert problems == []
    assert slices[0]["slices"] == begun(trace)
    to_late = [row for row in arrows if row["wait"] == "waits for rank 1"]
    assert sum(row["dur"] for row in to_late) > 0.5 * sum(row["dur"] for row in arrows) > 0
    assert all(row["late"] == "arrives last" and row["rank"].startswith("rank 1:") for row in to_late)
    by_rank: dict[str, list[int]] = {}
    for row in ends:
        by_rank.setdefault(row["rank"][:6], []).append(row["ended"])
    apart = np.abs(np.array(by_rank["rank 2"]) - np.array(by_rank["rank 3"]))
    assert np.median(apart) < 1_000_000


def test_what_has_no_events_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(ROOT / "examples" / "runs" / "gpt_naive.json")
    out = str(tmp_path / "out")
    assert main(["score", run, "--format", "perfetto", "-o", out]) == 2
    assert "only a trace has a timeline" in capsys.readouterr().err
    assert main(["score", "-", "--format", "perfetto", "-o", out]) == 2
    assert "read only once" in capsys.readouterr().err
    assert main(["score", run, "--contract", "v1", "--format", "perfetto"]) == 2
    assert [*tmp_path.iterdir()] == []


SLICE = st.tuples(st.integers(0, 40), st.integers(0, 12))


@given(st.lists(SLICE, max_size=60))
def test_slices_of_a_layer_lie_in_each_other_or_apart(slices: list[tuple[int, int]]) -> None:
    slices.sort(key=lambda one: (one[0], -one[1]))
    start = np.array([one[0] for one in slices], np.int64)
    before = np.array([one[1] for one in slices], np.int64)
    layer, dur = lay(start, before.copy())
    for own in range(MOST_LAYERS):
        rows = np.flatnonzero(layer == own)
        for place, first in enumerate(rows):
            for other in rows[place + 1 :]:
                end, begin, stop = start[first] + dur[first], start[other], start[other] + dur[other]
                assert begin >= end or stop <= end
    if layer.max(initial=0) < MOST_LAYERS - 1:
        assert (dur == before).all()
