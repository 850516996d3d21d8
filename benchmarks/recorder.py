"""What recording costs: one CPU GPT loop, with and without, taking turns in one process.

    python benchmarks/recorder.py             # steps of about 50 ms, a few minutes
    python benchmarks/recorder.py --rounds 5  # quicker and coarser

Every way of recording runs a block of steps in turn, round after round; a way's ratio is the median over
rounds of its median step against the plain block of the same round. Time is processor time of the process
(one thread computes, so a recorder's work is in it, and other programs' is not); `--wall` takes the wall
clock instead. `plain again` is the same loop twice: its distance from 1 is what can be told apart at all.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import stepgrade as sg

LAYERS, WIDTH, SEQUENCE = 6, 128, 128
TARGET_STEP_MS = 50.0


def load_gpt() -> Any:
    """Import the example's model."""
    path = Path(__file__).parents[1] / "examples" / "train_gpt.py"
    spec = importlib.util.spec_from_file_location("train_gpt", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Training:
    """The loop that is measured, and the clock it is measured by."""

    def __init__(self, batch: int, clock: Callable[[], int]) -> None:
        self.gpt = load_gpt()
        self.clock = clock
        torch.manual_seed(0)
        self.model = self.gpt.GPT(layers=LAYERS, width=WIDTH, sequence=SEQUENCE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        rows = self.gpt.Text(batch, SEQUENCE).ids
        self.ids, self.targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def step(self) -> None:
        """Take one step."""
        self.gpt.loss_of(self.model(self.ids), self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps_ms(self, count: int, each: Callable[[], object] = lambda: None) -> list[float]:
        """Return how long each of `count` steps took; the first two of a block are not counted."""
        taken = []
        for _ in range(count + 2):
            started = self.clock()
            self.step()
            each()
            taken.append((self.clock() - started) / 1e6)
        return taken[2:]


Block = Callable[[Training, int], list[float]]


def plain(training: Training, count: int) -> list[float]:
    """Run without anything."""
    return training.steps_ms(count)


def recorded(**options: Any) -> Block:
    """Return a block under our recorder."""

    def run(training: Training, count: int) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            recorder = sg.Recorder(
                training.model, optimizer=training.optimizer, path=Path(folder) / "run.json", **options
            )
            with recorder:
                return training.steps_ms(count, recorder.step)

    return run


def profiled(**options: Any) -> Block:
    """Return a block under torch.profiler; reading out its events afterwards is not counted."""

    def run(training: Training, count: int) -> list[float]:
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415  loads much

        with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
            return training.steps_ms(count, profiler.step)

    return run


def module_hooked(training: Training, count: int) -> list[float]:
    """Run with torch's own module hooks that do nothing: the usual way to time layers."""
    handles = []
    for block in training.model.blocks:
        handles += [
            block.register_forward_pre_hook(lambda *_: None),
            block.register_forward_hook(lambda *_: None),
            block.register_full_backward_pre_hook(lambda *_: None),
            block.register_full_backward_hook(lambda *_: None),
        ]
    try:
        return training.steps_ms(count)
    finally:
        for handle in handles:
            handle.remove()


def traceml_block() -> Block | None:
    """Return a block under traceml-ai's step tracing, when it is installed."""
    tracing = traceml_step()
    if tracing is None:
        return None

    def run(training: Training, count: int) -> list[float]:
        taken = []
        for _ in range(count + 2):
            started = training.clock()
            with tracing(training.model):
                training.step()
            taken.append((training.clock() - started) / 1e6)
        return taken[2:]

    return run


def traceml_step() -> Callable[[nn.Module], AbstractContextManager[Any]] | None:
    """Return traceml-ai's `trace_step`; without its launcher nothing is shown or sent anywhere."""
    if importlib.util.find_spec("traceml_ai") is None:
        return None
    found: Callable[[nn.Module], AbstractContextManager[Any]]
    found = importlib.import_module("traceml_ai").trace_step
    return found


def ways() -> dict[str, Block]:
    """Return every way of recording by name; the first is what the others are held against."""
    found: dict[str, Block | None] = {
        "plain": plain,
        "plain again": plain,
        "stepgrade, phases + layers": recorded(),
        "stepgrade, phases": recorded(layers=["none"]),
        "module hooks, forward + backward": module_hooked,
        "torch.profiler": profiled(),
        "torch.profiler with stacks": profiled(with_stack=True),
        "traceml-ai": traceml_block(),
    }
    return {name: block for name, block in found.items() if block is not None}


def measure(training: Training, rounds: int, steps: int) -> dict[str, list[float]]:
    """Return each way's median step in every round; odd rounds go the other way round."""
    found: dict[str, list[float]] = {name: [] for name in ways()}
    for number in range(rounds):
        order = list(ways().items())
        for name, block in order if number % 2 == 0 else reversed(order):
            found[name].append(median(block(training, steps)))
            _progress(f"round {number + 1} of {rounds}: {name}")
    return found


class Nothing(nn.Module):
    """A block that costs next to nothing, so that what is left is the hooks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input times one."""
        return x * 1.0


class Chain(nn.Module):
    """Many such blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Nothing() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass through all of them."""
        for block in self.blocks:
            x = block(x)
        return x


def per_layer_call_us(blocks: int = 50, passes: int = 60, repeats: int = 9) -> float:
    """Return what recording adds to one call of a block, forward and backward, in microseconds."""
    chain, x = Chain(blocks), torch.ones(1, requires_grad=True)

    def passes_us(each: Callable[[], object] = lambda: None) -> float:
        taken = []
        for _ in range(passes):
            started = time.process_time_ns()
            chain(x * 1.0).backward()
            each()
            taken.append((time.process_time_ns() - started) / 1e3 / blocks)
        return median(taken)

    differences = []
    for _ in range(repeats):
        bare = passes_us()
        path = Path(tempfile.gettempdir()) / "stepgrade-benchmark.json"
        with sg.Recorder(chain, path=path, layers=["blocks.*"]) as recorder:
            differences.append(passes_us(recorder.step) - bare)
        path.unlink()
    return median(differences)


def fitting_batch(clock: Callable[[], int]) -> int:
    """Return the batch whose steps take about as long as the target."""
    batch = 1
    while batch < 64 and median(Training(batch, clock).steps_ms(6)) * 1.25 < TARGET_STEP_MS:
        batch += 1
    return batch


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def main() -> None:
    """Measure and print ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=8, help="steps in each block")
    parser.add_argument("--batch", type=int, help="default: the one that makes steps of about 50 ms")
    parser.add_argument("--wall", action="store_true", help="wall clock instead of processor time")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("stepgrade.record").disabled = True
    clock = time.perf_counter_ns if options.wall else time.process_time_ns
    training = Training(options.batch or fitting_batch(clock), clock)
    training.steps_ms(10)
    found = measure(training, options.rounds, options.steps)
    ratios = {
        name: [ms / base for ms, base in zip(rows, found["plain"], strict=True)]
        for name, rows in found.items()
    }
    call_us = per_layer_call_us()
    _progress("")
    print(f"plain step {median(found['plain']):.1f} ms, {LAYERS} layers, one thread")
    for name, rows in ratios.items():
        low, *_, high = sorted(rows)[len(rows) // 4 : len(rows) - len(rows) // 4]
        print(f"  {name:<34} {median(rows):.3f}   middle half {low:.3f} to {high:.3f}")
    print(f"  one layer call, forward + backward: {call_us:.1f} µs")
    if options.json:
        figures = {"step_ms": median(found["plain"]), "ratios": ratios, "layer_call_us": call_us}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
