"""Phases of a step: what they are, what they cover, and the ledger they give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.config.limits import DEFAULT_LIMITS
from stepgrade.model import PhaseShare, Profile
from stepgrade.scoring.phases import PhaseKind, PhasesOfStep, kind_of, phases_of_step
from stepgrade.scoring.step_times import times_of
from tests.builders import make_phases, make_profile

KINDS = {
    "h2d": PhaseKind.TRANSFER,
    "grad_h2d": PhaseKind.TRANSFER,
    "x_D2H_y": PhaseKind.TRANSFER,
    "data_prep": PhaseKind.INPUT,
    "nccl-allreduce": PhaseKind.COMMUNICATION,
    "fwd_encode": PhaseKind.HOST,
    "sync": PhaseKind.HOST,
    "embed_bwd": PhaseKind.BACKWARD,
    "gpu_lora_bwd": PhaseKind.BACKWARD,
    "opt": PhaseKind.OPTIMIZER,
    "norm_lm": PhaseKind.FORWARD,
    "gpu_ce": PhaseKind.FORWARD,
    "mystery": PhaseKind.OTHER,
    "": PhaseKind.OTHER,
}


def phases_of(profile: Profile) -> PhasesOfStep:
    return phases_of_step(profile, times_of(profile), DEFAULT_LIMITS)


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_kind_of(name: str, kind: PhaseKind) -> None:
    assert kind_of(name) is kind


def test_phases_of_many_steps_are_parts_of_one() -> None:
    phases = phases_of(make_profile(steps=400, phases=make_phases(forward=44.0)))
    assert phases.covered_share == pytest.approx(0.44)
    assert phases.uncovered_share == pytest.approx(0.56)
    assert "contract v1" in phases.notes[0].text


def test_without_steps_the_producers_averages_count() -> None:
    phases = phases_of(
        make_profile(steps=None, phases=(PhaseShare(name="forward", ms=400.0, average_ms=40.0),))
    )
    assert phases.uncovered_share == pytest.approx(0.60)


def test_without_phases_nothing_is_known_of_launches() -> None:
    phases = phases_of(make_profile(phases=()))
    assert phases.uncovered_share is None
    assert phases.ledger is None


def test_one_phase_without_a_time_leaves_the_coverage_open() -> None:
    profile = make_profile(phases=(*make_phases(forward=40.0), PhaseShare(name="opt")))
    assert phases_of(profile).covered_share is None


def test_overlapping_phases_have_no_ledger() -> None:
    phases = phases_of(make_profile(phases=make_phases(forward=60.0, backward=44.0)))
    assert phases.ledger is None
    assert "104.0 %" in phases.fitness[0].text


def test_totals_and_averages_that_disagree_are_reported() -> None:
    profile = make_profile(phases=(PhaseShare(name="forward", ms=40.0, average_ms=80.0),))
    assert "disagree" in phases_of(profile).fitness[0].text


@given(
    st.dictionaries(st.sampled_from(list(KINDS)), st.floats(0.001, 1000.0), min_size=1),
    st.floats(0.5, 1.004),
    st.integers(1, 500),
)
def test_the_ledger_adds_up_to_one(per_step_ms: dict[str, float], covered: float, steps: int) -> None:
    profile = make_profile(
        steps=steps,
        mean_step_ms=sum(per_step_ms.values()) / covered,
        phases=tuple(PhaseShare(name=name, ms=ms) for name, ms in per_step_ms.items()),
    )
    ledger = phases_of(profile).ledger
    assert ledger is not None
    parts = [getattr(ledger, part) for part in ledger.__struct_fields__]
    known = [part for part in parts if part is not None]
    assert sum(known) == pytest.approx(1.0, abs=1e-9)
    assert all(part >= 0.0 for part in known)
