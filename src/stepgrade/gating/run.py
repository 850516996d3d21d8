"""The gate: score the runs, find their baseline runs, compare, and judge by the project's budgets."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import structs

from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.compare.runs import compare_runs
from stepgrade.config import Config
from stepgrade.errors import BadOption
from stepgrade.gating.baselines import BaselineRuns, earlier_runs
from stepgrade.gating.budgets import judge
from stepgrade.gating.fail_on import grade_conditions
from stepgrade.grading import as_baseline, score
from stepgrade.hardware.setup import Setup
from stepgrade.model import Baseline, Profile
from stepgrade.model.comparison import Comparison, GateReport
from stepgrade.model.profile import WorkKind
from stepgrade.model.scorecard import Scorecard
from stepgrade.readers.source import PathLike

Run: TypeAlias = Profile | Scorecard | PathLike


def gate(
    runs: Run | Sequence[Run],
    *,
    baseline: Run | Baseline | Sequence[Run | Baseline] = (),
    against: str | None = None,
    history: str | None = None,
    machine: str | None = None,
    config: Config | None = None,
    fail_on: Sequence[str] = (),
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    work: WorkKind | None = None,
    setup: Setup | None = None,
    today: dt.date | None = None,
    max_memory: int | None = None,
) -> GateReport:
    """Compare one or more runs of the same code with a baseline, or with a branch (`against="history:main"`).

    `baseline` is an earlier run or several. All runs may be given by their paths. Profiles are scored with
    `throughput_tok_s`, `tokens_per_step`, `work` and `setup`; scorecards are used as they are. `config` has
    limits, budgets and waivers, as `load_config` reads them. If the history's runs have a label `machine`,
    only those of this `machine` count. Raise BadOption if there is nothing to check.
    """
    given_runs = [runs] if isinstance(runs, str | os.PathLike | Profile | Scorecard) else runs
    earlier = (
        [baseline] if isinstance(baseline, str | os.PathLike | Profile | Scorecard | Baseline) else baseline
    )
    setup, config = setup or Setup(), config or Config()
    cards = [
        run
        if isinstance(run, Scorecard)
        else score(
            run,
            setup=setup,
            config=config,
            throughput_tok_s=throughput_tok_s,
            tokens_per_step=tokens_per_step,
            work=work,
        )
        for run in given_runs
    ]
    conditions = grade_conditions((*config.gate.fail_on, *fail_on))
    allowed = allowed_fields(config.gate.allow_different)
    if against is not None and earlier:
        raise BadOption("both a baseline and a branch are given", field="against", hint="give one of them")
    if against is not None:
        before = earlier_runs(
            cards[0], against, allowed, history=history, machine=machine, max_memory=max_memory
        )
        comparison = compare_with_earlier(cards, before, config, allowed)
    elif earlier:
        given = tuple(as_baseline(run, setup, tokens_per_step) for run in earlier)
        before = BaselineRuns(runs=given, name=", ".join(run.name for run in given))
        comparison = compare_with_earlier(cards, before, config, allowed)
    elif conditions or any(budget.is_absolute for budget in config.budgets):
        comparison = Comparison()
    else:
        raise BadOption(
            "nothing to compare the run with", supply="{baseline}, {against}, {fail_on} or a budget"
        )
    return judge(cards[0], comparison, config, conditions, today or dt.date.today())  # noqa: DTZ011


def compare_with_earlier(
    cards: Sequence[Scorecard], before: BaselineRuns, config: Config, allowed: frozenset[str]
) -> Comparison:
    """Compare the cards with the earlier runs; without any, return the reason."""
    if before.missing is not None:
        return Comparison(
            baseline=before.name,
            reasons=(before.missing,),
            differences=before.differences,
            is_comparable=not before.differences,
        )
    now = [Baseline.of(card) for card in cards]
    found = compare_runs(now, before.runs, config.gate, allowed, before.pooled_noise)
    return structs.replace(found, baseline=before.name, notes=(*before.notes, *found.notes))
