"""What recording costs: one CPU GPT loop, with and without, taking turns in one process.

    python benchmarks/recorder.py              # about ten minutes
    python benchmarks/recorder.py --rounds 10  # quicker and coarser

Every way of recording runs a few steps in turn, round after round, in two sizes of one model: with tensors so
small that a step is little but the calls that recorders hook, for the time that each way adds to a step, and
with steps of about 50 ms, for what that is of a step. Time is processor time of the process (one thread
computes, so a recorder's work is in it), or the wall clock with `--wall`. Other programs on the machine only
ever add to a step, so each way is judged by its quiet steps, one in fifty. `plain again` is the same loop
twice: its distance from 1 is what can be told apart at all. traceml-ai needs a process that its own launcher
started: its steps take turns with the others all the same, and a plain process beside it is its control.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from recorder_worker import worker
from torch import nn

import stepgrade as sg

LAYERS, WIDTH, SEQUENCE = 6, 128, 128
SMALL = 16  # width and sequence of the small model
TARGET_STEP_MS = 50.0
_STEPS_OF_SMALL = 40


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

    def __init__(self, batch: int, clock: Callable[[], int], *, is_small: bool = False) -> None:
        self.gpt = load_gpt()
        self.clock, self.is_small = clock, is_small
        width, sequence = (SMALL, SMALL) if is_small else (WIDTH, SEQUENCE)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = self.gpt.GPT(layers=LAYERS, width=width, sequence=sequence)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        rows = self.gpt.Text(1 if is_small else batch, sequence).ids
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


def clock_of(*, wall: bool) -> Callable[[], int]:
    """Return the wall clock, or that of this process's processor time."""
    return time.perf_counter_ns if wall else time.process_time_ns


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


def traced_by_traceml() -> Block:
    """Return a block under traceml-ai's step tracing; only its launcher makes it trace."""
    traceml = importlib.import_module("traceml_ai")
    if traceml.init(mode="auto").disabled:
        raise RuntimeError("traceml-ai traces nothing here")

    def run(training: Training, count: int) -> list[float]:
        taken = []
        for _ in range(count + 2):
            started = training.clock()
            with traceml.trace_step(training.model):
                training.step()
            taken.append((training.clock() - started) / 1e6)
        return taken[2:]

    return run


def ways() -> dict[str, Block]:
    """Return every way of recording in this process by name; the others are held against the first."""
    return {
        "plain": plain,
        "plain again": plain,
        "stepgrade, phases + layers": recorded(),
        "stepgrade, phases": recorded(layers=["none"]),
        "module hooks, forward + backward": module_hooked,
        "torch.profiler": profiled(),
        "torch.profiler with stacks": profiled(with_stack=True),
    }


@contextmanager
def ways_in_other_processes(batch: int, *, wall: bool) -> Iterator[dict[str, Block]]:
    """Yield traceml-ai, which needs a process that its launcher started, and a plain process beside it."""
    if importlib.util.find_spec("traceml_ai") is None:
        yield {}
        return
    with (
        worker(batch, traced=False, wall=wall) as control,
        worker(batch, traced=True, wall=wall) as traced,
    ):
        yield {"plain, another process": control, "traceml-ai, another process": traced}


def measure(
    training: Training, compared: dict[str, Block], rounds: int, steps: int
) -> dict[str, list[float]]:
    """Return each way's steps of all rounds; odd rounds go the other way round."""
    found: dict[str, list[float]] = {name: [] for name in compared}
    for number in range(rounds):
        order = list(compared.items())
        for name, block in order if number % 2 == 0 else reversed(order):
            found[name] += block(training, steps)
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


def per_layer_call_us(blocks: int = 50, passes: int = 200, repeats: int = 9) -> float:
    """Return what recording adds to one call of a block, forward and backward, in microseconds."""
    chain, x = Chain(blocks), torch.ones(1, requires_grad=True)

    def passes_us(each: Callable[[], object] = lambda: None) -> float:
        taken = []
        for _ in range(passes):
            started = time.process_time_ns()
            chain(x * 1.0).backward()
            each()
            taken.append((time.process_time_ns() - started) / 1e3 / blocks)
        return quiet(taken)

    differences = []
    for _ in range(repeats):
        bare = passes_us()
        path = Path(tempfile.gettempdir()) / "stepgrade-benchmark.json"
        with sg.Recorder(chain, path=path, layers=["blocks.*"]) as recorder:
            differences.append(passes_us(recorder.step) - bare)
        path.unlink()
    return median(differences)


def quiet(taken: list[float]) -> float:
    """Return what one step in fifty is shorter than: what a step takes when nothing else runs."""
    return sorted(taken)[len(taken) // 50]


def fitting_batch(clock: Callable[[], int]) -> int:
    """Return the batch whose steps take about as long as the target."""
    batch = 1
    while batch < 64 and quiet(Training(batch, clock).steps_ms(10)) * (batch + 1) / batch < TARGET_STEP_MS:
        batch += 1
    return batch


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def main() -> None:
    """Measure and print ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=4, help="steps in each block")
    parser.add_argument("--batch", type=int, help="default: the one that makes steps of about 50 ms")
    parser.add_argument("--wall", action="store_true", help="wall clock instead of processor time")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    logging.getLogger("stepgrade.record").disabled = True
    clock = clock_of(wall=options.wall)
    batch = options.batch or fitting_batch(clock)
    with ways_in_other_processes(batch, wall=options.wall) as others:
        compared = ways() | others
        small = Training(batch, clock, is_small=True)
        added = measure(small, compared, options.rounds, _STEPS_OF_SMALL)
        whole = measure(Training(batch, clock), compared, options.rounds, options.steps)
    call_us = per_layer_call_us()
    _progress("")
    show(added, whole, call_us)
    if options.json:
        figures = {"small_ms": added, "steps_ms": whole, "layer_call_us": call_us}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def show(added: dict[str, list[float]], whole: dict[str, list[float]], call_us: float) -> None:
    """Print what each way adds to a step, what that is of the target, and what whole steps say."""
    small, base = quiet(added["plain"]), quiet(whole["plain"])
    print(f"{LAYERS} layers, one thread; {small:.2f} ms and {base:.1f} ms a plain step")
    print(f"  {'':<34} {'added':>8} {f'of {TARGET_STEP_MS:.0f} ms':>9} {'ratio at ' + f'{base:.0f} ms':>16}")
    for name, taken in added.items():
        more_ms = quiet(taken) - small
        ratio = quiet(whole[name]) / base
        print(f"  {name:<34} {more_ms * 1e3:5.0f} µs {more_ms / TARGET_STEP_MS:8.2%} {ratio:15.3f}")
    print(f"  one layer call, forward + backward: {call_us:.1f} µs")


if __name__ == "__main__":
    main()
