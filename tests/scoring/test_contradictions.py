"""What the user says and what the profile says: where both cannot be true there is no grade, and it is said."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.model import DeviceSeen, Recorded
from stepgrade.model.notes import has_code
from stepgrade.model.scorecard import UNGRADED
from tests.builders import make_profile
from tests.conftest import ROOT
from tests.samples import shared

ON_CPU = sg.load(ROOT / "examples" / "traces" / "gpt_naive.json.gz")
A100 = DeviceSeen(name="NVIDIA A100-SXM4-80GB", memory_bytes=85_094_825_984, sm_count=108)
MODEL = sg.Setup(device="a100-sxm4-80gb", flops_per_token=1e9)


def test_a_trace_of_a_processor_is_not_graded_against_an_accelerator() -> None:
    card = sg.score(ON_CPU, device="h100-sxm5-80gb")
    assert card.grade == UNGRADED
    assert has_code(card.ungraded_because, "processor_not_device")
    graded = sg.score(ON_CPU, setup=sg.Setup(peak_tflops=0.0858))
    assert graded.grade == "B"
    assert not has_code(graded.fitness, "processor_not_device")


def test_a_recording_on_a_processor_too() -> None:
    profile = make_profile(tokens_per_step=1000.0, recorded=Recorded(processor="AMD EPYC 7763"))
    card = sg.score(profile, setup=MODEL)
    assert card.grade == UNGRADED
    assert "AMD EPYC 7763" in str(card.ungraded_because[0])


def test_another_device_than_the_one_of_the_profile_is_said() -> None:
    profile = make_profile(tokens_per_step=1000.0, device=A100)
    same = sg.score(profile, setup=MODEL)
    assert not has_code(same.fitness, "other_device")
    other = sg.score(profile, setup=sg.Setup(device="l4", flops_per_token=1e9))
    assert has_code(other.fitness, "other_device")
    assert other.grade != UNGRADED  # the user's word counts


def test_a_name_of_several_devices_is_the_one_that_the_profile_ran_on() -> None:
    profile = make_profile(tokens_per_step=1000.0, device=A100)
    card = sg.score(profile, device="a100")
    assert card.device is not None
    assert card.device.key == "a100-sxm4-80gb"
    with pytest.raises(sg.StepgradeError, match="h100-pcie"):
        sg.score(profile, device="h100")
    with pytest.raises(sg.StepgradeError, match="a100-pcie-40gb"):
        sg.score(make_profile(), device="a100")


@given(st.floats(0.01, 100.0), st.integers(1, 16))
def test_a_rate_far_from_the_profiles_own(factor: float, devices: int) -> None:
    """Of one device or of all, a rate within a factor of two is taken; five times off is no rate of this run."""
    profile = make_profile(tokens_per_step=1000.0)
    own = sg.score(profile).throughput_tok_s
    assert own is not None
    card = sg.score(
        profile,
        setup=sg.Setup(peak_tflops=1e5, flops_per_token=1e9, devices=devices),
        throughput_tok_s=own * factor,
    )
    off = max(factor / devices, 1.0 / factor)
    assert has_code(card.ungraded_because, "other_rate") == (off >= 5.0)
    assert has_code(card.fitness, "other_rate") == (2.0 < off < 5.0)
    assert (card.grade == UNGRADED) == (off >= 5.0)


def test_tokens_per_step_too() -> None:
    profile = make_profile(tokens_per_step=1000.0)
    card = sg.score(profile, setup=MODEL, tokens_per_step=10_000)
    assert has_code(card.ungraded_because, "other_rate")
    assert "10.0 times as much as" in str(card.ungraded_because[0])


def test_a_profile_without_a_rate_of_its_own_takes_any() -> None:
    assert sg.score(make_profile(), setup=MODEL, throughput_tok_s=10.0).grade != UNGRADED


def test_inference_is_not_fit_for_the_grade_of_a_training() -> None:
    seen = make_profile(tokens_per_step=1000.0, device=A100, work="inference")
    assert not sg.inspect(seen).fit
    assert "Not fit to be graded" in str(sg.inspect(seen))
    assert sg.inspect(make_profile(tokens_per_step=1000.0, device=A100, work="training")).fit


def all_profiles() -> list[sg.Profile]:
    found = [make_profile(), make_profile(tokens_per_step=1000.0, device=A100), ON_CPU]
    found += [sg.load(path) for path in sorted((ROOT / "examples" / "runs").glob("gpt_*.json"))]
    return found


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda profile: profile.source.files[0][-20:])
def test_inspect_says_what_score_does(profile: sg.Profile) -> None:
    inspection, card = sg.inspect(profile), sg.score(profile)
    assert inspection.grade == card.grade
    assert inspection.ungraded_because == card.ungraded_because
    if card.grade == UNGRADED and not any(note.supply for note in card.ungraded_because):
        assert not inspection.fit
    if card.grade != UNGRADED:
        assert inspection.fit


# What each thing that is asked for may be given as.
ANSWERS = {
    "throughput_tok_s": {"tokens_per_step": 1000.0},
    "tokens_per_step": {"tokens_per_step": 1000.0},
    "device": {"peak_bw_gb_s": 1e6, "peak_tflops": 1e6},
    "peak_bw_gb_s": {"peak_bw_gb_s": 1e6, "peak_tflops": 1e6},
    "peak_tflops": {"peak_tflops": 1e6},
    "measure_here": {"peak_tflops": 1e6},
    "bytes_per_token": {"bytes_per_token": 1e6},
    "dtype": {"dtype": "bf16"},
}


def answered(profile: sg.Profile) -> sg.Scorecard:
    """Return the card after everything was given that it asks for, one answer after the other."""
    given: dict[str, float] = {}
    for _ in range(len(ANSWERS)):
        tokens = {name: value for name, value in given.items() if name == "tokens_per_step"}
        rest = {name: value for name, value in given.items() if name not in tokens}
        card = sg.score(profile, setup=sg.Setup(**rest), **tokens)  # type: ignore[arg-type]  # by their names
        asked = {name for note in card.ungraded_because for name in re.findall(r"\{(\w+)\}", note.supply)}
        new = {key: value for name in sorted(asked) for key, value in ANSWERS.get(name, {}).items()}
        if card.grade != UNGRADED or not new.keys() - given.keys():
            return card
        given |= new  # type: ignore[arg-type]  # figures and names
    return card


@pytest.mark.samples
def test_inspect_and_score_never_contradict_each_other_on_real_files() -> None:
    folders = ("kineto", "kineto_more", "step_profiles", "step_logs")
    files = sorted(
        path for folder in folders for path in shared(f"samples/{folder}").rglob("*") if path.is_file()
    )
    seen: Counter[str] = Counter()
    for path in files:
        if path.stat().st_size > 150_000:
            continue
        try:
            profile = sg.load(path)
        except sg.StepgradeError:
            continue
        card, inspection = sg.score(profile), sg.inspect(profile)
        shown, is_graded = sg.render(inspection), card.grade != UNGRADED
        assert ("\nFit to be graded\n" in shown) == is_graded, path.name
        assert inspection.fit or not is_graded, path.name
        # Whoever is told what is missing, and gives it, gets a grade; who is told that nothing helps, none.
        after = answered(profile)
        assert (after.grade != UNGRADED) == inspection.fit, (path.name, after.ungraded_because)
        seen["graded" if is_graded else "fit" if inspection.fit else "not fit"] += 1
    assert seen["fit"] > 3, seen
    assert seen["not fit"] > 3, seen


def test_a_run_without_tokens_is_not_asked_for_them_where_it_has_a_grade() -> None:
    images = make_profile(samples_per_step=64.0)
    assert sg.inspect(images).holds["throughput"] == "64 samples per step"
    assert "a grade needs it" in str(sg.inspect(make_profile()).missing["throughput"])
