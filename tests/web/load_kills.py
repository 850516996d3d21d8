"""Load on a server while it and its database are killed at random: nothing acknowledged may be lost.

`make load-kills` runs ten minutes on PostgreSQL and ten on SQLite, and prints what was seen.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stepgrade.store import open_history
from tests.store.server import Server, running_server
from tests.web.conftest import card
from tests.web.live import Live

UPLOADERS, READERS = 4, 4
UPLOADS_PER_S = 8.0
PAGES = ("/", "/p/default/runs", "/p/default/trend", "/p/default/findings", "/p/default/alerts", "/readyz")
RUNS = "/api/v1/projects/default/runs"
_WARM_S = 30.0  # it imports what a page needs when it is first asked for
_PAUSES_S = (3.0, 15.0)  # between two kills
# The database dies most often, so that a server lives long enough for its memory to be watched.
_VICTIMS = ("database",) * 13 + ("server",) * 4 + ("both",) * 3


class LoadResult(NamedTuple):
    """What a run of the load saw."""

    acknowledged: int
    lost: int
    twice: int
    kills: Counter[str]
    errors: Counter[str]
    upload_ms: list[float]  # of requests that were answered
    until_ms: list[float]  # from the first try to the acknowledgement
    page_ms: list[float]
    memory_mb: list[float]
    growth_mb: float  # the most within one life of the server, once it was warm

    def lines(self) -> list[str]:
        """Return the figures as rows of a table."""
        kills = ", ".join(f"{count} of the {what}" for what, count in sorted(self.kills.items()))
        errors = ", ".join(f"{count} {what}" for what, count in self.errors.most_common()) or "none"
        middle, most = statistics.median(self.memory_mb), max(self.memory_mb)
        return [
            f"| uploads acknowledged, lost, kept twice | {self.acknowledged:,}, {self.lost}, {self.twice} |",
            f"| kills | {kills} |",
            f"| answer to an upload, p50 (p95) | {shown(self.upload_ms)} |",
            f"| until an upload is acknowledged, p50 (p95) | {shown(self.until_ms)} |",
            f"| page, p50 (p95) | {shown(self.page_ms)} |",
            f"| requests without an answer, by reason | {errors} |",
            f"| memory of the server, median (most) | {middle:.0f} MB ({most:.0f} MB) |",
            f"| growth within one life, at most | {self.growth_mb:.0f} MB |",
        ]


def shown(values: list[float]) -> str:
    """Return the middle and what 95 of 100 stay below."""
    if not values:
        return "none"
    ordered = sorted(values)
    return f"{statistics.median(ordered):.0f} ms ({ordered[int(len(ordered) * 0.95)]:.0f} ms)"


class LoadWithKills:
    """Uploads and pages for some seconds, and somebody with kill -9."""

    def __init__(self, place: str, database: Server | None, seconds: float, seed: int) -> None:
        self._place, self._database = place, database
        self._end = time.monotonic() + seconds
        self._chance = random.Random(seed)
        self._server = Live(place, "--uploads-per-minute", "1000000")
        self._body: dict[str, Any] = {"card": msgspec.json.decode(card().to_json()), "branch": "main"}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: dict[str, int] = {}
        self.errors: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {"upload": [], "until": [], "page": []}
        self.memory: list[list[float]] = [[]]  # by the life of the server

    def run(self) -> LoadResult:
        """Do it, and look for every acknowledged run."""
        tasks = [threading.Thread(target=self._upload, args=(f"u{n}",)) for n in range(UPLOADERS)]
        tasks += [threading.Thread(target=self._read, args=(n,)) for n in range(READERS)]
        tasks += [threading.Thread(target=self._watch)]
        try:
            for task in tasks:
                task.start()
            while time.monotonic() < self._end:
                pause = self._chance.uniform(*_PAUSES_S) * (1.0 if self._database else 2.0)
                time.sleep(max(0.0, min(pause, self._end - time.monotonic())))
                self._kill()
            self._await_one_more()
            self._stop.set()
            for task in tasks:
                task.join()
            again = self._send_again()
        finally:
            self._stop.set()
            self._server.stop()
        return self._result(again)

    def _kill(self) -> None:
        what = self._chance.choice(_VICTIMS) if self._database else "server"
        if what != "server" and self._database is not None:
            self._database.kill()
            self.kills["database"] += 1
        if what != "database":
            self._server.kill()
            self.kills["server"] += 1
            self.memory.append([])
        time.sleep(self._chance.uniform(0.0, 1.0))
        if what != "server" and self._database is not None:
            self._database.start()
        if what != "database":
            self._server.start()

    def _ask(
        self, method: str, path: str, body: bytes | None = None, key: str = ""
    ) -> tuple[int, bytes] | None:
        """Return what is answered; None when nothing is."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=120)
        headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            with self._lock:
                self.errors[type(error).__name__] += 1
            return None
        finally:
            connection.close()
        if answer.status not in (200, 201):
            with self._lock:
                self.errors[str(answer.status)] += 1
        return answer.status, text

    def _upload(self, name: str) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            key = f"{name}-{number}"
            body = json.dumps(self._body | {"commit": key}).encode()
            first = time.perf_counter()
            while not self._stop.is_set():
                begun = time.perf_counter()
                found = self._ask("POST", RUNS, body, key)
                ended = time.perf_counter()
                if found is not None and found[0] in (200, 201):
                    with self._lock:
                        self.acknowledged[key] = int(json.loads(found[1])["id"])
                        self.times["upload"].append((ended - begun) * 1000)
                        self.times["until"].append((ended - first) * 1000)
                    break
                self._stop.wait(0.1)
            self._stop.wait(max(0.0, UPLOADERS / UPLOADS_PER_S - (time.perf_counter() - first)))

    def _read(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.wait(chance.uniform(0.5, 1.5)):
            begun = time.perf_counter()
            found = self._ask("GET", chance.choice(PAGES))
            if found is not None and found[0] == 200:
                with self._lock:
                    self.times["page"].append((time.perf_counter() - begun) * 1000)

    def _watch(self) -> None:
        born, life = time.monotonic(), 0
        while not self._stop.wait(0.5):
            if len(self.memory) - 1 != life:
                born, life = time.monotonic(), len(self.memory) - 1
            try:
                pages = int(Path(f"/proc/{self._server.process.pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            if time.monotonic() - born > _WARM_S:
                self.memory[life].append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)

    def _await_one_more(self) -> None:
        """Wait until the server that is left has found its database again."""
        count, end = len(self.acknowledged), time.monotonic() + 120.0
        while len(self.acknowledged) <= count and time.monotonic() < end:
            time.sleep(0.05)

    def _send_again(self) -> int:
        """Send some acknowledged runs once more, and count those that get another number."""
        some = self._chance.sample(sorted(self.acknowledged), min(50, len(self.acknowledged)))
        found = [
            self._ask("POST", RUNS, json.dumps(self._body | {"commit": key}).encode(), key) for key in some
        ]
        return sum(
            answer is None or json.loads(answer[1]).get("id") != self.acknowledged[key]
            for key, answer in zip(some, found, strict=True)
        )

    def _result(self, again: int) -> LoadResult:
        with open_history(self._place, create=False) as history:
            kept = {run.id: run.commit for run in history.runs()}
        lives = [life for life in self.memory if len(life) > 10]
        return LoadResult(
            acknowledged=len(self.acknowledged),
            lost=sum(kept.get(number) != key for key, number in self.acknowledged.items()),
            twice=len(kept) - len(set(kept.values())) + again,
            kills=self.kills,
            errors=self.errors,
            upload_ms=self.times["upload"],
            until_ms=self.times["until"],
            page_ms=self.times["page"],
            memory_mb=[value for life in self.memory for value in life] or [0.0],
            growth_mb=max((max(life) - statistics.median(life[:5]) for life in lives), default=0.0),
        )


def load_with_kills(kind: str, seconds: float, seed: int = 26) -> LoadResult:
    """Return what a load on a new store of this kind saw."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stepgrade-load-"))
        if kind == "sqlite":
            return LoadWithKills(f"{folder}/history.db", None, seconds, seed).run()
        database = stack.enter_context(running_server(fsync=True))
        return LoadWithKills(database.url, database, seconds, seed).run()


def main() -> None:
    """Load both databases, and end with 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--database", choices=("postgres", "sqlite", "both"), default="both")
    parser.add_argument("--seed", type=int, default=26)
    options = parser.parse_args()
    is_whole = True
    for kind in ("postgres", "sqlite") if options.database == "both" else (options.database,):
        result = load_with_kills(kind, options.seconds, options.seed)
        print(f"\n{kind}, {options.seconds:.0f} s, load average {os.getloadavg()[0]:.1f}\n")
        print(*result.lines(), sep="\n", flush=True)
        is_whole &= not (result.lost or result.twice)
    raise SystemExit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
