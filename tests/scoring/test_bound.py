"""The best grade an ungraded run can have, and what inference gets instead of a grade."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.contract import Grade
from stepgrade.gating.run import gate
from stepgrade.hardware.setup import Setup
from stepgrade.model import Ledger, Operation, Profile
from stepgrade.model.notes import Note
from stepgrade.model.scorecard import Scorecard
from tests.builders import make_phases, make_profile

MS = 1_000_000


def ledger_of(compute: int, communication: int = 0, total: int = 100) -> Ledger:
    return Ledger(
        compute=compute * MS,
        exposed_communication=communication * MS,
        exposed_copy=0,
        idle_input=0,
        idle_host=(total - compute - communication) * MS,
        idle_sync=0,
        unattributed=0,
    )


def counted(flops: float, known: float, compute: int = 90) -> Profile:
    """Ten steps of 100 ms whose products take half of the operations' time."""
    return make_profile(
        work="training",
        phases=(),
        ledger=ledger_of(compute),
        matmul_flops=flops / 10,
        matmul_known_share=known,
        matmul_dtype="bf16",
        operations=(
            Operation(name="aten::mm", ms=50.0, kind="gemm"),
            Operation(name="aten::add", ms=50.0, kind="elementwise"),
        ),
    )


@pytest.mark.parametrize(("compute", "grade"), [(35, "C"), (61, "A"), (40, "B"), (9, "F"), (10, "D")])
def test_no_device_is_more_efficient_than_it_is_busy(compute: int, grade: str) -> None:
    card = sg.score(make_profile(phases=(), ledger=ledger_of(compute)))
    assert (card.grade, card.grade_at_most) == ("ungraded", grade)
    said = f"{grade} at best: the device computes {compute} % of the step"
    assert said in [str(note) for note in card.ungraded_because if note.code == "at_most"]
    for form in ("terminal", "markdown", "html"):
        assert f"{grade} at best: the device computes {compute}" in sg.render(card, to=form).replace(
            "\xa0", " "
        )
    report = gate([card], fail_on=["grade:F"])
    assert f"ungraded, {grade} at best" in sg.render(report, to="badge")
    assert Scorecard.from_json(card.to_json()).grade_at_most == grade


def test_a_timeline_that_is_never_idle_bounds_it_as_well() -> None:
    assert sg.score(make_profile(phases=(), ledger=ledger_of(100))).grade_at_most == "A"


@pytest.mark.parametrize(("work", "grade"), [("training", "D"), ("unknown", None), ("inference", None)])
def test_training_without_steps_is_bounded_by_what_was_recorded(work: str, grade: str | None) -> None:
    no_steps = Note("no_steps", "The trace has no steps.", fatal=True)
    run = make_profile(phases=(), work=work, ledger=ledger_of(16), warnings=(no_steps,))
    card = sg.score(run)
    assert (card.grade, card.grade_at_most) == ("ungraded", grade)
    assert "no_steps" in [note.code for note in card.ungraded_because]


def test_phases_bound_it_by_the_time_that_is_waiting() -> None:
    waiting = make_profile(phases=make_phases(forward=10.0, blk_bwd=15.0, data=70.0))
    assert sg.score(waiting).grade_at_most == "C"  # 30 of 100 ms may be computing: 5 are in no phase
    assert sg.score(make_profile()).grade_at_most is None  # all of it may


def test_counted_arithmetic_bounds_it_more_closely() -> None:
    setup = Setup(peak_tflops=100.0)
    # 10 steps of 100 ms at 5 TFLOP/s, 60 % of the products' time counted: 5 % + 90 % · 50 % · 40 % = 23 %.
    card = sg.score(counted(5e12, 0.6), setup=setup)
    assert (card.grade, card.grade_at_most) == ("ungraded", "C")
    assert "takes 18.0 % of the step" in str(card.ungraded_because[-1])
    # The device is known to compute less than that.
    assert "the device computes 20 %" in str(
        sg.score(counted(15e12, 0.0, compute=20), setup=setup).ungraded_because[-1]
    )


def test_a_link_may_be_busy_while_nothing_computes() -> None:
    setup = Setup(peak_bw_gb_s=1.0, bytes_per_token=1e6)
    run = make_profile(phases=(), ledger=ledger_of(30, 40))
    assert sg.score(run, setup=setup).grade_at_most == "C"


@given(st.floats(0.001, 1.0), st.floats(0.8, 1.0))
def test_a_graded_run_is_within_the_bound_it_would_have(share: float, known: float) -> None:
    run = counted(share * 0.9 * 100e12, known)
    graded = sg.score(run, setup=Setup(peak_tflops=100.0))
    ungraded = sg.score(run)
    assert graded.grade_at_most is None
    assert ungraded.grade == "ungraded"
    assert ungraded.grade_at_most is not None
    assert Grade(graded.grade) <= Grade(ungraded.grade_at_most)


def test_inference_gets_no_grade_unless_asked_for() -> None:
    run = make_profile(work="inference")
    seen = sg.score(run, throughput_tok_s=194, device="rtx-4060-laptop")
    assert (seen.work, seen.grade, seen.grade_at_most) == ("inference", "ungraded", None)
    assert [note.code for note in seen.ungraded_because] == ["inference"]
    asked = sg.score(run, throughput_tok_s=194, device="rtx-4060-laptop", work="training")
    assert (asked.work, asked.grade) == ("training", "D")
    told = sg.score(make_profile(), throughput_tok_s=194, device="rtx-4060-laptop", work="inference")
    assert (told.work, told.grade) == ("inference", "ungraded")
