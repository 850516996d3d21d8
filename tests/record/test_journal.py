"""The journal of a run: what is read from it is what was recorded, however often it was put together anew."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import stepgrade as sg
from stepgrade.record import journal
from stepgrade.record.totals import SAMPLES_KEPT


class Other(nn.Sequential):
    pass


def read_back(path: Path, tmp_path: Path) -> sg.Profile:
    """Return what a reader finds while the run goes on, as it would after a kill."""
    return sg.load(shutil.copy(path, tmp_path / "copy.json"))


def assert_same_sums(journal: sg.Profile, ended: sg.Profile) -> None:
    assert (journal.recorded_steps, journal.steps) == (ended.recorded_steps, ended.steps)
    assert journal.mean_step_ms == pytest.approx(ended.mean_step_ms)
    assert journal.tokens_per_step == ended.tokens_per_step
    assert journal.samples_per_step == ended.samples_per_step
    phases = {phase.name: phase.ms for phase in ended.phases}
    found = {phase.name: phase.ms for phase in journal.phases}
    assert {name: found[name] for name in phases} == pytest.approx(phases)
    assert {layer.name: (layer.fwd_ms, layer.bwd_ms) for layer in journal.layers} == {
        layer.name: (pytest.approx(layer.fwd_ms), pytest.approx(layer.bwd_ms)) for layer in ended.layers
    }
    assert journal.matmul_flops == ended.matmul_flops


@pytest.mark.parametrize("longest", [1, 3_000, 1 << 22], ids=["each time", "now and then", "never"])
@pytest.mark.parametrize("seed", range(3))
def test_it_holds_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int, seed: int
) -> None:
    monkeypatch.setattr(journal, "_LONGEST_BYTES", longest)
    chance = random.Random(seed)
    first, second = (
        kind(nn.Embedding(9, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
        for kind in (nn.Sequential, Other)
    )
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 1e-3)
    path, wholes = tmp_path / "run.json", 0
    write = journal.write_whole

    def count(*arguments: object, **options: object) -> None:
        nonlocal wholes
        wholes += 1
        write(*arguments, **options)

    monkeypatch.setattr(journal, "write_whole", count)
    with sg.Recorder(path=path, optimizer=optimizer, flush_seconds=1e9, layers=["1", "2"]) as recorder:
        recorder.watch_model(first)
        steps = chance.randrange(12, 40)
        for number in range(steps):
            if number == steps // 2:
                recorder.watch_model(second)  # its layers are new to a journal that has begun
            model = second if number >= steps // 2 else first
            model(torch.ones(chance.randrange(1, 4), 5, dtype=torch.long)).sum().backward()
            optimizer.step()
            recorder.step(loss=float(number))
            if chance.random() < 0.4:
                recorder.flush()
        recorder.flush()
        found = read_back(path, tmp_path)
        recorder.close()
    assert_same_sums(found, sg.load(path))
    assert found.samples_ms == pytest.approx(sg.load(path).samples_ms, abs=1e-3)
    assert len(found.layers) == 4
    if longest > 1e6:
        assert wholes == 3  # the first, one for the new layers, the end
    else:
        assert wholes > 3


def test_four_megabytes_are_put_together(tmp_path: Path) -> None:
    """The real limit, with a line for each step, so that the file is put together once at least."""
    path = tmp_path / "run.json"
    largest = before = drops = 0
    with sg.Recorder(path=path, warmup=0, flush_seconds=0.0) as recorder:
        while not drops:
            recorder.step()
            if recorder.steps % 50 == 0:
                size = path.stat().st_size
                drops += size < before
                largest, before = max(largest, size), size
        for _ in range(501):
            recorder.step()
        recorder.flush()
        found, steps = read_back(path, tmp_path), recorder.steps
    ended = sg.load(path)
    assert 4_000_000 < largest < 4_400_000
    assert steps > SAMPLES_KEPT
    assert_same_sums(found, ended)
    every = 1
    while steps / every > 2 * SAMPLES_KEPT:
        every *= 2
    # Spread evenly over the run: as many steps apart after the file was put together as before.
    assert len(found.samples_ms) == pytest.approx(steps / every, abs=2)
    assert sum(found.samples_ms) / len(found.samples_ms) == pytest.approx(found.mean_step_ms, rel=0.5)


def test_samples_of_lines_are_thinned_as_one_row(tmp_path: Path) -> None:
    """Of lines with one step each, after one that holds every fourth, one in four is kept and not each."""
    sums = {"wall_ms": 1.0, "phases_ms": {}, "layers_ms": []}
    lines = [{"steady": {**sums, "steps": 40, "samples_ms": [1.0] * 10, "every": 4}}]
    lines += [{"steady": {**sums, "steps": 1, "samples_ms": [2.0], "every": 1}}] * 40
    text = "\n".join(json.dumps(line) for line in [{"_recording": 1}, *lines])
    (tmp_path / "run.json").write_text(text)
    samples = sg.load(tmp_path / "run.json").samples_ms
    assert (samples.count(1.0), samples.count(2.0)) == (10, 10)


def test_another_programs_file_is_not_replaced_and_a_lost_one_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with sg.Recorder(path=path, warmup=0, flush_seconds=1e9) as recorder:
        recorder.step()
        recorder.flush()
        path.unlink()
        recorder.step()
        recorder.flush()
        assert read_back(path, tmp_path).steps == 2
        (tmp_path / "theirs").write_text("theirs")
        (tmp_path / "theirs").replace(path)
        recorder._run.config["new"] = "head"
        recorder.step()
        recorder.flush()
    assert path.read_text() == "theirs"
    assert sg.load(tmp_path / "run-2.json").steps == 3


def test_lines_of_python_survive_a_kill(tmp_path: Path) -> None:
    def wait() -> None:
        time.sleep(0.02)

    path = tmp_path / "run.json"
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sg.start_recording(model, optimizer, path=path, warmup=1, ops_every=0):
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            wait()
        found = read_back(path, tmp_path)  # nothing but what the loop has flushed by itself
    lines = found.activity.lines["stall"]
    assert lines[0].calls == "time.sleep"
    assert lines[0].function == "wait"
    assert "test_journal.py:" in lines[0].where
    assert lines[0].ms > 10.0
