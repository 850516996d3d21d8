"""Engines: whatever reads the ranks, the run is the same bit for bit, and nothing of the reading is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.engine import Done, Job
from stepgrade.engine.base import Here, Outcome, ReportItem, decode_outcome, run_item
from stepgrade.engine.pool import ProcessPool
from stepgrade.errors import BadInput, BadOption, EngineFailed, TooLarge
from tests.cluster import Planned, write_ranks
from tests.conftest import Ran

Run = Callable[..., Ran]
PLAN = Planned(world=8, tensor=1, pipeline=1, steps=3, slow_rank=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_ranks(folder, PLAN)
    return folder


def test_a_pool_reads_the_same_run_as_this_process(folder: Path) -> None:
    here = sg.load(folder, engine="here")
    assert here.activity is not None
    assert here.activity.straggler is not None
    assert here.activity.straggler.rank == 5
    told: list[tuple[int, int]] = []
    pool = sg.load(folder, engine="pool", workers=2, rank_progress=lambda *ranks: told.append(ranks))
    assert pool == here
    assert told[-1] == (8, 8)


class Shuffled:
    """What a cluster may be: outcomes in any order."""

    def __init__(self, order: list[int], known: dict[bytes, Outcome]) -> None:
        self._order, self._known = order, known

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:  # noqa: ARG002  as of all engines
        for place in self._order:
            item = work.items[place]
            if item not in self._known:
                self._known[item] = run_item(work.function, item, lambda _: None)
            yield Done(place, self._known[item])

    def close(self) -> None:
        pass


KNOWN: dict[bytes, Outcome] = {}


@settings(max_examples=30)
@given(order=st.permutations(range(8)))
def test_any_order_and_any_split_give_the_same_card_bit_for_bit(folder: Path, order: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepgrade.loading.ranks.open_engine", lambda *_: Shuffled([*range(8)], KNOWN))
        first = sg.score(sg.load(folder), device="h100-sxm5-80gb").to_json()
        patch.setattr("stepgrade.loading.ranks.open_engine", lambda *_: Shuffled(order, KNOWN))
        assert sg.score(sg.load(folder), device="h100-sxm5-80gb").to_json() == first


def with_pipe(folder: Path, tmp_path: Path) -> tuple[list[Path], bytes]:
    """Return the files of the ranks with a pipe in place of the last, and what would come through it."""
    paths = sorted(folder.iterdir())
    pipe = tmp_path / "rank7.json"
    os.mkfifo(pipe)
    return [*paths[:-1], pipe], paths[-1].read_bytes()


def waiting_process(pool: ProcessPool) -> int:
    """Return the process that waits for the pipe, when it is the only one left."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        running = [process.pid for process in pool._running if process.poll() is None]
        if running:
            return running[0]
        time.sleep(0.02)
    raise AssertionError("no process was started")


@pytest.mark.parametrize("kills", [1, 2])
def test_a_process_that_is_killed_is_replaced_and_its_rank_tried_again(
    folder: Path, tmp_path: Path, kills: int
) -> None:
    item = msgspec.msgpack.encode(str(tmp_path / "unused"))
    pool = ProcessPool(1)
    pipe = tmp_path / "held"
    os.mkfifo(pipe)
    item = msgspec.msgpack.encode(
        {
            "file": {"path": str(pipe), "format": "kineto", "name": "held"},
            "steps": None,
            "max_bytes": 1 << 30,
            "max_memory": 1 << 30,
        }
    )

    def kill_then_write() -> None:
        for _ in range(kills):
            writer = os.open(pipe, os.O_WRONLY)  # waits until a process of the pool reads
            os.kill(waiting_process(pool), signal.SIGKILL)
            os.close(writer)
            time.sleep(0.1)
        if kills == 1:
            pipe.write_bytes((folder / "rank0.json").read_bytes())

    thread = threading.Thread(target=kill_then_write)
    thread.start()
    try:
        work = Job(function="stepgrade.loading.ranks:analyse_file", items=[item])
        (done,) = pool.map(work, lambda *_: None)
    finally:
        pool.close()
        thread.join()
    if kills == 1:
        assert done.outcome.result is not None
    else:
        with pytest.raises(BadInput, match="ended by signal 9"):
            done.outcome.value()


