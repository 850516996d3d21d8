"""A recording says when other programs held the training up, and only then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import stepgrade as sg
from stepgrade.hardware.detect import OtherLoad
from stepgrade.record import environment
from stepgrade.record.environment import Contention

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="Linux counts how long a thread waits for a core"
)


@contextmanager
def one_core() -> Iterator[None]:
    """Let this process, and what it starts, use one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_program(*, is_ours: bool) -> Iterator[None]:
    """Run something that computes all the time, as a child of this process or of nobody here."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if is_ours or os.fork() == 0:
                os.write(theirs, b"%10d" % os.getpid())
                until = time.monotonic() + 120
                while time.monotonic() < until:
                    pass
        finally:
            os._exit(0)
    if not is_ours:
        os.waitpid(child, 0)  # its own child is nobody's now
    pid = int(os.read(ours, 10))
    for end in (ours, theirs):
        os.close(end)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if is_ours:
            os.waitpid(child, 0)


def train(path: Path, seconds: float) -> sg.Profile:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sg.start_recording(model, optimizer, path=path, warmup=1, ops_every=0) as recorder:
        until = time.monotonic() + seconds
        while recorder.steps < 5 or time.monotonic() < until:
            model(torch.ones(64, 64)).sum().backward()
            optimizer.step()
    return sg.load(path)


def test_another_program_on_the_same_core_is_told(tmp_path: Path) -> None:
    with one_core(), busy_program(is_ours=False):
        profile = train(tmp_path / "run.json", 2.0)
    (note,) = [note for note in profile.notes if note.code == "busy_machine"]
    assert "other programs took" in note.text
    assert any("the machine was busy" in note.text for note in sg.score(profile).notes)


def test_what_the_training_started_itself_is_no_other_program(tmp_path: Path) -> None:
    """A loader's worker on the same core: the training waits for it, and others are not to blame."""
    load = OtherLoad(os.getpid())
    with one_core(), busy_program(is_ours=True):
        profile = train(tmp_path / "run.json", 2.0)
        others = load.share()
    told = [note for note in profile.notes if note.code == "busy_machine"]
    assert not told or others > 0.05, (told, others)  # unless this machine is busy indeed


@pytest.mark.parametrize(
    ("waited_share", "others", "is_told"),
    [(0.0, 0.0, False), (0.04, 0.9, False), (0.5, 0.09, False), (0.06, 0.11, True), (0.9, 0.9, True)],
)
def test_both_have_to_be_notable(
    monkeypatch: pytest.MonkeyPatch, waited_share: float, others: float, is_told: bool
) -> None:
    """Others that are busy on other cores hurt nobody; a wait for one's own threads is not theirs."""
    seconds = iter((100.0, 110.0))
    monkeypatch.setattr(
        environment, "time", SimpleNamespace(monotonic=lambda: next(seconds))
    )  # its own clock
    waited = iter((1.0, 1.0 + 10.0 * waited_share))
    monkeypatch.setattr(Contention, "_waited_s", lambda _self: next(waited))
    monkeypatch.setattr(OtherLoad, "share", lambda _self: others)
    note = Contention().note()
    assert (note is not None) is is_told


def test_nothing_is_said_where_it_cannot_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contention, "_waited_s", lambda _self: None)
    assert Contention().note() is None
