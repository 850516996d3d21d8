"""Recorded times are true: against torch.profiler on the same run, against the clock, against planted delays."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader

import stepgrade as sg
from tests.measured import measured
from tests.record.loop import BATCH, Loop, Slow, SlowText, gpt, make_model

PLANTED_MS = 60.0


def record(path: Path, loop: Loop, **options: object) -> sg.Profile:
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, dataloader=loop.loader, path=path, **options
    ) as recorder:
        loop.run(recorder.step)
    return sg.load(path)


def per_step_ms(profile: sg.Profile) -> dict[str, float]:
    """Return phases, layers and what is in no phase, in milliseconds per step."""
    found = {phase.name: phase.ms for phase in profile.phases}
    found["in no phase"] = profile.mean_step_ms - sum(found.values())
    for layer in profile.layers:
        found[f"{layer.name} forward"] = layer.fwd_ms
        found[f"{layer.name} backward"] = layer.bwd_ms
    return found


def loop_slow_in(place: str, steps: int) -> Loop:
    loop = Loop(steps=steps)
    if place == "input":
        loop.loader = DataLoader(SlowText(steps * BATCH, PLANTED_MS / 1e3 / BATCH), batch_size=BATCH)
    else:
        block, direction = place.split()
        number = int(block.removeprefix("blocks."))
        # All blocks are of one class, only one of them sleeps.
        for each in range(4):
            seconds = PLANTED_MS / 1e3 if each == number else 0.0
            loop.model.blocks[each] = Slow(loop.model.blocks[each], **{direction: seconds})
        loop.optimizer = torch.optim.AdamW(loop.model.parameters())
    return loop


PHASE_OF = {"input": "input", "forward": "forward", "backward": "backward"}
RUNS = 3


@pytest.mark.parametrize("place", ["input", "blocks.2 forward", "blocks.1 backward", "blocks.0 backward"])
@measured
def test_a_planted_sleep_shows_up_there_and_nowhere_else(tmp_path: Path, place: str) -> None:
    # Other programs only ever add to a part's time, so the shortest of a few runs is what the part takes.
    runs = [
        per_step_ms(record(tmp_path / f"slow{number}.json", loop_slow_in(place, steps=7)))
        for number in range(RUNS)
    ]
    expected = {place, PHASE_OF[place.rsplit(maxsplit=1)[-1]]}
    for name in expected.union(*runs):
        least_ms = min(run.get(name, 0.0) for run in runs)  # gaps of next to nothing are not listed
        if name in expected:
            assert least_ms >= PLANTED_MS, name
        else:
            # The rest of this loop takes a few milliseconds; planted 60 would stand out.
            assert least_ms < PLANTED_MS * 0.8, name


@pytest.mark.parametrize("place", ["input", "blocks.1 backward"])
def test_a_planted_sleep_is_never_lost(tmp_path: Path, place: str) -> None:
    """What others do on the machine can only add to it."""
    found = per_step_ms(record(tmp_path / "slow.json", loop_slow_in(place, steps=4)))
    for name in (place, PHASE_OF[place.rsplit(maxsplit=1)[-1]]):
        assert found[name] >= PLANTED_MS, name


def test_phases_never_exceed_the_step(tmp_path: Path) -> None:
    profile = record(tmp_path / "run.json", Loop(steps=4))
    share = sum(phase.ms for phase in profile.phases) / profile.mean_step_ms
    assert share == pytest.approx(profile.wall_coverage, abs=1e-9)
    # They are whole nanoseconds: sums of them as milliseconds are rounded.
    assert sum(round(profile.total(phase.ms) * 1e6) for phase in profile.phases) <= round(
        profile.steps * profile.mean_step_ms * 1e6
    )


@measured
def test_phases_add_up_to_the_step(tmp_path: Path) -> None:
    covered = []
    for number in range(RUNS):
        loop = Loop(steps=8, model=make_model(width=256))
        profile = record(tmp_path / f"run{number}.json", loop, flush_seconds=60)
        share = sum(phase.ms for phase in profile.phases) / profile.mean_step_ms
        assert share == pytest.approx(profile.wall_coverage, abs=1e-9)
        covered.append(profile.wall_coverage)
    assert max(covered) <= 1.0
    assert median(covered) >= 0.98


class Ranged(torch.nn.Module):
    """A block inside a range of torch.profiler."""

    def __init__(self, block: torch.nn.Module, number: int) -> None:
        super().__init__()
        self.block, self.number = block, number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function(f"block {self.number}"):
            return self.block(x)


def total_ms(trace: profile, name: str) -> float:
    return sum(event.time_range.elapsed_us() for event in trace.events() if event.name == name) / 1e3


@measured
def test_phases_and_layers_agree_with_torch_profiler_on_the_same_run(tmp_path: Path) -> None:
    # A process that loses its processor between our stamp and the profiler's spoils one run, not the middle one.
    runs = [ratios_to_torch_profiler(tmp_path / f"run{number}.json") for number in range(RUNS)]
    for name in runs[0]:
        assert median(run[name] for run in runs) == pytest.approx(1.0, rel=0.05), name


def ratios_to_torch_profiler(path: Path) -> dict[str, float]:
    """Return the recorder's time of each phase and layer, divided by the profiler's."""
    loop = Loop(steps=3, model=make_model(width=256))
    for number in range(4):
        loop.model.blocks[number] = Ranged(loop.model.blocks[number], number)
    with (
        sg.Recorder(loop.model, optimizer=loop.optimizer, path=path, warmup=0) as recorder,
        profile(activities=[ProfilerActivity.CPU]) as trace,
    ):
        for ids, targets in loop.loader:
            with record_function("my forward"):
                logits = loop.model(ids)
            loss = gpt.loss_of(logits, targets)
            with record_function("my backward"):
                loss.backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
            recorder.step()
    recorded = sg.load(path)
    phases = {phase.name: recorded.total(phase.ms) for phase in recorded.phases}
    optimizer_ms = total_ms(trace, "Optimizer.step#AdamW.step") + total_ms(
        trace, "Optimizer.zero_grad#AdamW.zero_grad"
    )
    ratios = {
        "forward": phases["forward"] / total_ms(trace, "my forward"),
        "backward": phases["backward"] / total_ms(trace, "my backward"),
        "optimizer": phases["optimizer"] / optimizer_ms,
    }
    for layer in recorded.layers:
        ratios[f"{layer.name} forward"] = (
            layer.fwd_ms * recorded.steps / total_ms(trace, f"block {layer.layer}")
        )
        ratios[f"{layer.name} backward"] = layer.bwd_ms * recorded.steps / backward_ms(trace, layer.layer)
    assert len(ratios) == 3 + 2 * 4
    return ratios


def backward_ms(trace: profile, layer: int) -> float:
    """Return the span of the autograd nodes whose forward lies in the layer's range.

    Gradients of its parameters are added up by nodes that have no forward; those right behind it are its own.
    """
    events = list(trace.events())
    nodes = [event for event in events if event.name.startswith("autograd::engine::evaluate_function")]
    passes = sorted((e.time_range for e in events if e.name == "my backward"), key=lambda span: span.start)
    spent_us = 0.0
    for call in (event for event in events if event.name == f"block {layer}"):
        numbers = {
            e.sequence_nr for e in events if e.sequence_nr >= 0 and _holds(call.time_range, e.time_range)
        }
        back = next(span for span in passes if span.start >= call.time_range.end)
        spent_us += _span_us([node for node in nodes if _holds(back, node.time_range)], numbers)
    return spent_us / 1e3


def _span_us(nodes: list, numbers: set[int]) -> float:
    """Return the time from the first node with one of the numbers to the next other node with a forward."""
    nodes = sorted(nodes, key=lambda node: node.time_range.start)
    own = [place for place, node in enumerate(nodes) if _sequence(node) in numbers]
    last = own[-1]
    while last + 1 < len(nodes) and "AccumulateGrad" in nodes[last + 1].name:
        last += 1
    return nodes[last].time_range.end - nodes[own[0]].time_range.start


def _holds(outer, inner) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end


def _sequence(node) -> int:
    """Return the sequence number of an autograd node's event, which its child carries in some versions."""
    if node.sequence_nr >= 0:
        return node.sequence_nr
    return next((child.sequence_nr for child in node.cpu_children if child.sequence_nr >= 0), -1)
