"""Baseline runs from the history: those of a branch since its level last changed."""

from __future__ import annotations

from msgspec import Struct, structs

from stepgrade.compare.change_points import last_level
from stepgrade.compare.effect import MOST_RUNS
from stepgrade.compare.fingerprint import differences
from stepgrade.compare.noise import LEAST_RUNS, pooled_noise
from stepgrade.errors import BadOption, NoHistory, Unreachable
from stepgrade.model import Baseline, Fingerprint, Note
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.history import open_history
from stepgrade.store.runs import Runs, Selection

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
    pooled_noise: float | None = None  # noise between runs with other fingerprints


def branch_of(text: str) -> str:
    """Return the branch in `history:BRANCH`; raise BadOption for anything else."""
    text = text.encode("utf-8", "backslashreplace").decode()  # a branch name may not be valid UTF-8
    branch = text.removeprefix(_PREFIX)
    if not text.startswith(_PREFIX) or not branch:
        raise BadOption(f"{text!r} is not a baseline", field="against", hint="write it like history:main")
    return branch


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
    branch = branch_of(against)
    try:
        with open_history(history, create=False, max_memory=max_memory) as store:
            return runs_of_branch(store, card, branch, allowed, machine)
    except Unreachable as error:
        text = f"{error.where} {error.problem}: nothing to compare with"
        return BaselineRuns(name=f"{branch} in {error.where}", missing=Note("no_baseline", text))
    except NoHistory as error:
        # The first run of a project: its history does not exist yet.
        text = f"no history at {error.where} yet: nothing to compare with"
        return BaselineRuns(name=f"{branch} in {error.where}", missing=Note("no_baseline", text))


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
        missing, differing = _why_none(history, fingerprint, branch)
        if machine and kinds:
            text = f"no run of branch {branch} has the machine {machine}, only {', '.join(sorted(kinds))}"
            missing, differing = Note("no_baseline", text), ()
        return BaselineRuns(name=name, missing=missing, differences=differing)
    level = series[last_level([value for _, value in series]) :][-MOST_RUNS:]
    cards = history.cards([number for number, _ in level])
    notes: tuple[Note, ...] = ()
    if len(level) < min(len(series), MOST_RUNS):
        text = f"the level of {branch} changed recently: only the {len(level)} runs since then are used"
        notes = (Note("level_changed", text),)
    if history.damaged:
        notes += (Note("damaged_runs", f"skipped in {history.name}: {history.damage()}"),)
    if not cards:
        text = f"no run of branch {branch} can be read"
        return BaselineRuns(name=name, missing=Note("no_baseline", text), notes=notes)
    return BaselineRuns(
        runs=tuple(Baseline.of(earlier, f"run {number}") for number, earlier in cards.items()),
        name=f"{len(cards)} run{'s' if len(cards) != 1 else ''} of {name}",
        notes=notes,
        # Too few runs to estimate their own noise.
        pooled_noise=_noise_elsewhere(history, which) if len(cards) < LEAST_RUNS else None,
    )


def _why_none(history: Runs, fingerprint: Fingerprint, branch: str) -> tuple[Note, tuple[Note, ...]]:
    """Return why a branch has no earlier run, and how its newest one differs."""
    newest = history.runs(Selection(branch=branch, limit=1))
    if not newest:
        return Note("no_baseline", f"no run of branch {branch} in the history"), ()
    differing = differences(fingerprint, history.fingerprints().get(newest[0].digest, Fingerprint()))
    if differing:
        text = f"no run of branch {branch} is comparable"
        return Note("no_baseline", text, supply="{allow_different} to compare anyway"), differing
    return Note("no_baseline", f"no run of branch {branch} has a step time or a throughput"), ()


def _noise_elsewhere(history: Runs, which: Selection) -> float | None:
    """Return the noise between runs of the same project with other fingerprints."""
    own = set(which.digests or ())
    others = [digest for digest in history.fingerprints() if digest not in own]
    return pooled_noise(
        [
            [
                value
                for _, value in history.series("step_time_ms", Selection(digests=(digest,), limit=MOST_RUNS))
            ]
            for digest in others[-_OTHERS:]
        ]
    )
