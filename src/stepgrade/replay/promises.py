"""What a fix is worth: the replay's answer to the change that it makes, else what the ledger holds.

A finding and the bottleneck ask the same questions in the same way, and so agree. numpy is needed only where
there is something to replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from stepgrade.errors import NotMeasured
from stepgrade.model.ledger import ACCOUNTS, Ledger
from stepgrade.model.profile import Profile
from stepgrade.model.scorecard import GainBasis
from stepgrade.units import show_ms

if TYPE_CHECKING:
    from stepgrade.replay.replayer import AssumedChange
    from stepgrade.replay.run import ReplayedRun

_WAITS = frozenset({"communication", "copies", "input"})  # all of it can be hidden or avoided
_REMOVED = frozenset({"sync", "stragglers"})  # cannot be made faster, only removed
_HOST = frozenset({"host", "stalls", "dispatch"})
_MOST_EDGES = 200_000  # of a step that is replayed for a scorecard: a second for each question
_ALL = 0.98  # of a part: fixing more than this removes it
_LEAST_GAIN = 0.005
_WORDS = {"host": "the host", "input": "input", "sync": "waiting for the device"}


class Promise(NamedTuple):
    """What a fix gains, as shares of the step: realistically, and at most."""

    low: float
    high: float
    by: GainBasis
    changes: tuple[AssumedChange, ...] = ()  # of the ideal fix
    realistic: tuple[AssumedChange, ...] = ()
    held: float = 0.0  # what the ledger holds of it
    accounts: frozenset[str] = frozenset()
    next_limit: str | None = None


class Promises:
    """The promises of one run; its steps are replayed when the first is asked for."""

    def __init__(
        self, profile: Profile, ledger: Ledger | None, step_ms: float | None, unexplained_share: float
    ) -> None:
        self._profile, self._ledger, self._step_ms = profile, ledger, step_ms
        self._unexplained_share = unexplained_share

    @cached_property
    def run(self) -> ReplayedRun | None:
        """Return the steps to replay; None without a timeline, or if it hides what they waited for."""
        steps = self._profile.steps_to_replay
        if not steps or not self._ledger or self._profile.ledger is None:
            return None
        # Where events are missing, the host seems to be at work in their place, and no other fix to gain.
        if (self._ledger.unattributed or 0.0) >= self._unexplained_share:
            return None
        if sum(step.edges for step in steps if step.number == steps[0].number) > _MOST_EDGES:
            return None
        from stepgrade.replay.run import ReplayedRun  # needs numpy

        with suppress(NotMeasured):
            return ReplayedRun(self._profile)
        return None

    def promise(
        self, accounts: Sequence[str], held: float, realistic: float = 1.0, change: str = ""
    ) -> Promise:
        """Return the gain of a fix that saves at most `held` of the step, out of these accounts.

        `change` names the parts that it changes, joined by +; by default those of the accounts.
        """
        by_ledger = Promise(realistic * held, held, "ledger", held=held, accounts=frozenset(accounts))
        parts = change.split("+") if change else [ACCOUNTS[account].part or "" for account in accounts]
        if self.run is None or not all(parts) or held <= 0.0:
            return by_ledger
        taken = {part: share for part in parts if (share := self.run.share_of(part)) is not None}
        if taken.keys() - _WAITS - _REMOVED and self._longest(taken) < held:
            taken["compute"] = self.run.share_of("compute") or 0.0
        ideal, usual = (self._changes(taken, accounts, held * part) for part in (1.0, realistic))
        if not ideal or not usual:
            return by_ledger
        found = self.run.ask(ideal)
        high, low = found.most, self.run.ask(usual).expected
        if not taken.keys() <= _WAITS:
            high = min(high, held)
        if taken.keys() & _REMOVED:
            low = min(low, realistic * high)
        return Promise(
            low=min(low, high),
            high=high,
            by="replay",
            changes=ideal,
            realistic=usual,
            held=held,
            accounts=frozenset(accounts),
            next_limit=self._next_limit(ideal, high),
        )

    def together(self, promises: Sequence[Promise]) -> Promise:
        """Return what several fixes bring together: those of the same time count once."""
        if self.run is None or any(promise.by != "replay" for promise in promises):
            low, used = 0.0, frozenset[str]()
            for promise in sorted(promises, key=lambda promise: -promise.low):
                low += 0.0 if used & promise.accounts else promise.low
                used |= promise.accounts
            held = sum(getattr(self._ledger, account) or 0.0 for account in used) if self._ledger else 1.0
            high = min(sum(promise.high for promise in promises), held)
            return Promise(low, max(low, high, *(promise.high for promise in promises)), "ledger")
        ideal, usual = (
            # Of two changes of one part the faster.
            tuple(
                {
                    change.what: change
                    for change in sorted(
                        (one for promise in promises for one in getattr(promise, name)),
                        key=lambda change: change.speed,
                    )
                }.values()
            )
            for name in ("changes", "realistic")
        )
        most = sum(max(promise.held, promise.high) for promise in promises)
        high = max(min(self.run.ask(ideal).most, most), *(promise.high for promise in promises))
        low = max(min(self.run.ask(usual).expected, high), *(promise.low for promise in promises))
        return Promise(low, high, "replay", ideal, usual, most, next_limit=self._next_limit(ideal, high))

    def _changes(
        self, taken: Mapping[str, float], accounts: Sequence[str], saved: float
    ) -> tuple[AssumedChange, ...]:
        """Return the parts made so much faster that `saved` of the step goes."""
        from stepgrade.replay.replayer import AssumedChange

        whole = sum(getattr(self._ledger, account) or 0.0 for account in accounts)
        longest, found = self._longest(taken), []
        for part in taken:
            of = whole if part in _WAITS else longest
            if part in _REMOVED or saved >= _ALL * of:
                found.append(AssumedChange(what=part))
            elif (speed := round(of / (of - saved), 2)) > 1.0:
                found.append(AssumedChange(what=part, speed=speed))
        return tuple(found)

    def _longest(self, taken: Mapping[str, float]) -> float:
        """Return how much of a step the parts take, of those at work at once the longer."""
        on_host = sum(share for part, share in taken.items() if part in _HOST)
        on_device = sum(share for part, share in taken.items() if part not in {*_HOST, *_REMOVED})
        is_serial = self._profile.activity is not None and self._profile.activity.driver == "host"
        return on_host + on_device if is_serial else max(on_host, on_device)

    def _next_limit(self, changes: tuple[AssumedChange, ...], gain: float) -> str | None:
        """Return what holds the step then, and at how long."""
        if self.run is None or gain < _LEAST_GAIN or self._step_ms is None:
            return None
        limit = next(iter(self.run.limits(changes).parts_ns), None)
        if limit is None:
            return None
        return f"{_WORDS.get(limit, limit)} holds it at {show_ms(self._step_ms * (1.0 - gain))}"
