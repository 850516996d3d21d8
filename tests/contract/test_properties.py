"""What holds for every input of contract v1, not only for the examples."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.contract import (
    Bottleneck,
    Grade,
    HardwareSpec,
    ParityComparison,
    ParityProfile,
    PerLayerData,
    PhaseData,
    StepProfilerInput,
    TrainingScorecard,
    compute_parity_comparison,
    compute_training_scorecard,
    format_parity_markdown,
    format_training_scorecard_markdown,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
times = st.floats(min_value=1e-6, max_value=1e6)
usizes = st.integers(min_value=0, max_value=2**64 - 1)
ops = st.dictionaries(st.text(), finite, max_size=5)
phases = st.dictionaries(
    st.sampled_from(["h2d", "forward", "x_d2h_y", "opt"]) | st.text(),
    st.builds(PhaseData, total_ms=finite, pct=finite, avg_ms=finite),
    max_size=4,
)
layers = st.lists(st.builds(PerLayerData, layer=usizes, fwd_ms=finite, bwd_ms=finite, ops=ops), max_size=4)
profiles = st.builds(
    StepProfilerInput,
    steps=usizes,
    avg_step_ms=finite,
    wall_coverage=finite,
    phases=phases,
    per_layer=layers,
    bottleneck=st.none() | st.text(),
    gemm_pct=finite,
    total_ms=finite,
)
runtimes = st.builds(
    ParityProfile,
    runtime=st.text(),
    throughput_tok_s=finite,
    step_time_ms=finite,
    kernel_launches_per_step=usizes,
    ops=ops,
)
specs = st.builds(HardwareSpec, peak_bw_gb_s=finite, bytes_per_token=finite)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_grade_is_monotone_in_efficiency(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert Grade.from_efficiency(low) <= Grade.from_efficiency(high)


@given(st.floats(), st.floats(), st.floats())
def test_classification_is_total(transfer: float, launch: float, compute: float) -> None:
    assert Bottleneck.classify(transfer, launch, compute) in Bottleneck


@given(profiles, finite, specs)
def test_scored_against_itself_nothing_regressed(
    profile: StepProfilerInput, throughput: float, spec: HardwareSpec
) -> None:
    baseline = compute_training_scorecard(profile, throughput, spec)
    assert compute_training_scorecard(profile, throughput, spec, baseline).regressions == []


@given(profiles, finite, specs)
def test_efficiency_is_a_share_and_agrees_with_the_grade(
    profile: StepProfilerInput, throughput: float, spec: HardwareSpec
) -> None:
    card = compute_training_scorecard(profile, throughput, spec)
    assert 0.0 <= card.efficiency <= 1.0
    assert card.grade == str(Grade.from_efficiency(card.efficiency))


@given(profiles)
def test_step_profile_round_trip(profile: StepProfilerInput) -> None:
    again = StepProfilerInput.from_json(profile.to_json())
    assert again == profile
    assert again.to_json() == profile.to_json()


@given(runtimes)
def test_parity_profile_round_trip(runtime: ParityProfile) -> None:
    assert ParityProfile.from_json(runtime.to_json().encode()) == runtime


@given(profiles, finite, specs)
def test_scorecard_round_trip(profile: StepProfilerInput, throughput: float, spec: HardwareSpec) -> None:
    card = compute_training_scorecard(profile, throughput, spec)
    if all(math.isfinite(figure) for figure in figures(msgspec.to_builtins(card))):
        assert TrainingScorecard.from_json(card.to_json()) == card
    else:
        with pytest.raises(ValueError, match="null"):
            TrainingScorecard.from_json(card.to_json())


@given(st.lists(st.dictionaries(st.text(max_size=3), times, min_size=1, max_size=3), min_size=1, max_size=3))
def test_hotspots_of_all_operations_add_up_to_a_hundred(layer_ops: list[dict[str, float]]) -> None:
    """At most nine different operations, so that none is cut off."""
    per_layer = [PerLayerData(layer=0, fwd_ms=1.0, bwd_ms=1.0, ops=ops) for ops in layer_ops]
    card = compute_training_scorecard(StepProfilerInput(per_layer=per_layer), 1.0, HardwareSpec.gb10())
    assert sum(percent for _, _, percent in card.hotspot_ops) == pytest.approx(100.0)
    spent = [ms for _, ms, _ in card.hotspot_ops]
    assert spent == sorted(spent, reverse=True)


@given(runtimes)
def test_parity_with_itself(runtime: ParityProfile) -> None:
    comparison = compute_parity_comparison(runtime, runtime)
    assert comparison.parity_achieved
    assert all(gap.ratio == 1.0 for gap in comparison.top_gaps)
    assert comparison.throughput_ratio == (1.0 if runtime.throughput_tok_s > 0 else 0.0)
    assert ParityComparison.from_json(comparison.to_json()) == comparison


@given(profiles, st.floats(), specs, runtimes, runtimes)
def test_every_result_can_be_written(
    profile: StepProfilerInput,
    throughput: float,
    spec: HardwareSpec,
    ours: ParityProfile,
    theirs: ParityProfile,
) -> None:
    card = compute_training_scorecard(profile, throughput, spec)
    comparison = compute_parity_comparison(ours, theirs)
    assert format_training_scorecard_markdown(card).startswith("## Training Scorecard\n")
    assert format_parity_markdown(comparison).startswith("## Parity: ")
    json.loads(card.to_json(), parse_constant=pytest.fail)
    json.loads(comparison.to_json(), parse_constant=pytest.fail)


def figures(value: object) -> list[float]:
    if isinstance(value, dict):
        return [figure for entry in value.values() for figure in figures(entry)]
    if isinstance(value, list | tuple):
        return [figure for entry in value for figure in figures(entry)]
    return [value] if isinstance(value, float) else []
