"""Streams that are full, closed or left by their reader, and files that an interrupt must not leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stepgrade.cli import output
from stepgrade.cli.parser import byte_count
from tests.builders import make_step_profile
from tests.conftest import Ran

Run = Callable[..., Ran]
COMMAND = f"{sys.executable} -m stepgrade"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "p.json").write_text(make_step_profile())
    (tmp_path / "slow.json").write_text(make_step_profile(step_ms=150.0))
    return tmp_path / "p.json"


def run_shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line, check=False, shell=True, cwd=folder, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("score p.json > /dev/full", "standard output: cannot be written: No space left on device"),
        ("--version > /dev/full", "standard output: cannot be written: No space left on device"),
        ("score p.json >&-", "standard output: is closed (write to a file with -o FILE)"),
        ("score - <&-", "standard input: is closed (pass a file name)"),
        ("score p.json -o /dev/full", "/dev/full: cannot be written: No space left on device"),
    ],
)
def test_a_stream_that_does_not_take_it(line: str, problem: str, profile: Path) -> None:
    ran = run_shell(f"{COMMAND} {line}", profile.parent)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"stepgrade: {problem}\n")


def test_without_standard_error_nothing_goes_elsewhere(profile: Path) -> None:
    ran = run_shell(f"{COMMAND} score absent 2>&-", profile.parent)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert run_shell(f"{COMMAND} score absent 2>/dev/full", profile.parent).returncode == 2


def test_a_reader_that_leaves_does_not_open_the_gate(profile: Path) -> None:
    line = f"{COMMAND} score slow.json --baseline p.json --fail-on warning"
    # The reader is gone before anything is written: the first command waits for it.
    ran = run_shell(f"({{ sleep 0.2; {line}; echo $? >&2; }} | true)", profile.parent)
    assert ran.stderr.splitlines()[-1] == "1"
    assert "Traceback" not in ran.stderr


def test_a_gate_that_cannot_be_asked_writes_nothing(stepgrade: Run, profile: Path) -> None:
    ran = stepgrade("score", profile, "--fail-on", "warning", "-o", profile.parent / "card.json")
    assert (ran.code, ran.out) == (2, "")
    assert not (profile.parent / "card.json").exists()


def test_an_interrupt_leaves_no_draft(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    before = sorted(profile.parent.iterdir())
    with pytest.raises(KeyboardInterrupt):
        output.write("text", str(profile))
    assert sorted(profile.parent.iterdir()) == before
    assert profile.read_text() == make_step_profile()


def test_the_longest_name_that_a_file_can_have(stepgrade: Run, profile: Path) -> None:
    path = profile.parent / ("n" * 255)
    assert stepgrade("score", profile, "-o", path).code == 0
    assert path.exists()


def test_a_path_that_is_no_text(profile: Path) -> None:
    name = os.fsencode(profile.parent) + b"/\xff.json"
    Path(os.fsdecode(name)).write_text(make_step_profile())
    for to in ("terminal", "markdown", "json"):
        command = [sys.executable, "-m", "stepgrade", "score", name, "--format", to]
        ran = subprocess.run(command, check=False, capture_output=True, timeout=60)
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert b"dcff.json" in ran.stdout or to == "markdown"


@pytest.mark.parametrize(
    ("text", "count"), [("4096", 4096), ("1k", 2**10), ("3MiB", 3 * 2**20), ("16G", 2**34), ("2 TB", 2**41)]
)
def test_sizes_are_binary(text: str, count: int) -> None:
    assert byte_count(text) == count