def test_a_few_unreadable_ranks_are_listed_and_left_out(folder: Path, tmp_path: Path, stepgrade: Run) -> None:
    paths = write_ranks(tmp_path / "all", PLAN)
    paths[3].write_bytes(b"{" * 10)
    ran = stepgrade("score", *paths, "--engine", "pool", "--format", "json")
    assert ran.code == 2
    assert "rank3.json" in ran.err
    assert "Traceback" not in ran.err
    profile = sg.load(*[path for path in paths if path != paths[3]], engine="here")
    broken = tmp_path / "all" / "rank3.json"
    text = (folder / "rank3.json").read_bytes()
    broken.write_bytes(b'{"schemaVersion": 1, "traceEvents": "none"}' + b" " * len(text))
    left = sg.load(*paths, engine="here", most_unreadable=0.2)
    assert left.warnings[0].code == "ranks_unreadable"
    assert "1 of 8 ranks could not be read" in left.warnings[0].text
    assert "rank3.json" in left.warnings[0].text
    assert [one.rank for one in left.ranks] == [one.rank for one in profile.ranks]
    with pytest.raises(BadInput, match=r"rank3\.json"):
        sg.load(*paths, engine="here")


def test_what_is_too_large_for_one_of_many_is_read_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Narrow(Here):
        def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
            for place, outcome in super().map(work, report):
                seen.append(place)
                too_large = Outcome(error=TooLarge.__name__, problem="would take too much")
                yield Done(place, too_large if place == 2 else outcome)

    monkeypatch.setattr("stepgrade.loading.ranks.open_engine", lambda *_: Narrow())
    assert sg.load(folder, engine="pool", workers=2) == sg.load(folder, engine="pool", workers=3)
    assert seen == [*range(8)] * 2


def test_engines_that_are_none_are_refused(folder: Path, stepgrade: Run) -> None:
    ran = stepgrade("score", folder, "--engine", "dusk")
    assert ran.code == 2
    assert "did you mean dask?" in ran.err
    for wrong in ({"workers": 0}, {"most_unreadable": 1.5}):
        with pytest.raises(BadOption):
            sg.load(folder, **wrong)


def test_a_worker_of_another_version_is_refused() -> None:
    other = msgspec.msgpack.encode(Outcome(result=b"", version="0.0.1"))
    with pytest.raises(EngineFailed, match=r"has stepgrade 0\.0\.1"):
        decode_outcome(other, "a worker")
    with pytest.raises(EngineFailed, match="another version"):
        decode_outcome(b"\x93", "a worker")
    assert EngineFailed.exit_code == 3


def test_bugs_come_back_with_their_traceback() -> None:
    outcome = run_item("stepgrade.loading.ranks:analyse_file", b"no task", lambda _: None)
    with pytest.raises(RuntimeError, match="Traceback"):
        outcome.value()
    with pytest.raises(ValueError, match="not one of our functions"):
        run_item("os:system", b"", lambda _: None)


def test_an_interrupt_leaves_neither_processes_nor_files(folder: Path, tmp_path: Path) -> None:
    paths, _ = with_pipe(folder, tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    command = [sys.executable, "-m", "stepgrade", "score", *map(str, paths)]
    command += ["--engine", "pool", "--workers", "2", "--input-format", "kineto"]
    started = subprocess.Popen(
        command, env=os.environ | {"TMPDIR": str(kept)}, stderr=subprocess.PIPE, start_new_session=True
    )
    writer = os.open(paths[-1], os.O_WRONLY)  # when a process has it open, all others are at work or done
    os.kill(started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=60)
    os.close(writer)
    assert started.returncode == 130
    assert said.decode().strip().endswith("interrupted")
    assert list(kept.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)


def test_nothing_is_imported_from_where_one_happens_to_be(folder: Path, tmp_path: Path) -> None:
    """A file in the current directory that is called as a module of ours, or of Python, is never run."""
    for name in ("stepgrade", "numpy", "msgspec", "json", "struct", "zlib"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').write('{name}')\n")
    command = [sys.executable, "-P", "-m", "stepgrade", "score", str(folder), "--engine", "pool"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "was_run").exists()


def test_a_script_without_a_main_guard_may_use_the_pool(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import stepgrade as sg\nprint('once', len(sg.load({str(folder)!r}, engine='pool').ranks))"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert ran.stdout == "once 8\n"
