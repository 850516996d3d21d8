"""The tutorial's four steps are taken as it says, and what it claims holds: as relations, not as wall-clock times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stepgrade as sg
from tests.conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow  # four trainings

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SCRIPTS = ROOT / "examples" / "tutorial"
STAGES = ("slow", "faster", "fast")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Record each script as the page says, with fewer steps."""
    folder = tmp_path_factory.mktemp("tutorial")
    for stage in STAGES:
        command = f"stepgrade record -o {stage}.json examples/tutorial/{stage}.py"
        assert f"\n{command}\n" in PAGE
        words = command.replace(f"-o {stage}.json", f"-o {folder / stage}.json").split()[1:]
        ran = subprocess.run(
            [sys.executable, "-m", "stepgrade", *words, "--steps", "16"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert ran.returncode == 0, ran.stderr
        assert re.fullmatch(r"loss \d\.\d{3} after 16 steps\n", ran.stdout)  # the script's own, and no more
    return {stage: folder / f"{stage}.json" for stage in STAGES}


def share(card: sg.Scorecard, phase: str) -> float:
    return card.phases[phase].share or 0.0


def test_the_first_card_names_the_input(recorded: dict[str, Path]) -> None:
    card = sg.score(recorded["slow"])
    assert card.bottleneck == "input"
    assert share(card, "input") > 0.4
    assert max(card.phases, key=lambda name: share(card, name)) == "input"
    assert "slow.py" in str(card)  # the line that keeps the step waiting
    assert card.recommendations


def test_the_readme_shows_this_card_in_its_words(recorded: dict[str, Path]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    excerpt = readme.split("stepgrade record examples/tutorial/slow.py\n```\n\n```text\n")[1].split("```")[0]
    card = re.sub(r"\s+", " ", re.sub(r"\d+(?:\.\d+)?", "N", str(sg.score(recorded["slow"]))))
    for part in (
        "spends N % of the step idle, waiting for input; mostly in slow.py:N tokenize",
        "Give the DataLoader num_workers=N",  # as many as there are cores, or four
    ):
        assert part in re.sub(r"\s+", " ", re.sub(r"\d+(?:\.\d+)?", "N", excerpt))
        assert part in card


def test_tokenizing_once_takes_the_input_away(recorded: dict[str, Path]) -> None:
    before, after = sg.score(recorded["slow"]), sg.score(recorded["faster"])
    assert share(after, "input") < 0.05
    assert after.bottleneck != "input"
    # Not the steps: another program may take half of the machine in one of the two runs.
    assert (after.phases["input"].ms or 0.0) < (before.phases["input"].ms or 0.0) / 4.0


def test_the_second_card_names_attention_and_the_third_does_not(recorded: dict[str, Path]) -> None:
    found = {stage: [finding.rule for finding in sg.score(recorded[stage]).findings] for stage in STAGES}
    assert "unfused-attention" in found["faster"]
    assert "unfused-attention" not in found["fast"]
    names = {op.name for op in sg.score(recorded["fast"]).operations}
    assert any("scaled_dot_product" in name for name in names)


def test_the_trace_of_the_script_has_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    command = [sys.executable, str(SCRIPTS / "fast.py"), "--steps", "6", "--trace", str(path)]
    subprocess.run(command, capture_output=True, check=True, timeout=600)
    assert sg.inspect(path).holds["steps"].startswith("4")


def test_the_gate_tells_slow_from_fast(recorded: dict[str, Path]) -> None:
    back = sg.gate(recorded["slow"], baseline=[recorded["fast"]])
    (step,) = (change for change in back.changes if change.metric == "step_time_ms")
    # It is five times as slow; on a machine that others use, one run against one may show less, and no pass.
    assert back.verdict == "regressed" or (step.change < 2.0 and back.verdict == "could not be measured")
    assert any(shift.name == "input" for shift in back.shifts)


def test_the_scripts_differ_where_the_page_says() -> None:
    for stage in STAGES[1:]:
        shown = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        code = (SCRIPTS / f"{stage}.py").read_text(encoding="utf-8")
        assert any(block in code for block in shown), stage
