"""Recorded times are true: against torch.profiler on the same run, against the clock, against planted delays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader

import stepgrade as sg
from tests.measured import measured
from tests.record.loop import BATCH, Loop, Slow, SlowText, gpt, make_model

PLANTED_MS = 30.0


def record(path: Path, loop: Loop, **options: object) -> sg.Profile:
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, dataloader=loop.loader, path=path, **options
    ) as recorder:
        loop.run(recorder.step)
    return sg.load(path)


def per_step_ms(profile: sg.Profile) -> dict[str, float]:
    """Return phases, layers and what is in no phase, in milliseconds per step."""
    found = {phase.name: phase.per_step_ms for phase in profile.phases}
    found["in no phase"] = profile.mean_step_ms - sum(found.values())
    for layer in profile.layers:
        found[f"{layer.name} forward"] = layer.fwd_total_ms / profile.steps
        found[f"{layer.name} backward"] = layer.bwd_total_ms / profile.steps
    return found


def loop_slow_in(place: str) -> Loop:
    loop = Loop(steps=12)
    if place == "input":
        loop.loader = DataLoader(SlowText(12 * BATCH, PLANTED_MS / 1e3 / BATCH), batch_size=BATCH)
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


@pytest.mark.parametrize("place", ["input", "blocks.2 forward", "blocks.1 backward", "blocks.0 backward"])
@measured
def test_a_planted_sleep_shows_up_there_and_nowhere_else(tmp_path: Path, place: str) -> None:
    slow = per_step_ms(record(tmp_path / "slow.json", loop_slow_in(place)))
    expected = {place, PHASE_OF[place.rsplit(maxsplit=1)[-1]]}
    for name, ms in slow.items():
        if name in expected:
            assert ms >= PLANTED_MS, name
        else:
            # The rest of this loop takes a few milliseconds; a planted 30 would stand out on a busy machine too.
            assert ms < PLANTED_MS * 0.8, name


@measured
def test_phases_add_up_to_the_step(tmp_path: Path) -> None:
    loop = Loop(steps=14, model=make_model(width=256))
    profile = record(tmp_path / "run.json", loop, flush_seconds=60)
    assert 0.98 <= profile.wall_coverage <= 1.0
    covered = sum(phase.total_ms for phase in profile.phases)
    assert covered / (profile.steps * profile.mean_step_ms) == pytest.approx(profile.wall_coverage, abs=1e-9)


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
    loop = Loop(steps=6, model=make_model(width=256))
    for number in range(4):
        loop.model.blocks[number] = Ranged(loop.model.blocks[number], number)
    with (
        sg.Recorder(loop.model, optimizer=loop.optimizer, path=tmp_path / "run.json", warmup=0) as recorder,
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
    mine = sg.load(tmp_path / "run.json")
    phases = {phase.name: phase.total_ms for phase in mine.phases}
    assert phases["forward"] == pytest.approx(total_ms(trace, "my forward"), rel=0.05)
    assert phases["backward"] == pytest.approx(total_ms(trace, "my backward"), rel=0.05)
    stepped = total_ms(trace, "Optimizer.step#AdamW.step") + total_ms(
        trace, "Optimizer.zero_grad#AdamW.zero_grad"
    )
    assert phases["optimizer"] == pytest.approx(stepped, rel=0.05)
    for layer in mine.layers:
        assert layer.fwd_total_ms == pytest.approx(total_ms(trace, f"block {layer.layer}"), rel=0.05), (
            layer.name
        )
    check_backward_of_layers(trace, mine)


def check_backward_of_layers(trace: profile, mine: sg.Profile) -> None:
    """Hold each layer's backward against the span of the autograd nodes whose forward lies in its range.

    Gradients of its parameters are added up by nodes that have no forward; those right behind it are its own.
    """
    events = list(trace.events())
    nodes = [event for event in events if event.name.startswith("autograd::engine::evaluate_function")]
    passes = sorted((e.time_range for e in events if e.name == "my backward"), key=lambda span: span.start)
    for layer in mine.layers:
        spent_us = 0.0
        for call in (event for event in events if event.name == f"block {layer.layer}"):
            numbers = {
                e.sequence_nr for e in events if e.sequence_nr >= 0 and _holds(call.time_range, e.time_range)
            }
            back = next(span for span in passes if span.start >= call.time_range.end)
            spent_us += _span_us([node for node in nodes if _holds(back, node.time_range)], numbers)
        assert layer.bwd_total_ms == pytest.approx(spent_us / 1e3, rel=0.05), layer.name


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
