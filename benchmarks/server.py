"""The server under load, on loopback: pages while CI uploads, on SQLite and on PostgreSQL, beside MLflow's.

`python benchmarks/server.py --runs 100000 --seconds 60` prints one table for each database: server time of
each page (p50, p95: from the request's arrival to its answer, as the server says in Server-Timing), what the
reader waits for the answer, the processor's time for a request, errors, and whether every acknowledged upload
is there afterwards. MLflow's server gets as many runs, readers and uploads; a reader asks for what its table
of runs shows (`runs/search`, 100 runs, newest first), an upload is a run with its metrics and tags.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.store.server import running_server  # noqa: E402  as above
from tests.web.live import live_server  # noqa: E402  as above

import stepgrade as sg  # noqa: E402  the tests' own servers are of this checkout
from stepgrade.store import NewRun, open_store  # noqa: E402  as above

PAGES = (
    "/",
    "/p/default/trend?branch=main",
    "/p/default/trend?branch=main&metric=throughput_tok_s",
    "/p/default/runs",
    "/p/default/runs?sort=step_time_ms&order=rising",
    "/p/default/runs?branch=main&grade=C",
    "/p/default/findings",
    "/p/default/alerts",
    "/p/default/compare?a=1000&b=2000",
    "/p/default/runs/{run}",
)
UPLOADERS = 10
METRICS = (
    "step_time_ms",
    "throughput_tok_s",
    "efficiency",
    "mfu",
    "wall_coverage",
    "launches_per_step",
    "peak_memory_bytes",
)
_COLUMNS = (
    "added_at, digest, git_commit, branch, labels, source, grade, step_time_ms, throughput_tok_s, samples_s, "
    "efficiency, mfu, wall_coverage, launches_per_step, peak_memory_bytes, step_sigma, project, "
    "device_hours, has_findings"
)


def fill(place: str, runs: int) -> int:
    """Fill a store with copies of one run, their step times spread; return the bytes of a kept scorecard."""
    card = sg.score(str(ROOT / "examples" / "traces" / "gpt_naive.json.gz"))
    with open_store(place) as history:
        first = history.add(NewRun(card=card, branch="main", commit="c0"))
        columns = [name.strip() for name in _COLUMNS.split(",")]
        chosen = [
            f"t.{name}" if name != "step_time_ms" else "t.step_time_ms * (1 + (i - i / 17 * 17) * 0.001)"
            for name in columns
        ]
        database = history.database
        with database.transaction():
            database.execute(
                f"insert into stepgrade_run ({_COLUMNS}) with recursive n(i) as ("  # noqa: S608
                f"select 1 union all select i + 1 from n where i < ?) "
                f"select {', '.join(chosen)} from n, stepgrade_run t where t.id = ?",
                (runs - 1, first),
            )
            database.execute(
                "insert into stepgrade_card (run_id, body) select r.id, c.body "
                "from stepgrade_run r, stepgrade_card c where c.run_id = ? and r.id > ?",
                (first, first),
            )
            database.execute(
                "insert into stepgrade_finding (run_id, rule, severity, claim, gain_low, gain_high) "
                "select r.id, f.rule, f.severity, f.claim, f.gain_low, f.gain_high "
                "from stepgrade_run r, stepgrade_finding f where f.run_id = ? and r.id > ?",
                (first, first),
            )
        # As PostgreSQL's autovacuum does within a minute of runs that come one by one.
        database.execute("vacuum analyze" if place.startswith("postgres") else "analyze")
        ((size,),) = database.execute("select length(body) from stepgrade_card where run_id = ?", (first,))
    return int(size)


class Request(NamedTuple):
    """What a reader or CI asks for."""

    name: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = {"content-type": "application/json"}


class Load:
    """Readers and uploads for some seconds."""

    def __init__(self, port: int, seconds: float) -> None:
        self._port, self._end = port, time.monotonic() + seconds
        self.times: dict[str, list[tuple[float | None, float]]] = defaultdict(
            list
        )  # server's and reader's ms
        self.errors: list[str] = []
        self.acknowledged: list[Any] = []
        self._lock = threading.Lock()

    def read(self, choose: Callable[[random.Random], Request], seed: int) -> None:
        """Look at pages, a second apart, as a person does."""
        chance, connection = random.Random(seed), self._connection()
        time.sleep(chance.random())
        while time.monotonic() < self._end:
            self._ask(connection, choose(chance))
            time.sleep(1.0)

    def upload(self, requests: Callable[[str, Any], Iterator[Request]], every_s: float, seed: int) -> None:
        """Send runs at a steady pace; a request may need what the one before was answered with."""
        connection = self._connection()
        due, number = time.monotonic() + random.Random(seed).random() * every_s, 0
        while due < self._end:
            time.sleep(max(0.0, due - time.monotonic()))
            due, number = due + every_s, number + 1
            answers: list[Any] = []
            for request in requests(f"bench-{seed}-{number}", answers):
                answers.append(self._ask(connection, request))
                if answers[-1] is None:
                    break
            else:
                self.acknowledged.append(answers[0])

    def warm(self, requests: Sequence[Request]) -> None:
        """Ask once before anything counts: a process imports what it needs on the first request."""
        for request in requests:
            self._ask(self._connection(), request)

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)

    def _ask(self, connection: http.client.HTTPConnection, request: Request) -> Any:
        """Return what is answered, None for an error; note how long it took."""
        begun = time.perf_counter()
        method = "GET" if request.body is None else "POST"
        try:
            connection.request(method, request.path, request.body, dict(request.headers))
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.errors.append(repr(error))
            connection.close()
            return None
        waited = (time.perf_counter() - begun) * 1000
        spent = re.search(r"dur=([\d.]+)", answer.headers.get("server-timing", ""))
        with self._lock:
            if answer.status not in (200, 201):
                self.errors.append(f"{request.name}: {answer.status}")
                return None
            self.times[request.name].append((float(spent[1]) if spent else None, waited))
        return json.loads(text) if request.body is not None else text

    def run(
        self,
        choose: Callable[[random.Random], Request],
        requests: Callable[[str, Any], Iterator[Request]],
        options: argparse.Namespace,
    ) -> None:
        """Let all of them loose, and wait until they are done."""
        threads = [threading.Thread(target=self.read, args=(choose, seed)) for seed in range(options.readers)]
        every = UPLOADERS / options.uploads
        threads += [
            threading.Thread(target=self.upload, args=(requests, every, seed)) for seed in range(UPLOADERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def report(self, cpu_s: float, seconds: float, lost: int) -> None:
        """Print what was seen."""
        print(
            "| page | requests | server p50 ms | p95 ms | answer p50 ms | p95 ms |\n|---|---|---|---|---|---|"
        )
        pages = [
            times for name, found in self.times.items() if not name.startswith("upload") for times in found
        ]
        for name, found in (*sorted(self.times.items()), ("all pages", pages)):
            own = [server for server, _ in found if server is not None]
            both = (own or None, [waited for _, waited in found] or None)
            cells = [f"{statistics.median(ms):.1f} | {percentile(ms):.1f}" if ms else " | " for ms in both]
            print(f"| {name} | {len(found)} | {' | '.join(cells)} |")
        count = max(sum(map(len, self.times.values())), 1)
        busy = f"{cpu_s / seconds:.2f} processors busy, load average {os.getloadavg()[0]:.1f}"
        print(f"\n{cpu_s / count * 1000:.1f} ms of processor for a request; {busy};")
        print(
            f"{len(self.acknowledged)} uploads acknowledged, lost: {lost}; {len(self.errors)} errors",
            flush=True,
        )
        for error, times in Counter(self.errors).most_common(3):
            print(f"  {times} x {error}")


def cpu_seconds(process: int) -> float:
    """Return the processor's time of a process and of all below it so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent, parent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(path.parent.name)
        spent[number], parent[number] = (int(fields[11]) + int(fields[12])) / ticks, int(fields[1])
    total, waiting = 0.0, [process]
    for one in waiting:  # which grows while it is walked
        total += spent.get(one, 0.0)
        waiting += [child for child, above in parent.items() if above == one]
    return total


