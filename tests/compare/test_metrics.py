"""Regressed, improved, no change, cannot tell: few tables, and rates measured on seeded noise."""

from __future__ import annotations

import math
import random
import re
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.compare.effect import Effect, effect_of, runs_needed, steps_needed, widths_of
from stepgrade.compare.metrics import COMPARED, changes_of
from stepgrade.compare.metrics import LEVEL as SURE
from stepgrade.compare.noise import (
    HEAVY_TAILS,
    RunNoise,
    Sample,
    Width,
    critical,
    exceeded,
    how_often,
    known_noise,
    noise_of,
    pooled_noise,
    two_sided,
    without_accidents,
)
from stepgrade.compare.parts import beyond_chance, changed_parts, shifts_of
from stepgrade.config import Sensitivity
from stepgrade.model import Ledger
from stepgrade.model.comparison import METRICS, Noise
from stepgrade.model.scorecard import Baseline
from stepgrade.store.database import MIGRATIONS
from stepgrade.store.history import KEPT_METRICS
from tests.builders import make_profile

CHANCE = random.Random(3)


def run(step_ms: float, **fields: object) -> Baseline:
    return Baseline(name="run", step_ms=step_ms, **fields)  # type: ignore[arg-type]


def noisy(chance: random.Random, noise: float, slower: float = 0.0) -> Baseline:
    middle = 100.0 * math.exp(chance.gauss(0.0, noise)) * (1.0 + slower)
    samples = tuple(middle * math.exp(chance.gauss(0.0, 0.02)) for _ in range(50))
    return run(sorted(samples)[25], samples_ms=samples)


LEVEL = [run(100.0 + n % 3) for n in range(12)]


@pytest.mark.parametrize(
    ("now_ms", "outcome"),
    [
        (101.0, "no change"),
        (100.2, "no change"),
        (112.0, "regressed"),
        (90.0, "improved"),
        (103.5, "no change"),
    ],
)
def test_against_measured_noise(now_ms: float, outcome: str) -> None:
    (change,) = changes_of([run(now_ms)], LEVEL)
    assert change.outcome == outcome
    assert change.noise is not None
    assert change.noise.basis == "measured"


def test_an_unknown_noise_is_assumed_and_said() -> None:
    (change,) = changes_of([run(115.0)], [run(100.0)])
    assert change.outcome == "cannot tell"
    assert change.supply == "{run_noise} if you know it"
    (given,) = changes_of([run(115.0)], [run(100.0)], Sensitivity(run_noise=0.13))
    assert (given.outcome, given.supply) == ("cannot tell", "")
    assert "2 more runs" in change.more
    (sure,) = changes_of([run(250.0)], [run(100.0)])
    assert sure.outcome == "regressed"


@pytest.mark.parametrize("noise", [None, 0.0, 0.13, 0.5, 0.99, 9.0])
@pytest.mark.parametrize("earlier", [1, 2, 3, 4])
def test_a_threefold_slowdown_is_never_in_doubt(noise: float | None, earlier: int) -> None:
    before = [run(100.0 + n) for n in range(earlier)]
    (change,) = changes_of([run(3.1 * 100.0 + earlier)], before, Sensitivity(run_noise=noise))
    assert change.outcome == "regressed"
    assert change.low > 0.0
    wild = tuple(ms * 3.01 for ms in (50.0, 200.0, 70.0, 150.0, 400.0, 25.0, 100.0, 99.0))
    before = [run(100.0, samples_ms=tuple(ms / 3.01 for ms in wild))]
    (steps,) = changes_of([run(301.0, samples_ms=wild)], before, Sensitivity(run_noise=noise))
    assert steps.outcome == "regressed"


@pytest.mark.parametrize("noise", [None, 0.0, 0.13, 9.0])
def test_a_run_against_itself_has_not_changed(noise: float | None) -> None:
    one = noisy(random.Random(5), 0.1)
    again = msgspec.structs.replace(one, name="the same file")
    for before in ([again], [again, one]):
        (change,) = changes_of([one], before, Sensitivity(run_noise=noise))
        assert (change.outcome, change.change, change.noise.basis) == ("no change", 0.0, "same")
    # Among others it is one run of many, and proves nothing.
    slow = [run(100.0 + n % 3) for n in range(10)]
    (change,) = changes_of([run(200.0)], [*slow, run(200.0)])
    assert change.outcome == "regressed"


