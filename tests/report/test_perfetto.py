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
from stepgrade.cli.output import write_bytes
from stepgrade.errors import BadInput
from stepgrade.report.perfetto import _field, _flat, _numbers
from stepgrade.trace.tracks import MOST_LAYERS, lay
from tests.cluster import Planned, kineto_of, simulate
from tests.conftest import ROOT
from tests.odd_times import waits_before_zero
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


WAITS = """
SELECT wait.ts AS ts, count(work.id) AS collectives FROM slice AS wait JOIN track AS own ON own.id = wait.track_id
  JOIN track AS stream ON stream.parent_id = own.parent_id AND stream.name LIKE 'stream%'
  LEFT JOIN slice AS work ON work.track_id = stream.id AND work.ts = wait.ts AND work.name LIKE 'nccl%'
WHERE wait.name LIKE 'waits for rank%' GROUP BY wait.id
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


def test_what_was_before_zero_is_moved_and_not_lost(
    browser: Any, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "merged.json"
    path.write_bytes(waits_before_zero())
    assert main(["score", str(path), "--format", "perfetto", "-o", "-"]) == 0
    trace = capfdbinary.readouterr().out
    problems, slices, waits = query(browser, trace, PROBLEMS, SLICES, WAITS)
    assert problems == []
    assert slices[0]["slices"] == begun(trace)
    assert slices[0]["first"] == 0
    assert len(waits) > 10
    assert {row["collectives"] for row in waits} == {1}  # each begins with its own


LONG = st.integers(-(1 << 63), (1 << 63) - 1)


def signed(value: int | bytes) -> int:
    assert isinstance(value, int)
    return value - (1 << 64) if value >> 63 else value


@given(st.lists(LONG, min_size=1, max_size=20), st.integers(1, 100))
def test_whole_numbers_of_64_bits_are_read_back(values: list[int], number: int) -> None:
    alone = [*fields(b"".join(_field(number, value) for value in values))]
    assert [(place, signed(value)) for place, value in alone] == [(number, value) for value in values]
    column = np.array(values, np.int64)
    for present in (None, column % 2 == 0):
        flat = _flat(_numbers(number, column, present), np.arange(len(values)), 0)
        packets = [dict(fields(packet)) for _, packet in fields(flat) if isinstance(packet, bytes)]
        assert len(packets) == len(values)
        if number not in (8, 10, 13):  # fields that every packet has
            found = [signed(packet[number]) if number in packet else None for packet in packets]
            assert found == [v if present is None or v % 2 == 0 else None for v in values]


def test_what_has_no_events_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(ROOT / "examples" / "runs" / "gpt_naive.json")
    out = str(tmp_path / "out")
    assert main(["score", run, "--format", "perfetto", "-o", out]) == 2
    assert "only a trace has a timeline" in capsys.readouterr().err
    assert main(["score", "-", "--format", "perfetto", "-o", out]) == 2
    assert "read only once" in capsys.readouterr().err
    assert main(["score", run, "--contract", "v1", "--format", "perfetto"]) == 2
    assert [*tmp_path.iterdir()] == []


def test_a_bug_of_the_writer_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    def broken(_: object) -> None:
        raise ValueError("byte must be in range(0, 256)")

    for name in ("out", "out.gz"):
        with pytest.raises(ValueError, match="byte must be"):
            write_bytes(broken, str(tmp_path / name))
    with pytest.raises(BadInput, match="cannot be written"):
        write_bytes(lambda _: None, f"{tmp_path}/a\0b")
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
