"""The memory model against published measurements: errors, bands, and verdicts on runs that did and did not fit."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec import structs

from stepgrade.hardware.memory.need import BANDS
from stepgrade.statistics import median
from tests.hardware.bands import bands_of, tried, without_each_source
from tests.hardware.published_memory import (
    HERE,
    Case,
    case_of,
    cases,
    held_out,
    predict,
    rows,
    unknown_words,
)

CASES = cases()
# Tables of projects that are not among the others; each row's loss, kernels and sharding are those of its source.
OTHERS = cases(HERE / "other_memory.csv")
MEASURED = [case for case in CASES if case.measured is not None]


def errors(found: list[Case]) -> list[float]:
    return sorted(abs(predict(case).bytes / (case.measured or 1.0) - 1) for case in found)


@pytest.mark.parametrize(
    "chosen", [CASES, held_out(CASES)[1], OTHERS], ids=["all", "kept aside", "other projects"]
)
def test_full_fine_tunes_are_predicted_within_a_few_percent(chosen: list[Case]) -> None:
    found = errors([case for case in chosen if case.measured and case.row["method"] == "full"])
    assert len(found) > 40
    assert median(found) <= 0.05
    assert found[int(0.9 * (len(found) - 1))] <= 0.10


def test_adapters_are_predicted_as_well_as_their_bands_say() -> None:
    assert median(errors([case for case in MEASURED if case.row["method"] == "lora"])) <= 0.10
    assert median(errors([case for case in MEASURED if case.row["method"] == "qlora"])) <= 0.16


def test_the_bands_are_what_the_rule_gives_for_all_rows() -> None:
    assert bands_of([*CASES, *OTHERS]) == BANDS


@pytest.mark.parametrize("chosen", [CASES, OTHERS], ids=["all", "other projects"])
def test_bands_hold_for_95_of_100_rows(chosen: list[Case]) -> None:
    trial = tried(chosen)
    assert trial.inside >= 0.95 * trial.rows


def test_bands_from_other_sources_hold_for_95_of_100_rows_and_judge_none_wrongly() -> None:
    """Every source judged by the bands that the others give: the rule, not these rows, must do it."""
    trial = without_each_source([*CASES, *OTHERS])
    assert trial.rows == 350
    assert trial.inside >= 0.95 * trial.rows
    assert trial.wrong == 0
    assert trial.close <= 0.10 * trial.judged


def test_bands_of_the_first_table_hold_for_the_second() -> None:
    trial = tried(OTHERS, bands_of(CASES))
    assert trial.inside >= 0.95 * trial.rows
    assert (trial.wrong, trial.close) == (0, 1)


def test_a_band_half_as_wide_would_not_hold() -> None:
    """What the test above can find: with half the widths too many rows are outside."""
    half = {
        kind: structs.replace(
            band,
            below=band.below / 2,
            lasting=band.lasting / 2,
            passing=band.passing / 2,
            fixed_bytes=band.fixed_bytes / 2,
        )
        for kind, band in BANDS.items()
    }
    trial = tried([*CASES, *OTHERS], half)
    assert trial.inside < 0.90 * trial.rows


def test_every_word_of_the_tables_is_understood_and_another_is_named() -> None:
    assert not [word for case in (*CASES, *OTHERS) for word in unknown_words(case.row)]
    odd = CASES[0].row | {"loss": "by_hand", "checkpointing": "some"}
    assert unknown_words(odd) == ["loss=by_hand", "checkpointing=some"]


def test_no_verdict_is_wrong_and_few_are_too_close() -> None:
    trial = tried([*CASES, *OTHERS])
    assert trial.wrong == 0
    assert trial.said["ran out of memory", "does_not_fit"] >= 10
    assert trial.said["ran", "fits"] >= 15 * trial.said["ran", "too_close"]


def test_measurements_that_cannot_be_true_are_named() -> None:
    """litgpt publishes full fine-tunes that need more than it says it measured, and than the card has."""
    impossible = [case_of(row) for row in rows(usable="no") if "IMPOSSIBLE" in row["notes"]]
    assert len(impossible) == 3
    for case in impossible:
        assert (case.measured or 0.0) < predict(case).low


def test_a_measured_run_of_the_same_setup_takes_some_of_the_error_off() -> None:
    """Pairs of rows of constant length that differ in micro-batch and sequence alone, each from the other."""
    setups: dict[tuple[str, ...], list[Case]] = {}
    differ = {"id", "source_ref", "seq", "micro_batch", "measured_gib", "notes", "oom_capacity_gib"}
    for case in (case for case in MEASURED if case.plan.lengths == "fixed"):
        key = tuple(value for name, value in case.row.items() if name not in differ)
        setups.setdefault(key, []).append(case)
    alone, anchored = [], []
    for some in setups.values():
        for case, other in permutations(some, 2):
            if (case.plan.batch, case.plan.seq) == (other.plan.batch, other.plan.seq):
                continue
            measured, said, theirs = case.measured or 1.0, predict(case).bytes, predict(other)
            alone.append(abs(said / measured - 1))
            anchored.append(abs((said + (other.measured or 0.0) - theirs.bytes) / measured - 1))
    assert len(anchored) > 90
    assert median(sorted(anchored)) <= 0.01
    assert median(sorted(anchored)) < median(sorted(alone))
