"""Logs of torch.compile, written by real runs with recompilations and graph breaks planted in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.model.compilation import Compilation

pytest.importorskip("torch", reason="PyTorch is not installed")

LEAST_RIGHT = 0.95


def run(logs: Path, script: str, *arguments: str) -> str:
    """Run a script of this directory with its compilations logged and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), *arguments],
        env=os.environ | {"TORCH_TRACE": str(logs)},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def is_named(fault: dict[str, Any], found: Compilation) -> bool:
    """Tell whether the log names a planted fault: its function and guard, or its line and function."""
    if "again" in fault:
        frames = [frame for frame in found.frames if frame.function == fault["function"]]
        return any(
            frame.recompiles == fault["again"]
            and any(fault["guard"] in guard.reason for guard in frame.guards)
            for frame in frames
        )
    if "breaks_at" in fault:
        place = f"planted_compiles.py:{fault['breaks_at']}"
        broken = [one for one in found.breaks if (one.where or "").endswith(place)]
        return any(one.function == fault["function"] and bool(one.reason) for one in broken)
    return all(getattr(found, name) == figure for name, figure in fault.items())


def test_planted_faults_are_named(tmp_path: Path) -> None:
    planted = [json.loads(line) for line in run(tmp_path / "logs", "planted_compiles.py").splitlines()]
    found = sg.load(tmp_path / "logs").compilation
    assert found is not None
    wrong = [fault for fault in planted if not is_named(fault, found)]
    assert len(planted) >= 27
    assert len(wrong) <= (1.0 - LEAST_RIGHT) * len(planted), wrong
    # Nothing is called a fault that was not planted: resumed functions are not compiled again.
    names = {fault.get("function") for fault in planted if "again" in fault}
    assert {frame.function for frame in found.frames if frame.recompiles} == names


def test_a_trace_and_its_log_are_told_together(tmp_path: Path) -> None:
    settings = json.dumps({"odd_sizes": {2: 24, 5: 32}, "breaks": True, "stacks": True})
    run(tmp_path / "logs", "compiled_run.py", str(tmp_path / "trace.json"), settings)
    card = sg.score(sg.load(tmp_path / "trace.json", tmp_path / "logs"))
    found = card.compile
    assert found is not None
    assert card.steps is not None
    # The first compilations were before the recording: the log alone knows of them.
    assert found.logged_ms is not None
    assert found.logged_ms > found.total_ms > 0.0
    model = next(frame for frame in found.frames if frame.function == "model")
    assert (model.compiles, model.recompiles) == (3, 2)
    assert "size mismatch" in model.guards[0].reason
    assert {one.step for one in found.steps} == {2, 5}
    assert found.graph_breaks == 20.0
    (broken,) = found.breaks
    assert (broken.per_step, broken.compiles) == (20.0, 3)
    assert broken.reason is not None
    assert "graph_break()" in broken.reason
    findings = {finding.rule: finding for finding in card.findings}
    assert "size mismatch" in findings["compiles-again"].claim
    assert "graph_break()" in findings["graph-breaks"].claim
    # Each alone says less, and what it says is the same.
    alone = sg.load(tmp_path / "trace.json").compilation
    assert alone is not None
    assert (alone.total_ms, alone.steps) == (found.total_ms, found.steps)
