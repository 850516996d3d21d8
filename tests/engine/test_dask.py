"""Dask: two real workers, one that is killed, a scheduler that goes away, and one that is not there."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import stepgrade as sg
from stepgrade.engine.on_dask import OnDask
from stepgrade.errors import EngineFailed
from tests.cluster import Planned, write_ranks
from tests.conftest import Ran
from tests.leftovers import put_back

distributed = pytest.importorskip("distributed")
pytestmark = [
    # Tornado and Dask leave sockets to the garbage collector when a scheduler goes away under them.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
PLAN = Planned(world=8, tensor=1, pipeline=1, steps=3, slow_rank=5)


@pytest.fixture
def cluster() -> Iterator[Any]:
    with (
        put_back(),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # whatever else runs on this machine
            silence_logs=50,
        ) as started,
    ):
        yield started


def test_two_workers_read_the_same_run_and_the_users_cluster_stays(cluster: Any, tmp_path: Path) -> None:
    write_ranks(tmp_path, PLAN)
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    assert sg.load(tmp_path, engine=engine) == sg.load(tmp_path, engine="here")
    with distributed.Client(cluster) as client:
        assert client.submit(sum, [1, 2]).result() == 3  # who else uses it still can


def test_a_cluster_of_our_own_is_open_to_this_machine_alone() -> None:
    """Dask's scheduler serves HTTP, by default to every address."""
    with contextlib.closing(OnDask("", 1)) as engine:
        sockets = engine._cluster.scheduler.http_server._sockets.values()
        assert {one.getsockname()[0] for one in sockets} == {"127.0.0.1"}
        assert engine._cluster.scheduler_address.startswith("tcp://127.0.0.1:")


