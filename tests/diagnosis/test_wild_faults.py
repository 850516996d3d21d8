"""Faults of the same kinds on runs of other kinds: the first finding names them, and the well get no warning."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import pytest

import stepgrade as sg
from stepgrade.model import Profile
from tests.wild_runs import Wild, profile_of
from tests.wild_table import FACTORS, NAMED, RUNS, SHARES, can_be_told, rules_for, with_fault

LEAST_COST = 0.10


@cache
def step_ms_without(name: str) -> float:
    return step_ms(profile_of(RUNS[name]))


def step_ms(profile: Profile) -> float:
    assert profile.mean_step_ms
    return profile.mean_step_ms


def warnings_of(profile: Profile) -> list[str]:
    return [finding.rule for finding in sg.score(profile).findings if finding.severity != "info"]


def chosen(seed: str, strengths: tuple[float, ...]) -> float:
    return random.Random(seed).choice(strengths)


ALL_CASES = [
    pytest.param(name, fault, chosen(name + fault, FACTORS.get(fault, SHARES)), id=f"{name}: {fault}")
    for name, run in RUNS.items()
    for fault in NAMED
    if can_be_told(run, fault)
]
# All of them, at all strengths: benchmarks/diagnosis.py.
CASES = random.Random(7).sample(ALL_CASES, 150)


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_all_kinds_that_are_well_get_no_warning(name: str) -> None:
    assert warnings_of(profile_of(RUNS[name])) == []


# Waits of the host, after each of which it does something else: which of both holds the device up depends.
WAITS = ("item", "cpu", "nonzero", "stream_sync", "event_sync", "allocator")
OF_HOST = {"host-stall", "launch-gaps"}


def freed_share(run: Wild) -> float:
    """Return what the run gains without its waits, all else being the same: played again without them."""
    return 1.0 - step_ms(profile_of(replace(run, waits=False))) / step_ms(profile_of(run))


@pytest.mark.parametrize(("name", "fault", "strength"), CASES)
def test_the_first_finding_names_the_fault(name: str, fault: str, strength: float) -> None:
    run = with_fault(RUNS[name], fault, strength, step_ms_without(name))
    profile = profile_of(run)
    cost = 1.0 - step_ms_without(name) / step_ms(profile)
    named, rules = warnings_of(profile), rules_for(run, fault)
    if fault in WAITS:
        part = freed_share(run) / cost
        rules = OF_HOST if part < 0.4 else rules if part > 0.8 else rules | OF_HOST
    if cost >= LEAST_COST:
        assert named[:1], f"nothing is said of what costs {cost:.0%}"
        assert named[0] in rules, named
    else:
        assert set(named) <= rules | OF_HOST if fault in WAITS else rules, f"at {cost:.1%}: {named}"


@pytest.mark.parametrize("strength", [0.05, 0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("fault", WAITS)
@pytest.mark.parametrize("name", ["plain", "rocm", "small", "deep"])
def test_a_wait_gains_no_more_than_the_run_without_it_does(name: str, fault: str, strength: float) -> None:
    run = with_fault(RUNS[name], fault, strength, step_ms_without(name))
    freed = freed_share(run)
    for finding in sg.score(profile_of(run)).findings:
        if finding.area == "synchronisation":
            assert finding.gain_high <= freed + 0.03, (finding.rule, finding.gain_high, freed)


PAIRS = random.Random(5).sample(
    [
        pair
        for pair in itertools.combinations(sorted(NAMED), 2)
        if not set(pair) & {"loader_4th", "odd_sizes"}
    ],
    40,
)


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_of_two_faults_the_first_finding_names_one_that_costs(pair: tuple[str, str]) -> None:
    run = RUNS["plain"]
    step = step_ms_without("plain")
    both = run
    for fault in pair:
        both = with_fault(both, fault, FACTORS.get(fault, (0.6,))[-1], step)
    profile = profile_of(both)
    costs = {
        fault: 1.0 - step_ms(profile_of(replace(both, faults={fault: both.faults[fault]}))) / step_ms(profile)
        for fault in pair
    }
    dear = {other for fault, other in (pair, pair[::-1]) if costs[fault] >= LEAST_COST} or set(pair)
    allowed = set().union(*(rules_for(run, fault) for fault in dear))
    allowed |= OF_HOST if dear & set(WAITS) else set()
    assert warnings_of(profile)[:1], costs
    assert warnings_of(profile)[0] in allowed, costs


# What the device then waits for, or does, above all else.
BOTTLENECKS = {
    "loader": "input",
    "offload": "transfer",
    "reduce_all": "communication",
    "item": "host",
    "stall": "host",
    "tiny": "launch",
    "single_tensor": "launch",
    "chains": "memory_bw",
    "fp32": "compute",
}


@pytest.mark.parametrize("fault", BOTTLENECKS)
@pytest.mark.parametrize("name", ["plain", "rocm"])
def test_the_bottleneck_is_named_and_what_would_remain_without_it(name: str, fault: str) -> None:
    card = sg.score(
        profile_of(with_fault(RUNS[name], fault, FACTORS.get(fault, (4.0,))[-1], step_ms_without(name)))
    )
    assert card.bottleneck == BOTTLENECKS[fault]
    (cause,) = [cause for cause in card.causes if cause.bottleneck == card.bottleneck]
    assert cause.share > 0.15
    left_ms = (card.step_time_ms or 0.0) * (1.0 - cause.share)
    if cause.gain_by == "replay":  # something else may limit the step then
        assert cause.remaining_ms == pytest.approx(left_ms, abs=0.2 * (card.step_time_ms or 0.0))
    else:
        assert cause.remaining_ms == pytest.approx(left_ms)


def test_an_optimizer_on_the_processor_is_not_taken_for_chains_of_the_model() -> None:
    step = step_ms_without("processor")
    profile = profile_of(replace(RUNS["processor"], faults={"single_tensor": 8.0 * step}))
    assert warnings_of(profile)[:1] == ["heavy-optimizer"]


def test_where_nothing_tells_what_limits_the_kernels_it_is_unknown_and_says_what_to_record() -> None:
    card = sg.score(profile_of(RUNS["graph"]))
    assert card.bottleneck == "unknown"
    assert "the trace has none for these" in card.bottleneck_evidence[0]  # shapes were recorded
    assert not any("record_shapes=True" in advice for advice in card.recommendations)
    card = sg.score(profile_of(replace(RUNS["graph"], shapes=False)))
    assert "record shapes" in card.bottleneck_evidence[0]
    assert any("record_shapes=True" in advice for advice in card.recommendations)


def test_operations_have_their_rates_and_layers_their_passes() -> None:
    card = sg.score(profile_of(with_fault(RUNS["plain"], "slow_backward", 0.5, step_ms_without("plain"))))
    products = next(op for op in card.operations if op.name == "aten::mm")
    assert products.kind == "gemm"
    assert products.ms
    assert products.calls
    assert products.flops
    assert products.mean_ms == pytest.approx(
        products.ms / products.calls, rel=0.01
    )  # of all calls, a typical step
    # Of the calls whose work is known, which are not all of them.
    assert products.known_share
    counted_ms = products.calls * products.mean_ms * products.known_share
    assert products.flops_per_s == pytest.approx(products.flops / counted_ms * 1000.0)
    assert products.roof_share is not None
    assert [layer.slow for layer in card.layers] == [(), (), ("backward",), (), (), ()]
    for layer in card.layers:
        assert layer.fwd_ms
        assert layer.ratio == pytest.approx((layer.bwd_ms or 0.0) / layer.fwd_ms)
        assert layer.top_op == "aten::mm"
        assert 0.5 < (layer.top_op_share or 0.0) < 1.0


RANKS = {
    "plain": Wild(ranks=4),
    "rocm": Wild(ranks=4, rocm=True, layer_us=400),
    "graph": Wild(ranks=4, graph=True),
    "accumulating": Wild(ranks=2, micro=3, layer_us=300),
    "eight": Wild(ranks=8, layers=3),
}
# What is wrong with the last rank only, and the account that its device then has more of.
TROUBLES = {"loader": "idle_input", "slow_clock": "compute", "item": "idle_host", "slow_forward": "compute"}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_of_all_kinds_that_are_well_get_no_warning(name: str) -> None:
    assert warnings_of(profile_of(RANKS[name])) == []


@pytest.mark.parametrize("fault", TROUBLES)
@pytest.mark.parametrize("name", RANKS)
def test_what_is_wrong_with_one_rank_is_named_with_the_rank(name: str, fault: str) -> None:
    run = RANKS[name]
    step = step_ms(profile_of(run))
    size = {"slow_clock": 1.3, "loader": 1.5 * step}.get(fault, 0.6 * step)
    profile = profile_of(replace(run, faults={fault: size}))
    assert 1.0 - step / step_ms(profile) >= LEAST_COST
    first = sg.score(profile).findings[0]
    assert first.rule == "straggler-rank"
    assert first.evidence["rank"] == float((run.ranks or 0) - 1)
    assert first.evidence["account"] == TROUBLES[fault]


@pytest.mark.parametrize("run", [Wild(), Wild(rocm=True, shapes=False), Wild(cpu=True)])
def test_steps_whose_backward_is_skipped_are_named_first(run: Wild) -> None:
    assert warnings_of(profile_of(replace(run, faults={"no_backward": 1.0})))[:1] == ["skipped-steps"]


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_headline_names_the_late_rank_and_why(ranks: int) -> None:
    """The late rank's own idle time is the other side of the others' waiting."""
    card = sg.score(profile_of(Wild(ranks=ranks, faults={"stall": 60.0})))
    assert card.bottleneck == "straggler"
    assert card.bottleneck_evidence[0] == f"rank {ranks - 1} is late: its host launches late"
    assert f"host of rank {ranks - 1}" in card.recommendations[0]