def test_the_answer_says_what_it_knows_the_noise_from() -> None:
    def basis(earlier: int, noise: float | None = None, pooled: Noise | None = None) -> str:
        before = [run(100.0 + n) for n in range(earlier)]
        return changes_of([run(100.5)], before, Sensitivity(run_noise=noise), pooled)[0].noise.basis

    others = Noise(share=0.02, basis="pooled", freedom=20)

    assert [basis(earlier) for earlier in (1, 2, 3, 4, 5)] == ["assumed"] * 2 + ["usual"] * 2 + ["measured"]
    assert [basis(earlier, noise=0.02) for earlier in (1, 4, 5)] == ["given", "given", "measured"]
    assert [basis(earlier, pooled=others) for earlier in (1, 4, 5)] == ["pooled", "pooled", "measured"]


@pytest.mark.parametrize(("pooled", "outcome"), [(0.01, "regressed"), (0.30, "cannot tell")])
def test_the_project_s_other_runs_speak_for_the_first(pooled: float, outcome: str) -> None:
    noise = Noise(share=pooled, basis="pooled", freedom=20)
    (change,) = changes_of([run(125.0)], [run(100.0)], Sensitivity(), noise)
    assert change.outcome == outcome
    assert change.noise.freedom == 20


@pytest.mark.parametrize("freedom", [0, -1])
def test_a_noise_that_nothing_measured_cannot_be_made(freedom: int) -> None:
    with pytest.raises(ValueError, match="a noise that is pooled needs a degree of freedom"):
        Noise(share=0.02, basis="pooled", freedom=freedom)
    assert Noise(share=0.02, basis="given").freedom is None


SPEEDS = st.floats(min_value=10.0, max_value=1000.0)


@given(st.lists(SPEEDS, min_size=1, max_size=12), st.lists(SPEEDS, min_size=1, max_size=3))
def test_cannot_tell_says_what_would_tell_and_hides_no_doubling(
    before: list[float], now: list[float]
) -> None:
    (change,) = changes_of([run(ms) for ms in now], [run(ms) for ms in before])
    differ = max(max(some) / min(some) - 1.0 for some in (before, now))
    assert change.apart == pytest.approx(differ)
    if change.change > max(0.5, differ):
        assert change.outcome in ("regressed", "probably slower")
    assert bool(change.more) == (change.outcome in ("cannot tell", "probably slower"))
    if change.outcome == "probably slower":
        assert change.near_low > 0.01 or change.change > max(0.5, differ)
    if change.outcome == "no change":
        assert change.near_low <= 0.01


def test_probably_slower_is_beyond_the_allowance_with_95_percent() -> None:
    level = [run(100.0 + 2.0 * (n % 4)) for n in range(10)]
    (change,) = changes_of([run(109.0)], level)
    assert change.outcome == "probably slower"
    assert change.low <= 0.0
    assert change.near_low > 0.01
    assert "with 90 % confidence" in change.why
    assert "would tell" in change.more
    assert changes_of([run(109.0)], level, Sensitivity(allow=0.05))[0].outcome == "cannot tell"
    assert changes_of([run(96.0)], level)[0].outcome == "no change"  # nothing is probably faster
    # A doubling against one run, of which nobody knows how noisy it is.
    (doubled,) = changes_of([run(152.0)], [run(100.0)], Sensitivity(run_noise=0.3))
    assert doubled.outcome == "probably slower"
    assert doubled.near_low < 0.0
    # A rate is judged as the time that it stands for; memory is not slow.
    rates = [run(0.0, throughput_tok_s=rate) for rate in (1000.0, 640.0)]
    given = Sensitivity(run_noise=0.3)
    assert changes_of([rates[1]], [rates[0]], given)[0].outcome == "probably slower"


