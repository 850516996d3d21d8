"""Runtimes that name their operations differently meet, and the parts of a gap add up to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

import stepgrade as sg
from stepgrade.compare.canonical import match
from stepgrade.compare.parity import compare_all
from stepgrade.model import Ledger, Profile
from stepgrade.model.activity import Activity, PartTime
from tests.builders import make_ops, make_profile
from tests.conftest import Ran
from tests.faulty_runs import US, Faults, make_faulty_trace, profile_of, profile_of_ranks
from tests.kineto_text import kineto_text
from tests.samples import shared
from tests.wild_runs import Wild
from tests.wild_runs import profile_of as wild_profile
from tests.wild_strategies import RUNS

WELL = profile_of(Faults())
NAMES = ["gemm_qkv", "gemm_gate", "attention", "rmsnorm", "lm_head", "silu", "embed", "mlp_down", "strange"]
STEPS = st.dictionaries(
    st.sampled_from([*NAMES, *(f"{name}_bwd" for name in NAMES)]), st.floats(0.01, 1e4), min_size=1
)


def runtime(name: str, step_ms: float = 100.0, **total_ms: float) -> Profile:
    return make_profile(runtime=name, operations=make_ops(**total_ms), mean_step_ms=step_ms)


def assert_adds_up(report: sg.ParityReport) -> None:
    assert report.gap is not None
    total = sum(part.ms for part in report.gap.parts)
    assert total == pytest.approx(report.gap.gap_ms, abs=max(0.001 * abs(report.gap.gap_ms), 1e-6))
    assert report.gap.ours_ms - report.gap.theirs_ms == pytest.approx(report.gap.gap_ms)
    for gap in report.canonical:
        assert gap.count_ms + gap.per_call_ms + gap.precision_ms == pytest.approx(gap.gap_ms, abs=1e-9)


def test_operations_meet_by_what_they_are() -> None:
    ours = runtime(
        "ours", gemm_qkv=300.0, gemm_gate=200.0, attention=100.0, rmsnorm_bwd=50.0, gemm_qkv_bwd=500.0
    )
    theirs = runtime(
        "theirs", c_attn=100.0, fc1=200.0, flash_attn=100.0, layer_norm_backward=50.0, c_attn_bwd=250.0
    )
    report = sg.parity(ours, theirs)
    assert report.ours_matched_share == 0.0
    assert report.canonical_level == "class, role and direction"
    assert (report.canonical_ours_share, report.canonical_theirs_share) == (1.0, 1.0)
    assert report.parity_achieved is False
    assert report.behind == ("gemm · qkv · backward", "gemm · qkv · forward")
    assert_adds_up(report)


def test_nothing_says_that_strange_operations_are_the_same() -> None:
    report = sg.parity(runtime("ours", foo=10.0), runtime("theirs", bar=10.0))
    assert report.parity_achieved is None
    assert report.canonical == ()


@given(STEPS, STEPS, st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_parts_add_up_for_any_step_profiles(
    mine: dict[str, float], other: dict[str, float], mine_ms: float, other_ms: float
) -> None:
    assert_adds_up(sg.parity(runtime("ours", mine_ms, **mine), runtime("theirs", other_ms, **other)))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(RUNS, RUNS)
def test_parts_add_up_for_any_traces(mine: Wild, other: Wild) -> None:
    assert_adds_up(sg.parity(wild_profile(mine), wild_profile(other)))


FAULTS = {
    "loader": (Faults(loader_ns=30_000 * US), "waiting for input"),
    "fp32": (Faults(fp32=4.0), "wider precision"),
    "tiny": (Faults(tiny=300), "more calls"),
    "reads": (Faults(reads=40), "synchronisation"),
    "reduce": (Faults(reduce_ns=1_000 * US, reduce_at_end=True), "communication"),
    "stall": (Faults(stall_ns=30_000 * US), "waits for the host"),
    "pageable": (Faults(pageable_ns=10_000 * US), "copies between host and device"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_gap_of_a_planted_fault_is_mostly_that_fault(name: str) -> None:
    faults, words = FAULTS[name]
    report = sg.parity(profile_of(faults), WELL)
    assert_adds_up(report)
    assert report.gap is not None
    told = sum(part.ms for part in report.gap.parts if words in part.name)
    assert told > 0.5 * report.gap.gap_ms, report.gap.parts


@pytest.mark.parametrize("name", FAULTS)
def test_the_other_way_round_every_part_changes_its_sign(name: str) -> None:
    slow = profile_of(FAULTS[name][0])
    there, back = sg.parity(slow, WELL), sg.parity(WELL, slow)
    assert_adds_up(back)
    assert there.gap is not None
    assert back.gap is not None
    assert back.gap.gap_ms == pytest.approx(-there.gap.gap_ms)


def test_several_ranks_add_up() -> None:
    assert_adds_up(sg.parity(profile_of_ranks(30_000 * US), profile_of_ranks(0)))


def test_less_overlap_is_told_from_more_communication() -> None:
    hidden = profile_of(Faults(reduce_ns=1_000 * US))
    exposed = profile_of(Faults(reduce_ns=1_000 * US, reduce_at_end=True))
    report = sg.parity(exposed, hidden)
    assert report.gap is not None
    kinds = {part.kind: part.ms for part in report.gap.parts}
    assert kinds["overlap"] > 0.8 * report.gap.gap_ms
    assert abs(kinds.get("communication", 0.0)) < 0.2 * report.gap.gap_ms


def test_times_are_for_as_many_tokens() -> None:
    ours = make_profile(operations=make_ops(gemm=100.0), mean_step_ms=100.0, tokens_per_step=1000.0)
    theirs = make_profile(operations=make_ops(gemm=200.0), mean_step_ms=200.0, tokens_per_step=2000.0)
    report = sg.parity(ours, theirs)
    assert report.throughput_ratio == pytest.approx(1.0)
    assert report.gap is not None
    assert report.gap.gap_ms == pytest.approx(0.0)
    assert report.gap.tokens_scale == 0.5


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = []
    for name, faults in {
        "well": Faults(),
        "slow": Faults(fp32=4.0),
        "late": Faults(loader_ns=30_000 * US),
    }.items():
        found.append(tmp_path / f"{name}.json")
        found[-1].write_bytes(kineto_text(make_faulty_trace(faults)))
    return found


def test_more_than_two_make_a_matrix(files: list[Path], stepgrade: Callable[..., Ran]) -> None:
    matrix = compare_all(tuple(sg.load(path) for path in files))
    for row in range(3):
        assert matrix.time_ratios[row][row] == pytest.approx(1.0)
        for column in range(3):
            there, back = matrix.time_ratios[row][column], matrix.time_ratios[column][row]
            assert there is not None
            assert back is not None
            assert there * back == pytest.approx(1.0)
    for way in ("terminal", "markdown", "json"):
        ran = stepgrade("parity", *files, "--format", way)
        assert ran.code == 0
        assert "slow" in ran.out


def test_a_required_ratio_sets_the_exit_code(files: list[Path], stepgrade: Callable[..., Ran]) -> None:
    well, slow, _ = files
    assert stepgrade("parity", well, slow, "--require", "1.10").code == 0
    ran = stepgrade("parity", slow, well, "--require", "1.10")
    assert ran.code == 1
    assert "1.10x is allowed" in ran.err
    assert stepgrade("parity", slow, well, files[2], "--require", "1.10").code == 1
    assert stepgrade("parity", slow, well, "--require", "99").code == 0
    assert stepgrade("parity", slow, well, "--require", "0").code == 2
    assert stepgrade("parity", slow, well, "--require", "1.1", "--contract", "v1").code == 2


@pytest.mark.samples
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("*adamhook_before*", "*adamhook_after*"),
        ("kineto_v3*workers0*", "kineto_v3*workers4*"),
        ("tl_h100_bert*", "tl_mi300_bert*"),
        ("ao_ref*", "ao_sync*"),
        ("hta_ns*", "tl_mi300_resnet*"),
    ],
)
def test_real_gaps_add_up(ours: str, theirs: str) -> None:
    report = sg.parity(*(sg.load(next(shared("samples/kineto").glob(pattern))) for pattern in (ours, theirs)))
    assert_adds_up(report)


def by_hand(step_ms: float, parts: list[tuple[str, float, float, str]], **counts: Any) -> Profile:
    """Return two steps of a run; `counts` are its ledger in ms of a step, its communication and its launches."""
    communication_ms, launches = counts.pop("communication_ms"), counts.pop("launches")
    accounts = dict.fromkeys(Ledger.__struct_fields__, 0.0) | counts
    work = tuple(
        PartTime(work_class=kind, role=None, direction=None, ms=ms, calls=calls, kernels=0.0, dtype=dtype)
        for kind, ms, calls, dtype in parts
    )
    return make_profile(
        steps=2,
        mean_step_ms=step_ms,
        operations=make_ops(**{kind: 10 * ms for kind, ms, *_ in parts}),
        activity=Activity(driver="device", communication_ms=communication_ms, parts=work),
        ledger=Ledger(**{name: 2e6 * ms for name, ms in accounts.items()}),
        launches_per_step=launches,
    )


def test_a_gap_counted_by_hand() -> None:
    """100 ms against 80 ms; what more calls, sent bytes and launches cost is at the mean price of both.

    Five calls of 8 ms against two of 10 ms: three more at 9 ms, less 7 for being shorter. Attention in fp32 may take
    four times as long as in bf16: 12 ms of the 46 it takes longer. Of 25 ms of communication 10 show, of 10 ms five:
    15 ms more, 0.45 of which would show. 60 launches more at (1/6 + 1/5) / 2 ms.
    """
    ours = by_hand(
        100.0, [("gemm", 40.0, 5.0, "bf16"), ("attention", 50.0, 1.0, "fp32")],
        compute=60.0, exposed_communication=10.0, idle_host=20.0, idle_input=10.0,
        communication_ms=25.0, launches=120.0,
    )  # fmt: skip
    theirs = by_hand(
        80.0, [("gemm", 20.0, 2.0, "bf16"), ("attention", 4.0, 1.0, "bf16")],
        compute=55.0, exposed_communication=5.0, idle_host=12.0, idle_input=8.0,
        communication_ms=10.0, launches=60.0,
    )  # fmt: skip
    report = sg.parity(ours, theirs)
    assert report.gap is not None
    assert (report.gap.ours_ms, report.gap.theirs_ms, report.gap.gap_ms) == (100.0, 80.0, 20.0)
    assert {part.name: part.ms for part in report.gap.parts} == pytest.approx(
        {
            "gemm: more calls": 27.0,
            "gemm: shorter calls": -7.0,
            "attention: longer calls": 34.0,
            "attention: wider precision": 12.0,
            "more operations at once": (60 - 90) - (55 - 24),
            "more communication": 6.75,
            "more communication hidden": -1.75,
            "more launches": 11.0,
            "shorter waits for the host": -3.0,
            "waiting for input": 2.0,
        }
    )
    assert [part.name for part in report.gap.parts][:2] == [
        "more operations at once",
        "attention: longer calls",
    ]
    assert [part.share for part in report.gap.parts][:2] == [-61 / 20, 34 / 20]
    assert report.launch_ratio == 2.0
    back = sg.parity(theirs, ours).gap
    assert back is not None
    assert {part.name: part.ms for part in back.parts}["attention: narrower precision"] == -12.0
    assert {part.name: part.ms for part in back.parts}["attention: shorter calls"] == -34.0


def test_twice_the_tokens_take_twice_the_time() -> None:
    parts, rest = [("gemm", 40.0, 5.0, "bf16")], {"compute": 60.0, "idle_host": 40.0}
    one = by_hand(100.0, parts, **rest, communication_ms=0.0, launches=100.0)
    two = by_hand(200.0, [("gemm", 80.0, 10.0, "bf16")], compute=120.0, idle_host=80.0,
                  communication_ms=0.0, launches=200.0)  # fmt: skip
    ours, theirs = (
        structs.replace(profile, tokens_per_step=tokens) for profile, tokens in ((two, 2000.0), (one, 1000.0))
    )
    gap = sg.parity(ours, theirs).gap
    assert gap is not None
    assert (gap.tokens_scale, gap.theirs_ms, gap.gap_ms, gap.parts) == (2.0, 200.0, 0.0, ())


def test_a_ledger_of_two_ranks_is_that_of_their_mean() -> None:
    parts, rest = [("gemm", 40.0, 5.0, "bf16")], {"compute": 60.0, "idle_host": 40.0}
    one = by_hand(100.0, parts, **rest, communication_ms=0.0, launches=100.0)
    assert one.ledger is not None
    doubled = Ledger(**{name: 2 * ns for name, ns in one.ledger.known().items()})
    two = structs.replace(one, ledger=doubled, ranks=profile_of_ranks(0, world_size=2).ranks)
    gap = sg.parity(two, one).gap
    assert gap is not None
    assert (gap.gap_ms, gap.parts) == (0.0, ())


def part(
    kind: str, ms: float, *, calls: float = 10.0, dtype: str | None = None, role: str | None = None
) -> PartTime:
    return PartTime(
        work_class=kind, role=role, direction="forward", ms=ms, calls=calls, kernels=calls, dtype=dtype
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "precision_ms"),
    [
        (("fp32", 90.0), ("bf16", 20.0), 60.0),  # fp32 costs at most four times bf16
        (("fp32", 50.0), ("bf16", 20.0), 30.0),  # no more than the gap
        (("bf16", 20.0), ("fp32", 90.0), -60.0),
        (("bf16", 20.0), ("fp32", 50.0), -30.0),
        (("tf32", 70.0), ("fp16", 20.0), 20.0),
        (("bf16", 90.0), ("fp8", 20.0), 20.0),
        (("bf16", 90.0), ("fp16", 20.0), 0.0),  # as wide
        (("fp32", 10.0), ("bf16", 20.0), 0.0),  # faster although wider
        ((None, 90.0), ("bf16", 20.0), 0.0),
    ],
)
def test_a_wider_precision_explains_at_most_what_data_sheets_say(
    ours: tuple[str | None, float], theirs: tuple[str | None, float], precision_ms: float
) -> None:
    (gap,) = match(*((part("gemm", ms, dtype=dtype),) for dtype, ms in (ours, theirs))).gaps
    assert gap.precision_ms == pytest.approx(precision_ms)
    assert gap.count_ms + gap.per_call_ms + gap.precision_ms == pytest.approx(gap.gap_ms)
    assert gap.ratio == pytest.approx(ours[1] / theirs[1])


def test_the_precision_of_a_group_is_that_of_its_longest_part_with_one() -> None:
    ours = (part("gemm", 90.0), part("gemm", 5.0, dtype="bf16"), part("gemm", 30.0, dtype="fp32"))
    (gap,) = match(ours, (part("gemm", 60.0, dtype="bf16"),)).gaps
    assert (gap.ours.dtype, gap.ours.ms, gap.ours.calls, gap.ours.kernels) == ("fp32", 125.0, 30.0, 30.0)
    assert gap.extra_kernels == 20.0


def test_what_is_on_one_side_only_is_listed_and_lowers_what_is_matched() -> None:
    ours = (part("gemm", 60.0), part("attention", 40.0), part("other", 100.0))
    theirs = (part("gemm", 50.0), part("other", 50.0), part("norm", 10.0))
    found = match(ours, theirs)
    assert [gap.name for gap in found.gaps] == ["gemm · forward"]
    assert found.only_ours == {"attention · forward": 40.0, "other · forward": 100.0}
    assert found.only_theirs == {"other · forward": 50.0, "norm · forward": 10.0}
    assert (found.ours_share, found.theirs_share) == (0.3, pytest.approx(50 / 110))


def test_the_finest_level_that_covers_enough_is_taken() -> None:
    """Roles differ in a fifth of the time: that is fine enough; in more, roles do not count."""
    theirs = (part("gemm", 80.0, role="qkv"), part("gemm", 20.0, role="mlp"))
    assert match((part("gemm", 80.0, role="qkv"), part("gemm", 20.0, role="head")), theirs).level == (
        "class, role and direction"
    )
    coarser = match((part("gemm", 79.0, role="qkv"), part("gemm", 21.0, role="head")), theirs)
    assert coarser.level == "class and direction"
    assert coarser.ours_share == coarser.theirs_share == 1.0
