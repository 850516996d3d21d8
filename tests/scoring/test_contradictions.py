"""What the user says and what the profile says: where both cannot be true there is no grade, and it is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.model import DeviceSeen, Recorded
from stepgrade.model.notes import has_code
from stepgrade.model.scorecard import UNGRADED
from tests.builders import make_profile
from tests.conftest import ROOT, SHARED

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


@pytest.mark.samples
def test_inspect_says_what_score_does_of_real_traces() -> None:
    folder = SHARED / "samples" / "kineto"
    if not folder.is_dir():
        pytest.skip("the real traces are not beside this clone")
    small = [path for path in sorted(folder.iterdir()) if path.stat().st_size < 50_000]
    assert len(small) > 10
    for path in small:
        try:
            profile = sg.load(path)
            card = sg.score(profile)
        except sg.StepgradeError:
            continue
        inspection = sg.inspect(profile)
        assert inspection.fit or card.grade == UNGRADED, path.name
        shown = sg.render(inspection)
        graded = "\nFit to be graded\n" in shown
        assert graded == (card.grade != UNGRADED), path.name
