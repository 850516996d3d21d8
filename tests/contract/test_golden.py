"""Every golden vector of contract v1: floats bit for bit, Markdown byte for byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from stepgrade.contract import (
    Bottleneck,
    Grade,
    HardwareSpec,
    ParityProfile,
    StepProfilerInput,
    TrainingScorecard,
    compute_parity_comparison,
    compute_training_scorecard,
    format_parity_markdown,
    format_training_scorecard_markdown,
)

VECTORS = Path(__file__).parent.parent / "golden" / "contract.jsonl"
CASES = [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").rstrip("\n").split("\n")]


@pytest.mark.parametrize("vector", CASES, ids=[vector["id"] for vector in CASES])
def test_golden(vector: dict[str, Any]) -> None:
    try:
        got = {"ok": ANSWERS[vector["case"]["kind"]](vector["case"])}
    except ValueError:
        got = {"err": True}
    assert bits(got) == bits(vector["expect"])


def test_there_are_vectors_of_every_kind() -> None:
    assert len(CASES) >= 302
    assert {vector["case"]["kind"] for vector in CASES} == set(ANSWERS)


def score(case: dict[str, Any]) -> dict[str, Any]:
    profile = StepProfilerInput.from_json(case["input_text"])
    baseline = (
        TrainingScorecard.from_json(case["baseline_text"]) if case["baseline_text"] is not None else None
    )
    hardware = HardwareSpec(**{name: float(figure) for name, figure in case["hw"].items()})
    card = compute_training_scorecard(profile, float(case["throughput_tok_s"]), hardware, baseline)
    return {"scorecard": json.loads(card.to_json()), "markdown": format_training_scorecard_markdown(card)}


def compare(case: dict[str, Any]) -> dict[str, Any]:
    ours, theirs = (ParityProfile.from_json(case[side]) for side in ("apr_text", "baseline_text"))
    comparison = compute_parity_comparison(ours, theirs)
    return {"comparison": json.loads(comparison.to_json()), "markdown": format_parity_markdown(comparison)}


def grade(case: dict[str, Any]) -> dict[str, Any]:
    return {"grade": str(Grade.from_efficiency(float(case["efficiency"])))}


def classify(case: dict[str, Any]) -> dict[str, Any]:
    found = Bottleneck.classify(*(float(case[share]) for share in "tlc"))
    return {"bottleneck": found.value, "display": str(found), "recommendation": found.recommendation()}


ANSWERS = {"scorecard": score, "parity": compare, "grade": grade, "classify": classify}


def bits(value: Any) -> Any:
    """Return the value with every float as its bytes, so that -0.0 is not 0.0 and 1 is not 1.0."""
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, dict):
        return {key: bits(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [bits(entry) for entry in value]
    return value
