"""What would a step take if something were different: its graph replayed with a change."""

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
from stepgrade.ranks.ranks import RankProfile, merge_ranks
from stepgrade.ranks.recordings import join_recordings
from stepgrade.readers.source import PathLike
from stepgrade.timeline.pieces import find_pieces
from stepgrade.timeline.timeline import Timeline, build_timeline
from stepgrade.trace.profile import analyse_timeline
from stepgrade.units import NS_PER_MS, show_ms, show_share
from stepgrade.whatif.changes import (
    COMMUNICATION,
    LAUNCHES,
    LINK,
    SYNC,
    AssumedChange,
    apply,
    longest_operations,
)
from stepgrade.whatif.graph import Edge, StepGraph, graph_of_rank, join_ranks
from stepgrade.whatif.replay import ReplayedStep, Replayer

MOST_OFF = 0.05  # of the measured step: a replay that is further off answers nothing
WORTH_TRYING = 0.01  # of the step, for a change that nobody asked for
_OPERATIONS_TRIED = 4
_PARTS = 4
_STILL = 0.001  # of the step: not worth a word


class StepPart(Struct, frozen=True, kw_only=True):
    """What the time of a step goes into, along the longest chain of what waited for what."""

    what: str
    ms: float
    share: float


class ChangedStep(Struct, frozen=True, kw_only=True):
    """The step with a change."""

    changes: tuple[str, ...]  # all of them at once
    affected_ms: float  # what the changed parts took before, hidden or not
    step_ms: float
    low_ms: float
    high_ms: float
    gain: float  # share of the step's time that is saved
    throughput_tok_s: float | None
    mfu: float | None
    efficiency: float | None
    grade: str | None  # None where the run has none, or where the change leaves arithmetic out
    bound: tuple[StepPart, ...]  # what keeps the step from being shorter still, longest first


class WhatIf(Result, frozen=True, kw_only=True):
    """A step as measured, and with changes."""

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
    """Return what a run's typical step would take with each of the changes, and with all of them.

    Without changes, promising ones are tried. Raise NotMeasured if the replay of the unchanged step does not
    take the measured time.
    """
    ranks, graphs = list[RankProfile](), list[StepGraph]()
    for trace in traces_given(run):
        timeline = build_timeline(trace)
        pieces = find_pieces(timeline)
        ranks.append(analyse_timeline(timeline, pieces))
        number = graphs[0].number if graphs else _typical_step(timeline)
        if not graphs or number in timeline.steps.number:  # another recording of the rank has other steps
            graphs.append(graph_of_rank(timeline, pieces, ranks[-1].arrivals, number))
    profile = merge_ranks(join_recordings(ranks))
    card = score(profile, setup=setup, tokens_per_step=tokens_per_step, work=work)
    return _Question(join_ranks(graphs), card).answer(changes)


def _typical_step(timeline: Timeline) -> int:
    """Return the number of the steady step that is nearest to the median, on the device and on the host."""
    steady = np.flatnonzero(timeline.windows.steady & (timeline.windows.dur_ns > 0))
    if not len(steady):
        raise NotMeasured("no steady step was found that could be replayed", where=timeline.trace.file)
    steps = timeline.steps
    off = np.zeros(len(steady))
    for dur_ns in (timeline.windows.dur_ns[steady], (steps.end_ns - steps.start_ns)[steady]):
        off += np.abs(dur_ns / max(float(np.median(dur_ns)), 1.0) - 1.0)
    return int(steps.number[steady[off.argmin()]])


class _Question:
    """A step that is ready to be asked about."""

    def __init__(self, graph: StepGraph, card: Scorecard) -> None:
        self.graph, self.card = graph, card
        self.replayer = Replayer(graph)
        self.seen = graph.edges.kind != Edge.ORDER
        self.all = np.ones(len(self.seen), np.bool_)
        self.as_seen = self.replayer.replay(graph.edges.lag_ns, self.seen)
        self.in_order = self.replayer.replay(graph.edges.lag_ns, self.all)
        replayed, measured = self.as_seen.step_ns, graph.measured_ns
        self.off = max(abs(one.step_ns / measured - 1.0) for one in (self.as_seen, self.in_order))
        if self.off > MOST_OFF:
            raise NotMeasured(
                f"step {graph.number} took {show_ms(measured / NS_PER_MS)}, and its replay "
                f"{show_ms(replayed / NS_PER_MS)}: what it waited for is not all in the trace",
                where=", ".join(card.source.files[:3]),
                hint="a trace with more steps, and with the host's calls, tells more",
            )

    def answer(self, changes: Sequence[AssumedChange]) -> WhatIf:
        """Return the step as it is, and with each change alone and all of them."""
        card, graph = self.card, self.graph
        if changes:
            asked: list[tuple[AssumedChange, ...]] = [(change,) for change in changes]
            asked += [tuple(changes)] if len(changes) > 1 else []
            answers = [self._with(some) for some in asked]
        else:
            tried = [self._with((change,)) for change in self._worth_trying()]
            answers = sorted((one for one in tried if one.gain >= WORTH_TRYING), key=lambda one: -one.gain)
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
        # Calls that tell which stream waits for which are believed; else no more is promised than is sure.
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
        """Return changes whose parts take at least some of the step."""
        graph, least = self.graph, WORTH_TRYING * self.graph.measured_ns
        tried = [AssumedChange(what=what) for what in (COMMUNICATION, "input", "sync")]
        tried += [AssumedChange(what=LAUNCHES, launches=0)]
        tried += [
            AssumedChange(what=label, speed=2.0) for label in longest_operations(graph, _OPERATIONS_TRIED)
        ]
        found = []
        for change in tried:
            with suppress(BadOption):  # the step has nothing of it
                if apply(graph, (change,)).affected_ns >= least or change.what == SYNC:
                    found.append(change)
        return found

    def _notes(self, changes: Sequence[AssumedChange]) -> Iterator[Note]:
        """Yield what the answers do not know."""
        graph = self.graph
        names = [change.what for change in changes]
        sends = graph.pieces.work_class == WorkClass.COMMUNICATION
        if sends.any() and graph.ranks == 1 and (not names or {COMMUNICATION, LINK} & {*names}):
            text = (
                "One rank does not tell how long a collective waited for others: all its time is taken for "
                "moving data."
            )
            yield Note("one_rank", text)
        if not graph.has_host:
            text = "No launches were recorded: what the host does is taken to stay as it is."
            yield Note("no_launches", text)
        if not graph.knows_waits:
            text = (
                "No call tells which stream waits for which: the step is told as if all of them kept their "
                "order; the range also holds that they keep only the waits that were seen."
            )
            yield Note("no_stream_waits", text)
        if self.off > _STILL:
            text = f"The replay of the unchanged step is {show_share(self.off)} off what was measured."
            yield Note("replay_off", text)


def _parts(replay: ReplayedStep) -> tuple[StepPart, ...]:
    return tuple(
        StepPart(what=what, ms=ns / NS_PER_MS, share=ns / replay.step_ns)
        for what, ns in list(replay.parts_ns.items())[:_PARTS]
        if replay.step_ns > 0
    )
