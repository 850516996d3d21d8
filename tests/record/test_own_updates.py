"""Loops without a torch optimizer: their steps are told by the weights, and what cannot be told is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.model import Note
from stepgrade.record.totals import StepSizes
from tests.builders import make_profile
from tests.record.test_processes import run

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
def update():
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-0.01)
"""
ONCE = """
for x in torch.randn(12, 4, 8):
    model.zero_grad()
    model(x).square().mean().backward()
    update()
"""
# Gradients are set to zero after the forward, as some loops do.
ZEROED_LATE = """
for x in torch.randn(12, 4, 8):
    loss = model(x).square().mean()
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad.zero_()
    loss.backward()
    update()
"""
ACCUMULATED = """
for number, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(12 * 3 * 4, 8)), batch_size=4)):
    model(x).square().mean().backward()
    if number % 3 == 2:
        update()
        model.zero_grad()
"""
WITH_GRAD = """
for x in torch.randn(12, 4, 8):
    gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    with torch.no_grad():
        for weight, gradient in zip(model.parameters(), gradients):
            weight -= 0.01 * gradient
"""
EVALUATED = """
for epoch in range(3):
    for x in torch.randn(4, 4, 8):
        model.zero_grad()
        model(x).square().mean().backward()
        update()
    with torch.no_grad():
        model(torch.randn(4, 8))
"""
LOOPS = {
    "once": (ONCE, 4.0),
    "zeroed late": (ZEROED_LATE, 4.0),
    "accumulated": (ACCUMULATED, 12.0),
    "autograd.grad": (WITH_GRAD, 4.0),
    "evaluated": (EVALUATED, 4.0),
}


def record(folder: Path, text: str) -> tuple[sg.Profile, str]:
    (folder / "train.py").write_text(text)
    ran = run("stepgrade", "record", "-o", "run.json", "train.py", cwd=folder)
    assert ran.code == 0, ran.err
    return sg.load(folder / "run.json"), ran.err


@pytest.mark.parametrize("loop", LOOPS)
def test_a_step_is_from_one_update_of_the_weights_to_the_next(tmp_path: Path, loop: str) -> None:
    text, samples = LOOPS[loop]
    profile, said = record(tmp_path, HEAD + text)
    assert profile.recorded_steps == 12
    assert "recorded 12 steps" in said
    assert profile.samples_per_step == samples
    assert {"forward", "backward", "optimizer"} <= {phase.name for phase in profile.phases}
    assert profile.ledger is not None  # a step was sampled
    (note,) = [note for note in profile.notes if note.code == "own_updates"]
    assert "the weights have changed" in note.text


def test_tensors_without_a_module_are_counted_by_their_backward_passes(tmp_path: Path) -> None:
    profile, _ = record(
        tmp_path,
        """
import torch
weight = torch.randn(16, 16, requires_grad=True)
for _ in range(12):
    (torch.randn(8, 16) @ weight).square().mean().backward()
    with torch.no_grad():
        weight -= 0.01 * weight.grad
        weight.grad = None
""",
    )
    assert profile.recorded_steps == 12
    assert profile.samples_per_step is None
    assert {"forward", "backward"} <= {phase.name for phase in profile.phases}
    assert any("each backward pass counts" in note.text for note in profile.notes)


def test_an_optimizer_counts_its_own_steps_however_the_gradients_are(tmp_path: Path) -> None:
    profile, _ = record(
        tmp_path,
        HEAD
        + """
before = torch.autograd.grad
optimizer = torch.optim.SGD(model.parameters(), 0.01)
assert torch.autograd.grad is not before  # it is torch's own again
for number, x in enumerate(torch.randn(24, 4, 8)):
    model(x).square().mean().backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
""",
    )
    assert profile.recorded_steps == 12
    assert profile.samples_per_step == 8
    assert not any(note.code == "own_updates" for note in profile.notes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import jax", "it trains with jax, and only PyTorch is recorded"),
        ("print('done')", "no process imported torch"),
        ("import torch", "no process took a step of a torch optimizer"),
    ],
)
def test_what_cannot_be_recorded_is_said_plainly(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "jax.py").touch()
    (tmp_path / "train.py").write_text(text)
    ran = run("stepgrade", "record", "train.py", cwd=tmp_path)
    assert ran.code == 0
    assert why in ran.err


