"""The server under load, on loopback: pages while CI uploads, on SQLite and on PostgreSQL.

`python benchmarks/server.py --runs 100000 --seconds 60` prints one table for each database: server time of
each page (p50, p95: from the request's arrival to its answer, as the server says in Server-Timing), the
processor's time for a request, errors, and whether every acknowledged upload is there afterwards.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.store.server import running_server  # noqa: E402  as above
from tests.web.live import live_server  # noqa: E402  as above

import stepgrade as sg  # noqa: E402  the tests' own servers are of this checkout
from stepgrade.store import NewRun, open_history  # noqa: E402  as above

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
_COLUMNS = (
    "added_at, digest, git_commit, branch, labels, source, grade, step_time_ms, throughput_tok_s, samples_s, "
    "efficiency, mfu, wall_coverage, launches_per_step, peak_memory_bytes, step_sigma, project, "
    "device_hours, has_findings"
)


def fill(place: str, runs: int) -> int:
    """Fill a store with copies of one run, their step times spread; return the bytes of a kept scorecard."""
    card = sg.score(str(ROOT / "examples" / "traces" / "gpt_naive.json.gz"))
    with open_history(place) as history:
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
        ((size,),) = database.execute("select length(body) from stepgrade_card where run_id = ?", (first,))
    return int(size)


class Load:
    """Readers and uploads for some seconds."""

    def __init__(self, port: int, runs: int, seconds: float) -> None:
        self._port, self._runs, self._end = port, runs, time.monotonic() + seconds
        self.times: dict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []
        self.acknowledged: set[int] = set()
        self._lock = threading.Lock()

    def read(self, seed: int) -> None:
        """Look at pages, a second apart, as a person does."""
        chance, connection = (
            random.Random(seed),
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=60),
        )
        time.sleep(chance.random())
        while time.monotonic() < self._end:
            page = chance.choice(PAGES)
            try:
                connection.request("GET", page.format(run=chance.randrange(1, self._runs)))
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                self.errors.append(repr(error))
                connection.close()
                continue
            spent = re.search(r"dur=([\d.]+)", answer.headers.get("server-timing", ""))
            with self._lock:
                if answer.status != 200 or spent is None:
                    self.errors.append(f"{page}: {answer.status}")
                else:
                    self.times[page].append(float(spent[1]))
            time.sleep(1.0)

    def upload(self, body: bytes, every_s: float, seed: int) -> None:
        """Send runs at a steady pace."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        due, number = time.monotonic() + random.Random(seed).random() * every_s, 0
        while due < self._end:
            time.sleep(max(0.0, due - time.monotonic()))
            due, number = due + every_s, number + 1
            headers = {"content-type": "application/json", "idempotency-key": f"bench-{seed}-{number}"}
            try:
                connection.request("POST", "/api/v1/projects/default/runs", body, headers)
                answer = connection.getresponse()
                found = json.loads(answer.read())
            except OSError as error:
                self.errors.append(repr(error))
                connection.close()
                continue
            with self._lock:
                spent = re.search(r"dur=([\d.]+)", answer.headers.get("server-timing", ""))
                if answer.status == 201 and spent is not None:
                    self.acknowledged.add(int(found["id"]))
                    self.times["upload"].append(float(spent[1]))
                else:
                    self.errors.append(f"upload: {answer.status}")


def cpu_seconds(process: int) -> float:
    """Return the processor's time of a process and its children so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == process or int(fields[1]) == process:
            total += (int(fields[11]) + int(fields[12])) / ticks
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
    with live_server(place, "--uploads-per-minute", "1000000", "--workers", str(options.workers)) as server:
        time.sleep(3.0)
        before = cpu_seconds(server.process.pid)
        load = Load(server.port, options.runs, options.seconds)
        threads = [threading.Thread(target=load.read, args=(seed,)) for seed in range(options.readers)]
        every = 10 / options.uploads
        threads += [threading.Thread(target=load.upload, args=(body, every, seed)) for seed in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent = cpu_seconds(server.process.pid) - before
    with open_history(place, create=False) as history:
        rows = history.database.execute("select id from stepgrade_run where id > ?", (options.runs,))
        lost = load.acknowledged - {int(row[0]) for row in rows}
    pages = [ms for page, found in load.times.items() if page != "upload" for ms in found]
    print("| page | requests | p50 ms | p95 ms |\n|---|---|---|---|")
    for page, found in sorted(load.times.items()):
        print(f"| `{page}` | {len(found)} | {statistics.median(found):.1f} | {percentile(found):.1f} |")
    print(f"| all pages | {len(pages)} | {statistics.median(pages):.1f} | {percentile(pages):.1f} |")
    count = sum(map(len, load.times.values()))
    busy = f"{spent / options.seconds:.2f} processors busy, load average {os.getloadavg()[0]:.1f}"
    print(f"\n{spent / count * 1000:.1f} ms of processor for a request; {busy};")
    print(f"{len(load.acknowledged)} uploads acknowledged, {len(lost)} lost; {len(load.errors)} errors")


def percentile(values: list[float]) -> float:
    """Return what 95 of 100 stay below."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def main() -> None:
    """Measure both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--uploads", type=float, default=20.0, help="a second")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.database != "postgres":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            measure("SQLite", f"{folder}/history.db", options)
        if options.database != "sqlite":
            server = stack.enter_context(running_server(fsync=True))
            measure("PostgreSQL", server.url, options)


if __name__ == "__main__":
    main()
