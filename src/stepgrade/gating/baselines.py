"""What a new run is held against: the runs of a branch at the level where it stands now."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.compare.changes import last_level
from stepgrade.compare.effect import MOST_RUNS
from stepgrade.compare.fingerprint import differences
from stepgrade.errors import BadOption
from stepgrade.model import Baseline, Fingerprint, Note
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.history import History, Selection

# Far enough back to see where the present level began.
_LOOK_BACK = 4 * MOST_RUNS
_PREFIX = "history:"


class Earlier(Struct, frozen=True, kw_only=True):
    """The earlier runs, and why there are none."""

    runs: tuple[Baseline, ...] = ()
    name: str = ""
    missing: str | None = None
    differences: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()


def branch_of(text: str) -> str:
    """Read `history:BRANCH`; raise BadOption for anything else."""
    branch = text.removeprefix(_PREFIX)
    if not text.startswith(_PREFIX) or not branch:
        raise BadOption(f"{text!r} is nothing to hold a run against", hint="write it like history:main")
    return branch


def earlier_runs(history: History, card: Scorecard, branch: str, allowed: frozenset[str]) -> Earlier:
    """Return the comparable runs of a branch since its level last changed, the newest ones."""
    mine = card.fingerprint or Fingerprint()
    which = Selection(branch=branch, digests=history.comparable(mine, allowed), limit=_LOOK_BACK)
    series = history.series("step_time_ms", which) or history.series("throughput_tok_s", which)
    name = f"{branch} in {history.name}"
    if not series:
        return _nothing(history, branch, mine, name)
    level = series[last_level([value for _, value in series]) :][-MOST_RUNS:]
    text = f"the level of {branch} changed lately: only the {len(level)} runs since then count"
    notes = (Note("level_changed", text),)
    runs = [Baseline.of(history.card(number), f"run {number}") for number, _ in level]
    return Earlier(
        runs=tuple(runs),
        name=f"{len(runs)} run{'s' if len(runs) != 1 else ''} of {name}",
        notes=notes if len(level) < min(len(series), MOST_RUNS) else (),
    )


def _nothing(history: History, branch: str, mine: Fingerprint, name: str) -> Earlier:
    """Return why there is nothing to compare with, and how the branch's newest run differs."""
    newest = history.runs(Selection(branch=branch, limit=1))
    if not newest:
        return Earlier(name=name, missing=f"history has no run of branch {branch}")
    theirs = history.fingerprints()[newest[0].digest]
    apart = differences(mine, theirs)
    missing = f"no run of branch {branch} is comparable (see --allow-different)"
    if not apart:
        missing = f"no run of branch {branch} has a step time or a throughput"
    return Earlier(name=name, missing=missing, differences=apart)
