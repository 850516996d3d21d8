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
from stepgrade.record import journal

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


FLUSH_SECONDS = 0.02


@pytest.mark.parametrize(
    "longest", [1 << 22, 2_000, 1], ids=["appending", "now and then whole", "always whole"]
)
def test_the_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    """Killed while it trains, appends to its journal and puts that together anew.

    No file is torn, and every step that ended longer than the stated time before the last one is there.
    """
    monkeypatch.setattr(journal, "_LONGEST_BYTES", longest)
    path = tmp_path / "run.json"
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def train(tell: Callable[[int, int], None]) -> None:
        recorder = sg.start_recording(
            model, optimizer, path=path, warmup=0, ops_every=0, flush_seconds=FLUSH_SECONDS
        )
        recording = recorder._recording
        flush_if_due = recording.on_step

        def after_step(step: int) -> None:
            ended = time.monotonic_ns()
            flush_if_due(step)
            tell(step, ended)

        recording.on_step = after_step
        while True:
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    most_lost = 0
    for _ in range(KILLS):
        path.unlink(missing_ok=True)
        told = kill_at_random(train, 0.3)
        profile = sg.load(path)
        due = [step for step, ended in told if ended < told[-1][1] - FLUSH_SECONDS * 1e9]
        assert profile.recorded_steps >= max(due, default=1)
        most_lost = max(most_lost, told[-1][0] - profile.recorded_steps)
        assert profile.steps == len(profile.samples_ms) == profile.recorded_steps
        notes = {note.code: note.text for note in profile.notes}
        assert "at most 20.0 ms before it ended" in notes["not_ended"]
        assert "torn" not in notes or longest > 1
    drafts = [found for found in tmp_path.iterdir() if found != path]
    assert len(drafts) <= KILLS
    assert all(found.name.startswith(".stepgrade-") for found in drafts)
    print(f"{KILLS} kills: at most {most_lost} steps lost, {len(drafts)} drafts left")
    # A run of the next day finds nothing in its way, and clears up.
    for draft in drafts:
        os.utime(draft, (0, 0))
    child = os.fork()
    if child == 0:
        write_whole(tmp_path / "card.json", b"{}")
        os._exit(0)
    os.waitpid(child, 0)
    assert {found.name for found in tmp_path.iterdir()} == {"run.json", "card.json"}


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
    print(f"{KILLS} kills: {len(list(tmp_path.iterdir())) - 1} drafts left")


def test_stale_drafts_are_removed_and_fresh_ones_left(tmp_path: Path) -> None:
    names = [f".stepgrade-{digit * 16}.tmp" for digit in "123"]
    old, fresh, other = (tmp_path / f for f in (names[0], names[1], "stepgrade.tmp"))
    for file in (old, fresh, other):
        file.write_text("")
    for file in (old, other):
        os.utime(file, (0, 0))
    target = tmp_path / "elsewhere.json"
    target.write_text("not ours")
    (tmp_path / names[2]).symlink_to(target)
    os.utime(tmp_path / names[2], (0, 0), follow_symlinks=False)
    write_whole(tmp_path / "card.json", b"new")
    assert sorted(found.name for found in tmp_path.iterdir()) == [
        names[1],
        names[2],
        "card.json",
        "elsewhere.json",
        "stepgrade.tmp",
    ]
    assert target.read_text() == "not ours"