def test_other_series_are_pooled_whatever_their_levels() -> None:
    chance = random.Random(8)
    series = [[level * math.exp(chance.gauss(0.0, 0.03)) for _ in range(40)] for level in (1.0, 50.0, 900.0)]
    series[0][20:] = [2.0 * value for value in series[0][20:]]  # a change of level is no noise
    found = pooled_noise(series)
    assert found is not None
    assert (found.share, found.freedom) == (pytest.approx(0.03, rel=0.25), 3 * 39)
    assert pooled_noise([[1.0, 2.0], [3.0]]) is None


@given(
    st.lists(st.floats(min_value=50.0, max_value=200.0), min_size=3, max_size=12),
    st.floats(min_value=1e-4, max_value=0.2),
)
def test_the_widths_are_a_distribution(values: list[float], level: float) -> None:
    noise = noise_of(Sample(values=(100.0,)), Sample(values=tuple(values)), METRICS["step_time_ms"])
    assert math.fsum(width.weight for width in noise.widths) == pytest.approx(1.0, abs=1e-3)
    assert how_often(exceeded(level, noise.widths), noise.widths) == pytest.approx(level, rel=1e-6)


def test_more_runs_that_agree_make_a_narrower_interval() -> None:
    reaches = []
    for count in (3, 4, 6, 9, 18, 48):
        before = [run(100.0 + (n % 3 - 1)) for n in range(count)]
        (change,) = changes_of([run(100.0)], before)
        reaches.append(change.high - change.low)
    assert reaches == sorted(reaches, reverse=True)


def test_a_given_noise_counts_until_it_is_measured() -> None:
    (change,) = changes_of([run(115.0)], [run(100.0)], Sensitivity(run_noise=0.01))
    assert change.outcome == "regressed"
    (measured,) = changes_of([run(115.0)], LEVEL, Sensitivity(run_noise=0.9))
    assert measured.noise is not None
    assert measured.noise.share < 0.02


def test_one_accident_in_history_moves_nothing() -> None:
    level = [run(100.0 + n % 3) for n in range(20)]
    (with_it,) = changes_of([run(101.0)], [*level, run(900.0)])
    (without,) = changes_of([run(101.0)], level)
    assert (with_it.outcome, with_it.before, with_it.change) == (
        without.outcome,
        without.before,
        without.change,
    )


def test_a_kind_of_machine_that_was_seen_before_is_no_change() -> None:
    level = [run(100.0 + n % 3) for n in range(20)]
    kinds = [*level[:6], run(115.0), *level[6:]]
    (change,) = changes_of([run(115.0)], kinds)
    assert change.outcome == "cannot tell"
    assert "a machine of another kind" in change.why
    assert change.low <= 0.0 < change.change
    # Elsewhere it is as slow as ever, and so is a run that was the last: that may be the first of slower code.
    assert changes_of([run(130.0)], kinds)[0].outcome == "regressed"
    assert changes_of([run(115.0)], [*level, run(115.0)])[0].outcome == "regressed"
    # What is far off is no kind of machine.
    assert changes_of([run(160.0)], [*level[:6], run(160.0), *level[6:]])[0].outcome == "regressed"


def test_too_noisy_says_how_many_runs() -> None:
    wild = [run(ms) for ms in (80.0, 120.0, 95.0, 110.0, 100.0, 88.0, 105.0)]
    (change,) = changes_of([run(101.0)], wild)
    assert change.outcome == "cannot tell"
    assert "about 20 runs of each side" in change.more


def allowing(share: float) -> float:
    """Return the change that a standard error of `share` can rule out at 95 %, one-sided."""
    return math.expm1(share * 1.6448536)


