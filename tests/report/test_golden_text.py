"""Golden text of every renderer on the bundled runs; `--update-golden` rewrites it, the diff is reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.hardware.setup import Setup
from stepgrade.report.names import cells
from tests.conftest import ROOT

GOLDEN = Path(__file__).parent / "golden"
RUNS = ROOT / "examples" / "runs"


def scorecard() -> sg.Scorecard:
    profile = sg.load("examples/runs/gpt_naive.json")
    baseline = sg.load_baseline("examples/runs/gpt_fused.json")
    roofs = Setup(
        dtype="fp32",
        peak_tflops=0.1715,
        flops_per_token=30_867_456,
        peak_bw_gb_s=32.05,
        bytes_per_token=391_000,
    )
    return sg.score(profile, setup=roofs, baseline=baseline)


def parity() -> sg.ParityReport:
    return sg.parity(sg.load("examples/runs/parity_naive.json"), sg.load("examples/runs/parity_fused.json"))


def inspection() -> object:
    return sg.inspect(sg.load("examples/runs/gpt_naive.json"))


RESULTS = {"scorecard": scorecard, "parity": parity, "inspection": inspection}


@pytest.mark.parametrize(
    ("to", "width", "color"),
    [("terminal", 80, False), ("terminal", 50, True), ("markdown", 80, False), ("json", 80, False)],
)
@pytest.mark.parametrize("name", RESULTS)
def test_golden_text(
    name: str, to: str, width: int, color: bool, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = sg.render(RESULTS[name](), to=to, width=width, color=color)  # type: ignore[arg-type]  # one of the three
    path = GOLDEN / f"{name}.{to}{width}{'.color' if color else ''}.txt"
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 41, 59, 60, 80, 120, 200])
@pytest.mark.parametrize("name", RESULTS)
def test_no_line_is_wider_than_the_terminal(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = sg.render(RESULTS[name](), width=width)  # type: ignore[arg-type]  # one of the three
    assert max(cells(line) for line in text.splitlines()) <= width
