"""Reading in two processes gives the same trace as in one, and losing the second one costs only time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from make_kineto import plain_trace
from slow_kineto import TABLES, fast_rows
from tests.kineto_traces import read_file

from stepgrade.readers.kineto import chunks, workers

TEXT = plain_trace(6000)


@pytest.fixture(autouse=True)
def _small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "SLOT_BYTES", 1 << 12)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the worker to be ready, so that it does take part in so small a file."""
    offer = workers.Worker.offer

    def wait(self: workers.Worker, chunk: chunks.Chunk, free: list[int]) -> bool:
        while not self._is_ready:
            offer(self, chunk._replace(slot=None), free)  # which only reads the answers
        return offer(self, chunk, free)

    monkeypatch.setattr(workers.Worker, "offer", wait)


@pytest.mark.parametrize("processes", [2, 3])
def test_more_processes_read_the_same(processes: int, patient: None, tmp_path: Path) -> None:
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(TEXT))
    (one,), (many,) = read_file(file, processes=1), read_file(file, processes=processes)
    assert fast_rows(one) == fast_rows(many)
    for table in TABLES:
        assert (getattr(one, table).start_ns == getattr(many, table).start_ns).all()
    assert (one.base_ns, one.lost, one.categories) == (many.base_ns, many.lost, many.categories)


def test_launches_of_kernels_are_distinguishable(patient: None, tmp_path: Path) -> None:
    kernels = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "tid": 7,
            "ts": 10 * place,
            "dur": 5,
            "args": {"device": 0, "stream": 7, "registers per thread": 1 + place % 97, "blocks per SM": 1.5},
        }
        for place in range(2000)
    ]
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": kernels}))
    for processes in (1, 2):
        (trace,) = read_file(file, processes=processes)
        assert trace.work.launch is not None
        registers = [trace.launches[place].registers for place in trace.work.launch.tolist()]
        assert registers == [1 + place % 97 for place in range(2000)]


def test_losses_of_all_processes_are_counted(patient: None) -> None:
    text = TEXT.replace(b'"gemm"', b"gemm")
    (one,), (two,) = read_file(text, processes=1), read_file(text, processes=2)
    assert one.lost == two.lost
    assert one.lost[0].startswith("2000 events left out, not valid JSON")
    assert fast_rows(one) == fast_rows(two)


@pytest.mark.parametrize("child", ["stepgrade.nowhere", "json.tool"])
def test_without_the_worker_everything_is_read(child: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MODULE", child)
    (trace,) = read_file(TEXT, processes=2)
    assert sum(len(getattr(trace, table).name) for table in TABLES) == 6000


def test_a_worker_that_dies_on_the_way_is_made_up_for(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = workers.Worker.offer
    count = 0

    def kill(self: workers.Worker, chunk: chunks.Chunk, free: list[int]) -> bool:
        nonlocal count
        count += 1
        if count == 20:
            self._process.kill()
            self._process.wait()
        return offer(self, chunk, free)

    monkeypatch.setattr(workers.Worker, "offer", kill)
    (trace,) = read_file(TEXT, processes=2)
    assert sum(len(getattr(trace, table).name) for table in TABLES) == 6000


def test_a_long_tail_that_looks_like_events(patient: None) -> None:
    tail = b",\n".join(
        [b'  {\n    "ph": "X", "cat": "kernel", "name": "not one", "ts": 1, "dur": 1\n  }'] * 2000
    )
    text = TEXT.replace(
        b'"traceName"', b'"other": [\n' + tail + b'\n  ],\n  "distributedInfo": {"rank": 4}, "traceName"'
    )
    for processes in (1, 2):
        (trace,) = read_file(text, processes=processes)
        assert sum(len(getattr(trace, table).name) for table in TABLES) == 6000
        assert (trace.rank, trace.lost) == (4, ())
        assert "not one" not in trace.strings
