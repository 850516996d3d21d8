"""The scorecard of contract v2: where it agrees with v1, and where and why it does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.contract import HardwareSpec, StepProfilerInput, TrainingScorecard, compute_training_scorecard
from stepgrade.errors import BadOption, MissingExtra, NotMeasured
from stepgrade.grading import as_baseline
from stepgrade.hardware.setup import Setup
from stepgrade.model import LayerStep, Profile
from stepgrade.model.scorecard import Baseline
from stepgrade.readers import step_profile
from tests.builders import SOURCE, make_layers, make_ops, make_phases, make_profile, make_step_profile
from tests.conftest import ROOT
from tests.samples import shared


def card_of(profile: Profile, **options: object) -> sg.Scorecard:
    return sg.score(profile, **options)  # type: ignore[arg-type]  # tests also try what is wrong


# --- grade and ceiling


def test_graded_against_the_devices_memory_ceiling() -> None:
    card = card_of(make_profile(), device="rtx-4060-laptop", throughput_tok_s=194)
    assert card.grade == "D"
    assert card.efficiency == pytest.approx(194 / (256e9 / 158e6))
    assert card.ungraded_because == ()
    assert any("158 MB per token" in note.text for note in card.notes)


def test_throughput_from_tokens_per_step() -> None:
    card = card_of(make_profile(), tokens_per_step=20, device="gb10")
    assert card.throughput_tok_s == pytest.approx(200.0)
    assert card.throughput is not None
    assert "given" in card.throughput.basis


def test_above_the_ceiling_is_an_error_not_an_a() -> None:
    card = card_of(make_profile(), throughput_tok_s=6600, device="rtx-4060-laptop")
    assert card.grade == "ungraded"
    assert card.efficiency == pytest.approx(4.07, abs=0.01)
    assert "407 %" in card.ungraded_because[0].text
    assert card.bottleneck == "unknown"  # an accounting error is no evidence of a roof


@pytest.mark.parametrize(("tok_s", "grade"), [(100.0, "A"), (100.1, "ungraded")])
def test_just_at_and_just_above_the_ceiling(tok_s: float, grade: str) -> None:
    card = card_of(make_profile(), throughput_tok_s=tok_s, peak_bw_gb_s=1.0, bytes_per_token=1e7)
    assert card.grade == grade


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({}, ("{throughput_tok_s}", "{device}")),
        ({"throughput_tok_s": 5.0}, ("{device}",)),
        ({"device": "gb10"}, ("{throughput_tok_s}",)),
        ({"throughput_tok_s": 5.0, "peak_bw_gb_s": 100.0}, ("{bytes_per_token}",)),
        ({"throughput_tok_s": 5.0, "device": "h100-sxm5-80gb"}, ("{bytes_per_token}",)),
    ],
)
def test_what_is_not_known_is_ungraded_and_says_what_would_help(options: dict, reasons: tuple) -> None:
    card = card_of(make_profile(), **options)
    assert card.grade == "ungraded"
    assert len(card.ungraded_because) == len(reasons)
    for reason, field in zip(card.ungraded_because, reasons, strict=True):
        assert field in reason.supply


@pytest.mark.parametrize(("known", "grade"), [(0.79, "ungraded"), (0.81, "C")])
def test_enough_shapes_grade_a_run_without_tokens(known: float, grade: str) -> None:
    flops = 0.25 * 989.4e12 * 0.1  # a quarter of the peak through a step of 100 ms
    shapes = {"matmul_flops": flops, "matmul_dtype": "bf16", "matmul_known_share": known}
    card = card_of(make_profile(steps=10, mean_step_ms=100.0, **shapes), device="h100-sxm5-80gb")
    assert card.grade == grade
    assert any("79 % of the time" in reason.text for reason in card.ungraded_because) == (grade == "ungraded")


@pytest.mark.parametrize(
    "options",
    [
        {"throughput_tok_s": 0.0},
        {"throughput_tok_s": float("nan")},
        {"tokens_per_step": -1.0},
        {"peak_bw_gb_s": float("inf")},
        {"bytes_per_token": 0.0},
        {"throughput_tok_s": 1.0, "tokens_per_step": 1.0},
    ],
)
def test_impossible_figures_are_refused(options: dict) -> None:
    with pytest.raises(BadOption, match="|".join(options)):
        card_of(make_profile(), **options)


def test_nothing_measured_is_no_scorecard() -> None:
    with pytest.raises(NotMeasured):
        sg.score(Profile(source=SOURCE))


# --- bottleneck

BOTTLENECKS = {
    "transfer": (make_phases(forward=30.0, h2d=21.0, grad_h2d=19.0), {}),
    "launch": (make_phases(forward=30.0, bwd=14.0), {}),
    "input": (make_phases(forward=50.0, data_prep=45.0), {}),
    "communication": (make_phases(forward=50.0, allreduce=45.0), {}),
    "host": (make_phases(forward=50.0, sync=45.0), {}),
    "memory_bw": (make_phases(forward=95.0), {"device": "gb10", "throughput_tok_s": 1500}),
    "unknown": (make_phases(forward=95.0), {}),
}


@pytest.mark.parametrize("name", BOTTLENECKS)
def test_bottleneck_from_what_was_measured(name: str) -> None:
    phases, options = BOTTLENECKS[name]
    card = card_of(make_profile(phases=phases), **options)
    assert card.bottleneck == name
    assert "%" in card.bottleneck_evidence[0]


def test_the_producers_word_counts_when_nothing_else_tells() -> None:
    card = card_of(make_profile(claimed_bottleneck="memory_bw"))
    assert card.bottleneck == "memory_bw"
    assert "says so" in card.bottleneck_evidence[0]


def test_a_phase_as_the_producers_bottleneck_is_no_class() -> None:
    assert card_of(make_profile(claimed_bottleneck="gpu_lora_bwd")).bottleneck == "unknown"


# --- layers and operations


def test_ratio_is_all_backward_over_all_forward() -> None:
    card = card_of(make_profile(layers=make_layers((1.0, 4.0), (9.0, 9.0))))
    assert card.forward_backward_ratio == pytest.approx(13 / 10)
    assert any("2.50x" in note.text for note in card.notes)


def test_ratio_from_the_phases_when_there_are_no_layers() -> None:
    card = card_of(make_profile(phases=make_phases(forward=30.0, bwd=60.0)))
    assert card.forward_backward_ratio == pytest.approx(2.0)


def test_slow_layer_is_named() -> None:
    layers = make_layers(*[(11.0, 18.0)] * 17, (22.0, 18.0), *[(11.5, 18.5)] * 10)
    (finding,) = card_of(make_profile(layers=layers)).findings
    assert finding.rule == "slow-layer"
    assert finding.claim.startswith("The forward pass of layer 17 takes 2.00x")
    assert finding.gain_high == pytest.approx(11.0 / 10 / 100, rel=0.1)


def test_the_only_layer_that_is_trained_is_not_slow() -> None:
    layers = make_layers((10, 0), (10, 0), (10, 0), (10, 25))
    assert "slow-layer" not in [finding.rule for finding in card_of(make_profile(layers=layers)).findings]


def test_equal_layers_do_not_make_a_small_difference_large() -> None:
    layers = make_layers(*[(10, 20)] * 5, (10, 20.9))
    assert not card_of(make_profile(layers=layers)).findings


def test_layers_that_vary_a_little_are_healthy() -> None:
    layers = make_layers(*[(10.0 + n % 3 * 0.4, 20.0 + n % 5 * 0.5) for n in range(28)])
    assert card_of(make_profile(layers=layers)).findings == ()


def test_fast_backward_is_reported() -> None:
    card = card_of(make_profile(layers=make_layers((10.0, 5.0))))
    assert [finding.rule for finding in card.findings] == ["fast-backward"]


def test_hotspots_from_layers_and_from_the_whole_model() -> None:
    layers = (LayerStep(layer=0, ops={"gemm": 3.0, "norm": 0.5}),)
    card = card_of(make_profile(layers=layers, operations=make_ops(gemm=60.0, loss=15.0)))
    assert [(name, ms) for name, ms, _ in card.hotspot_ops] == [("gemm", 60.0), ("loss", 15.0), ("norm", 5.0)]
    assert card.operations[0].ms == pytest.approx(6.0)
    assert card.operations[0].share == pytest.approx(0.06)


@given(st.dictionaries(st.text(max_size=5), st.floats(0.001, 1e6), min_size=1, max_size=9))
def test_hotspots_of_all_operations_add_up_to_a_hundred(total_ms: dict[str, float]) -> None:
    card = card_of(make_profile(operations=make_ops(**total_ms)))
    assert sum(percent for _, _, percent in card.hotspot_ops) == pytest.approx(100.0)


# --- JSON and contract v1


def test_json_is_a_superset_of_contract_v1(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(make_step_profile(bottleneck="memory_bw"))
    card = sg.score(sg.load(path), device="gb10", throughput_tok_s=400)
    as_v1 = TrainingScorecard.from_json(card.to_json())
    assert as_v1.grade == card.grade
    assert as_v1.throughput_tok_s == 400.0
    assert json.loads(card.to_json())["schema_version"] == 2


def test_agrees_with_contract_v1_where_that_is_sound(tmp_path: Path) -> None:
    """One step, operations in the layers, layers alike: nothing that v2 mends."""
    text = make_step_profile(
        steps=1,
        bottleneck="memory_bw",
        per_layer=[
            {"layer": n, "fwd_ms": 17.0, "bwd_ms": 30.0, "ops": {"a": 9.0, "b": 8.1}} for n in range(2)
        ],
        ops=...,
    )
    (tmp_path / "p.json").write_text(text)
    v1 = compute_training_scorecard(StepProfilerInput.from_json(text), 194.0, HardwareSpec.rtx_4060l())
    v2 = sg.score(sg.load(tmp_path / "p.json"), device="rtx-4060-laptop", throughput_tok_s=194.0)
    before, now = json.loads(v1.to_json()), json.loads(v2.to_json())
    assert {field: now[field] for field in before} == before


def test_scored_against_itself_nothing_regressed() -> None:
    profile = make_profile(wall_coverage=0.95)
    card = sg.score(profile, tokens_per_step=100, baseline=profile)
    assert card.regressions == ()
    assert card.compared == ("throughput_tok_s", "step_time_ms", "wall_coverage")


def test_what_is_printed_of_a_result_is_one_short_line() -> None:
    profile = make_profile(operations=make_ops(**{f"op{n}": 1.0 for n in range(99)}))
    card = card_of(profile, device="rtx-4060-laptop", throughput_tok_s=194)
    assert repr(card) == "<Scorecard D 12.0 %, bottleneck unknown, run.json>"
    assert repr(card_of(profile)) == "<Scorecard ungraded, bottleneck unknown, run.json>"
    assert repr(profile) == "<Profile step_profiler_v2, 10 steps of 100 ms, run.json>"
    report = sg.gate([profile], baseline=[make_profile(mean_step_ms=115.0)])
    assert repr(report).startswith(
        "<GateReport could not be measured, grade ungraded, run.json compared with"
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_operations_and_layers_are_frames(library: str) -> None:
    pytest.importorskip(library)
    layers = make_layers((10.0, 20.0), (10.0, 30.0))
    card = card_of(make_profile(layers=layers, operations=make_ops(gemm=60.0, loss=15.0)))
    operations, of_layers = card.operations_frame(library), card.layers_frame(library)  # type: ignore[arg-type]
    assert list(operations["name"]) == ["gemm", "loss"]
    assert list(operations["ms"]) == pytest.approx([6.0, 1.5])
    assert operations["flops"].sum() == 0.0  # a number, though none is known
    assert list(of_layers["bwd_ms"]) == pytest.approx([2.0, 3.0])
    empty = card_of(make_profile()).operations_frame(library)  # type: ignore[arg-type]
    assert (len(empty), list(empty.columns)) == (0, list(operations.columns))


def test_a_frame_needs_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"pandas or polars.*pip install pandas"):
        card_of(make_profile()).operations_frame()
    with pytest.raises(MissingExtra, match="polars"):
        card_of(make_profile()).layers_frame("polars")


@pytest.mark.parametrize(
    "figure", [{"device": "gb10"}, {"peak_bw_gb_s": 100.0}, {"bytes_per_token": 1e8}], ids=str
)
def test_figures_beside_a_setup_are_refused(figure: dict) -> None:
    with pytest.raises(BadOption, match=f"{next(iter(figure))}: conflicts with setup"):
        card_of(make_profile(), setup=Setup(), **figure)


def test_there_is_one_way_to_a_card() -> None:
    profile = make_profile(samples_ms=tuple(100.0 + n % 3 for n in range(30)))
    card = card_of(profile, setup=Setup(device="gb10"), tokens_per_step=100)
    assert card == card_of(profile, device="gb10", tokens_per_step=100)
    assert card.fingerprint is not None
    assert sg.Scorecard.from_json(card.to_json()) == card
    assert as_baseline(profile, Setup(device="gb10"), 100) == Baseline.of(card)


def test_the_card_of_a_trace_is_what_its_json_says() -> None:
    """What the rows of a profile have for scoring alone is in neither."""
    card = sg.score(sg.load(ROOT / "examples" / "traces" / "gpt_naive.json.gz"))
    assert sg.Scorecard.from_json(card.to_json()) == msgspec.structs.replace(card, views=())


def test_a_card_shows_itself_in_a_notebook() -> None:
    assert card_of(make_profile())._repr_markdown_().startswith("## Training Scorecard")


@pytest.mark.samples
@pytest.mark.parametrize(
    ("name", "options", "grade", "bottleneck"),
    [
        ("v2_baseline.json", {"throughput_tok_s": 194, "device": "rtx-4060-laptop"}, "D", "memory_bw"),
        ("v2_launch_bound_400_steps.json", {}, "ungraded", "launch"),
        ("v2_transfer_bound.json", {}, "ungraded", "transfer"),
        ("v2_one_step_with_layer_ops.json", {"throughput_tok_s": 194, "device": "gb10"}, "D", "memory_bw"),
        ("apr_v1_400_steps.json", {}, "ungraded", "unknown"),
    ],
)
def test_real_profiles(name: str, options: dict, grade: str, bottleneck: str) -> None:
    card = sg.score(sg.load(shared("samples/step_profiles") / name), **options)
    assert (card.grade, card.bottleneck) == (grade, bottleneck)


@pytest.mark.samples
def test_the_slow_layer_of_a_real_profile() -> None:
    card = sg.score(sg.load(shared("samples/step_profiles") / "v2_one_step_with_layer_ops.json"))
    assert [finding.claim.split(" takes")[0] for finding in card.findings] == ["The forward pass of layer 17"]


@pytest.mark.samples
def test_every_finding_gains_no_more_than_the_step() -> None:
    for path in shared("samples/step_profiles").glob("*.json"):
        for finding in sg.score(sg.load(path)).findings:
            assert 0.0 <= finding.gain_low <= finding.gain_high <= 1.0
            assert msgspec.to_builtins(finding)["evidence"]


# --- what the notes say of contract v1


@st.composite
def step_profile_texts(draw: st.DrawFn) -> str:
    names = st.sampled_from(["h2d", "H2D", "forward", "blk_bwd", "nccl", "input", "x_d2h"])
    shares = draw(st.dictionaries(names, st.floats(0, 0.6), max_size=4))
    steps = draw(st.integers(1, 5))
    phases = {
        name: {"total_ms": share * 100 * steps, "pct": share * 100, "avg_ms": share * 100}
        for name, share in shares.items()
    }
    claimed = draw(st.sampled_from([None, "compute", "memory_bw", "forward"]))
    return make_step_profile(steps=steps, phases=phases, bottleneck=claimed)


@given(step_profile_texts(), st.floats(1, 10_000))
def test_notes_tell_truly_what_contract_v1_calls_the_bottleneck(text: str, tok_s: float) -> None:
    v1 = compute_training_scorecard(StepProfilerInput.from_json(text), tok_s, HardwareSpec.gb10())
    v2 = card_of(step_profile.profile_from_json(text.encode(), "p"), throughput_tok_s=tok_s, device="gb10")
    said = [note.text for note in v2.notes if note.code == "v1_bottleneck"]
    if v1.bottleneck.value == v2.bottleneck:
        assert said == []
    else:
        assert said[0].startswith(f"contract v1 calls the bottleneck `{v1.bottleneck}`: ")


def test_wall_coverage_stands_in_for_phases() -> None:
    card = card_of(make_profile(phases=(), wall_coverage=0.3))
    assert card.bottleneck == "launch"
    assert not any("not known" in note.text for note in card.notes)
    assert "is it a percentage?" in card_of(make_profile(phases=(), wall_coverage=85.0)).fitness[0].text


def test_a_layer_without_backward_time_adds_nothing_to_it() -> None:
    """A frozen layer has a forward pass alone; it counts in all forward time."""
    card = sg.score(make_profile(layers=make_layers((100.0, 0.0), (100.0, 300.0))))
    assert card.forward_backward_ratio == pytest.approx(1.5)
