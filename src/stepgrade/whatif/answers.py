"""How long a step would take after a change: its graph, replayed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from stepgrade.contract import Grade
from stepgrade.errors import BadOption, NotMeasured
from stepgrade.grading import score
from stepgrade.hardware.setup import Setup
from stepgrade.loading import traces_given
from stepgrade.model import Note, Source
from stepgrade.model.events import Trace
from stepgrade.model.notes import Result
from stepgrade.model.profile import WorkKind
from stepgrade.model.scorecard import UNGRADED, Scorecard
from stepgrade.naming.work_class import WorkClass
from stepgrade.ranks.packed_ranks import RankProfile
from stepgrade.ranks.ranks import join_recordings, merge_ranks
from stepgrade.readers.source import PathLike
from stepgrade.timeline.timeline import Timeline, build_timeline, find_pieces
from stepgrade.trace.profile import analyse_timeline
from stepgrade.units import NS_PER_MS, show_ms, show_share
from stepgrade.whatif.graph import Edge, StepGraph, graph_of_rank, join_ranks
from stepgrade.whatif.replay import (
    COMMUNICATION,
    LAUNCHES,
    LINK,
    STRAGGLERS,
    SYNC,
    AssumedChange,
    ReplayedStep,
    Replayer,
    apply,
    longest_operations,
)

_MOST_OFF = 0.05  # of the measured step: a replay that is further off gives no answer
_WORTH_TRYING = 0.01  # of the step, for a change that was not asked for
_OPERATIONS_TRIED = 4
_PARTS = 4
_MOST_STEPS = 8
_MOST_EDGES = 200_000  # of all replayed steps: a second for each question
_NEGLIGIBLE_OFF = 0.001  # of the measured step


class StepPart(Struct, frozen=True, kw_only=True):
    """A part of the critical path of a step."""

    what: str
    ms: float
    share: float


class ChangedStep(Struct, frozen=True, kw_only=True):
    """The step after a change."""

    changes: tuple[str, ...]  # applied together
    affected_ms: float  # time of the changed parts before, hidden or not
    step_ms: float
    low_ms: float
    high_ms: float
    gain: float  # saved share of the step time
    throughput_tok_s: float | None
    mfu: float | None
    efficiency: float | None
    grade: str | None  # None if the run has none, or if the change removes arithmetic
    bound: tuple[StepPart, ...]  # what limits the step now, longest first


class WhatIf(Result, frozen=True, kw_only=True):
    """A step as measured, and after changes."""

    NOTES = ("notes",)

    source: Source
    step: int  # the typical one of those replayed
    steps_replayed: int
    ranks: int
    step_ms: float
    replayed_ms: float
    throughput_tok_s: float | None
    mfu: float | None
    efficiency: float | None
    grade: str | None
    bound: tuple[StepPart, ...]
    answers: tuple[ChangedStep, ...]
    notes: tuple[Note, ...] = ()
    schema_version: int = 2


def what_if(
    run: PathLike | Iterable[Trace],
    changes: Sequence[AssumedChange] = (),
    *,
    setup: Setup | None = None,
    tokens_per_step: float | None = None,
    work: WorkKind | None = None,
) -> WhatIf:
    """Return how long a run's typical step would take with each of the changes, and with all of them.

    Without changes, promising ones are tried. Raise NotMeasured if the replay of the unchanged step does not
    match the measured time.
    """
    ranks, graphs = list[RankProfile](), dict[int, list[StepGraph]]()
    problem: NotMeasured | None = None
    with traces_given(run) as traces:
        for trace in traces:
            timeline = build_timeline(trace)
            pieces = find_pieces(timeline)
            is_first = not ranks
            ranks.append(analyse_timeline(timeline, pieces))
            for number in _typical_steps(timeline) if is_first else list(graphs):
                if not is_first and number not in timeline.steps.number:
                    continue  # another recording of a rank may lack the step
                try:
                    graph = graph_of_rank(timeline, pieces, ranks[-1].arrivals, number)
                except NotMeasured as error:
                    problem = error
                    graphs.pop(number, None)
                else:
                    graphs.setdefault(number, []).append(graph)
            if problem is not None and not graphs:
                raise problem
    profile = merge_ranks(join_recordings(ranks))
    card = score(profile, setup=setup, tokens_per_step=tokens_per_step, work=work)
    most = max(map(len, graphs.values()))
    return _Question([join_ranks(found) for found in graphs.values() if len(found) == most], card).answer(
        changes
    )


def _typical_steps(timeline: Timeline) -> list[int]:
    """Return the numbers of the steady steps nearest to the median, on the device and on the host."""
    steady = np.flatnonzero(timeline.windows.steady & (timeline.windows.dur_ns > 0))
    if not len(steady):
        raise NotMeasured("no steady step to replay", where=timeline.trace.file)
    steps = timeline.steps
    off = np.zeros(len(steady))
    for dur_ns in (timeline.windows.dur_ns[steady], (steps.end_ns - steps.start_ns)[steady]):
        off += np.abs(dur_ns / max(float(np.median(dur_ns)), 1.0) - 1.0)
    nearest = steady[np.argsort(off, kind="stable")[:_MOST_STEPS]]
    found: list[int] = steps.number[nearest].tolist()
    return found


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
        lag_ns, measured = graph.edges.lag_ns, graph.measured_ns
        as_seen = replayer.replay(lag_ns, graph.edges.kind != Edge.ORDER)
        in_order = replayer.replay(lag_ns, np.ones(len(lag_ns), np.bool_))
        off = max(abs(replay.step_ns / measured - 1.0) for replay in (as_seen, in_order))
        if off > _MOST_OFF:
            raise NotMeasured(
                f"step {graph.number} took {show_ms(measured / NS_PER_MS)}, and its replay "
                f"{show_ms(as_seen.step_ns / NS_PER_MS)}: the trace does not show everything it waited for",
                where=", ".join(files[:3]),
                hint="record more steps, and the host's calls",
            )
        return cls(graph, replayer, as_seen, in_order, off)

    def with_changes(self, changes: tuple[AssumedChange, ...]) -> _ChangedReplay:
        """Return the changed step; raise BadOption if it has nothing that a change applies to."""
        if not any(change.what == STRAGGLERS for change in changes):
            return _replayed(self.graph, self.replayer, changes)
        if any(change.what == STRAGGLERS and change.speed != math.inf for change in changes):
            raise BadOption("stragglers cannot be made faster, only removed", field="changes")
        if not self.graph.apart:
            hint = "pass the traces of all ranks"
            raise BadOption("one rank does not show whether others are late", field="changes", hint=hint)
        # Each rank at its own pace: all are then as fast as the median one.
        others = tuple(change for change in changes if change.what != STRAGGLERS)
        found = [_replayed(rank, Replayer(rank), others) for rank in self.graph.apart]
        found.sort(key=lambda rank: rank.as_seen.step_ns)
        median = found[len(found) // 2]
        return median._replace(affected_ns=median.affected_ns + self.graph.waiting_ns)


def _replayed(graph: StepGraph, replayer: Replayer, changes: tuple[AssumedChange, ...]) -> _ChangedReplay:
    changed = apply(graph, changes)
    seen = changed.kept & (graph.edges.kind != Edge.ORDER)
    return _ChangedReplay(
        replayer.replay(changed.lag_ns, seen),
        replayer.replay(changed.lag_ns, changed.kept),
        changed.affected_ns,
        changed.does_less,
    )


class _Question:
    """The steady steps of a run that can be replayed, the typical one first."""

    def __init__(self, graphs: Sequence[StepGraph], card: Scorecard) -> None:
        self.card, self.steps = card, list[_ReadyStep]()
        problem: NotMeasured | None = None
        self.left_out, edges = 0, 0
        for graph in graphs:
            edges += len(graph.edges.before)
            if self.steps and edges > _MOST_EDGES:
                break
            try:
                self.steps.append(_ReadyStep.of(graph, card.source.files))
            except NotMeasured as error:
                problem = problem or error
                self.left_out += 1
        if problem is not None and not self.steps:
            raise problem
        usual = float(np.median([step.graph.measured_ns for step in self.steps]))
        self.steps.sort(key=lambda step: abs(step.graph.measured_ns - usual))
        self.graph = self.steps[0].graph

    def answer(self, changes: Sequence[AssumedChange]) -> WhatIf:
        """Return the step as it is, with each change alone, and with all of them."""
        card, graph = self.card, self.graph
        answers = [self._with((change,)) for change in changes or self._worth_trying()]
        if not changes:
            answers = sorted(
                (step for step in answers if step.gain >= _WORTH_TRYING), key=lambda step: -step.gain
            )
        elif len(changes) > 1:
            answers.append(self._with(tuple(changes)))
        return WhatIf(
            source=card.source,
            step=graph.number,
            steps_replayed=len(self.steps),
            ranks=graph.ranks,
            step_ms=graph.measured_ns / NS_PER_MS,
            replayed_ms=self.steps[0].as_seen.step_ns / NS_PER_MS,
            throughput_tok_s=card.throughput_tok_s,
            mfu=card.mfu,
            efficiency=card.efficiency,
            grade=None if card.grade == UNGRADED else card.grade,
            bound=_parts(self.steps[0].as_seen),
            answers=tuple(answers),
            notes=tuple(self._notes(changes)),
        )

    def _with(self, changes: tuple[AssumedChange, ...]) -> ChangedStep:
        card, step_ms = self.card, self.graph.measured_ns / NS_PER_MS
        shares, low, high, bounds = list[float](), list[float](), list[float](), list[ReplayedStep]()
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
                # Without recorded stream waits, promise no more than is certain.
                bounds.append(as_seen if step.graph.knows_waits else in_order)
                affected_ns.append(changed.affected_ns)
                does_less |= changed.does_less
            share = both[0] if step.graph.knows_waits else max(both)
            widened = step.off * abs(1.0 - share)
            shares.append(share)
            low.append(min(both) - widened)
            high.append(max(both) + widened)
        if problem is not None and not bounds:
            raise problem
        share = float(np.average(shares, weights=[step.graph.measured_ns for step in self.steps]))
        grown = 1.0 / share if share > 0.0 else None
        efficiency = None
        if card.efficiency is not None and grown is not None and not does_less:
            efficiency = card.efficiency * grown
        has_grade = efficiency is not None and efficiency <= 1.0 and card.grade != UNGRADED
        return ChangedStep(
            changes=tuple(map(str, changes)),
            affected_ms=float(np.median(affected_ns)) / NS_PER_MS,
            step_ms=step_ms * share,
            low_ms=step_ms * max(min(low), 0.0),
            high_ms=step_ms * max(high),
            gain=1.0 - share,
            throughput_tok_s=card.throughput_tok_s * grown if card.throughput_tok_s and grown else None,
            mfu=card.mfu * grown if card.mfu is not None and grown and not does_less else None,
            efficiency=efficiency,
            grade=str(Grade.from_efficiency(efficiency)) if efficiency is not None and has_grade else None,
            bound=_parts(bounds[0]),
        )

    def _worth_trying(self) -> list[AssumedChange]:
        """Return changes of parts that take a noticeable share of the step."""
        longest = longest_operations(self.graph, _OPERATIONS_TRIED)
        tried = [AssumedChange(what=what) for what in (COMMUNICATION, "input", "sync")]
        tried += [AssumedChange(what=LAUNCHES, launches=0)]
        tried += [AssumedChange(what=label, speed=2.0) for label in longest]
        least, found = _WORTH_TRYING * self.graph.measured_ns, []
        for change in tried:
            with suppress(BadOption):  # the step has no such part
                if apply(self.graph, (change,)).affected_ns >= least or change.what == SYNC:
                    found.append(change)
        return [*found, AssumedChange(what=STRAGGLERS)] if self.graph.apart else found

    def _notes(self, changes: Sequence[AssumedChange]) -> Iterator[Note]:
        """Yield what the answers leave out."""
        graph = self.graph
        names = {change.what for change in changes}
        sends = graph.pieces.work_class == WorkClass.COMMUNICATION
        if sends.any() and graph.ranks == 1 and (not names or {COMMUNICATION, LINK} & names):
            text = (
                "One rank does not show how long a collective waited for others: all its time counts as "
                "moving data."
            )
            yield Note("one_rank", text)
        if not graph.has_host:
            text = "No launches were recorded: the host's work is assumed not to change."
            yield Note("no_launches", text)
        if not graph.knows_waits:
            text = (
                "No stream waits were recorded: the prediction assumes that all streams keep order, and "
                "the range includes that they keep only the waits that were observed."
            )
            yield Note("no_stream_waits", text)
        off = max(step.off for step in self.steps)
        if off > _NEGLIGIBLE_OFF:
            text = f"The replay of the unchanged step is up to {show_share(off)} off the measured time."
            yield Note("replay_off", text)
        if self.left_out:
            text = (
                f"Left out, of {self.left_out + len(self.steps)} steady steps: {self.left_out}, whose replay "
                "does not reproduce the measured time. The host ran ahead or fell behind in them."
            )
            yield Note("steps_left_out", text)


def _parts(replay: ReplayedStep) -> tuple[StepPart, ...]:
    return tuple(
        StepPart(what=what, ms=ns / NS_PER_MS, share=ns / replay.step_ns)
        for what, ns in list(replay.parts_ns.items())[:_PARTS]
        if replay.step_ns > 0
    )
