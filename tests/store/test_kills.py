"""Writers and the server itself, killed at any moment: what was acknowledged is there, whole, and the store goes on.

`make kills` kills each 500 times; the checks do it a few times.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepgrade.store import NewRun, open_history
from tests.conftest import ROOT
from tests.store.server import Server, running_server
from tests.store.test_history import card

KILLS = int(os.environ.get("STEPGRADE_KILLS", "4"))
# One process for all kills: it imports once, and each child that it forks writes until it is killed.
WRITERS = """
import os, sys
import stepgrade as sg
from stepgrade.store import NewRun, open_history
from tests.builders import make_profile
card = sg.score(make_profile(samples_ms=tuple(100.0 + n % 7 for n in range(50))))
for place in sys.stdin:
    child = os.fork()
    if child == 0:
        number = 0
        try:
            while True:
                with open_history(place.strip()) as history:
                    for _ in range(5):
                        name = f"{os.getpid()}-{number}"
                        number += 1
                        os.write(1, f"kept {history.add(NewRun(card=card, commit=name))} {name}\\n".encode())
        except BaseException:
            os._exit(1)  # the server is gone: what it did not acknowledge is not ours to promise
    os.write(1, f"pid {child}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"gone\\n")
"""


class Writers:
    """A process that forks writers on demand; their acknowledgements are read as they come."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        self._buffer = b""

    def start(self, place: str) -> int:
        """Start a writer and return its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{place}\n".encode())
        self._process.stdin.flush()
        self._early = []
        while not (line := self._line()).startswith("pid "):
            self._early.append(line)
        return int(line.split()[1])

    def acknowledged(self) -> dict[int, str]:
        """Return what the writer was told is kept, once it is gone."""
        lines = self._early
        while (line := self._line()) != "gone":
            lines.append(line)
        return {int(line.split()[1]): line.split()[2] for line in lines if line.startswith("kept ")}

    def wait_for_one(self) -> None:
        """Wait until the writer was told of a run."""
        if not self._early:
            self._early.append(self._line())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], 120.0)
            assert ready, "the writer says nothing"
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            assert more, "the writers' process has ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    made = Writers()
    yield made
    made.close()


def check(place: str, told: dict[int, str]) -> None:
    with open_history(place, create=False) as history:
        kept = {run.id: run.commit for run in history.runs()}
        assert kept.items() >= told.items()
        newest = sorted(kept)[-3:]
        assert len(history.cards(newest)) == len(newest)
        assert not history.damaged
        history.remove(sorted(kept)[:-3])  # so that the store stays small; what is left is asked for again
        assert history.add(NewRun(card=card())) > max(kept, default=0)


def kill_writers(writers: Writers, place: str, seed: int) -> None:
    moments = random.Random(seed)
    with open_history(place):
        pass
    for _ in range(KILLS):
        pid = writers.start(place)
        if moments.random() < 0.8:  # the others are killed while they open the store
            writers.wait_for_one()
        time.sleep(moments.uniform(0.0, 0.03))
        os.kill(pid, 9)
        check(place, writers.acknowledged())


def test_killed_writers_of_a_file_lose_nothing(writers: Writers, tmp_path: Path) -> None:
    kill_writers(writers, str(tmp_path / "history.db"), 1)


def test_killed_clients_of_a_server_lose_nothing(writers: Writers, server: str) -> None:
    kill_writers(writers, server, 2)


@pytest.fixture
def mortal() -> Iterator[Server]:
    with running_server(fsync=True) as made:
        yield made


def test_a_server_killed_while_it_serves_loses_nothing(writers: Writers, mortal: Server) -> None:
    moments = random.Random(3)
    with open_history(mortal.url):
        pass
    for _ in range(KILLS):
        writers.start(mortal.url)
        if moments.random() < 0.8:
            writers.wait_for_one()
        time.sleep(moments.uniform(0.0, 0.03))
        mortal.kill()
        told = writers.acknowledged()
        mortal.start()
        check(mortal.url, told)