def test_how_many_runs_and_steps_are_needed() -> None:
    """Worked by hand: 0.02 from one run against four is 0.02 / sqrt(1 + 1/4) of each run, squared 0.00032."""
    effect = Effect(
        change=0.0, low=0.0, high=0.0, near_low=0.0, near_high=0.0, p_value=1.0, is_other_kind=False,
        sigma=0.02, run_sigma=0.01,
    )  # fmt: skip
    # 0.0125 ** 2 / 0.00032 = 0.488, of which 1/4 is the earlier runs': 1 / 0.238 = 4.2, so five runs, four more.
    assert runs_needed(effect, 1, 4, allowing(0.0125)) == (4, False)
    assert runs_needed(effect, 1, 4, allowing(0.05)) == (1, False)
    # 0.008 ** 2 / 0.00032 = 0.2 is less than the earlier runs' own; 2 x 0.00032 / 0.008 ** 2 = 10 of each.
    assert runs_needed(effect, 1, 4, allowing(0.008 * 1.0001)) == (10, True)
    # Steps make 0.0003, and 0.0125 ** 2 - 0.0001 is left for them: 100 x 5.33 steps, 434 more.
    assert steps_needed(effect, 100, allowing(0.0125)) == 434
    assert steps_needed(effect, 100, allowing(0.05)) == 1
    assert steps_needed(effect, 100, allowing(0.0099)) is None
    exact = msgspec.structs.replace(effect, sigma=0.01)
    assert steps_needed(exact, 100, allowing(0.0125)) is None


@pytest.mark.parametrize("now_ms", [101.0, 102.0, 103.0])
@pytest.mark.parametrize("noise", [0.02, 0.03, 0.04])
def test_as_many_runs_as_it_says_decide(now_ms: float, noise: float) -> None:
    """With runs like those there are, a noise that is given, and enough of them to rule a regression out."""
    sensitivity, before = Sensitivity(run_noise=noise, detect=0.04), [run(100.0)] * 4
    (change,) = changes_of([run(now_ms)], before, sensitivity)
    assert change.outcome == "cannot tell"
    found = re.search(r"about (\d+) more runs? of this code", change.more)
    of_both = re.search(r"about (\d+) runs of each side", change.more)
    assert (found is None) != (of_both is None)
    count = int((found or of_both)[1])  # type: ignore[index]
    earlier = before if found else [run(100.0)] * count
    widths = [Width(sigma=math.log1p(noise))]

    def is_decided(runs: int) -> bool:
        exact = RunNoise(reported=Noise(share=noise, basis="given"), widths=tuple(widths))
        here, there = Sample(values=(now_ms,) * runs), Sample(values=tuple(r.step_ms or 0.0 for r in earlier))
        effect = effect_of(here, there, exact, SURE)
        return effect.near_high < sensitivity.detect or not effect.low <= 0.0 <= effect.high

    assert is_decided(count + 1 if found else count)
    assert not is_decided(max(1, (count + 1 if found else count) // 2))


def test_too_few_steps_says_how_many_steps() -> None:
    samples = tuple(100.0 + 30.0 * math.sin(n * n) for n in range(12))
    now, before = run(100.0, samples_ms=samples), run(100.0, samples_ms=samples[::-1])
    (change,) = changes_of([now], [before], Sensitivity(run_noise=0.001))
    assert change.outcome == "cannot tell"
    assert "more steps" in change.more


def test_throughput_is_worse_when_lower() -> None:
    rates = [Baseline(name="r", throughput_tok_s=1000.0 + n) for n in range(10)]
    (change,) = changes_of([Baseline(name="now", throughput_tok_s=800.0)], rates)
    assert change.outcome == "regressed"
    (memory,) = changes_of(
        [Baseline(name="now", peak_memory_bytes=2e9)], [Baseline(name="then", peak_memory_bytes=1e9)]
    )
    assert (memory.metric, memory.outcome) == ("peak_memory_bytes", "regressed")


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.13])
def test_identical_runs_seldom_alarm(noise: float) -> None:
    chance = random.Random(11)
    alarms = 0
    for _ in range(300):
        before = [noisy(chance, noise) for _ in range(8)]
        alarms += changes_of([noisy(chance, noise)], before)[0].outcome in ("regressed", "improved")
    assert alarms <= 6  # 1 % of 300 and three standard deviations


def test_five_percent_is_found_where_runs_agree() -> None:
    chance = random.Random(12)
    found = 0
    for _ in range(200):
        before = [noisy(chance, 0.004) for _ in range(10)]
        found += changes_of([noisy(chance, 0.004, slower=0.05)], before)[0].outcome == "regressed"
    assert found >= 190