def test_a_cluster_of_our_own_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it is done nor when it is interrupted."""
    write_ranks(tmp_path / "run", PLAN)
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    monkeypatch.setenv("TMPDIR", str(kept))

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    sg.load(tmp_path / "run", engine="dask", workers=1, cache=False)
    assert list(kept.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        sg.load(tmp_path / "run", engine="dask", workers=1, cache=False, rank_progress=interrupt)
    assert list(kept.iterdir()) == []


def test_a_worker_that_dies_is_replaced_and_its_ranks_tried_again(cluster: Any, tmp_path: Path) -> None:
    write_ranks(tmp_path, PLAN)
    killed: list[int] = []

    def kill_one(done: int, _: int) -> None:
        if done == 1 and not killed:
            killed.append(next(iter(cluster.workers.values())).process.pid)
            os.kill(killed[0], signal.SIGKILL)

    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    profile = sg.load(tmp_path, engine=engine, rank_progress=kill_one)
    assert killed
    assert profile == sg.load(tmp_path, engine="here")


def test_workers_that_are_killed_at_random(cluster: Any, tmp_path: Path) -> None:
    """Whoever it is and whenever: each is replaced, and what it read is read again."""
    paths = write_ranks(tmp_path, Planned(world=16, tensor=1, pipeline=1, steps=3, slow_rank=5))
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)  # shown where the test fails
    chance = random.Random(seed)
    whens = chance.sample(range(len(paths)), 3)
    killed: list[int] = []

    def kill_one(done: int, _: int) -> None:
        if done not in whens:
            return
        whens.remove(done)
        worker = chance.choice([*cluster.workers.values()])
        if worker.process is not None and worker.process.pid is not None:  # else it is being replaced
            with suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGKILL)
                killed.append(worker.process.pid)

    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    profile = sg.load(tmp_path, engine=engine, rank_progress=kill_one, cache=False)
    assert killed
    assert profile == sg.load(tmp_path, engine="here", cache=False)


def test_a_scheduler_that_goes_away_is_said(cluster: Any, tmp_path: Path) -> None:
    write_ranks(tmp_path, PLAN)
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    closed: list[bool] = []

    def close(*_: int) -> None:
        if not closed:
            closed.append(True)
            cluster.close()

    with pytest.raises(EngineFailed, match="lost the connection"):
        sg.load(tmp_path, engine=engine, rank_progress=close)
    assert closed


def test_a_scheduler_that_is_not_there_is_said(
    tmp_path: Path, stepgrade: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepgrade.engine.on_dask._SECONDS_TO_ANSWER", 1)
    write_ranks(tmp_path, PLAN)
    ran = stepgrade("score", tmp_path, "--engine", "dask://127.0.0.1:9")
    assert ran.code == 2
    assert "no Dask scheduler answers at 127.0.0.1:9" in ran.err
    assert "Traceback" not in ran.err


def patch_workers(answers: str) -> None:
    """Run on a worker: let it answer with something else."""
    import stepgrade.engine.on_dask as module
    from stepgrade.engine.base import Outcome

    def answer(_: str, items: list[Any], topic: str) -> Any:
        distributed.get_worker().log_event(topic, "no event of ours")
        distributed.get_worker().log_event(topic, (10**9, -1))
        return {
            "none": None,
            "too few": [],
            "no bytes": [1] * len(items),
            "no outcome": [b"\xc1"] * len(items),
            "deep": [b"\x91" * 100_000] * len(items),
            "another version": [msgspec.msgpack.encode(Outcome(version="0"))] * len(items),
            "no result": [msgspec.msgpack.encode(Outcome(result=b"\xc1"))] * len(items),
            "another result": [msgspec.msgpack.encode(Outcome(result=b"\x80"))] * len(items),
            "raises": 1 / 0 if answers == "raises" else None,
        }[answers]

    module.run_batch = answer


ODD = ["none", "too few", "no bytes", "no outcome", "deep", "another version", "no result", "another result"]


def test_workers_that_answer_something_else(
    cluster: Any, tmp_path: Path, stepgrade: Callable[..., Ran]
) -> None:
    """Their bytes are decoded by a schema: one line and an exit code, whatever they hold."""
    write_ranks(tmp_path, PLAN)
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    for answers in (*ODD, "raises"):
        with distributed.Client(cluster) as client:
            client.run(patch_workers, answers)
        ran = stepgrade("score", tmp_path, "--engine", engine, "--no-cache")
        assert ran.code in (2, 3), (answers, ran.err)
        assert "Traceback" not in ran.err
        assert ran.err.count("\n") == 1, (answers, ran.err)


def test_plain_values_and_errors_are_unpickled_and_nothing_else() -> None:
    from distributed.scheduler import KilledWorker

    from stepgrade.engine.on_dask import PlainUnpickler, Withheld

    def unpickled(value: object) -> Any:
        return PlainUnpickler(io.BytesIO(pickle.dumps(value))).load()

    plain = [None, 1, 2.5, "a", b"b", (1,), {"k": {3}}, frozenset({4}), bytearray(b"c")]
    assert unpickled(plain) == plain
    for error in (
        KilledWorker("key", SimpleNamespace(address="tcp://a"), 3),
        OSError(2, "gone"),
        ValueError("no"),
    ):
        assert type(unpickled(error)) is type(error)
        with pytest.raises(type(error)) as raised:
            raise error
        # With its traceback it is pickled by tblib, as Dask sends it.
        sent = distributed.core.error_message(raised.value)["exception"].data
        assert type(PlainUnpickler(io.BytesIO(sent)).load()) is type(error)
    for value in (Path("x"), os.getpid, Planned(), Path.touch):
        assert isinstance(unpickled(value), Withheld) or unpickled(value) is Withheld


def attack(how: str, mark: str) -> None:
    """Run on a worker: let its answers run code where they are unpickled."""
    import stepgrade.engine.on_dask as module

    class Evil(Exception):
        def __reduce__(self) -> Any:
            # Workers unpickle their own errors: what happens there does not count.
            return exec, (f"import sys, pathlib\nif 'score' in sys.argv: pathlib.Path({mark!r}).touch()",)

    honest = vars(module).setdefault("honest", module.run_batch)

    def answer(function: str, items: list[Any], topic: str) -> Any:
        if how == "error":
            raise Evil
        if how == "event":
            distributed.get_worker().log_event(topic, Evil())
        return {"result": Evil(), "inside": [Evil()] * len(items)}.get(how) or honest(function, items, topic)

    module.run_batch = answer


def test_workers_cannot_run_code_in_the_command(cluster: Any, tmp_path: Path) -> None:
    """In a process of its own, where no other client of Dask needs more than plain values."""
    write_ranks(tmp_path / "run", PLAN)
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    command = [sys.executable, "-m", "stepgrade", "score", str(tmp_path / "run"), "--engine", engine]
    for how in ("sound", "result", "inside", "error", "event"):
        mark = tmp_path / f"ran-{how}"
        with distributed.Client(cluster) as client:
            client.run(attack, how, str(mark))
        ran = subprocess.run(
            [*command, "--no-cache"], capture_output=True, text=True, check=False, timeout=120
        )
        assert not mark.exists(), how
        assert "this is a bug" not in ran.stderr, ran.stderr
        assert (ran.returncode == 0) == (how == "sound"), (how, ran.stderr)
