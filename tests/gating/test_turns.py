"""`gate --run --base`: what it does to a checkout (nothing), and a real training at two commits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepgrade.store import git
from stepgrade.store.git import copy_at, fork_of
from tests.conftest import ROOT
from tests.waiting import running, wait_for

TRAIN = """
import torch
from work import WORK
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    x = torch.randn(64, 64)
    y = model(x)
    for _ in range(WORK):
        y = y + (x @ x.T).sum() * 0.0
    y.sum().backward()
    optimizer.step()
"""


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        scratch = folder.parent / "scratch"
        scratch.mkdir()
        self.environment = os.environ | {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PYTHONPATH": str(ROOT / "src"),
            "TMPDIR": str(scratch),
            **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        self.scratch = scratch
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        ran = subprocess.run(
            ["git", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        )
        return ran.stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a change")
        return self.git("rev-parse", "HEAD")

    def state(self) -> dict[str, bytes]:
        """Return every file of the checkout and its .git; looking may refresh the index."""
        files = (path for path in self.folder.rglob("*") if path.is_file() and path.name != "index")
        return {str(path): path.read_bytes() for path in files if "__pycache__" not in str(path)}

    def gate(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stepgrade", "gate", *words],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "stepgrade", "gate", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "project")


def test_a_commit_is_copied_and_the_checkout_left_alone(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = checkout.commit(work="WORK = 1\n")
    checkout.git("checkout", "-q", "-b", "change")
    checkout.commit(work="WORK = 2\n")
    (checkout.folder / "work.py").write_text("WORK = 3\n")
    (checkout.folder / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\ntouch $HOME/hooked\n")
    (checkout.folder / ".git" / "hooks" / "post-checkout").chmod(0o755)
    before = checkout.state()
    monkeypatch.chdir(checkout.folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fork_of("main") == first
    assert fork_of("nowhere") is None
    assert fork_of("--upload-pack=touch x") is None
    assert copy_at(str(checkout.folder), first, str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "work.py").read_text() == "WORK = 1\n"
    assert checkout.state() == before
    assert not (tmp_path / "hooked").exists()


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["--run", "python train.py"], "both are needed", 2),
        (["--run", "python train.py", "--base", "nowhere"], "no commit that this checkout has", 2),
        (["--run", " ", "--base", "HEAD"], "no command", 2),
        (["--run", "python train.py", "--base", "HEAD", "--pairs", "1"], "at least 2", 2),
        (["x.json", "--run", "python train.py", "--base", "HEAD"], "it makes its own runs", 2),
        (["--run", f"{sys.executable} fails.py", "--base", "HEAD"], "ended with code 7", 3),
        (["--run", f"{sys.executable} -c pass", "--base", "HEAD"], "recorded no step", 3),
        ([], "no run to check", 2),
    ],
)
def test_what_cannot_be_run_says_why_and_leaves_nothing(
    checkout: Checkout, words: list[str], said: str, code: int
) -> None:
    checkout.commit(fails="raise SystemExit(7)\n")
    before = checkout.state()
    ran = checkout.gate(*words)
    assert ran.returncode == code, ran.stderr
    assert said in ran.stderr
    assert checkout.state() == before
    assert list(checkout.scratch.iterdir()) == []


def test_a_hook_of_git_can_run_it(checkout: Checkout) -> None:
    """Git names the repository and its index to hooks, by absolute paths in a worktree; a copy must not take them."""
    checkout.commit(work="WORK = 1\n")
    checkout.git("checkout", "-q", "-b", "change")
    checkout.commit(work="WORK = 2\n")
    before = checkout.state()
    folder = checkout.folder / ".git"
    own = {
        "GIT_DIR": str(folder),
        "GIT_INDEX_FILE": str(folder / "index"),
        "GIT_WORK_TREE": str(folder.parent),
    }
    ran = checkout.gate("--run", f"{sys.executable} -c pass", "--base", "main", **own)
    assert "recorded no step" in ran.stderr
    assert checkout.state() == before
    assert checkout.git("status", "--porcelain", "--branch") == "## change"


def test_a_copy_that_is_damaged_is_not_taken_for_the_checkout_around_it(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for temporary files in the checkout: git looks for a repository in all folders above."""
    first = checkout.commit(work="WORK = 1\n")
    checkout.commit(work="WORK = 2\n")
    before = checkout.state()
    monkeypatch.chdir(checkout.folder)
    usual = git._git

    def damaging(*words: str, **more: Any) -> str | None:
        said = usual(*words, **more)
        if "clone" in words:
            (checkout.folder / "tmp" / "copy" / ".git" / "HEAD").unlink()
        return said

    monkeypatch.setattr(git, "_git", damaging)
    assert not copy_at(str(checkout.folder), first, str(checkout.folder / "tmp" / "copy"))
    shutil.rmtree(checkout.folder / "tmp")
    assert checkout.state() == before
    assert checkout.git("status", "--porcelain", "--branch") == "## main"


def test_without_standard_error_the_training_writes_nowhere(checkout: Checkout) -> None:
    checkout.commit(fails="print('said'); raise SystemExit(7)\n")
    words = f"{sys.executable} -m stepgrade gate --run '{sys.executable} fails.py' --base HEAD 2>&-"
    ran = subprocess.run(
        words, shell=True, cwd=checkout.folder, env=checkout.environment, capture_output=True, check=False
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (3, b"")


SLEEPS = """
import pathlib, signal, subprocess, sys, time
for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), lambda *_: sys.exit(0))  # as trainers do, after a checkpoint
started = pathlib.Path(sys.argv[1])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(started)], start_new_session=True)
started.touch()
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by their environments")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_ending_it_ends_everything(checkout: Checkout, tmp_path: Path, name: str) -> None:
    checkout.commit(train=SLEEPS)
    before = checkout.state()
    started = tmp_path / f"started-{os.urandom(8).hex()}"
    gate = checkout.start("--run", f"{sys.executable} train.py {started}", "--base", "HEAD")
    wait_for(started.exists)
    gate.send_signal(getattr(signal, name))
    _, errors = gate.communicate()
    codes = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}
    assert gate.returncode == codes[name], errors
    wait_for(lambda: not running(started.name) and not list(checkout.scratch.iterdir()))
    assert checkout.state() == before


@pytest.mark.slow
def test_a_real_training_at_two_commits(checkout: Checkout) -> None:
    """Four times the work is seen in the processor time, whatever else the machine does; the same work is not."""
    checkout.commit(train=TRAIN, work="WORK = 40\n")
    checkout.git("checkout", "-q", "-b", "change")
    checkout.commit(work="WORK = 160\n")
    before = checkout.state()
    train = f"{sys.executable} train.py"
    ran = checkout.gate("--run", train, "--base", "main", "--format", "json")
    assert ran.returncode == 1, ran.stderr + ran.stdout
    assert '"metric":"processor_ms","outcome":"regressed"' in ran.stdout
    assert checkout.state() == before
    assert list(checkout.scratch.glob("stepgrade*")) == []  # torch has a folder of its own there
    same = checkout.gate("--run", train, "--base", "HEAD", "--format", "json")
    assert same.returncode in (0, 3), same.stderr
    assert '"outcome":"regressed"' not in same.stdout