@pytest.mark.parametrize(
    ("before_ms", "now_ms", "outcome"), [(1e-300, 1e300, "regressed"), (1e300, 1e-300, "improved")]
)
def test_a_change_that_no_float_holds(before_ms: float, now_ms: float, outcome: str) -> None:
    (change,) = changes_of([run(now_ms)], [run(before_ms)])
    assert change.outcome == outcome
    assert math.isfinite(change.high)


def test_copies_of_one_run_do_not_make_a_noise_of_nothing() -> None:
    one = noisy(random.Random(5), 0.0)
    side = Sample(values=(one.step_ms or 1.0,) * 6, sigmas=(0.004,) * 6)
    noise = noise_of(Sample(values=(100.0,)), side, METRICS["step_time_ms"])
    assert noise.reported.share >= 0.004


def test_an_accident_says_nothing_of_the_ordinary() -> None:
    logs = [n % 4 / 100.0 for n in range(20)]
    assert without_accidents([*logs, 1.0]) == logs
    assert without_accidents([0.0, 0.0, 1.0]) == [0.0, 0.0, 1.0]


@given(st.floats(min_value=0.01, max_value=100.0), st.floats(min_value=-0.5, max_value=2.0))
def test_the_effect_does_not_depend_on_the_unit(unit: float, slower: float) -> None:
    noise = known_noise(Noise(share=0.02, basis="given"))
    before, now = Sample(values=(100.0, 101.0)), Sample(values=(100.0 * (1.0 + slower),))
    plain = effect_of(now, before, noise, 0.01)
    scaled = effect_of(
        Sample(values=tuple(v * unit for v in now.values)),
        Sample(values=tuple(v * unit for v in before.values)),
        noise,
        0.01,
    )
    assert scaled.change == pytest.approx(plain.change, abs=1e-9)
    assert plain.low <= plain.change <= plain.high


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 63.657), (2, 9.925), (3, 5.841), (4, 4.604), (9, 3.250), (30, 2.750), (100, 2.626)]
)
def test_students_table(freedom: int, t: float) -> None:
    assert critical(0.01, freedom) == pytest.approx(t, abs=6e-4)
    assert two_sided(t, freedom) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("t", [0.5, 1.0, 2.0, 3.18, 5.84, 7.45, 12.9])
