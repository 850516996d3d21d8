"""The gate: score the runs, find their baseline runs, compare, and judge by the project's budgets."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct, structs

from stepgrade.compare.change_points import level_around
from stepgrade.compare.effect import MOST_RUNS
from stepgrade.compare.fingerprint import allowed_fields, differences
from stepgrade.compare.noise import LEAST_RUNS, pooled_noise
from stepgrade.compare.runs import compare_runs
from stepgrade.config import Config
from stepgrade.errors import BadOption, NoHistory, Unreachable
from stepgrade.gating.budgets import judge
from stepgrade.gating.fail_on import grade_conditions
from stepgrade.grading import as_baseline, score
from stepgrade.hardware.setup import Setup
from stepgrade.model import Note, Profile
from stepgrade.model.comparison import Comparison, GateReport, Noise
from stepgrade.model.profile import WorkKind
from stepgrade.model.scorecard import Baseline, Fingerprint, Scorecard
from stepgrade.readers.source import PathLike
from stepgrade.store.history import open_history
from stepgrade.store.runs import NO_BRANCH, Runs, Selection, as_text

# Far enough back to find where the current level starts.
_LOOK_BACK = 4 * MOST_RUNS
# How many other fingerprints the noise between runs is estimated from.
_OTHERS = 50
_PREFIX = "history:"
# The label with the kind of machine.
MACHINE = "machine"


class BaselineRuns(Struct, frozen=True, kw_only=True):
    """The earlier runs that the gate compares with, or why there are none."""

    runs: tuple[Baseline, ...] = ()
    name: str = ""
    missing: Note | None = None
    differences: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    pooled_noise: Noise | None = None  # between runs with other fingerprints


def earlier_runs(
    card: Scorecard,
    against: str,
    allowed: frozenset[str],
    *,
    history: str | None = None,
    machine: str | None = None,
    max_memory: int | None = None,
) -> BaselineRuns:
    """Return the runs of the branch in `against` that are comparable with the card."""
    against = as_text(against)
    branch = against.removeprefix(_PREFIX)
    if not against.startswith(_PREFIX) or not branch:
        raise BadOption(f"{against!r} is not a baseline", field="against", hint="write it like history:main")
    try:
        with open_history(history, create=False, max_memory=max_memory) as store:
            return runs_of_branch(store, card, branch, allowed, machine)
    except (Unreachable, NoHistory) as error:
        problem = f"{error.where} {error.problem}"
        if isinstance(error, NoHistory):  # the first run of a project
            problem = f"no history at {error.where} yet"
        missing = Note("no_baseline", f"{problem}: nothing to compare with")
        return BaselineRuns(name=f"{branch} in {error.where}", missing=missing)


def runs_of_branch(
    history: Runs,
    card: Scorecard,
    branch: str,
    allowed: frozenset[str],
    machine: str | None = None,
) -> BaselineRuns:
    """Return the newest runs of a branch that are comparable with the card, since its level last changed.

    If runs are labelled with a machine, only those of the same `machine` are used.
    """
    fingerprint = card.fingerprint or Fingerprint()
    which = Selection(branch=branch, digests=history.comparable(fingerprint, allowed), limit=_LOOK_BACK)
    kinds = {row.labels[MACHINE] for row in history.runs(which) if MACHINE in row.labels} if machine else ()
    if machine and kinds:  # unlabelled runs count only if no run is labelled
        which = structs.replace(which, labels={MACHINE: machine})
    series = history.series("step_time_ms", which) or history.series("throughput_tok_s", which)
    name = f"{branch} in {history.name}"
    if not series:
        newest = history.runs(Selection(branch=branch, limit=1))
        known = history.fingerprints().get(newest[0].digest, Fingerprint()) if newest else None
        differing = differences(fingerprint, known)
        missing = Note("no_baseline", f"no run of branch {branch} has a step time or a throughput")
        if machine and kinds:
            text = f"no run of branch {branch} has the machine {machine}, only {', '.join(sorted(kinds))}"
            missing, differing = Note("no_baseline", text), ()
        elif not newest:
            missing = Note("no_baseline", f"no run of branch {branch} in the history")
        elif differing:
            text = f"no run of branch {branch} is comparable"
            missing = Note("no_baseline", text, supply="{allow_different} to compare anyway")
        return BaselineRuns(name=name, missing=missing, differences=differing)
    level = level_around([value for _, value in series], len(series) - 1, MOST_RUNS)
    notes: tuple[Note, ...] = ()
    if len(level) < min(len(series), MOST_RUNS):
        text = f"the level of {branch} changed recently: only the {len(level)} runs since then are used"
        notes = (Note("level_changed", text),)
    return _runs_of(history, [series[place][0] for place in level], which.digests or (), name, notes)


def runs_around(history: Runs, number: int, without: int) -> BaselineRuns:
    """Return the runs of the level that a stored run is on, `without` the one that is compared with them.

    If the stored run is the newest of its branch, they are those that the gate would take.
    """
    (run,) = history.runs(Selection(after=number - 1, before=number + 1))
    labels = {MACHINE: run.labels[MACHINE]} if MACHINE in run.labels else {}
    branch = NO_BRANCH if run.branch is None else run.branch
    which = Selection(branch=branch, digests=(run.digest,), labels=labels, limit=_LOOK_BACK)
    for selection in (which, structs.replace(which, limit=None)):
        series = history.series("step_time_ms", selection) or history.series("throughput_tok_s", selection)
        others = [point for point in series if point[0] != without]
        numbers = [each for each, _ in others]
        if number in numbers:
            break
    else:
        return _runs_of(history, [number], which.digests or (), f"run {number} of {history.name}")
    values = [value for _, value in others]
    level = level_around(values, numbers.index(number), MOST_RUNS)
    name = f"{run.branch or 'no branch'} around run {number} in {history.name}"
    return _runs_of(history, [numbers[place] for place in level], (run.digest,), name)


def _runs_of(
    history: Runs, numbers: Sequence[int], digests: Sequence[str], name: str, notes: tuple[Note, ...] = ()
) -> BaselineRuns:
    """Return stored runs as a baseline, with the noise of other runs if they are few."""
    cards = history.cards(numbers)
    if history.damaged:
        notes += (Note("damaged_runs", f"skipped in {history.name}: {history.damage()}"),)
    if not cards:
        text = f"no run of {name} can be read"
        return BaselineRuns(name=name, missing=Note("no_baseline", text), notes=notes)
    pooled = None
    if len(cards) < LEAST_RUNS:  # too few to estimate their own noise: use runs with other fingerprints
        own = set(digests)
        others = [digest for digest in history.fingerprints() if digest not in own][-_OTHERS:]
        selections = [Selection(digests=(digest,), limit=MOST_RUNS) for digest in others]
        series_of_others = (history.series("step_time_ms", selection) for selection in selections)
        pooled = pooled_noise([[value for _, value in values] for values in series_of_others])
    return BaselineRuns(
        runs=tuple(Baseline.of(earlier, f"run {number}") for number, earlier in cards.items()),
        name=f"{len(cards)} run{'s' if len(cards) != 1 else ''} of {name}",
        notes=notes,
        pooled_noise=pooled,
    )


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