def measure(name: str, place: str, options: argparse.Namespace) -> None:
    """Fill a store, serve it, and print what a load sees of it."""
    begun = time.monotonic()
    size = fill(place, options.runs)
    spent = time.monotonic() - begun
    print(
        f"\n## {name}: {options.runs:,} runs, {size:,} bytes a scorecard, filled in {spent:.0f} s", flush=True
    )
    card = sg.score(str(ROOT / "examples" / "traces" / "gpt_naive.json.gz"))
    body = json.dumps({"card": json.loads(card.to_json()), "branch": "main"}).encode()

    def page(chance: random.Random) -> Request:
        path = chance.choice(PAGES)
        return Request(f"`{path}`", path.format(run=chance.randrange(1, options.runs)))

    def upload(key: str, _: Any) -> Iterator[Request]:
        headers = {"content-type": "application/json", "idempotency-key": key}
        yield Request("upload", "/api/v1/projects/default/runs", body, headers)

    with live_server(place, "--uploads-per-minute", "1000000", "--workers", str(options.workers)) as server:
        every = [Request(path, path.format(run=1)) for path in PAGES]
        Load(server.port, 0.0).warm(every * 2 * options.workers)
        before = cpu_seconds(server.process.pid)
        load = Load(server.port, options.seconds)
        load.run(page, upload, options)
        spent = cpu_seconds(server.process.pid) - before
    with open_store(place, create=False) as history:
        rows = history.database.execute("select id from stepgrade_run where id > ?", (options.runs,))
        kept = {int(row[0]) for row in rows}
    lost = sum(int(answer["id"]) not in kept for answer in load.acknowledged)
    load.report(spent, options.seconds, lost)


