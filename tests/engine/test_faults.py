"""What goes wrong with ranks that others read, in a pool and on two real workers of Dask.

Clear words, the right exit code, and nothing half-written.
"""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from tests.buckets import BUCKET, object_store
from tests.cluster import BASE_NS, Planned, write_ranks
from tests.conftest import Ran
from tests.leftovers import put_back

Run = Callable[..., Ran]
PLAN = Planned(world=8, tensor=1, pipeline=1, steps=3, slow_rank=5)
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Tornado, Dask and aiohttp
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
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


@pytest.fixture(scope="module", params=["pool", "dask"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "pool":
        return "pool"
    address: str = request.getfixturevalue("cluster").scheduler_address
    return address.replace("tcp://", "dask://")


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    return write_ranks(tmp_path / "run", PLAN)


def refused(ran: Ran, output: Path, code: int = 2) -> str:
    """Return the one line that says why there is no card; nothing of one was written."""
    assert (ran.code, ran.out, output.exists()) == (code, "", False), ran.err
    said = [line for line in ran.err.splitlines() if not line.startswith("reading")]
    assert len(said) == 1
    assert "Traceback" not in ran.err
    return said[0]


def test_a_rank_that_is_there_twice(engine: str, ranks: list[Path], tmp_path: Path, stepgrade: Run) -> None:
    shutil.copy(ranks[3], tmp_path / "run" / "copy_of_rank3.json")
    output = tmp_path / "card.json"
    said = refused(stepgrade("score", tmp_path / "run", "--engine", engine, "-o", output), output)
    assert "both say they are rank 3" in said


def test_ranks_of_two_runs(engine: str, ranks: list[Path], tmp_path: Path, stepgrade: Run) -> None:
    """An hour later the same ranks are another run; other ranks may be those of one whose clocks differ."""
    later = str(BASE_NS + 3_600_000_000_000).encode()
    other = tmp_path / "run" / "other_rank1.json"
    other.write_bytes(
        ranks[1].read_bytes().replace(str(BASE_NS).encode(), later).replace(b'"pid": 1,', b'"pid": 2,')
    )
    output = tmp_path / "card.json"
    said = refused(stepgrade("score", tmp_path / "run", "--engine", engine, "-o", output), output)
    assert "are of different runs: one was over when the other began" in said
    other.unlink()
    for path in ranks[4:]:
        path.write_bytes(path.read_bytes().replace(str(BASE_NS).encode(), later))
    profile = sg.load(tmp_path / "run", engine=engine)
    assert "started_apart" in {note.code for note in profile.warnings}


def test_a_rank_that_ends_early(engine: str, ranks: list[Path], tmp_path: Path, stepgrade: Run) -> None:
    """What is there of it is read; where that is nothing it is listed, and refused if it is one too many."""
    packed = gzip.compress(ranks[6].read_bytes())
    ranks[6].unlink()
    short, output = tmp_path / "run" / "rank6.json.gz", tmp_path / "card.json"
    command = ("score", tmp_path / "run", "--engine", engine, "-o", output, "--format", "json")
    short.write_bytes(packed[:60])
    said = refused(stepgrade(*command), output)
    assert "rank6.json.gz: the gzip data ends early" in said
    assert stepgrade(*command, "--unreadable", "20%").code == 0
    assert "1 of 8 ranks could not be read" in output.read_text()
    short.write_bytes(packed[: len(packed) // 2])
    assert stepgrade(*command).code == 0
    assert "lost in reading: the gzip data ends early" in output.read_text()


def test_workers_that_are_killed_at_random(ranks: list[Path], tmp_path: Path) -> None:
    """In a pool; tests of Dask kill one as well. Whose rank it read is tried again by another."""
    killed: list[int] = []

    def kill_one(done: int, _: int) -> None:
        own = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in children(task)]
        if done in (1, 5) and len(killed) < 2 and own:
            killed.append(own[done % len(own)])
            os.kill(killed[-1], signal.SIGKILL)

    def children(task: Path) -> list[str]:
        readers = (task / "children").read_text().split()
        return [
            pid for pid in readers if b"stepgrade.engine.pool" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    profile = sg.load(*ranks, engine="pool", workers=2, rank_progress=kill_one, cache=False)
    assert killed
    assert profile == sg.load(*ranks, engine="here")


class Refusing(BaseHTTPRequestHandler):
    """A web server that gives every rank, slowly, but the last."""

    root: Path
    status = 200

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        time.sleep(0.2)
        name = self.path.partition("?")[0].lstrip("/")
        if self.status != 200 and name == "rank7.json":
            self.send_error(self.status)
            return
        data = (self.root / name).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@pytest.mark.parametrize(("status", "words"), [(403, "permission denied"), (404, "no such file"), (200, "")])
def test_a_store_that_is_slow_and_refuses_one(
    engine: str, status: int, words: str, ranks: list[Path], tmp_path: Path, stepgrade: Run
) -> None:
    pytest.importorskip("aiohttp")
    Refusing.root, Refusing.status = tmp_path / "run", status
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        urls = [f"http://127.0.0.1:{server.server_port}/{path.name}?Signature=hunter2" for path in ranks]
        output = tmp_path / "card.json"
        ran = stepgrade("score", *urls, "--engine", engine, "-o", output, "--input-format", "kineto")
        server.shutdown()
        thread.join()
    assert "hunter2" not in ran.out + ran.err
    if status == 200:
        assert (ran.code, output.exists()) == (0, True)
    else:
        said = refused(ran, output)
        assert words in said
        assert "rank7.json" in said


class OddBucket:
    """An S3 API, moto's, that takes its time, is busy at first, and answers for one key with an error of S3."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.answer = ""  # for rank 7: status and code
        self.busy = 0  # how often it still says so
        self.asked = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Any:
        time.sleep(0.05)
        self.asked += 1
        answer = self.answer if environ["PATH_INFO"].endswith("rank7.json") else ""
        if self.busy and environ["REQUEST_METHOD"] == "GET":
            self.busy -= 1
            answer = "503 SlowDown"
        if not answer:
            return self._api(environ, start_response)
        status, code = answer.split()
        body = f"<Error><Code>{code}</Code><Message>hunter2</Message></Error>".encode()
        if environ["REQUEST_METHOD"] == "HEAD":
            body = b""
        start_response(f"{status} {code}", [("Content-Length", str(len(body)))])
        return [body]


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[OddBucket, dict[str, str]]]:
    """Yield a bucket with the ranks in it, and the environment in which it is found."""
    made: list[OddBucket] = []

    def odd(api: Any) -> OddBucket:
        made.append(OddBucket(api))
        return made[0]

    with object_store(odd) as (client, environment), tempfile.TemporaryDirectory() as folder:
        for path in write_ranks(Path(folder), PLAN):
            client.put_object(Bucket=BUCKET, Key=path.name, Body=path.read_bytes())
        yield made[0], environment


@pytest.fixture
def bucket(
    engine: str, store: tuple[OddBucket, dict[str, str]], request: pytest.FixtureRequest
) -> Iterator[OddBucket]:
    """Yield the bucket where the engine's workers find it as well."""
    odd, environment = store
    if engine != "pool":
        from distributed import Client

        def find_it() -> None:
            import os  # a method of this process's environment would be sent with a copy of it

            os.environ.update(environment)

        with Client(request.getfixturevalue("cluster")) as client:
            client.run(find_it)
    yield odd
    odd.answer, odd.busy, odd.asked = "", 0, 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("403 AccessDenied", "permission denied"),
        ("404 NoSuchKey", "no such file"),  # listed, and then gone
        ("", ""),
    ],
)
def test_a_bucket_that_is_slow_and_refuses_one(
    engine: str, answer: str, words: str, bucket: OddBucket, tmp_path: Path, stepgrade: Run
) -> None:
    bucket.answer, bucket.busy = answer, 0 if answer else 2
    output = tmp_path / "card.json"
    command = (
        "score",
        "s3://traces/",
        "--engine",
        engine,
        "--workers",
        "2",
        "-o",
        output,
        "--format",
        "json",
    )
    ran = stepgrade(*command)
    assert bucket.asked >= 8
    assert "hunter2" not in ran.out + ran.err
    if not answer:
        assert (ran.code, output.exists(), bucket.busy) == (0, True, 0), ran.err
        return
    said = refused(ran, output)
    assert words in said
    assert "s3://traces/rank7.json" in said
    assert stepgrade(*command, "--unreadable", "20%").code == 0
    assert "1 of 8 ranks could not be read" in output.read_text()


def test_a_bucket_that_refuses_its_list(
    store: tuple[OddBucket, dict[str, str]], stepgrade: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    odd, _ = store
    output = tmp_path / "card.json"
    monkeypatch.setattr(odd, "_api", lambda _, start: (start("403 AccessDenied", []), [b""])[1])
    monkeypatch.setattr(odd, "answer", "403 AccessDenied")
    for source in ("s3://traces/", "s3://traces/rank*.json", "s3://traces/rank7.json"):
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()  # which keeps the list of a bucket
        said = refused(stepgrade("score", source, "-o", output), output)
        assert "permission denied" in said, source
        assert "hunter2" not in said


@pytest.mark.parametrize("when", ["on_dask", "base"])  # before, and of one that came later
def test_a_worker_of_another_version_is_refused(
    cluster: Any,
    ranks: list[Path],
    tmp_path: Path,
    stepgrade: Run,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    monkeypatch.setattr(f"stepgrade.engine.{when}.__version__", "0.0.1")  # of this process, not of workers
    output = tmp_path / "card.json"
    said = refused(stepgrade("score", *ranks, "--engine", engine, "-o", output, "--no-cache"), output, code=3)
    assert f" has stepgrade {sg.__version__}, this process 0.0.1" in said


def test_bytes_are_told_while_a_worker_reads(cluster: Any, ranks: list[Path]) -> None:
    text = ranks[0].read_bytes()
    padding = b'{"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "%s"}}, ' % (b"x" * 200)
    ranks[0].write_bytes(text.replace(b'"traceEvents": [', b'"traceEvents": [' + padding * 60_000))
    large, others = ranks[0].stat().st_size, sum(path.stat().st_size for path in ranks[1:])
    told: list[int] = []
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    sg.load(*ranks, engine=engine, cache=False, progress=lambda done, _: told.append(done))
    assert told[-1] == large + others
    assert any(others < done < large for done in told)  # more than all others, and it was not done itself


def test_a_worker_without_this_package_is_refused(
    cluster: Any, ranks: list[Path], tmp_path: Path, stepgrade: Run
) -> None:
    from distributed import Client

    def forget() -> None:
        import sys

        for name in [name for name in sys.modules if name.startswith("stepgrade")]:
            del sys.modules[name]
        sys.modules["stepgrade"] = None  # type: ignore[assignment]

    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    output = tmp_path / "card.json"
    with Client(cluster) as client:
        client.run(forget)
        try:
            ran = stepgrade("score", *ranks, "--engine", engine, "-o", output, "--no-cache")
        finally:
            client.restart()  # the workers are of no use to anybody any more
    said = refused(ran, output, code=3)
    assert " has no stepgrade" in said
    assert "install stepgrade" in said
