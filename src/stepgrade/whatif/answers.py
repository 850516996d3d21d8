"""How long a step would take after a change: its graph, replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct

from stepgrade.contract import Grade
from stepgrade.errors import BadOption
from stepgrade.grading import score
from stepgrade.hardware.setup import Setup
from stepgrade.loading import traces_given
from stepgrade.model import Note, Profile, Source
from stepgrade.model.events import Trace
from stepgrade.model.notes import Result
from stepgrade.model.profile import WorkKind
from stepgrade.model.scorecard import UNGRADED, Scorecard
from stepgrade.naming.work_class import WorkClass
from stepgrade.readers.source import PathLike
from stepgrade.replay.replayer import (
    COMMUNICATION,
    LAUNCHES,
    LINK,
    STRAGGLERS,
    SYNC,
    AssumedChange,
    ReplayedStep,
    apply,
    longest_operations,
)
from stepgrade.replay.run import ReplayedRun
from stepgrade.trace.profile import profile_of_traces
from stepgrade.units import NS_PER_MS, show_share

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
    run: PathLike | Iterable[Trace] | Profile,
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
    if isinstance(run, Profile):
        profile = run
    else:
        with traces_given(run) as traces:
            profile = profile_of_traces(traces)
    replayed = ReplayedRun(profile)
    card = score(profile, setup=setup, tokens_per_step=tokens_per_step, work=work)
    return _Question(replayed, card).answer(changes)


class _Question:
    """What is asked of a run's replay, and answered with the figures of its card."""

    def __init__(self, run: ReplayedRun, card: Scorecard) -> None:
        self.run, self.card, self.graph = run, card, run.graph

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
            steps_replayed=len(self.run.steps),
            ranks=graph.ranks,
            step_ms=graph.measured_ns / NS_PER_MS,
            replayed_ms=self.run.steps[0].as_seen.step_ns / NS_PER_MS,
            throughput_tok_s=card.throughput_tok_s,
            mfu=card.mfu,
            efficiency=card.efficiency,
            grade=None if card.grade == UNGRADED else card.grade,
            bound=_parts(self.run.limits(())),
            answers=tuple(answers),
            notes=tuple(self._notes(changes)),
        )

    def _with(self, changes: tuple[AssumedChange, ...]) -> ChangedStep:
        card, step_ms, found = self.card, self.graph.measured_ns / NS_PER_MS, self.run.ask(changes)
        share, does_less = found.share, found.does_less
        grown = 1.0 / share if share > 0.0 else None
        efficiency = None
        if card.efficiency is not None and grown is not None and not does_less:
            efficiency = card.efficiency * grown
        has_grade = efficiency is not None and efficiency <= 1.0 and card.grade != UNGRADED
        return ChangedStep(
            changes=tuple(map(str, changes)),
            affected_ms=found.affected_ms,
            step_ms=step_ms * share,
            low_ms=step_ms * found.low,
            high_ms=step_ms * found.high,
            gain=1.0 - share,
            throughput_tok_s=card.throughput_tok_s * grown if card.throughput_tok_s and grown else None,
            mfu=card.mfu * grown if card.mfu is not None and grown and not does_less else None,
            efficiency=efficiency,
            grade=str(Grade.from_efficiency(efficiency)) if efficiency is not None and has_grade else None,
            bound=_parts(self.run.limits(changes)),
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
        off = max(step.off for step in self.run.steps)
        if off > _NEGLIGIBLE_OFF:
            text = f"The replay of the unchanged step is up to {show_share(off)} off the measured time."
            yield Note("replay_off", text)
        if self.run.left_out:
            every = self.run.left_out + len(self.run.steps)
            text = (
                f"Left out, of {every} steady steps: {self.run.left_out}, whose "
                "replay does not reproduce the measured time. The host ran ahead or fell behind in them."
            )
            yield Note("steps_left_out", text)


def _parts(replay: ReplayedStep) -> tuple[StepPart, ...]:
    return tuple(
        StepPart(what=what, ms=ns / NS_PER_MS, share=ns / replay.step_ns)
        for what, ns in list(replay.parts_ns.items())[:_PARTS]
        if replay.step_ns > 0
    )