def sized(steps: list[tuple[int, int]]) -> StepSizes:
    sizes = StepSizes()
    for size, wall_ns in steps:
        sizes.add(size, wall_ns)
    return sizes


def test_steps_that_hold_more_and_take_longer_are_uneven_and_not_unsteady() -> None:
    times = [400_000_000 if number % 6 == 5 else 90_000_000 for number in range(24)]
    assert sized([(24 if ns > 90_000_000 else 4, ns) for ns in times]).uneven() == (4, 24)
    assert sized([(4, ns) for ns in times]).uneven() is None
    spread = make_profile(steps=24, samples_ms=tuple(ns / 1e6 for ns in times))
    rules = {"unsteady-steps", "drifting-steps"}
    assert rules & {found.rule for found in sg.score(spread).findings}
    uneven = structs.replace(spread, notes=(*spread.notes, Note("uneven_steps", "some hold more")))
    assert not rules & {found.rule for found in sg.score(uneven).findings}


def test_a_model_without_data_is_none_that_trains(tmp_path: Path) -> None:
    """Those who count FLOPs call one on torch's meta device first, as litgpt does."""
    meta = "with torch.device('meta'):\n    nn.Linear(8, 8)(torch.randn(2, 8)).sum().backward()\n"
    profile, _ = record(tmp_path, HEAD + meta + ONCE)
    assert profile.recorded_steps == 12 + 1  # its backward pass has a step's place, before the first
    assert profile.samples_per_step == 4
    assert not any(note.code == "recorder_failed" for note in profile.notes)


OF_FUNCTIONS = """
weights = {name: weight.detach() for name, weight in model.named_parameters()}
def loss(weights, x):
    return torch.func.functional_call(model, weights, (x,)).square().mean()
for x in torch.randn(12, 4, 8):
    gradients = torch.func.grad(loss)(weights, x)
    weights = {name: weight - 0.01 * gradients[name] for name, weight in weights.items()}
"""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("python", "-I", "train.py"), "no process was a Python that honours PYTHONPATH"),
        (("train.py", "fails"), "the script ended with exit code 7 before a step was seen"),
    ],
)
def test_why_there_is_no_step(tmp_path: Path, command: tuple[str, ...], why: str) -> None:
    (tmp_path / "train.py").write_text("import sys, torch\nif sys.argv[1:]:\n    sys.exit(7)\n")
    assert why in run("stepgrade", "record", *command, cwd=tmp_path).err


def test_functions_of_weights_are_counted_by_their_gradients(tmp_path: Path) -> None:
    profile, _ = record(tmp_path, HEAD + OF_FUNCTIONS)
    assert profile.recorded_steps == 12
    assert profile.samples_per_step == 4
    assert not any(note.code == "recorder_failed" for note in profile.notes)
    assert any("each backward pass counts" in note.text for note in profile.notes)


COMPILED = """
optimizer = torch.optim.AdamW(model.parameters())
step = torch.compile(optimizer.step, backend="eager")
for number, x in enumerate(torch.randn(24, 4, 8)):
    model(x).square().mean().backward()
    if number % 2:
        step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "watched", ["", "import stepgrade as sg\nsg.watch(model, optimizer, path='run.json')\n"]
)
def test_the_steps_of_a_compiled_optimizer_are_told_by_its_weights(tmp_path: Path, watched: str) -> None:
    """The first two count as one: only then is it known that there are any."""
    profile, said = record(tmp_path, HEAD + COMPILED.replace("step = ", f"{watched}step = "))
    assert profile.recorded_steps in (11, 12), said
    assert profile.samples_per_step == 8
    assert any("steps are not seen" in note.text for note in profile.notes)