def test_heavy_tails_are_students_with_three_degrees(t: float) -> None:
    """A few normal distributions stand for Student's, which is the other implementation here."""
    shares = [Width(sigma=math.sqrt(variance), weight=share) for share, variance in HEAVY_TAILS]
    assert math.fsum(share.weight for share in shares) == pytest.approx(1.0, abs=1e-3)
    assert how_often(t, shares) == pytest.approx(two_sided(t, 3), rel=0.15)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_mean_of_several_runs_has_lighter_tails(count: int) -> None:
    """Against means that are drawn: at the distance that one in fifty of them exceeds."""
    noise = RunNoise(
        reported=Noise(share=0.02, basis="measured", freedom=9),
        widths=(Width(sigma=0.01, has_heavy_tails=True),),
    )
    now, before = Sample(values=(100.0,) * count), Sample(values=(100.0,) * 1000)
    widths = widths_of(now, before, noise)
    chance = random.Random(count)

    def student() -> float:
        return chance.gauss(0.0, 0.01) / math.sqrt(sum(chance.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3.0)

    means = sorted(abs(sum(student() for _ in range(count)) / count) for _ in range(20_000))
    assert how_often(means[-400], widths) == pytest.approx(0.02, rel=0.25)


def test_the_tail_never_rises() -> None:
    for freedom in (1, 2, 5, 50, 499, 501, 10_000):
        tails = [two_sided(t / 4.0, freedom) for t in range(80)]
        assert all(b <= a + 1e-12 for a, b in pairwise(tails))
        assert tails[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("p_values", "real"),
    [
        ([], []),
        ([0.5], [False]),
        ([0.001], [True]),
        ([0.009, 0.009, 0.9], [False, False, False]),
        ([0.006, 0.006, 0.9], [True, True, False]),
        ([0.0001, 0.5, 0.004, 0.02], [True, False, True, False]),
    ],
)
def test_false_discoveries(p_values: list[float], real: list[bool]) -> None:
    assert beyond_chance(p_values) == real


def test_one_slow_operation_among_many_is_found_and_no_other() -> None:
    chance = random.Random(21)
    names = [f"op{n}" for n in range(60)]

    def ops(**slower: float) -> Baseline:
        times = {name: 2.0 * math.exp(chance.gauss(0.0, 0.02)) * slower.get(name, 1.0) for name in names}
        return run(
            120.0, operations_ms=times, layers_ms={"layer 0": 60.0 * math.exp(chance.gauss(0.0, 0.01))}
        )

    parts = changed_parts([ops(op7=1.3)], [ops() for _ in range(12)], Sensitivity())
    assert [part.name for part in parts] == ["op7"]
    assert changed_parts([ops(op7=1.3)], [ops() for _ in range(3)], Sensitivity()) == ()


def test_one_earlier_run_is_enough_where_each_step_has_its_operations() -> None:
    chance = random.Random(11)

    def ops(**slower: float) -> Baseline:
        samples = {
            f"op{n}": tuple(slower.get(f"op{n}", 1.0) * chance.gauss(2.0, 0.02) for _ in range(20))
            for n in range(30)
        }
        return run(60.0, operations_ms=dict.fromkeys(samples, 2.0), operation_samples_ms=samples)

    how = Sensitivity(run_noise=0.02)
    assert changed_parts([ops()], [ops()], how) == ()
    (found,) = changed_parts([ops(op3=1.3)], [ops()], how)
    assert (found.kind, found.name, found.change.outcome) == ("operation", "op3", "regressed")


def test_more_calls_and_more_launches_are_told() -> None:
    before = run(
        10.0, operations_ms={"a": 4.0, "b": 4.0}, operation_calls={"a": 10.0}, launches_per_step=20.0
    )
    now = run(14.0, operations_ms={"a": 8.0, "b": 4.0}, operation_calls={"a": 20.0}, launches_per_step=30.0)
    kinds = [(shift.kind, shift.name, shift.before, shift.now) for shift in shifts_of(now, before)]
    assert kinds == [
        ("operation", "a", 4.0, 8.0),
        ("launches", "launches per step", 20.0, 30.0),
        ("calls", "a", 10.0, 20.0),
    ]


def test_shifts_are_the_largest_first() -> None:
    before = run(
        100.0,
        ledger=Ledger(compute=0.9, exposed_communication=0.05, idle_host=0.05, idle_sync=0.0),
        operations_ms={"gemm": 60.0, "old": 5.0, "ncclAllReduce": 20.0},
        launches_per_step=100.0,
    )
    now = run(
        120.0,
        ledger=Ledger(compute=0.75, exposed_communication=0.2, idle_host=0.05, idle_sync=0.0),
        operations_ms={"gemm": 61.0, "new": 9.0, "ncclAllReduce": 20.0},
        launches_per_step=150.0,
    )
    shifts = shifts_of(now, before)
    assert shifts[0].kind == "overlap"
    assert shifts[1].name == "exposed_communication"
    kinds = {(shift.kind, shift.name) for shift in shifts}
    assert {("new operation", "new"), ("gone operation", "old"), ("launches", "launches per step")} <= kinds


def test_every_metric_is_a_field_of_the_card_and_of_its_row() -> None:
    card = sg.score(make_profile())
    assert list(card.metrics) == [name for name, metric in METRICS.items() if metric.on_card]
    assert all(getattr(card, name) == value for name, value in card.metrics.items())
    assert set(COMPARED) < set(METRICS)
    statements = [statement for statements in MIGRATIONS for statement in statements]
    of_runs = [text for text in statements if re.search(r"table (if not exists )?stepgrade_run\b", text)]
    columns = re.findall(r"([a-z_]+) \{real\}", "\n".join(of_runs))
    # Beside its metrics a run has the noise of its steps, and what its device cost.
    assert set(columns) - {"step_sigma", "device_hours"} == set(KEPT_METRICS) < set(METRICS)
