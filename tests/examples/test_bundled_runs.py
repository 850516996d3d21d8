"""The bundled runs are whole, agree with each other, and show what examples/README.md says they show."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from examples import make_gpu_trace

from stepgrade.contract import ParityProfile, StepProfilerInput, compute_parity_comparison

RUNS = Path(__file__).parents[2] / "examples" / "runs"
KINDS = ("fused", "naive")


def load(name: str) -> dict:
    return json.loads((RUNS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_reads_the_profile(kind):
    profile = StepProfilerInput.from_json((RUNS / f"gpt_{kind}.json").read_bytes())
    assert profile.steps == 60
    assert len(profile.per_layer) == 6
    assert set(profile.phases) == {"input", "forward", "loss", "backward", "optimizer"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_adds_up(kind):
    run = load(f"gpt_{kind}")
    wall_ms = run["avg_step_ms"] * run["steps"]
    layers_ms = {way: sum(layer[f"{way}_ms"] for layer in run["per_layer"]) for way in ("fwd", "bwd")}
    assert sum(run["samples_ms"]) == pytest.approx(wall_ms, rel=1e-5)
    covered_ms = sum(phase["total_ms"] for phase in run["phases"].values())
    assert covered_ms / wall_ms == pytest.approx(run["wall_coverage"], abs=1e-4)
    assert layers_ms["fwd"] <= run["phases"]["forward"]["total_ms"]
    assert layers_ms["bwd"] <= run["phases"]["backward"]["total_ms"]
    assert 0.9 * wall_ms < sum(run["ops"].values()) < wall_ms


@pytest.mark.parametrize("kind", KINDS)
def test_profile_and_parity_file_are_one_run(kind):
    run, parity = load(f"gpt_{kind}"), load(f"parity_{kind}")
    assert parity["step_time_ms"] == run["avg_step_ms"]
    per_step_ms = {name: ms / run["steps"] for name, ms in run["ops"].items()}
    assert parity["ops"] == pytest.approx(per_step_ms, abs=1e-3)


def test_naive_attention_is_the_regression():
    slow, fast = load("gpt_naive"), load("gpt_fused")
    assert slow["avg_step_ms"] > 1.10 * fast["avg_step_ms"]
    ours, theirs = (
        ParityProfile.from_json((RUNS / f"parity_{kind}.json").read_bytes()) for kind in reversed(KINDS)
    )
    comparison = compute_parity_comparison(ours, theirs)
    assert comparison.top_gaps[0].op == "attention"
    assert not comparison.parity_achieved


def test_the_bundled_gpu_trace_is_what_its_script_generates():
    assert gzip.decompress(make_gpu_trace.PATH.read_bytes()) == make_gpu_trace.make()
