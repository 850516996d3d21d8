"""Writers killed at random moments: what was acknowledged is there, and what is lost is bounded and stated."""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import stepgrade as sg
from stepgrade.files import write_whole

KILLS = int(os.environ.get("STEPGRADE_KILLS", "6"))
COUNT = struct.Struct("<qq")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def kill_at_random(
    work: Callable[[Callable[[int, int], None]], None], seconds: float
) -> list[tuple[int, int]]:
    """Run `work` in a forked process, kill it at some moment, and return all that it told before."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            work(lambda *told: os.write(theirs, COUNT.pack(*told)))
        finally:
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        told = [COUNT.unpack(stream.read(COUNT.size))]  # it has begun
        time.sleep(random.random() * seconds)
        os.kill(child, signal.SIGKILL)
        rest = stream.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    whole = len(rest) // COUNT.size * COUNT.size
    return told + list(COUNT.iter_unpack(rest[:whole]))


def test_the_recorder(tmp_path: Path) -> None:
    """Killed while it trains and flushes."""
    path = tmp_path / "run.json"
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def train(tell: Callable[[int, int], None]) -> None:
        recorder = sg.watch(model, optimizer, path=path, warmup=0, ops_every=0, flush_seconds=0.02)
        flush = recorder.flush

        def flush_and_tell() -> None:
            flush()
            tell(recorder.steps, time.monotonic_ns())

        recorder.flush = flush_and_tell  # type: ignore[method-assign]  as the loop calls it
        while True:
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    for _ in range(KILLS):
        path.unlink(missing_ok=True)
        acknowledged, _ = kill_at_random(train, 0.3)[-1]
        profile = sg.load(path)
        assert profile.recorded_steps >= acknowledged
        assert profile.steps == len(profile.samples_ms) == profile.recorded_steps
        stated = [note.text for note in profile.notes if note.code == "not_ended"]
        assert "at most 20.0 ms before it ended" in stated[0]
    drafts = [found for found in tmp_path.iterdir() if found != path]
    assert len(drafts) <= KILLS
    assert all(found.name.startswith(".stepgrade-") for found in drafts)


def test_the_writer_of_scorecards(tmp_path: Path) -> None:
    """Killed while it puts one file in the place of another."""
    path = tmp_path / "card.json"
    write_whole(path, b"0\n")

    def write(tell: Callable[[int, int], None]) -> None:
        for number in range(1, 1_000_000):
            write_whole(path, (b"%d\n" % number) * 5000)
            tell(number, 0)

    for _ in range(KILLS):
        acknowledged, _ = kill_at_random(write, 0.05)[-1]
        lines = path.read_bytes().splitlines()
        assert len(lines) == 5000
        assert set(lines) <= {b"%d" % acknowledged, b"%d" % (acknowledged + 1)}
        assert len(set(lines)) == 1


def test_stale_drafts_are_removed_and_fresh_ones_left(tmp_path: Path) -> None:
    old, fresh, other = (tmp_path / f for f in (".stepgrade-1.tmp", ".stepgrade-2.tmp", "stepgrade.tmp"))
    for file in (old, fresh, other):
        file.write_text("")
    for file in (old, other):
        os.utime(file, (0, 0))
    target = tmp_path / "elsewhere.json"
    target.write_text("not ours")
    (tmp_path / ".stepgrade-3.tmp").symlink_to(target)
    write_whole(tmp_path / "card.json", b"new")
    assert sorted(found.name for found in tmp_path.iterdir()) == [
        ".stepgrade-2.tmp",
        ".stepgrade-3.tmp",
        "card.json",
        "elsewhere.json",
        "stepgrade.tmp",
    ]
    assert target.read_text() == "not ours"
