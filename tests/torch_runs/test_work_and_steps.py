"""Real PyTorch runs on the processor: what their steps hold, where they are, which blocks are layers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.errors import BadInput

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn

WIDTH = 96
Loop = Callable[[Any], None]


class Block(nn.Module):  # type: ignore[misc, name-defined]  # torch is not always there
    """A layer with an inner stack, as they are written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.norm(x))


class Encoder(nn.Module):  # type: ignore[misc, name-defined]  # as above
    """Blocks in a stack, with something before and after them."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.start, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: Any) -> Any:
        x = self.start(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).log_softmax(-1)


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def profiled(path: Path, loop: Loop, **options: Any) -> Any:
    """Run a loop that may call prof.step(), and return the profile of its trace."""
    with (
        one_thread(),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as prof,
    ):
        loop(prof)
    prof.export_chrome_trace(str(path / "trace.json"))
    return sg.load(path / "trace.json")


def infer(mode: Any, rounds: int = 5, *, marked: bool = False) -> Loop:
    model, batch = Encoder().eval(), torch.randn(32, 8)

    def loop(prof: Any) -> None:
        with mode():
            for _ in range(rounds):
                model(batch)
                if marked:
                    prof.step()

    return loop


def train(rounds: int = 5, *, marked: bool = False) -> Loop:
    model, batch, goal = Encoder(), torch.randn(32, 8), torch.randint(10, (32,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loop(prof: Any) -> None:
        for _ in range(rounds):
            nn.functional.nll_loss(model(batch), goal).backward()
            optimizer.step()
            optimizer.zero_grad()
            if marked:
                prof.step()

    return loop


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("marked", [True, False])
def test_forward_passes_are_inference_and_get_no_grade(tmp_path: Path, mode: Any, marked: bool) -> None:
    profile = profiled(tmp_path, infer(mode, marked=marked), record_shapes=True)
    card = sg.score(profile)
    assert (card.work, card.grade) == ("inference", "ungraded")
    assert "inference" in [note.code for note in card.ungraded_because]


@pytest.mark.parametrize("marked", [True, False])
def test_a_training_loop_is_training(tmp_path: Path, marked: bool) -> None:
    assert profiled(tmp_path, train(marked=marked)).work == "training"


def test_a_backward_pass_alone_is_training(tmp_path: Path) -> None:
    model, batch = Encoder(), torch.randn(32, 8)
    assert profiled(tmp_path, lambda _: model(batch).sum().backward()).work == "training"


@pytest.mark.parametrize("with_modules", [True, False])
def test_rounds_of_an_unmarked_loop_are_its_steps_not_layers(tmp_path: Path, with_modules: bool) -> None:
    options = {"with_stack": True, "experimental_config": None} if with_modules else {}
    profile = profiled(tmp_path, infer(torch.inference_mode, 6), **options)
    assert profile.recorded_steps == 6
    assert profile.contents["steps from"] == ("range" if with_modules else "operations")
    assert len(profile.layers) in (0, 4)
    if with_modules:
        assert [layer.name for layer in profile.layers] == [f"Block_{place}" for place in range(4)]


@pytest.mark.parametrize("with_modules", [True, False])
def test_steps_of_an_unmarked_training_loop(tmp_path: Path, with_modules: bool) -> None:
    profile = profiled(tmp_path, train(6), with_stack=with_modules)
    assert (profile.contents["steps from"], profile.recorded_steps) == ("optimizer", 6)


def test_a_training_loop_of_its_own_making_has_steps_inside_module_frames(tmp_path: Path) -> None:
    model, batch = Encoder(), torch.randn(32, 8)

    def loop(_: Any) -> None:
        for _ in range(4):
            model(batch).sum().backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.sub_(weight.grad, alpha=1e-3)
                    weight.grad = None

    profile = profiled(tmp_path, loop, with_stack=True)
    assert (profile.contents["steps from"], profile.recorded_steps) == ("backward", 4)


def test_a_python_loop_over_one_cell_has_no_layers(tmp_path: Path) -> None:
    cell, inputs = nn.RNNCell(WIDTH, WIDTH), torch.randn(40, 16, WIDTH)

    def loop(prof: Any) -> None:
        for _ in range(3):
            state = torch.zeros(16, WIDTH)
            for one in inputs:
                state = cell(one, state)
            state.sum().backward()
            prof.step()

    for with_stack in (True, False):
        assert profiled(tmp_path, loop, with_stack=with_stack).layers == ()


SCHEDULED = """
import sys, torch
model, batch = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)), torch.randn(8, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=2)
handler = torch.profiler.tensorboard_trace_handler(sys.argv[1])
activities = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=handler) as prof:
    for _ in range(10):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        prof.step()
"""


def recordings(folder: Path) -> None:
    """Record twice in one process, which is another: profilers with other settings ran in this one."""
    subprocess.run([sys.executable, "-c", SCHEDULED, str(folder)], check=True, timeout=300)


def test_recordings_of_one_process_are_steps_of_one_run(tmp_path: Path) -> None:
    recordings(tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    each = [sg.load(file) for file in files]
    joined = sg.load(tmp_path)
    assert joined.ranks == ()
    assert joined.steps == sum(profile.steps or 0 for profile in each)
    assert sorted(joined.samples_ms) == sorted(ms for profile in each for ms in profile.samples_ms)
    assert joined.ledger is not None
    assert joined.ledger.total == sum(p.ledger.total for p in each if p.ledger)
    totals = {op.name: (op.ms or 0.0) * (joined.steps or 0) for op in joined.operations}
    for name in ("aten::addmm", "aten::add_"):
        parts = [
            (op.ms or 0.0) * (profile.steps or 0)
            for profile in each
            for op in profile.operations
            if op.name == name
        ]
        assert totals[name] == pytest.approx(sum(parts))
    assert len(joined.source.files) == 2
    assert sg.score(joined).work == "training"


def test_traces_of_different_runs_are_not_merged(tmp_path: Path) -> None:
    recordings(tmp_path)
    first, second = sorted(tmp_path.iterdir())
    text = second.read_text(encoding="utf-8")
    pid = first.name.split(".")[0].rsplit("_", 1)[1]
    other = tmp_path / second.name.replace(f"_{pid}.", "_1.")
    other.write_text(text.replace(f'"pid": {pid}', '"pid": 1'), encoding="utf-8")
    second.unlink()
    with pytest.raises(BadInput, match="different runs"):
        sg.load(tmp_path)
