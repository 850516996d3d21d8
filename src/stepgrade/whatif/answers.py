"""How long a step would take after a change: its graph, replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

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
    step: int
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
    ranks, graphs = list[RankProfile](), list[StepGraph]()
    for trace in traces_given(run):
        timeline = build_timeline(trace)
        pieces = find_pieces(timeline)
        ranks.append(analyse_timeline(timeline, pieces))
        number = graphs[0].number if graphs else _typical_step(timeline)
        if not graphs or number in timeline.steps.number:  # another recording of a rank may lack the step
            graphs.append(graph_of_rank(timeline, pieces, ranks[-1].arrivals, number))
    profile = merge_ranks(join_recordings(ranks))
    card = score(profile, setup=setup, tokens_per_step=tokens_per_step, work=work)
    return _Question(join_ranks(graphs), card).answer(changes)


def _typical_step(timeline: Timeline) -> int:
    """Return the number of the steady step nearest to the median, on the device and on the host."""
    steady = np.flatnonzero(timeline.windows.steady & (timeline.windows.dur_ns > 0))
    if not len(steady):
        raise NotMeasured("no steady step to replay", where=timeline.trace.file)
    steps = timeline.steps
    off = np.zeros(len(steady))
    for dur_ns in (timeline.windows.dur_ns[steady], (steps.end_ns - steps.start_ns)[steady]):
        off += np.abs(dur_ns / max(float(np.median(dur_ns)), 1.0) - 1.0)
    return int(steps.number[steady[off.argmin()]])


class _Question:
    """A step that is ready for questions; its replay reproduces the measured time."""

    def __init__(self, graph: StepGraph, card: Scorecard) -> None:
        self.graph, self.card = graph, card
        self.replayer = Replayer(graph)
        self.seen = graph.edges.kind != Edge.ORDER
        self.all = np.ones(len(self.seen), np.bool_)
        self.as_seen = self.replayer.replay(graph.edges.lag_ns, self.seen)
        self.in_order = self.replayer.replay(graph.edges.lag_ns, self.all)
        replayed, measured = self.as_seen.step_ns, graph.measured_ns
        self.off = max(abs(replay.step_ns / measured - 1.0) for replay in (self.as_seen, self.in_order))
        if self.off > _MOST_OFF:
            raise NotMeasured(
                f"step {graph.number} took {show_ms(measured / NS_PER_MS)}, and its replay "
                f"{show_ms(replayed / NS_PER_MS)}: the trace does not show everything it waited for",
                where=", ".join(card.source.files[:3]),
                hint="record more steps, and the host's calls",
            )

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
            ranks=graph.ranks,
            step_ms=graph.measured_ns / NS_PER_MS,
            replayed_ms=self.as_seen.step_ns / NS_PER_MS,
            throughput_tok_s=card.throughput_tok_s,
            mfu=card.mfu,
            efficiency=card.efficiency,
            grade=None if card.grade == UNGRADED else card.grade,
            bound=_parts(self.as_seen),
            answers=tuple(answers),
            notes=tuple(self._notes(changes)),
        )

    def _with(self, changes: tuple[AssumedChange, ...]) -> ChangedStep:
        graph, card = self.graph, self.card
        changed = apply(graph, changes)
        as_seen = self.replayer.replay(changed.lag_ns, changed.kept & self.seen)
        in_order = self.replayer.replay(changed.lag_ns, changed.kept)
        shares = as_seen.step_ns / self.as_seen.step_ns, in_order.step_ns / self.in_order.step_ns
        # Without recorded stream waits, promise no more than is certain.
        share = shares[0] if graph.knows_waits else max(shares)
        step_ms = graph.measured_ns / NS_PER_MS
        widened = self.off * abs(1.0 - share)
        grown = 1.0 / share if share > 0.0 else None
        efficiency = None
        if card.efficiency is not None and grown is not None and not changed.does_less:
            efficiency = card.efficiency * grown
        has_grade = efficiency is not None and efficiency <= 1.0 and card.grade != UNGRADED
        return ChangedStep(
            changes=tuple(map(str, changes)),
            affected_ms=changed.affected_ns / NS_PER_MS,
            step_ms=step_ms * share,
            low_ms=step_ms * max(min(shares) - widened, 0.0),
            high_ms=step_ms * (max(shares) + widened),
            gain=1.0 - share,
            throughput_tok_s=card.throughput_tok_s * grown if card.throughput_tok_s and grown else None,
            mfu=card.mfu * grown if card.mfu is not None and grown and not changed.does_less else None,
            efficiency=efficiency,
            grade=str(Grade.from_efficiency(efficiency)) if efficiency is not None and has_grade else None,
            bound=_parts(as_seen if graph.knows_waits else in_order),
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
        return found

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
        if self.off > _NEGLIGIBLE_OFF:
            text = f"The replay of the unchanged step is {show_share(self.off)} off the measured time."
            yield Note("replay_off", text)


def _parts(replay: ReplayedStep) -> tuple[StepPart, ...]:
    return tuple(
        StepPart(what=what, ms=ns / NS_PER_MS, share=ns / replay.step_ns)
        for what, ns in list(replay.parts_ns.items())[:_PARTS]
        if replay.step_ns > 0
    )
