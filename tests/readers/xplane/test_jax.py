"""Real runs of JAX on the processor: healthy ones, and ones with a planted fault."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import stepgrade as sg
from stepgrade.model import Profile
from tests.readers.xplane.test_xplane import flops_by_direction, traces_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
SCRIPT = Path(__file__).with_name("jax_training.py")


class Run(NamedTuple):
    """A profile that JAX wrote, and what the script itself knows of it."""

    path: Path
    wall_ms: list[float]
    forward_flops: int

    @property
    def profile(self) -> Profile:
        return sg.load(self.path)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    done: dict[tuple[str, ...], Run] = {}

    def run(*flags: str, devices: int = 1) -> Run:
        key = (*flags, str(devices))
        if key not in done:
            folder = tmp_path_factory.mktemp("jax")
            environment = os.environ | {
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
                "JAX_PLATFORMS": "cpu",
            }
            command = [sys.executable, str(SCRIPT), str(folder), *flags]
            output = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True, timeout=300
            )
            said = json.loads(output.stdout.strip().splitlines()[-1])
            done[key] = Run(next(folder.glob("plugins/profile/*/*.xplane.pb")), **said)
        return done[key]

    return run


@pytest.mark.parametrize("flags", [(), ("--scan",), ("--scan", "--remat")], ids=" ".join)
def test_flops_and_layers_are_those_of_the_program(train: Callable[..., Run], flags: tuple[str, ...]) -> None:
    run = train(*flags)
    (trace,) = traces_of(run.path)
    found = flops_by_direction(trace)
    assert found["forward"] == 6 * run.forward_flops
    assert found["backward"] == 2 * found["forward"]
    assert bool(found["recompute"]) == ("--remat" in flags)
    profile = run.profile
    assert profile.work == "training"
    assert profile.recorded_steps == 6
    assert profile.tokens_per_step == 4 * 64
    assert len(profile.layers) == 4
    assert all(layer.fwd_ms > 0 and layer.bwd_ms > 0 for layer in profile.layers)
    assert any(layer.recompute_ms > 0 for layer in profile.layers) == ("--remat" in flags)
    assert profile.ledger is not None
    assert profile.ledger.idle_input < 0.5 * profile.ledger.compute  # a busy machine holds all of it up


def test_steps_take_what_the_wall_clock_says(train: Callable[..., Run]) -> None:
    run = train()
    (trace,) = traces_of(run.path)
    marks = [
        dur / 1e6
        for name, dur in zip(trace.ranges.name.tolist(), trace.ranges.dur_ns.tolist(), strict=True)
        if trace.strings[name].startswith("ProfilerStep#")
    ]
    # The clock runs around the annotation: what it adds depends on how busy the machine is.
    assert all(mark <= wall for mark, wall in zip(marks, run.wall_ms, strict=True))


def test_a_planted_wait_for_input_is_found(train: Callable[..., Run]) -> None:
    profile = train("--input-ms", "150").profile
    assert profile.ledger is not None
    assert profile.steps is not None
    assert profile.ledger.idle_input / profile.steps >= 149e6


def test_a_planted_slow_layer_stands_out(train: Callable[..., Run]) -> None:
    run = train("--slow-layer", "2")
    (trace,) = traces_of(run.path)
    assert flops_by_direction(trace)["forward"] == 6 * run.forward_flops
    times = {layer.name: layer.fwd_ms + layer.bwd_ms for layer in run.profile.layers}
    assert max(times, key=lambda name: times[name]) == "layer_2"


def test_steps_without_marks_and_without_waiting_are_executions(train: Callable[..., Run]) -> None:
    for flags in (("--no-marks",), ("--no-wait", "--steps", "8")):
        profile = train(*flags).profile
        assert profile.contents["steps from"] == "executions"
        assert profile.recorded_steps == (6 if flags == ("--no-marks",) else 8)
        assert profile.matmul_flops == 3 * train().forward_flops


def test_two_devices_are_two_ranks_that_communicate(train: Callable[..., Run]) -> None:
    run = train(devices=2)
    traces = traces_of(run.path)
    assert [flops_by_direction(trace)["forward"] for trace in traces] == [6 * run.forward_flops] * 2
    profile = run.profile
    assert profile.world_size == 2
    assert profile.tokens_per_step == 4 * 64  # of each
    assert len(profile.ranks) == 2
    assert any(phase.name == "communication" for phase in profile.phases)
