"""A commit of the edit on a new branch, beside a checkout that stays as it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stepgrade.errors import BadInput
from stepgrade.fix.write import check_clean, write_edits
from tests.fix.reports import written_report

BEFORE, AFTER = "a = 1\r\nb = 'ä'\r\n", "a = 2\r\nb = 'ä'\r\n"


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, check=True).stdout.decode()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "part"
    folder.mkdir(parents=True)
    (folder / "train.py").write_bytes(BEFORE.encode())
    (folder / "train.py").chmod(0o755)
    git(folder.parent, "init", "-q", "-b", "main")
    for name in ("name", "email"):
        git(folder.parent, "config", f"user.{name}", "me")
    git(folder.parent, "add", "-A")
    git(folder.parent, "commit", "-qm", "all")
    return folder


def test_the_edit_is_committed_and_the_checkout_stays(checkout: Path) -> None:
    hook = checkout.parent / ".git" / "hooks" / "reference-transaction"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    before = (
        git(checkout, "status", "--porcelain=v2", "--branch"),
        (checkout.parent / ".git/index").read_bytes(),
    )
    check_clean(str(checkout), allow_dirty=False, branch="faster")
    said = write_edits(str(checkout), written_report(BEFORE, AFTER), "faster")
    assert "committed on the branch faster" in said
    assert before == (
        git(checkout, "status", "--porcelain=v2", "--branch"),
        (checkout.parent / ".git/index").read_bytes(),
    )
    assert sorted(path.name for path in checkout.parent.iterdir()) == [".git", "part"]  # no hook ran
    assert git(checkout, "show", "faster:part/train.py").encode() == AFTER.encode()
    assert (
        git(checkout, "diff", "--stat", "--summary", "main", "faster").count("\n") == 2
    )  # of one line, no mode
    message = git(checkout, "log", "-1", "--format=%B", "faster")
    assert message.startswith("Make train.py faster\n")
    assert "31.0 % less (28.0 % to 34.0 % in 4 rounds)" in message
    assert git(checkout, "rev-parse", "faster~1") == git(checkout, "rev-parse", "main")


@pytest.mark.parametrize(
    ("branch", "problem"), [("main", "is a branch of that"), ("a..b", "no such name"), ("-x", "")]
)
def test_a_branch_that_cannot_be_made_is_refused_before_anything_is_tried(
    checkout: Path, branch: str, problem: str
) -> None:
    if problem:
        with pytest.raises(BadInput, match=problem):
            check_clean(str(checkout), allow_dirty=False, branch=branch)
    else:  # nothing is read as an option
        check_clean(str(checkout), allow_dirty=False, branch=branch)
        assert "committed" in write_edits(str(checkout), written_report(BEFORE, AFTER), branch)
    with pytest.raises(BadInput, match="no commit to begin at"):
        check_clean(str(checkout.parent.parent), allow_dirty=False, branch="faster")


def test_a_file_that_git_holds_otherwise_is_not_committed(checkout: Path) -> None:
    git(checkout.parent, "config", "core.autocrlf", "input")
    (checkout / "train.py").write_bytes(BEFORE.encode() + b"c = 3\r\n")
    report = written_report(BEFORE + "c = 3\r\n", AFTER + "c = 3\r\n")
    with pytest.raises(BadInput, match="could not commit"):
        write_edits(str(checkout), report, "faster")
    assert git(checkout, "branch", "--format=%(refname:short)").split() == ["main"]
