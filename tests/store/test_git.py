"""Which commit and branch a run is saved with: CI's, else the checkout's, else none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stepgrade.store import git

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")


@pytest.fixture(autouse=True)
def _without_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*git._BRANCHES, *git._COMMITS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def commit() -> str:
    subprocess.run([*GIT, "init", "--quiet", "--initial-branch", "trunk", "."], check=True)
    subprocess.run([*GIT, "commit", "--quiet", "--allow-empty", "--message", "first"], check=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_checkout_has_its_commit_and_branch() -> None:
    made = commit()
    assert (git.commit_here(), git.branch_here()) == (made, "trunk")


def test_a_bare_commit_has_no_branch() -> None:
    made = commit()
    subprocess.run([*GIT, "checkout", "--quiet", "--detach"], check=True)
    assert (git.commit_here(), git.branch_here()) == (made, None)


def test_ci_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    commit()
    monkeypatch.setenv("GIT_COMMIT", "c" * 40)
    monkeypatch.setenv("GIT_BRANCH", "origin/feature")
    assert (git.commit_here(), git.branch_here()) == ("c" * 40, "feature")


def test_outside_of_both_there_is_neither() -> None:
    assert (git.commit_here(), git.branch_here()) == (None, None)
