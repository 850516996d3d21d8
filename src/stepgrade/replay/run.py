"""The steps of a run that replay as they were measured, asked how long they would take after changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from stepgrade.errors import BadOption, NotMeasured
from stepgrade.model.columns import median
from stepgrade.model.profile import Profile
from stepgrade.replay.graph import Edge, StepGraph, join_ranks
from stepgrade.replay.packed import MOST_EDGES, unpack_graph
from stepgrade.replay.replayer import STRAGGLERS, AssumedChange, ReplayedStep, Replayer, apply
from stepgrade.units import NS_PER_MS, show_ms

# Of the gain that a replay gives, so much came at least where the change was then made: 0.73 to 0.94 on four
# pairs of runs (docs/accuracy.md). The rest goes to what a trace does not show: contention and other clocks.
REALISED = 0.7
_MOST_OFF = 0.05  # of the measured step: a replay that is further off gives no answer


class _ChangedReplay(NamedTuple):
    """A step with changes."""

    as_seen: ReplayedStep  # with the waits that were observed
    in_order: ReplayedStep  # all streams keep their order
    affected_ns: int  # time of the changed parts before, per rank
    does_less: bool  # matrix products were left out


class _ReadyStep(NamedTuple):
    """A step that is ready for questions: its replay reproduces the measured time."""

    graph: StepGraph
    replayer: Replayer
    as_seen: ReplayedStep  # with the waits that were observed
    in_order: ReplayedStep  # all streams keep their order
    off: float  # share of the measured time

    @classmethod
    def of(cls, graph: StepGraph, files: Sequence[str]) -> _ReadyStep:
        """Replay the unchanged step; raise NotMeasured if that does not reproduce it."""
        replayer = Replayer(graph)
        as_seen, in_order, _, _ = _replayed(graph, replayer, ())
        measured = graph.measured_ns
        off = max(abs(replay.step_ns / measured - 1.0) for replay in (as_seen, in_order))
        if off > _MOST_OFF:
            raise NotMeasured(
                f"step {graph.number} took {show_ms(measured / NS_PER_MS)}, and its replay "
                f"{show_ms(as_seen.step_ns / NS_PER_MS)}: the trace does not show everything it waited for",
                where=", ".join(files[:3]),
                hint="record more steps, and the host's calls",
            )
        return cls(graph, replayer, as_seen, in_order, off)

    def with_changes(self, changes: tuple[AssumedChange, ...], *, with_parts: bool = False) -> _ChangedReplay:
        """Return the changed step; raise BadOption if it has nothing that a change applies to."""
        if not any(change.what == STRAGGLERS for change in changes):
            return _replayed(self.graph, self.replayer, changes, with_parts=with_parts)
        if any(change.what == STRAGGLERS and change.speed != math.inf for change in changes):
            raise BadOption("stragglers cannot be made faster, only removed", field="changes")
        if not self.graph.apart:
            hint = "pass the traces of all ranks"
            raise BadOption("one rank does not show whether others are late", field="changes", hint=hint)
        # Each rank at its own pace: all are then as fast as the median one.
        others = tuple(change for change in changes if change.what != STRAGGLERS)
        apply(self.graph, others)  # refuses what no rank has
        found = []
        for rank in self.graph.apart:
            own = list[AssumedChange]()
            for change in others:
                with suppress(BadOption):  # not every rank has such a part
                    apply(rank, (change,))
                    own.append(change)
            found.append(_replayed(rank, Replayer(rank), tuple(own), with_parts=with_parts))
        found.sort(key=lambda rank: rank.as_seen.step_ns)
        median = found[len(found) // 2]
        return median._replace(affected_ns=median.affected_ns + self.graph.waiting_ns)


def _replayed(
    graph: StepGraph, replayer: Replayer, changes: tuple[AssumedChange, ...], *, with_parts: bool = False
) -> _ChangedReplay:
    changed, is_order = apply(graph, changes), graph.edges.kind == Edge.ORDER
    in_order = as_seen = replayer.replay(changed.lag_ns, changed.kept, with_parts=with_parts)
    if is_order.any():
        as_seen = replayer.replay(changed.lag_ns, changed.kept & ~is_order, with_parts=with_parts)
    return _ChangedReplay(as_seen, in_order, changed.affected_ns, changed.does_less)


class ReplayAnswer(NamedTuple):
    """A run's typical step after changes, as shares of the unchanged one."""

    share: float
    least: float  # the same if streams waited for no more than was observed
    low: float
    high: float
    affected_ms: float  # time of the changed parts before, hidden or not
    does_less: bool  # matrix products were left out

    @property
    def gain(self) -> float:
        """Return the saved share of the step, as far as it is certain."""
        return max(0.0, 1.0 - self.share)

    @property
    def expected(self) -> float:
        """Return the saved share of the step that such a change brought at least where it was made."""
        return REALISED * self.gain

    @property
    def most(self) -> float:
        """Return the saved share of the step at best."""
        return max(0.0, 1.0 - self.least)


