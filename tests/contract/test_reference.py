"""The nine tests of the reference, each asserting what it is about."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from stepgrade.contract import (
    Bottleneck,
    Grade,
    HardwareSpec,
    PhaseData,
    StepProfilerInput,
    TrainingScorecard,
    compute_training_scorecard,
)

RTX_4060L = HardwareSpec.rtx_4060l()
BASELINE = TrainingScorecard(
    grade="D",
    efficiency=0.12,
    bottleneck=Bottleneck.MEMORY_BW,
    throughput_tok_s=200.0,
    step_time_ms=100.0,
    forward_backward_ratio=2.0,
    wall_coverage=0.90,
    per_layer_summary=[],
    hotspot_ops=[],
    regressions=[],
    recommendations=[],
)


@pytest.mark.parametrize(
    ("efficiency", "grade"),
    [(0.65, Grade.A), (0.45, Grade.B), (0.25, Grade.C), (0.12, Grade.D), (0.05, Grade.F)],
)
def test_grade_from_efficiency(efficiency: float, grade: Grade) -> None:
    assert Grade.from_efficiency(efficiency) is grade


def test_grade_monotonic() -> None:
    grades = [Grade.from_efficiency(percent / 100) for percent in range(101)]
    assert grades == sorted(grades)
    assert set(grades) == set(Grade)


@pytest.mark.parametrize(
    ("shares", "bottleneck"),
    [
        ((0.35, 0.10, 0.10), Bottleneck.TRANSFER),
        ((0.10, 0.50, 0.10), Bottleneck.LAUNCH),
        ((0.10, 0.10, 0.60), Bottleneck.COMPUTE),
        ((0.10, 0.10, 0.10), Bottleneck.MEMORY_BW),
    ],
)
def test_bottleneck_classification(shares: tuple[float, float, float], bottleneck: Bottleneck) -> None:
    assert Bottleneck.classify(*shares) is bottleneck


def test_bottleneck_mutually_exclusive() -> None:
    """Each combination has one class: the first of transfer, launch, compute that is above its threshold."""
    for transfer, launch, compute in product((0.0, 0.15, 0.31), (0.0, 0.20, 0.41), (0.0, 0.25, 0.51)):
        above = [
            name
            for name, share, threshold in (
                (Bottleneck.TRANSFER, transfer, 0.30),
                (Bottleneck.LAUNCH, launch, 0.40),
                (Bottleneck.COMPUTE, compute, 0.50),
            )
            if share > threshold
        ]
        assert Bottleneck.classify(transfer, launch, compute) is (above or [Bottleneck.MEMORY_BW])[0]


def test_scorecard_yoga_profile() -> None:
    profile = StepProfilerInput(avg_step_ms=105.0, wall_coverage=0.85)
    card = compute_training_scorecard(profile, 194.0, RTX_4060L)
    assert card.grade == "D"
    assert card.efficiency == pytest.approx(194.0 / (256e9 / 158e6))


def test_regression_detection() -> None:
    profile = StepProfilerInput(avg_step_ms=115.0, wall_coverage=0.88)
    card = compute_training_scorecard(profile, 170.0, RTX_4060L, BASELINE)
    assert [(found.metric, found.severity) for found in card.regressions] == [
        ("throughput_tok_s", "warning"),
        ("step_time_ms", "warning"),
    ]


def test_no_false_regression() -> None:
    profile = StepProfilerInput(avg_step_ms=95.0, wall_coverage=0.91)
    assert compute_training_scorecard(profile, 210.0, RTX_4060L, BASELINE).regressions == []


def test_scorecard_json_roundtrip() -> None:
    card = compute_training_scorecard(StepProfilerInput(), 100.0, RTX_4060L)
    assert TrainingScorecard.from_json(card.to_json()) == card


def test_recommendations_for_low_grade() -> None:
    forward = PhaseData(total_ms=10.0, pct=10.0, avg_ms=10.0)
    profile = StepProfilerInput(avg_step_ms=200.0, phases={"forward": forward})
    card = compute_training_scorecard(profile, 50.0, RTX_4060L)
    assert card.bottleneck is Bottleneck.LAUNCH
    assert card.recommendations[0] == Bottleneck.LAUNCH.recommendation()
    assert len(card.recommendations) == 2


def test_types_are_frozen() -> None:
    with pytest.raises(AttributeError):
        BASELINE.grade = "A"  # type: ignore[misc]  # that it is refused is what is tested
    assert msgspec.structs.replace(BASELINE, grade="A").grade == "A"