def fill_mlflow(file: Path, runs: int) -> None:
    """Fill a store of MLflow with copies of one run that has the metrics and tags of one of ours."""
    from mlflow import MlflowClient  # noqa: PLC0415  only where it is installed

    client = MlflowClient(f"sqlite:///{file}")
    run = client.create_run("0", tags={"branch": "main", "commit": "c0", "grade": "C", "device": "h100"})
    for number, metric in enumerate(METRICS):
        client.log_metric(run.info.run_id, metric, 100.0 + number)
    client.set_terminated(run.info.run_id)
    with closing(sqlite3.connect(file)) as database, database:
        for table in ("runs", "metrics", "latest_metrics", "tags"):
            columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
            copied = {"run_uuid": "printf('%032x', i)", "start_time": "start_time + i", "name": "name || i"}
            own = copied if table == "runs" else {"run_uuid": copied["run_uuid"]}
            chosen = [own.get(column, column) for column in columns]
            database.execute(
                f"insert into {table} ({', '.join(columns)}) with recursive n(i) as (select 1 union all "  # noqa: S608
                "select i + 1 from n where i < ?) "
                f"select {', '.join(chosen)} from n, {table} where run_uuid = ?",
                (runs - 1, run.info.run_id),
            )


def measure_mlflow(folder: Path, options: argparse.Namespace) -> None:
    """Give MLflow's server the same load."""
    begun = time.monotonic()
    fill_mlflow(folder / "mlflow.db", options.runs)
    spent = time.monotonic() - begun
    print(
        f"\n## MLflow {version('mlflow')}, SQLite: {options.runs:,} runs, filled in {spent:.0f} s", flush=True
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", str(options.workers)]
    command += ["--default-artifact-root", str(folder / "artifacts")]
    search = {"experiment_ids": ["0"], "max_results": 100, "order_by": ["attributes.start_time DESC"]}
    api = "/api/2.0/mlflow/runs"

    def page(_: random.Random) -> Request:
        return Request("`runs/search`", f"{api}/search", json.dumps(search).encode())

    def upload(key: str, answers: list[Any]) -> Iterator[Request]:
        now = int(time.time() * 1000)
        made = {"experiment_id": "0", "run_name": key, "start_time": now}
        yield Request("upload: create", f"{api}/create", json.dumps(made).encode())
        metrics = [{"key": name, "value": 100.0, "timestamp": now, "step": 0} for name in METRICS]
        tags = [{"key": name, "value": "x"} for name in ("branch", "commit", "grade", "device")]
        batch = {"run_id": answers[0]["run"]["info"]["run_id"], "metrics": metrics, "tags": tags}
        yield Request("upload: log-batch", f"{api}/log-batch", json.dumps(batch).encode())

    with (folder / "mlflow.log").open("ab") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for(port, server)
        Load(port, 0.0).warm([page(random.Random(0))] * 4)
        before = cpu_seconds(server.pid)
        alone = Load(port, 15.0)
        alone.read(page, 0)
        spent = cpu_seconds(server.pid) - before
        each = spent / max(sum(map(len, alone.times.values())), 1)
        print(f"One reader: {each * 1000:.0f} ms of processor for a request.", flush=True)
        before = cpu_seconds(server.pid)
        load = Load(port, options.seconds)
        load.run(page, upload, options)
        spent = cpu_seconds(server.pid) - before
    finally:
        server.terminate()
        server.wait(timeout=60)
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        kept = {row[0] for row in database.execute("select run_uuid from runs where name like 'bench-%'")}
    lost = sum(answer["run"]["info"]["run_id"] not in kept for answer in load.acknowledged)
    load.report(spent, options.seconds, lost)


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers; two minutes at most."""
    end = time.monotonic() + 120.0
    while time.monotonic() < end and server.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.5)
        finally:
            connection.close()
    raise SystemExit("MLflow's server did not start")


def percentile(values: list[float]) -> float:
    """Return what 95 of 100 stay below."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def main() -> None:
    """Measure both databases, and MLflow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--uploads", type=float, default=20.0, help="a second")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--database", choices=("sqlite", "postgres", "both", "mlflow", "all"), default="all")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.database in ("sqlite", "both", "all"):
            measure("SQLite", f"{folder}/history.db", options)
            (folder / "history.db").unlink()
        if options.database in ("postgres", "both", "all"):
            with running_server(fsync=True) as server:
                measure("PostgreSQL", server.url, options)
        if options.database in ("mlflow", "all"):
            try:
                version("mlflow")
            except PackageNotFoundError:
                print("\nMLflow is not installed: pip install mlflow")
            else:
                measure_mlflow(folder, options)


if __name__ == "__main__":
    main()
