"""The scorecard of a run, alone or against an earlier one, and the gate before a merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stepgrade import analysis
from stepgrade.analysis.against import expectation_for
from stepgrade.analysis.limits_file import Settings
from stepgrade.api.rendering import card_for_notebooks, fields_of, render
from stepgrade.compare.fingerprint import allowed_fields, fingerprint_of
from stepgrade.compare.regression import baseline_of, compared
from stepgrade.hardware.setup import Setup
from stepgrade.model import Baseline, Profile

if TYPE_CHECKING:
    import datetime as dt

    from stepgrade.compare.budgets import GateReport
    from stepgrade.config import Config


class Scorecard(analysis.Scorecard, frozen=True, kw_only=True):
    """A scorecard that shows itself in a notebook."""

    def _repr_markdown_(self) -> str:
        return render(self, to="markdown")

    def _repr_html_(self) -> str | None:
        return card_for_notebooks(self)


def score(
    profile: Profile,
    *,
    device: str | None = None,
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    peak_bw_gb_s: float | None = None,
    bytes_per_token: float | None = None,
    baseline: Baseline | Profile | analysis.Scorecard | None = None,
    setup: Setup | None = None,
    allow_different: Sequence[str] = (),
    settings: Settings | None = None,
) -> Scorecard:
    """Return the scorecard of a run (contract v2), compared with `baseline` when there is one.

    `setup` says more of hardware and model than the three figures beside it, which then count no more;
    `settings` holds limits and ignored rules, as `load_settings` reads them.
    """
    named = Setup(device=device, peak_bw_gb_s=peak_bw_gb_s, bytes_per_token=bytes_per_token)
    question = analysis.Question(
        throughput_tok_s=throughput_tok_s,
        tokens_per_step=tokens_per_step,
        against=expectation_for(profile, setup or named),
    )
    card = _card(profile, question, settings or Settings())
    if baseline is not None:
        card = compared(card, _baseline(baseline, question, setup or named), allowed_fields(allow_different))
    return Scorecard(**fields_of(card))


def gate(
    runs: Sequence[Profile],
    *,
    baselines: Sequence[Baseline | Profile] = (),
    against: str | None = None,
    history: str | None = None,
    config: Config | None = None,
    fail_on: Sequence[str] = (),
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    setup: Setup | None = None,
    settings: Settings | None = None,
    today: dt.date | None = None,
) -> GateReport:
    """Hold one or more runs of the same code against earlier ones: files, or `history:BRANCH`."""
    from stepgrade.gating import Circumstances, gate_runs  # noqa: PLC0415  statistics take time to import

    setup = setup or Setup()
    cards = [
        score(
            profile,
            setup=setup,
            settings=settings,
            throughput_tok_s=throughput_tok_s,
            tokens_per_step=tokens_per_step,
        )
        for profile in runs
    ]
    asked = analysis.Question(tokens_per_step=tokens_per_step)
    earlier = [_baseline(baseline, asked, setup) for baseline in baselines]
    around = Circumstances(against=against, history=history, config=config, fail_on=fail_on, today=today)
    return gate_runs(cards, earlier, around)


def _baseline(
    baseline: Baseline | Profile | analysis.Scorecard, question: analysis.Question, setup: Setup
) -> Baseline:
    """Return the earlier run's figures; a profile's rate is known only from its tokens per step."""
    if isinstance(baseline, Profile):
        against = expectation_for(baseline, setup)
        asked = analysis.Question(tokens_per_step=question.tokens_per_step, against=against)
        baseline = _card(baseline, asked, Settings())
    return baseline_of(baseline) if isinstance(baseline, analysis.Scorecard) else baseline


def _card(profile: Profile, question: analysis.Question, settings: Settings) -> analysis.Scorecard:
    card = analysis.score_profile(profile, question, settings)
    return msgspec.structs.replace(card, fingerprint=fingerprint_of(profile, question))
