"""Real runs of torch.compile on the processor, with recompilations and graph breaks planted in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model.scorecard import Scorecard

pytest.importorskip("torch", reason="PyTorch is not installed")


def record(path: Path, *, odd_sizes: dict[int, int], breaks: bool, stacks: bool = True) -> Scorecard:
    """Train a compiled function in a process of its own and return the card of its trace."""
    settings = json.dumps({"odd_sizes": odd_sizes, "breaks": breaks, "stacks": stacks})
    script = Path(__file__).parent / "compiled_run.py"
    done = subprocess.run(
        [sys.executable, str(script), str(path), settings], check=False, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return sg.score(sg.load(path))


def test_recompilations_are_counted_and_left_out(tmp_path: Path) -> None:
    card = record(tmp_path / "trace.json", odd_sizes={2: 24, 5: 32}, breaks=False)
    found = card.compile
    assert found is not None
    assert (found.compiles, found.recompiles) == (2, 2)
    assert found.steps_left_out == 2
    assert found.ms_per_step == 0.0  # the others compile nothing
    assert found.total_ms > 0.0
    assert found.graph_breaks == 0.0
    (frame,) = found.frames
    assert frame.where is not None
    assert "compiled_run.py" in frame.where
    assert any(note.code == "compiling_steps_left_out" for note in card.notes)
    rules = [finding.rule for finding in card.findings]
    assert rules[0] == "compiles-again"
    assert "fast-backward" not in rules


@pytest.mark.parametrize("stacks", [True, False])
def test_graph_breaks_are_counted_with_their_line(tmp_path: Path, stacks: bool) -> None:
    card = record(tmp_path / "trace.json", odd_sizes={}, breaks=True, stacks=stacks)
    assert card.compile is not None
    assert card.compile.graph_breaks == 20.0
    assert (card.compile.compiles, card.compile.recompiles) == (0, 0)
    (one,) = card.compile.breaks
    assert (one.where is not None and "compiled_run.py" in one.where) is stacks
    assert (one.function == "model") is stacks
    assert "graph-breaks" in [finding.rule for finding in card.findings]


def test_a_whole_graph_has_no_breaks(tmp_path: Path) -> None:
    card = record(tmp_path / "trace.json", odd_sizes={}, breaks=False)
    assert card.compile is not None
    assert (card.compile.graph_breaks, card.compile.recompiles) == (0.0, 0)
    assert not {"graph-breaks", "compiles-again"} & {finding.rule for finding in card.findings}
