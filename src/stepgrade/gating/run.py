"""The gate: score the runs, find their baseline runs, compare, and judge by the project's budgets."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence

from msgspec import structs

from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.compare.runs import compare_runs
from stepgrade.config import Config
from stepgrade.diagnosis.settings import Settings
from stepgrade.errors import BadOption, NoHistory
from stepgrade.gating.baselines import BaselineRuns, branch_of, runs_of_branch
from stepgrade.gating.budgets import judge
from stepgrade.gating.fail_on import parse_condition
from stepgrade.grading import as_baseline, score
from stepgrade.hardware.setup import Setup
from stepgrade.model import Baseline, Note, Profile
from stepgrade.model.comparison import Comparison, GateReport
from stepgrade.model.given import Path
from stepgrade.model.profile import WorkKind
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.history import open_history


def gate(
    runs: Sequence[Profile | Scorecard | Path] | Profile | Scorecard | Path,
    *,
    baselines: Sequence[Baseline | Profile | Scorecard | Path] = (),
    against: str | None = None,
    history: str | None = None,
    machine: str | None = None,
    config: Config | None = None,
    fail_on: Sequence[str] = (),
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    work: WorkKind | None = None,
    setup: Setup | None = None,
    settings: Settings | None = None,
    today: dt.date | None = None,
    max_memory: int | None = None,
) -> GateReport:
    """Compare runs of the same code with `baselines`, or with the history's (`against="history:main"`).

    Runs and baselines may be given by their paths. Profiles are scored with `throughput_tok_s`,
    `tokens_per_step`, `work`, `setup` and `settings`; scorecards are taken as they are. `config` holds
    budgets and waivers, as `load_config` reads them. Where the history's runs have a label `machine`, only
    those of this `machine` are earlier ones. Raise BadOption when there is nothing to check.
    """
    given_runs = [runs] if isinstance(runs, str | os.PathLike | Profile | Scorecard) else runs
    setup, config = setup or Setup(), config or Config()
    cards = [
        run
        if isinstance(run, Scorecard)
        else score(
            run,
            setup=setup,
            settings=settings,
            throughput_tok_s=throughput_tok_s,
            tokens_per_step=tokens_per_step,
            work=work,
        )
        for run in given_runs
    ]
    given = tuple(as_baseline(baseline, setup, tokens_per_step) for baseline in baselines)
    conditions = [parse_condition(text) for text in (*config.gate.fail_on, *fail_on)]
    if any(condition.severity for condition in conditions):
        raise BadOption(
            "the gate tests for regressions by itself", field="fail_on", hint="it takes grade:A to grade:F"
        )
    allowed = allowed_fields(config.gate.allow_different)
    before = None
    if against is not None:
        if given:
            raise BadOption("both baselines and a branch are given", field="against", hint="give one of them")
        branch = branch_of(against)
        try:
            with open_history(history, create=False, max_memory=max_memory) as store:
                before = runs_of_branch(store, cards[0], branch, allowed, machine)
        except NoHistory as error:
            # The first run of a project: what it is saved into does not exist yet.
            text = f"there is no history at {error.where} yet: nothing to compare with"
            before = BaselineRuns(name=f"{branch} in {error.where}", missing=Note("no_baseline", text))
    elif given:
        before = BaselineRuns(runs=given, name=", ".join(baseline.name for baseline in given))
    elif not conditions and not any(budget.is_absolute for budget in config.budgets):
        raise BadOption(
            "nothing to compare the run with", supply="{baselines}, {against}, {fail_on} or a budget"
        )
    comparison = Comparison()
    if before is not None and before.missing is not None:
        comparison = Comparison(
            baseline=before.name,
            unmeasured=(before.missing,),
            differences=before.differences,
            is_comparable=not before.differences,
        )
    elif before is not None:
        found = compare_runs(
            [Baseline.of(card) for card in cards], before.runs, config.gate, allowed, before.pooled_noise
        )
        comparison = structs.replace(found, baseline=before.name, notes=(*before.notes, *found.notes))
    return judge(cards[0], comparison, config, conditions, today or dt.date.today())  # noqa: DTZ011
