"""Several profiled steps in one training: torch's profiler is started and stopped only where it survives that."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import stepgrade as sg
from stepgrade.record.operations import OperationWindow
from tests.record.forked import start

HEAD = """
import threading
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(8, 32)
def step():
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""

# What is open, or where the thread is, when a step ends; and how many steps there are.
TRAININGS = {
    "nothing is open": ("for _ in range(24): step()", 24),
    "a range that spans steps": (
        """
        for epoch in range(4):
            with record_function("epoch"):
                for _ in range(6): step()
        """,
        24,
    ),
    "a range that nobody ends": (
        """
        for epoch in range(4):
            opened = record_function("epoch").__enter__()
            for _ in range(6): step()
        """,
        24,
    ),
    "ranges of a generator": (
        """
        @record_function("batches")
        def decorated(): return step()
        def batches():
            while True:
                with record_function("batch"):
                    yield x
        source = batches()
        for _ in range(24): x = next(source); decorated()
        """,
        24,
    ),
    "an operation that trains": (
        """
        class Inner(torch.autograd.Function):
            @staticmethod
            def forward(ctx, t):
                with torch.enable_grad():
                    for _ in range(6): step()
                return t * 2
            @staticmethod
            def backward(ctx, gradient):
                with torch.enable_grad():
                    for _ in range(6): step()
                return gradient
        for _ in range(2): Inner.apply(torch.ones(3, requires_grad=True)).sum().backward()
        """,
        24,
    ),
    "the optimizer steps inside backward": (
        """
        optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}
        def hook(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()
        for parameter in model.parameters(): parameter.register_post_accumulate_grad_hook(hook)
        for _ in range(24): model(x).square().mean().backward()
        """,
        24,
    ),
    "a profiler of the script's own": (
        """
        cycle = schedule(wait=3, warmup=1, active=2, repeat=3)
        with profile(activities=[ProfilerActivity.CPU], schedule=cycle) as own:
            for _ in range(12):
                with record_function("its own"): step()
                own.step()
        for _ in range(12): step()
        """,
        24,
    ),
    "another thread goes on": (
        """
        for _ in range(12): step()
        thread = threading.Thread(target=lambda: [step() for _ in range(13)])
        thread.start(); thread.join()
        """,
        22,  # three in the other thread show that it goes on there
    ),
    "two threads train": (
        """
        other, theirs = torch.nn.Linear(4, 4), None
        theirs = torch.optim.SGD(other.parameters(), 1e-3)
        go, done = threading.Semaphore(0), threading.Semaphore(0)
        def train_other():
            for _ in range(12):
                go.acquire()
                other(torch.ones(2, 4)).sum().backward()
                theirs.step()
                done.release()
        thread = threading.Thread(target=train_other)
        thread.start()
        for number in range(24):
            step()
            if number % 2: go.release(); done.acquire()
        thread.join()
        """,
        24,
    ),
}


WORDS = "\nprint([float(p.detach().sum()) for p in model.parameters()])\n"
RECORDED = """
from stepgrade.record.script import ScriptRecorder
recorder = ScriptRecorder(path="run.json", ops_every={every}, layers=["*"]).start()
"""


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, 1) for name in TRAININGS),
        ("the optimizer steps inside backward", None),
        ("two threads train", 4),
    ],
)
def test_a_training_with_profiled_steps_ends_as_without(tmp_path: Path, name: str, every: int | None) -> None:
    body, steps = TRAININGS[name]
    plain = HEAD + textwrap.dedent(body) + WORDS
    ran = []
    for place, text in enumerate((plain, HEAD + RECORDED.format(every=every) + plain + "recorder.close()\n")):
        script = tmp_path / f"train-{place}.py"
        script.write_text(text)
        ended = start(script, cwd=tmp_path).wait()
        # Whoever starts torch's profiler, it may say so.
        said = [line for line in ended.err.splitlines() if "USDT" not in line]
        ran.append((ended.code, ended.out, said))
    assert ran[1] == ran[0]
    assert ran[0][0] == 0, ran[0]
    profile = sg.load(tmp_path / "run.json")
    assert profile.recorded_steps == steps
    assert profile.operations


def test_no_window_ends_inside_an_operation_that_began_in_it() -> None:
    """Torch's own range of the operation would be open into the next window, and write into freed memory."""

    class Closing(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, values: torch.Tensor, opens: bool) -> torch.Tensor:
            if opens:
                window.open_if_due(1, None)
            closed.append(window.close())
            return values * 2

    for opens in (False, True):
        window, closed = OperationWindow(every=1, warmup=0), []
        if not opens:
            window.open_if_due(1, None)
        Closing.apply(torch.ones(3), opens)
        assert (closed[0] is not None) == opens
        assert window.has_lapsed != opens
        window.close()
        assert not window.is_open
