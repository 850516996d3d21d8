"""Recordings of several ranks are one run: two real processes, one of them slow; and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.errors import BadInput
from stepgrade.ranks.recorded_ranks import merge_recordings
from tests.record.loop import Loop
from tests.record.test_processes import free_port, start

SCRIPT = """
import sys, time, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
dist.init_process_group("gloo")

class Rows(Dataset):
    def __len__(self):
        return 4 * 24

    def __getitem__(self, row):
        if dist.get_rank() == 1:
            time.sleep(0.01)
        return torch.randn(16), row % 3

model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for data, labels in DataLoader(Rows(), batch_size=4):
    nn.functional.cross_entropy(model(data), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_a_slow_rank_is_found_among_real_processes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = ("stepgrade", "record", "--quiet", "-o", "run.json", "train.py")
    ranks = [start(*command, cwd=tmp_path, RANK=str(rank), **address) for rank in range(2)]
    ran = [process.wait() for process in ranks]
    assert [each.code for each in ran] == [0, 0], ran[0].err + ran[1].err
    files = [tmp_path / f"run.rank{rank}.json" for rank in range(2)]
    run = sg.load(*files)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert (run.world_size, run.counted_ranks, run.samples_per_step) == (2, 2, 8)
    late = run.activity.straggler
    assert (late.rank, late.trouble) == (1, "idle_input")
    assert run.ranks[1].wait_ms == 0.0
    card = sg.score(run)
    assert [row.rank for row in card.ranks] == [0, 1]
    assert card.samples_s == pytest.approx(8 / card.step_time_ms * 1000.0)
    assert "straggler-rank" in {finding.rule for finding in card.findings}
    assert sg.load(tmp_path).ranks == run.ranks  # a directory of them is the same run
    alone = sg.score(sg.load(files[0]))
    assert alone.samples_s == pytest.approx(4 / alone.step_time_ms * 1000.0)
    assert "one_rank" in {note.code for note in alone.notes}
    assert "this rank alone" in sg.render(alone)


@pytest.fixture
def one(tmp_path: Path) -> sg.Profile:
    loop = Loop(steps=8)
    with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
        loop.run(recorder.step)
    return structs.replace(sg.load(tmp_path / "run.json"), rank=0, world_size=2)


def test_equal_ranks_have_no_straggler_and_add_up(one: sg.Profile) -> None:
    run = merge_recordings([structs.replace(one, rank=1), one])
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.activity.straggler is None
    assert run.tokens_per_step == 2 * one.tokens_per_step
    assert run.matmul_flops == one.matmul_flops  # of the mean rank
    first, both = (
        sg.score(one, setup=sg.Setup(peak_tflops=1.0)),
        sg.score(run, setup=sg.Setup(peak_tflops=1.0)),
    )
    assert both.throughput_tok_s == pytest.approx(2 * first.throughput_tok_s)
    assert both.efficiency == pytest.approx(first.efficiency)  # per device
    assert "all 2 ranks together" in both.throughput.basis
    assert "rank 0 of 2 alone" in first.throughput.basis


def test_ranks_that_are_missing_are_told(one: sg.Profile) -> None:
    of_four = [structs.replace(one, rank=rank, world_size=4) for rank in (0, 2)]
    run = merge_recordings(of_four)
    assert any("2 of 4 ranks" in note.text for note in run.warnings)


@pytest.mark.parametrize(
    "changes",
    [{"rank": 0}, {"rank": None}, {"world_size": 3}],
    ids=["twice the same rank", "no rank", "another run"],
)
def test_what_are_no_ranks_of_one_run_is_refused(one: sg.Profile, changes: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        merge_recordings([one, structs.replace(structs.replace(one, rank=1), **changes)])
