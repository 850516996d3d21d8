"""No command replaces a file that it reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import make_step_profile
from tests.conftest import ROOT, Ran

COMMANDS = {
    "score": ("score", "run.json", "-o", "run.json"),
    "score by another name": ("score", "run.json", "-o", "link.json"),
    "score by a hard link": ("score", "run.json", "-o", "hard.json"),
    "score's baseline": ("score", "run.json", "--baseline", "old.json", "-o", "./old.json"),
    "convert": ("convert", "run.json", "-o", "run.json"),
    "inspect": ("inspect", "run.json", "--format", "json", "-o", "run.json"),
    "parity": ("parity", "run.json", "old.json", "-o", "old.json"),
    "gate": ("gate", "run.json", "--baseline", "old.json", "--also", "junit=old.json"),
    "estimate": ("estimate", "--model", "model.json", "--device", "h100-sxm5-80gb", "--seq", "128", "-o", "model.json"),
    "history": ("history", "export", "--history", "h.db", "-o", "h.db"),
    "record": ("record", "-o", "train.py", "train.py"),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_an_input_is_not_replaced(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stepgrade: Callable[..., Ran]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run.json", "old.json"):
        Path(name).write_text(make_step_profile())
    Path("link.json").symlink_to("run.json")
    Path("hard.json").hardlink_to("run.json")
    Path("train.py").write_text("print('trained')\n")
    shutil.copy(ROOT / "examples" / "models" / "llama-3-8b.json", "model.json")
    assert stepgrade("history", "add", "run.json", "--history", "h.db").code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    ran = stepgrade(*COMMANDS[command])
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "is an input, and would be overwritten (name another file)" in ran.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_earlier_result_is_replaced(tmp_path: Path, stepgrade: Callable[..., Ran]) -> None:
    run, result = tmp_path / "run.json", tmp_path / "card.json"
    run.write_text(make_step_profile())
    result.write_text("of yesterday")
    assert stepgrade("score", run, "--format", "json", "-o", result).code == 0
    assert result.read_text() != "of yesterday"
