"""Faults planted in real PyTorch runs on the processor are named first.

A fault that takes most of the step is found whatever else the machine does; smaller ones are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from tests.measured import measured

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

WIDTH, LAYERS, BATCH, SAMPLES = 256, 6, 64, 16 * 64
Step = Callable[[Any], None]


class Batches(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]  # torch is not always there
    """Random samples; making one may take time."""

    def __init__(self, sleep_s: float = 0.0) -> None:
        self.sleep_s = sleep_s
        self.sample = torch.randn(WIDTH)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self.sleep_s and index % BATCH == 0:
            time.sleep(self.sleep_s)
        return self.sample


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]  # as above
    """A small layer that may do its work several times."""

    def __init__(self, repeats: int = 1) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.repeats = repeats

    def forward(self, x: Any) -> Any:
        for _ in range(self.repeats):
            x = x + self.down(torch.relu(self.up(x)))
        return x


def record(path: Path, *, sleep_s: float = 0.0, slow_layer: int = 1, after: Step | None = None) -> Any:
    """Train for a few steps under the profiler and return the scorecard of its trace."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(Block(slow_layer if place == 2 else 1) for place in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = torch.utils.data.DataLoader(Batches(sleep_s), batch_size=BATCH)
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=6)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, schedule=schedule, record_shapes=True, with_stack=True
    ) as profiler:
        for place, batch in enumerate(loader):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if after is not None:
                after(batch)
            profiler.step()
            if place == 8:
                break
    profiler.export_chrome_trace(str(path))
    return sg.score(sg.load(path))


def read_one_by_one(count: int) -> Step:
    def read(batch: Any) -> None:
        flat = batch.reshape(-1)
        for place in range(count):
            float(flat[place].item())

    return read


def warnings_of(card: Any) -> list[str]:
    return [one.rule for one in card.findings if one.severity != "info"]


@measured
def test_a_run_that_is_well_gets_no_warning(tmp_path: Path) -> None:
    card = record(tmp_path / "well.json")
    assert not set(warnings_of(card)) & {
        "loader-on-main-thread",
        "input-wait",
        "scalar-read-loop",
        "slow-layer",
    }


@measured
def test_a_short_sleep_in_the_loader_is_named_first(tmp_path: Path) -> None:
    check_loader(tmp_path, sleep_s=0.02)


def test_a_long_sleep_in_the_loader_is_named_first(tmp_path: Path) -> None:
    check_loader(tmp_path, sleep_s=0.5)


def check_loader(folder: Path, sleep_s: float) -> None:
    card = record(folder / "loader.json", sleep_s=sleep_s)
    assert card.findings[0].rule == "loader-on-main-thread"
    assert card.bottleneck == "input"
    assert card.findings[0].evidence["input_share"] > 0.10


def test_values_read_one_by_one_are_named_first(tmp_path: Path) -> None:
    count = 3_000
    card = record(tmp_path / "reads.json", after=read_one_by_one(count))
    first = next(one for one in card.findings if one.area != "fitness")
    assert first.rule == "scalar-read-loop"
    assert first.evidence["reads"] >= count


@measured
def test_one_value_read_in_a_step_costs_nothing_here_and_is_not_blamed(tmp_path: Path) -> None:
    card = record(tmp_path / "read.json", after=read_one_by_one(1))
    assert "scalar-read-loop" not in {one.rule for one in card.findings}


@measured
def test_a_layer_of_three_times_the_work_is_named_first(tmp_path: Path) -> None:
    check_layer(tmp_path, repeats=3)


def test_a_layer_of_many_times_the_work_is_named_first(tmp_path: Path) -> None:
    check_layer(tmp_path, repeats=24)


def check_layer(folder: Path, repeats: int) -> None:
    card = record(folder / "layer.json", slow_layer=repeats)
    first = next(one for one in card.findings if one.area != "fitness")
    assert first.rule == "slow-layer"
    assert first.evidence["layer"] == 2.0
