"""From scored runs to the gate's answer: where the earlier runs come from, and what the project allows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from msgspec import Struct, structs

from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.compare.verdict import Sensitivity
from stepgrade.config import Config
from stepgrade.diagnosis.settings import Settings
from stepgrade.errors import BadOption
from stepgrade.gating.baselines import Earlier, branch_of, earlier_runs
from stepgrade.gating.budgets import judge
from stepgrade.gating.fail_on import parse_condition
from stepgrade.gating.holding import hold
from stepgrade.grading import as_baseline, score
from stepgrade.hardware.setup import Setup
from stepgrade.model import Baseline, Note, Profile
from stepgrade.model.comparison import Comparison, GateReport
from stepgrade.model.scorecard import Scorecard
from stepgrade.scoring.efficiency import ScoreOptions
from stepgrade.store.history import open_history


class Circumstances(Struct, frozen=True, kw_only=True):
    """What the runs are held against, and by which rules."""

    against: str | None = None
    history: str | None = None
    config: Config | None = None
    fail_on: Sequence[str] = ()
    today: dt.date | None = None


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
    asked = ScoreOptions(tokens_per_step=tokens_per_step)
    earlier = [as_baseline(baseline, asked, setup) for baseline in baselines]
    around = Circumstances(against=against, history=history, config=config, fail_on=fail_on, today=today)
    return gate_runs(cards, earlier, around)


def gate_runs(cards: Sequence[Scorecard], baselines: Sequence[Baseline], around: Circumstances) -> GateReport:
    """Return the gate's answer about runs of the same code; raise BadOption when there is nothing to ask."""
    config = around.config or Config()
    conditions = [parse_condition(text) for text in (*config.gate.fail_on, *around.fail_on)]
    if any(condition.severity for condition in conditions):
        raise BadOption(
            "the gate tests for regressions by itself", where="--fail-on", hint="it takes grade:A to grade:F"
        )
    earlier = _earlier(cards[0], baselines, around, config)
    if earlier is None and not conditions and not any(_is_absolute(one) for one in config.budgets):
        raise BadOption(
            "nothing to hold the run against",
            hint="give --baseline FILE, --against history:BRANCH, --fail-on grade:C or a budget",
        )
    found = _found(cards, earlier, config)
    return judge(cards[0], found, config, conditions, around.today or dt.date.today())  # noqa: DTZ011


def _earlier(
    card: Scorecard, baselines: Sequence[Baseline], around: Circumstances, config: Config
) -> Earlier | None:
    if around.against is None:
        names = ", ".join(baseline.name for baseline in baselines)
        return Earlier(runs=tuple(baselines), name=names) if baselines else None
    if baselines:
        raise BadOption("--baseline and --against both name the earlier runs", hint="give one of them")
    branch = branch_of(around.against)
    with open_history(around.history, create=False) as history:
        return earlier_runs(history, card, branch, allowed_fields(config.gate.allow_different))


def _found(cards: Sequence[Scorecard], earlier: Earlier | None, config: Config) -> Comparison:
    if earlier is None:
        return Comparison()
    if earlier.missing is not None:
        apart = earlier.differences
        return Comparison(
            baseline=earlier.name,
            unmeasured=(Note("no_baseline", earlier.missing),),
            differences=apart,
            is_comparable=not apart,
        )
    how = Sensitivity(allow=config.gate.allow, detect=config.gate.detect, run_noise=config.gate.run_noise)
    allowed = allowed_fields(config.gate.allow_different)
    found = hold([Baseline.of(card) for card in cards], earlier.runs, how, allowed)
    return structs.replace(found, baseline=earlier.name, notes=(*earlier.notes, *found.notes))


def _is_absolute(budget: object) -> bool:
    return getattr(budget, "at_most", None) is not None or getattr(budget, "at_least", None) is not None
