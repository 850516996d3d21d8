"""Small real runs on the processor: ten kinds that are well get no warning, a planted fault is named first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stepgrade as sg
from tests.measured import measured

pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch_runs.small_runs import FAULTS, KINDS, record

HERE = Path(__file__).parent


def small(fault: str) -> str:
    """Return the kind of run that the fault is planted in: one whose own step is short."""
    return "tiny batch" if fault != "Python RNN" else "GAN"


@pytest.mark.parametrize("kind", KINDS)
@measured
def test_a_small_run_that_is_well_gets_no_warning(tmp_path: Path, kind: str) -> None:
    record(tmp_path / "well.json", KINDS[kind](), stacks=True)
    findings = sg.score(sg.load(tmp_path / "well.json")).findings
    assert [finding.claim for finding in findings if finding.severity != "info"] == []


@pytest.mark.parametrize("stacks", [False, True], ids=["without stacks", "with stacks"])
@pytest.mark.parametrize("fault", FAULTS)
@measured
def test_a_planted_fault_is_named_first_with_its_line(tmp_path: Path, fault: str, stacks: bool) -> None:
    make, function, rules = FAULTS[fault]
    record(tmp_path / "fault.json", KINDS[small(fault)](), make(), stacks=stacks)
    card = sg.score(sg.load(tmp_path / "fault.json"))
    first = card.findings[0]
    assert first.rule in rules
    assert first.severity != "info"
    if stacks:
        assert first.evidence["function"] == function
        assert first.where is not None
        name, line = first.where.rsplit(":", 1)
        assert name.endswith("tests/torch_runs/small_runs.py")
        source = (HERE / "small_runs.py").read_text(encoding="utf-8").splitlines()
        assert f"def {function}(" in source[int(line) - 1]
        assert first.where in first.claim
    if fault.startswith("random"):
        assert card.bottleneck == "compute"
    else:
        assert card.bottleneck == "host"


@pytest.mark.parametrize("fault", FAULTS)
@measured
def test_a_planted_fault_is_named_first_in_a_larger_step_too(tmp_path: Path, fault: str) -> None:
    make, function, rules = FAULTS[fault]
    record(tmp_path / "fault.json", KINDS["GPT"](), make(), stacks=True)
    first = sg.score(sg.load(tmp_path / "fault.json")).findings[0]
    assert first.rule in rules
    assert first.severity != "info"
    assert first.evidence["function"] == function


@measured
def test_a_late_rank_over_gloo_is_named_first_with_its_line(tmp_path: Path) -> None:
    for meeting in tmp_path.glob("*"):
        meeting.unlink()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "gloo_run.py"), str(rank), "2", str(tmp_path), "0.05"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    card = sg.score(sg.load(*sorted(tmp_path.glob("rank*.json"))))
    first = card.findings[0]
    assert first.rule == "straggler-rank"
    assert first.evidence["rank"] == 1.0
    assert first.evidence["function"] == "prepare"
    assert "sleep" in first.claim