class ReplayedRun:
    """The steady steps of a run that can be replayed, the typical one first."""

    def __init__(self, profile: Profile) -> None:
        """Join the steps that all ranks recorded; raise NotMeasured if none replays as it was measured."""
        by_number = dict[int, list[StepGraph]]()
        for step in profile.steps_to_replay:
            by_number.setdefault(step.number, []).append(unpack_graph(step.packed))
        if not by_number:
            why = next((f": {note.text}" for note in profile.unfit), "")
            where = ", ".join(profile.source.files[:3])
            raise NotMeasured(f"there is no steady step to replay{why.removesuffix('.')}", where=where)
        problem: NotMeasured | None = None
        self.steps, self.left_out, edges = list[_ReadyStep](), 0, 0
        for graphs in by_number.values():
            edges += sum(len(graph.edges.before) for graph in graphs)
            if self.steps and edges > MOST_EDGES:
                break
            try:
                self.steps.append(_ReadyStep.of(join_ranks(graphs), profile.source.files))
            except NotMeasured as error:
                problem = problem or error
                self.left_out += 1
        if problem is not None and not self.steps:
            raise problem
        usual = median(np.array([step.graph.measured_ns for step in self.steps]))
        self.steps.sort(key=lambda step: abs(step.graph.measured_ns - usual))
        self.graph = self.steps[0].graph
        self._known = dict[tuple[AssumedChange, ...], ReplayAnswer]()

    def ask(self, changes: tuple[AssumedChange, ...]) -> ReplayAnswer:
        """Return the typical step with all changes; raise BadOption if a change applies to nothing in it."""
        if changes in self._known:
            return self._known[changes]
        shares, least, low, high = list[float](), list[float](), list[float](), list[float]()
        affected_ns, does_less, problem = list[int](), False, None
        for step in self.steps:
            try:
                changed = step.with_changes(changes)
            except BadOption as error:  # not every step has such a part
                problem = problem or error
                both = 1.0, 1.0
            else:
                as_seen, in_order = changed.as_seen, changed.in_order
                both = as_seen.step_ns / step.as_seen.step_ns, in_order.step_ns / step.in_order.step_ns
                affected_ns.append(changed.affected_ns)
                does_less |= changed.does_less
            # Without recorded stream waits, promise no more than is certain.
            share = both[0] if step.graph.knows_waits else max(both)
            widened = step.off * abs(1.0 - share)
            shares.append(share)
            least.append(min(share, both[0]))
            low.append(min(both) - widened)
            high.append(max(both) + widened)
        if problem is not None and not affected_ns:
            raise problem
        weights = [step.graph.measured_ns for step in self.steps]
        share = float(np.average(shares, weights=weights))
        self._known[changes] = ReplayAnswer(
            share=share,
            least=float(np.average(least, weights=weights)),
            low=max(min(*low, share), 0.0),
            high=max(*high, share, 1.0 - REALISED * (1.0 - share)),
            affected_ms=median(np.asarray(affected_ns)) / NS_PER_MS,
            does_less=does_less,
        )
        return self._known[changes]

    def limits(self, changes: tuple[AssumedChange, ...]) -> ReplayedStep:
        """Return the typical step that the changes apply to, with the parts of its critical path."""
        problem: BadOption | None = None
        for step in self.steps:
            try:
                changed = step.with_changes(changes, with_parts=True)
            except BadOption as error:
                problem = problem or error
            else:
                return changed.as_seen if step.graph.knows_waits else changed.in_order
        raise problem or NotMeasured("there is no steady step to replay")

    def share_of(self, part: str) -> float | None:
        """Return how much of a step a part takes, hidden or not; None if no step has anything of it."""
        if part == STRAGGLERS:
            return self.graph.waiting_ns / self.graph.measured_ns if self.graph.apart else None
        found = []
        for step in self.steps:
            with suppress(BadOption):
                taken_ns = apply(step.graph, (AssumedChange(what=part),)).affected_ns
                found.append(taken_ns / step.graph.measured_ns)
        return median(np.array(found)) if found else None
