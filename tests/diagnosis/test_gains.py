"""Whatever a run is like: what findings promise is in the ledger, and causes add up to the step."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

import stepgrade as sg
from stepgrade.scoring.causes import Bottleneck
from tests.wild_runs import Wild, profile_of
from tests.wild_strategies import RUNS

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(RUNS)
def test_no_finding_promises_more_than_the_ledger_holds(run: Wild) -> None:
    card = sg.score(profile_of(run))
    assert card.ledger is not None
    for finding in card.findings:
        accounts = finding.account.split("+") if finding.account else []
        held = sum(getattr(card.ledger, account) or 0.0 for account in accounts)
        # The steps that are replayed may hold more of it than the mean step.
        most = 1.0 if finding.gain_by == "replay" else held + 1e-9
        assert 0.0 <= finding.gain_low <= finding.gain_high <= most
        assert finding.remedy
        assert finding.check
        assert bool(finding.gain_basis) or finding.gain_high == 0.0
    assert len({finding.rule for finding in card.findings}) == len(card.findings)


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(RUNS)
def test_causes_are_ranked_and_add_up_to_the_step(run: Wild) -> None:
    card = sg.score(profile_of(run))
    shares = [cause.share for cause in card.causes]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1.0, abs=0.005)
    assert card.bottleneck in set(Bottleneck)
    assert card.bottleneck_evidence
    for cause in card.causes:
        left_ms = (card.step_time_ms or 0.0) * (1.0 - cause.share)
        if cause.gain_by == "replay":  # something else may limit the step then
            assert cause.remaining_ms is not None
            assert 0.0 <= cause.remaining_ms <= (card.step_time_ms or 0.0) * (1.0 + 1e-9)
        else:
            assert cause.remaining_ms == pytest.approx(left_ms)
