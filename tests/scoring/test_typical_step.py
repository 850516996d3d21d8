"""One step time for everything that a card, its findings and a comparison say of one step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.model import LayerStep, Operation, PhaseShare, Profile
from stepgrade.model.activity import Activity, KernelTally
from stepgrade.scoring import step_times
from tests.builders import make_ops, make_profile

SAMPLES = st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=40)
SHARES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)


def parts(shares: list[float], whole_ms: float) -> list[float]:
    """Return times that together fill at most `whole_ms`."""
    return [share / max(1.0, sum(shares)) * whole_ms for share in shares]


def run_of(samples_ms: list[float], phases: list[float], layers: list[float], ops: list[float]) -> Profile:
    steps = len(samples_ms)
    mean_ms = sum(samples_ms) / steps
    return make_profile(
        steps=steps,
        mean_step_ms=mean_ms,
        samples_ms=tuple(samples_ms),
        phases=tuple(PhaseShare(name=f"p{n}", ms=ms) for n, ms in enumerate(parts(phases, mean_ms))),
        layers=tuple(
            LayerStep(layer=n, fwd_ms=ms / 4, bwd_ms=ms / 2, recompute_ms=ms / 4)
            for n, ms in enumerate(parts(layers, mean_ms))
        ),
        operations=tuple(
            Operation(name=f"o{n}", ms=ms, calls=3.0, flops=1e9) for n, ms in enumerate(parts(ops, mean_ms))
        ),
    )


@given(SAMPLES, SHARES, SHARES, SHARES)
def test_parts_never_add_up_to_more_than_the_step(
    samples_ms: list[float], phases: list[float], layers: list[float], ops: list[float]
) -> None:
    card = sg.score(run_of(samples_ms, phases, layers, ops))
    assert card.step_time_ms is not None
    most = card.step_time_ms * (1.0 + 1e-9)
    assert sum(phase.ms or 0.0 for phase in card.phases.values()) <= most
    assert sum(op.ms or 0.0 for op in card.operations) <= most
    times = [(layer.fwd_ms, layer.bwd_ms, layer.recompute_ms) for layer in card.layers]
    assert sum(ms or 0.0 for layer in times for ms in layer) <= most
    for op in card.operations:
        assert op.ms == pytest.approx((op.share or 0.0) * card.step_time_ms)


@given(SAMPLES, SHARES, SHARES)
def test_parts_of_a_gap_add_up_to_the_gap_of_the_typical_steps(
    samples_ms: list[float], ours: list[float], theirs: list[float]
) -> None:
    mine = run_of(samples_ms, [1.0], [], [share + 0.01 for share in ours])
    other = run_of([100.0] * 10, [1.0], [], [share + 0.01 for share in theirs])
    gap = sg.parity(mine, other).gap
    assert gap is not None
    assert gap.ours_ms == sg.score(mine).step_time_ms
    assert sum(part.ms for part in gap.parts) == pytest.approx(gap.gap_ms, abs=1e-6)


COLD = (1100.0, *[100.0] * 9)  # the mean is twice the typical step


def test_a_call_takes_as_long_whatever_the_step_does() -> None:
    op = Operation(name="aten::mm", ms=50.0, calls=5.0, flops=1e11)
    (found,) = sg.score(
        make_profile(steps=10, mean_step_ms=200.0, samples_ms=COLD, operations=(op,))
    ).operations
    assert (found.ms, found.share) == (25.0, 0.25)
    assert found.mean_ms == 10.0
    assert found.flops_per_s == pytest.approx(1e12 / 0.5)


def test_activity_is_that_of_the_typical_step_and_its_counts_stay() -> None:
    kernels = KernelTally(count=500.0, ms=100.0, short_count=400.0, short_ms=50.0, graph_share=0.0)
    scaled = Activity(driver="device", kernels=kernels, recompute_ms=8.0, kernel_group_ms={"fill": 2.0})
    half = scaled.scaled(0.5)
    assert half.kernels is not None
    assert (half.kernels.count, half.kernels.ms, half.kernels.short_ms) == (500.0, 50.0, 25.0)
    assert (half.recompute_ms, half.kernel_group_ms, half.gaps) == (4.0, {"fill": 1.0}, None)


def test_every_time_of_an_activity_is_scaled() -> None:
    """A new field in milliseconds must be scaled, or listed here as one that is not of a step."""
    times = {name for name in Activity.__struct_fields__ if name.endswith("_ms")}
    assert times - {"input_ms"} == {
        "communication_ms",
        "startup_ms",
        "matmul_dtype_ms",
        "parallelism_ms",
        "kernel_group_ms",
        "scalar_read_ms",
        "dropout_ms",
        "recompute_ms",
        "skew_ms",
    }


def test_step_times_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    whole = step_times.step_times

    def counted(samples_ms: tuple[float, ...]) -> step_times.StepTimes | None:
        calls.append(len(samples_ms))
        return whole(samples_ms)

    monkeypatch.setattr(step_times, "step_times", counted)
    sg.score(make_profile(samples_ms=COLD, operations=make_ops(a=1.0)), tokens_per_step=10)
    assert calls == [10]
