"""The line of Python that holds a step up is named; and looking at it is nobody's trouble."""

from __future__ import annotations

import os
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
from tests.record.loop import Loop

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
    with sg.watch(model, optimizer, loader, path=tmp_path / "run.json") as recorder:
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


def test_a_fork_finds_no_thread_of_ours(tmp_path: Path) -> None:
    """Loader workers fork while the recorder looks: the process has then as many threads as without it."""
    seen = []
    loop = Loop(steps=12)

    def each(loss: Tensor) -> None:
        recorder.step(loss)
        if recorder.steps == 8:
            assert recorder._recording.lines.is_running
            assert threading.active_count() == before
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(write, str(len([*Path("/proc/self/task").iterdir()])).encode())
                os._exit(0)
            os.waitpid(child, 0)
            seen.append(os.read(read, 10))
            assert recorder._recording.lines.is_running  # again

    before = threading.active_count()
    with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
        loop.run(each)
    assert seen == [b"1"]
    assert not recorder._recording


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
