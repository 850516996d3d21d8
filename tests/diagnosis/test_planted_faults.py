"""Planted faults are named first when they cost a tenth of the step; runs that are well get no warning."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model import Profile
from tests.faulty_runs import US, Faults, make_faulty_trace, profile_of, profile_of_ranks
from tests.kineto_text import kineto_text

MS = 1_000 * US
WELL = Faults()

# What is planted, at several strengths, and the rules of which one must come first.
PLANTED: dict[str, tuple[tuple[Faults, ...], set[str]]] = {
    "loader stall": (
        tuple(Faults(loader_ns=ms * MS) for ms in (18, 20, 24, 40)),
        {"input-wait", "starved-loader"},
    ),
    "loader on the main thread": (
        tuple(Faults(loader_ns=ms * MS, workers=False) for ms in (18, 20, 24, 40)),
        {"loader-on-main-thread"},
    ),
    "pageable copies": (
        tuple(Faults(pageable_ns=ms * MS) for ms in (1, 2, 4, 10)),
        {"pageable-copies"},
    ),
    "values read back": (
        tuple(Faults(reads=count) for count in (5, 15, 30, 45)),
        {"scalar-read-sync"},
    ),
    "sizes read back": (tuple(Faults(nonzeros=count) for count in (5, 20, 40)), {"data-dependent-sync"}),
    "memory given back": (tuple(Faults(frees=count) for count in (10, 40, 100)), {"allocator-sync"}),
    "explicit synchronisation": (
        tuple(Faults(synchronize=True, host_after_sync_ns=ms * MS) for ms in (1, 3, 6)),
        {"device-synchronize"},
    ),
    "tiny kernels": (tuple(Faults(tiny=count) for count in (30, 100, 300, 800)), {"short-kernels"}),
    "host work": (tuple(Faults(stall_ns=ms * MS) for ms in (20, 24, 40)), {"host-stall"}),
    "fp32 products": (tuple(Faults(fp32=times) for times in (1.3, 2.0, 4.0, 8.0)), {"fp32-matmuls"}),
    "written-out attention": (
        tuple(Faults(attention=times) for times in (2.0, 3.0, 5.0)),
        {"unfused-attention"},
    ),
    "optimizer tensor by tensor": (
        tuple(Faults(single_tensor=count) for count in (30, 80, 150, 400)),
        {"single-tensor-optimizer"},
    ),
    "exposed all-reduce": (
        tuple(Faults(reduce_ns=ms * MS // 2, reduce_at_end=True) for ms in (1, 2, 4)),
        {"exposed-communication"},
    ),
    "small messages": (
        tuple(Faults(reduce_ns=ms * MS // 2, reduce_at_end=True, message=1000, layers=12) for ms in (1, 2)),
        {"small-messages"},
    ),
    "slow layer": (tuple(Faults(slow_layer=times) for times in (1.5, 2.0, 4.0)), {"slow-layer"}),
    "uneven sizes": (tuple(Faults(odd_width=1) for _ in range(1)), {"misaligned-gemm"}),
    "layout conversions": (tuple(Faults(layout=share) for share in (0.15, 0.3, 0.6)), {"layout-conversions"}),
    "copies in the device": (tuple(Faults(copies=share) for share in (0.15, 0.3, 0.6)), {"device-copies"}),
    "unfused chains": (tuple(Faults(elementwise=share) for share in (0.8, 1.5)), {"elementwise-chains"}),
}
CASES = [
    pytest.param(faults, rules, id=f"{name} {place}")
    for name, (strengths, rules) in PLANTED.items()
    for place, faults in enumerate(strengths)
]


def card_of(profile: Profile) -> sg.Scorecard:
    return sg.score(profile)


def step_ms(profile: Profile) -> float:
    assert profile.mean_step_ms
    return profile.mean_step_ms


@pytest.fixture(scope="module")
def well_ms() -> dict[int, float]:
    return {layers: step_ms(profile_of(Faults(layers=layers))) for layers in (6, 12)}


@pytest.mark.parametrize(("faults", "rules"), CASES)
def test_a_planted_fault_is_named_first(faults: Faults, rules: set[str], well_ms: dict[int, float]) -> None:
    profile = profile_of(faults)
    card = card_of(profile)
    cost = 1.0 - well_ms[faults.layers] / step_ms(profile)
    named = [finding.rule for finding in card.findings if finding.severity != "info"]
    if cost >= 0.10:
        assert named[:1], f"nothing is said of what costs {cost:.0%}"
        assert named[0] in rules, card.findings
    else:
        assert set(named) <= rules, f"at {cost:.1%}"


def test_most_strengths_cost_enough_to_be_asked_for(well_ms: dict[int, float]) -> None:
    """The table above must not be empty of real faults."""
    for name, (strengths, _) in PLANTED.items():
        costs = [1.0 - well_ms[faults.layers] / step_ms(profile_of(faults)) for faults in strengths]
        assert max(costs) >= 0.10, f"{name}: {costs}"


HEALTHY = {
    "as it is": WELL,
    "more steps": Faults(steps=20),
    "one layer": Faults(layers=4, steps=8),
    "deep": Faults(layers=24, steps=4),
    "hidden reductions": Faults(reduce_ns=200 * US, world_size=4),
    "a value every step, read late": Faults(reads=1),
    "a little loading": Faults(loader_ns=2 * MS),
    "a little copying": Faults(pageable_ns=50 * US),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_run_that_is_well_gets_no_warning(name: str) -> None:
    card = card_of(profile_of(HEALTHY[name]))
    assert [finding for finding in card.findings if finding.severity != "info"] == []
    assert card.bottleneck == "compute"


def test_ranks_that_are_well_get_no_warning() -> None:
    card = card_of(profile_of_ranks(0))
    assert [finding for finding in card.findings if finding.severity != "info"] == []


@pytest.mark.parametrize("late_ms", [18, 22, 30, 60])
def test_a_straggler_is_named_with_its_rank(late_ms: int) -> None:
    profile = profile_of_ranks(late_ms * MS)
    cost = 1.0 - step_ms(profile_of_ranks(0)) / step_ms(profile)
    card = card_of(profile)
    first = card.findings[0]
    if cost >= 0.10:
        assert first.rule == "straggler-rank"
        assert first.evidence["rank"] == 3.0
        assert first.evidence["account"] == "idle_host"
        assert "the host of rank 3" in first.remedy
        assert card.recommendations[0] == first.remedy
    if cost >= 0.25:
        assert card.bottleneck == "straggler"
        assert card.bottleneck_evidence[0] == "rank 3 is late: its host launches late"


@pytest.mark.parametrize("skipped", [{1}, {1, 3}, {0, 2, 4}])
def test_skipped_backward_passes_are_named(skipped: set[int]) -> None:
    rules = {
        finding.rule for finding in card_of(profile_of(Faults(skip_backward=frozenset(skipped)))).findings
    }
    assert rules & {"skipped-steps", "warm-up-only"}


@pytest.mark.parametrize("factor", [0.1, 0.5, 0.9])
def test_a_backward_that_is_too_fast_is_a_remark_as_frozen_parts_make_it_so(factor: float) -> None:
    card = card_of(profile_of(Faults(backward_factor=factor)))
    (found,) = [finding for finding in card.findings if finding.rule == "fast-backward"]
    assert found.severity == "info"


def test_no_backward_at_all_is_named_first() -> None:
    card = card_of(profile_of(Faults(skip_backward=frozenset(range(6)))))
    assert card.findings[0].rule == "no-backward"


@pytest.mark.parametrize("warm_up", [(5.0, 4.0, 3.0), (10.0, 2.0, 1.6)])
def test_a_recording_of_the_warm_up_is_doubted_first(warm_up: tuple[float, ...]) -> None:
    card = card_of(profile_of(Faults(warm_up=warm_up, steps=7)))
    assert card.findings[0].rule == "warm-up-only"


def test_a_file_that_is_cut_off_is_doubted_first(tmp_path: Path) -> None:
    text = kineto_text(make_faulty_trace(WELL))
    (tmp_path / "cut.json").write_bytes(text[: len(text) * 4 // 5])
    card = card_of(sg.load(tmp_path / "cut.json"))
    assert card.findings[0].rule == "truncated-trace"


def test_the_whole_file_is_read_as_the_trace_that_it_was_written_from(tmp_path: Path) -> None:
    trace = make_faulty_trace(WELL)
    (tmp_path / "whole.json").write_bytes(kineto_text(trace))
    read, made = card_of(sg.load(tmp_path / "whole.json")), card_of(profile_of(WELL))
    assert read.step_time_ms == pytest.approx(made.step_time_ms)
    assert [finding.rule for finding in read.findings] == [finding.rule for finding in made.findings]


@pytest.mark.parametrize(("faults", "rules"), CASES)
def test_no_finding_gains_more_than_the_ledger_holds(faults: Faults, rules: set[str]) -> None:
    card = card_of(profile_of(faults))
    assert card.ledger is not None
    for finding in card.findings:
        assert 0.0 <= finding.gain_low <= finding.gain_high
        accounts = finding.account.split("+") if finding.account else []
        held = sum(getattr(card.ledger, account) for account in accounts)
        # Without a wait the host may also run further ahead.
        assert finding.gain_high <= (held * 1.1 + 0.01 if finding.gain_by == "replay" else held + 1e-9)


@pytest.mark.parametrize(("faults", "rules"), CASES)
def test_causes_add_up_and_say_what_would_remain(faults: Faults, rules: set[str]) -> None:
    card = card_of(profile_of(faults))
    assert sum(cause.share for cause in card.causes) == pytest.approx(1.0, abs=0.002)
    assert [cause.share for cause in card.causes] == sorted(
        (cause.share for cause in card.causes), reverse=True
    )
    for cause in card.causes:
        assert card.step_time_ms is not None
        left_ms = (card.step_time_ms or 0.0) * (1.0 - cause.share)
        if cause.gain_by == "replay":  # something else may limit the step then
            assert cause.remaining_ms == pytest.approx(left_ms, abs=0.2 * (card.step_time_ms or 0.0))
        else:
            assert cause.remaining_ms == pytest.approx(left_ms)
