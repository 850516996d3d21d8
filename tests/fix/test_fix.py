"""`stepgrade fix` on scripts with faults that sleep, so that they are faults on a busy machine too."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytest.importorskip("torch")
SLOW_INPUT = """
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.03)  # a slow disk
        return torch.sin(torch.arange(16.0) * index), torch.tensor([index % 7.0])


torch.manual_seed(1)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(
    Points(),
    batch_size=8,  # as in the paper
    shuffle=True,
)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def fix(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "stepgrade", "fix", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=1500,
    )  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(
        ["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_a_slow_loader_is_fixed_and_written_and_undone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_INPUT)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    ran = fix(tmp_path, "--write", "--budget", "20m", "--format", "json", "train.py")
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    tries = {one["change"]: one for one in found["tries"]}
    assert tries["loader-workers"]["verdict"] == "accepted", tries
    assert tries["loader-workers"]["same_work"]
    assert tries["loader-workers"]["measured"]["low"] > 0.02
    together = found["together"]
    assert together["written"]["low"] > 0.02
    text = (tmp_path / "train.py").read_text()
    assert "batch_size=8,  # as in the paper" in text
    assert "num_workers=" in text
    py_compile.compile(str(tmp_path / "train.py"), cfile=str(tmp_path / "x.pyc"), doraise=True)
    assert fix(tmp_path, "--write", "train.py").returncode == 2  # there is an older way back
    git(tmp_path, "apply", "stepgrade-fix-reverse.patch")
    assert (tmp_path / "train.py").read_text() == SLOW_INPUT


def test_a_dirty_folder_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    (tmp_path / "train.py").write_text("print(2)\n")
    ran = fix(tmp_path, "--write", "train.py")
    assert ran.returncode == 2
    assert "train.py has changes that are not committed (commit them; give --allow-dirty)" in ran.stderr


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("print(1)\n", "no step of a torch optimizer was seen"),
        ("raise SystemExit(4)\n", "the script ended with code 4"),
        ("import torch\n1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_a_script_that_does_not_train_is_one_line(tmp_path: Path, script: str, words: str) -> None:
    (tmp_path / "train.py").write_text(script)
    ran = fix(tmp_path, "train.py")
    assert ran.returncode == 3
    assert words in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
