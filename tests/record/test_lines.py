"""The line of Python that holds a step up is named; and looking at it is nobody's trouble."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import stepgrade as sg
from stepgrade.record.lines import LineSampler
from stepgrade.record.timeline import StepTimeline
from tests.conftest import ROOT

HERE = Path(__file__)
SECONDS = 0.03


def line_of(words: str) -> str:
    """Return file and line of the only line of this file that has these words as a comment."""
    rows = HERE.read_text().splitlines()
    (number,) = [place for place, row in enumerate(rows, start=1) if row.endswith(f"# {words}")]
    return f"{HERE.name}:{number}"


class Rows(Dataset):
    def __init__(self, *, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 4 * 40

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        if self.slow:
            time.sleep(SECONDS / 4)  # slow row
        return torch.randn(32), row % 10


class Model(nn.Module):
    def __init__(self, *, slow: bool) -> None:
        super().__init__()
        self.slow, self.linear = slow, nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.slow:
            time.sleep(SECONDS)  # slow forward
        return self.linear(x)


def write_log(loss: Tensor) -> float:
    time.sleep(SECONDS)  # slow log
    return loss.item()


def train(tmp_path: Path, where: str, workers: int = 0) -> sg.Scorecard:
    model = Model(slow=where == "forward")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Rows(slow=where == "row"), batch_size=4, num_workers=workers)
    with sg.start_recording(model, optimizer, loader, path=tmp_path / "run.json") as recorder:
        for data, labels in loader:
            loss = functional.cross_entropy(model(data), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if where == "log":
                write_log(loss)
    return recorder.score()


@pytest.mark.parametrize(("where", "wait"), [("row", "input"), ("log", "stall"), ("forward", "stall")])
def test_a_planted_line_is_named(tmp_path: Path, where: str, wait: str) -> None:
    card = train(tmp_path, where)
    lines = sg.load(tmp_path / "run.json").activity.lines[wait]
    assert lines[0].where.endswith(line_of(f"slow {where}"))
    assert lines[0].calls == "time.sleep"
    assert lines[0].ms > 0.5 * SECONDS * 1000.0
    assert card.bottleneck in ("input", "host")
    assert line_of(f"slow {where}") in card.bottleneck_evidence[-1]
    assert any(line_of(f"slow {where}") in finding.claim for finding in card.findings)


def test_nothing_is_named_where_nothing_waits(tmp_path: Path) -> None:
    train(tmp_path, "nowhere")
    lines = sg.load(tmp_path / "run.json").activity.lines
    assert not [line for found in lines.values() for line in found if "sleep" in (line.calls or "")]


FORKS = """
    import _thread, os, sys, threading, time
    sys.path.insert(0, os.getcwd())
    import stepgrade as sg
    from tests.record.loop import Loop

    forking = []

    def count_when_forking():
        until = time.monotonic() + 600  # a thread that was told to end still takes a moment to be gone
        while _thread._count() > own and time.monotonic() < until:
            time.sleep(0.01)
        forking.append(_thread._count() - own)

    os.register_at_fork(before=count_when_forking)
    loop = Loop(steps=12)
    own, known = _thread._count(), threading.active_count()

    def each(loss):
        recorder.step(loss)
        if recorder.steps == 8:
            assert threading.active_count() == known
            forking.clear()
            before = _thread._count() - own
            child = os.fork()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert recorder._recording.lines.is_running
            until = time.monotonic() + 600  # one that has just started, to be counted
            while _thread._count() == own and time.monotonic() < until:
                time.sleep(0.01)
            print(f"{forking[0]} of ours while it forks, {before} before, {_thread._count() - own} after")

    with sg.Recorder(loop.model, path=sys.argv[0] + ".json") as recorder:
        loop.run(each)
    assert not recorder._recording
"""


def test_a_fork_finds_no_thread_of_ours(tmp_path: Path) -> None:
    """Loader workers fork while the recorder looks: the process has then as many threads as without it."""
    # In an interpreter of its own, for what is registered before the recorder's is called after it when one
    # forks; and without the libraries of other tests, some of which start threads in a forked process.
    script = tmp_path / "forks.py"
    script.write_text(textwrap.dedent(FORKS))
    ran = subprocess.run(
        [sys.executable, script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.stdout == "0 of ours while it forks, 1 before, 1 after\n", ran.stderr


def test_it_can_be_stopped_at_any_time() -> None:
    sampler = LineSampler(StepTimeline(time.perf_counter_ns))
    sampler.pause()
    sampler.resume()  # nobody said at whom
    assert not sampler.is_running
    sampler.start(0)
    for _ in range(20):
        sampler.pause()
        sampler.pause()
        assert not sampler.is_running
        sampler.resume()
        sampler.resume()
        assert sampler.is_running
    sampler.pause()
    assert sampler.lines(1) == {}


def test_threads_that_fork_at_once_do_not_wait_for_each_others_sampler() -> None:
    """Seen as a training that hung: a thread waited for a sampler that another one had started meanwhile."""
    sampler = LineSampler(StepTimeline(time.perf_counter_ns))
    sampler.start(0)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            threads = [threading.Thread(target=each, daemon=True) for each in (sampler.pause, sampler.resume)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(600)
            assert not any(thread.is_alive() for thread in threads)
            sampler.resume()
    finally:
        sys.setswitchinterval(usual)
    sampler.pause()
    assert not sampler.is_running


def test_what_follows_the_last_step_is_in_none(tmp_path: Path) -> None:
    """Seen in a public script that reads its best model again after training, in a line outside of the loop."""
    script = """
        import time, torch
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(12):
            time.sleep(0.03)
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        time.sleep(2)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "stepgrade", "record", "--quiet", "train.py"]
    subprocess.run(command, cwd=tmp_path, check=True, env={"PYTHONPATH": str(ROOT / "src")})
    activity = sg.load(tmp_path / "stepgrade.json").activity
    assert activity is not None
    # On a busy machine the model's own line may be seen too, where a step was held up.
    assert activity.lines["stall"][0].where == "train.py:6"
    assert "train.py:9" not in {line.where for line in activity.lines["stall"]}
