"""The facts of a run of several ranks: its step time is that of the slowest chain, and who holds it up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from stepgrade.model.events import Trace
from stepgrade.model.notes import Note
from stepgrade.statistics import median
from stepgrade.trace.collectives import Meetings, meet
from stepgrade.trace.facts import LedgerFacts, TraceFacts, add_ledgers, analyse_trace
from stepgrade.trace.windows import StepMark
from stepgrade.units import show_ms, show_share

OWN_TROUBLE_SHARE = 0.02


class RankFacts(Struct, frozen=True, kw_only=True):
    """One rank over the steps that all ranks have."""

    rank: int
    step_ns: int  # mean
    wait_ns: int | None  # a step, in collectives before the last rank arrived; None if not known
    ledger: LedgerFacts | None


class RunFacts(Struct, frozen=True, kw_only=True):
    """A run: every rank's facts, and what only all of them together tell."""

    traces: tuple[TraceFacts, ...]
    world_size: int | None
    step_numbers: tuple[int, ...]  # steady on all ranks
    step_ns: tuple[int, ...]  # of the slowest chain, one for each of these steps
    ledger: LedgerFacts | None  # of all ranks added up
    ranks: tuple[RankFacts, ...]
    meetings: Meetings | None
    fitness: tuple[Note, ...]
    notes: tuple[Note, ...]


def analyse_run(traces: Iterable[Trace]) -> RunFacts:
    """Return the facts of a run; traces are taken one by one and not kept."""
    return join_ranks([*map(analyse_trace, traces)])  # a loop would keep one while the next is read


def join_ranks(facts: Sequence[TraceFacts]) -> RunFacts:
    """Return the facts of the run whose ranks these are; one without a number gets the lowest free one."""
    ranked = _ranked(facts)
    steps = _common_steps(list(ranked.values()))
    total_ns = max((sum(_durations(one, steps)) for one in ranked.values()), default=0)
    known = {rank: one.arrivals for rank, one in ranked.items()} if _share_a_clock(facts) else {}
    meetings = meet(known, set(steps), total_ns)
    ledgers = [one for one in (_ledger_of(fact, steps) for fact in ranked.values()) if one]
    return RunFacts(
        traces=tuple(ranked.values()),
        world_size=next((one.world_size for one in facts if one.world_size), None),
        step_numbers=steps,
        step_ns=_slowest_chain(ranked, steps, meetings),
        ledger=add_ledgers(ledgers) if ledgers else None,
        ranks=tuple(_rank(rank, one, steps, meetings) for rank, one in ranked.items()),
        meetings=meetings,
        fitness=tuple(_fitness(ranked, steps)),
        notes=tuple(_notes(ranked, meetings)),
    )


def _share_a_clock(facts: Sequence[TraceFacts]) -> bool:
    """Tell whether the ranks' times can be compared: epochs are known, or one merged file holds all."""
    unknown = [one.base_ns is None for one in facts]
    return not any(unknown) or (all(unknown) and len({one.file for one in facts}) == 1)


def _ranked(facts: Sequence[TraceFacts]) -> dict[int, TraceFacts]:
    """Return the facts by rank; ranks without a number get the lowest free ones, double ones their place."""
    held = [one.rank for one in facts if one.rank is not None]
    if len(set(held)) < len(held):
        return dict(enumerate(facts))
    free = (number for number in range(len(facts)) if number not in held)
    return dict(sorted({next(free) if one.rank is None else one.rank: one for one in facts}.items()))


def _common_steps(facts: Sequence[TraceFacts]) -> tuple[int, ...]:
    """Return the numbers of the steps that are steady on all ranks."""
    steady = [{step.number for step in one.steps if step.mark == StepMark.STEADY} for one in facts]
    return tuple(sorted(set.intersection(*steady))) if steady else ()


def _ledger_of(fact: TraceFacts, steps: tuple[int, ...]) -> LedgerFacts | None:
    if not fact.step_ledgers:
        return None
    rows = zip(fact.steps, fact.step_ledgers, strict=True)
    return add_ledgers(ledger for step, ledger in rows if step.number in steps)


def _durations(fact: TraceFacts, steps: tuple[int, ...]) -> list[int]:
    by_number = {step.number: step.dur_ns for step in fact.steps}
    return [by_number[number] for number in steps]


def _slowest_chain(
    ranked: dict[int, TraceFacts], steps: tuple[int, ...], meetings: Meetings | None
) -> tuple[int, ...]:
    """Return how long each step took the run.

    A step has begun when the last rank has begun it: from there to where the last rank begins the next one.
    Ranks whose clocks cannot be compared give the longest of their own times instead.
    """
    if meetings is None:
        return tuple(
            max(row) for row in zip(*(_durations(one, steps) for one in ranked.values()), strict=True)
        )
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for rank, one in ranked.items():
        shift = (one.base_ns or 0) - meetings.clock_offsets_ns.get(rank, 0)
        for step in one.steps:
            begin = step.start_ns + shift
            begins[step.number] = max(begins.get(step.number, begin), begin)
            ends[step.number] = max(ends.get(step.number, begin), begin + step.dur_ns)
    return tuple(ends[number] - begins[number] for number in steps)


def _rank(rank: int, fact: TraceFacts, steps: tuple[int, ...], meetings: Meetings | None) -> RankFacts:
    count = max(len(steps), 1)
    waits = {one.rank: one.wait_ns for one in meetings.ranks} if meetings else {}
    return RankFacts(
        rank=rank,
        step_ns=sum(_durations(fact, steps)) // count,
        wait_ns=waits[rank] // count if rank in waits else None,
        ledger=_ledger_of(fact, steps),
    )


def _fitness(ranked: dict[int, TraceFacts], steps: tuple[int, ...]) -> Iterable[Note]:
    facts = list(ranked.values())
    world = next((one.world_size for one in facts if one.world_size), None)
    if world and world > len(facts):
        text = f"{len(facts)} of {world} ranks were given: waiting can be seen, but not for whom."
        yield Note(code="ranks_missing", text=text)
    if len(facts) > 1 and not steps:
        text = "The ranks share no steady step: they were not recorded at the same time."
        yield Note(code="ranks_apart", text=text, fatal=True)
    yield from _started_apart(facts)


def _started_apart(facts: Sequence[TraceFacts]) -> Iterable[Note]:
    """Say that equal steps of the ranks lie more than a step apart."""
    known = [one for one in facts if one.base_ns is not None and one.steps]
    if len(known) < 2:
        return
    shared = set.intersection(*({step.number for step in one.steps} for one in known))
    if not shared:
        return
    first = min(shared)
    rows = [(one, next(step for step in one.steps if step.number == first)) for one in known]
    begins = [(one.base_ns or 0) + step.start_ns for one, step in rows]
    spread = max(begins) - min(begins)
    if spread > max(step.dur_ns for _, step in rows):
        text = (
            f"Step {first} begins {show_ms(spread / 1e6)} apart on the ranks: they were recorded at "
            "different times, or their clocks differ."
        )
        yield Note(code="started_apart", text=text)


def _notes(ranked: dict[int, TraceFacts], meetings: Meetings | None) -> Iterable[Note]:
    if any(one.rank is None for one in ranked.values()) and len(ranked) > 1:
        yield Note("ranks_unnamed", "Some traces name no rank: they are numbered in the order of the files.")
    if meetings and meetings.evidence and meetings.straggler is not None:
        yield Note("straggler", meetings.evidence)
        yield from _own_trouble(ranked, meetings.straggler)
    if meetings and meetings.clock_offsets_ns:
        shifts = ", ".join(
            f"rank {rank} by {show_ms(offset / 1e6)}" for rank, offset in meetings.clock_offsets_ns.items()
        )
        yield Note("clocks_corrected", f"Clocks were set right by the common ends of collectives: {shifts}.")


def _own_trouble(ranked: dict[int, TraceFacts], straggler: int) -> Iterable[Note]:
    """Say what the straggler's device does more of than the others' do: the likely reason."""
    own = ranked[straggler].ledger
    others = [one.ledger.shares() for rank, one in ranked.items() if rank != straggler and one.ledger]
    if own is None or not others:
        return
    excess = {
        name: share - median(other[name] for other in others)
        for name, share in own.shares().items()
        if name != "exposed_communication"
    }
    name = max(excess, key=lambda one: excess[one])
    if excess[name] > OWN_TROUBLE_SHARE:
        share = own.shares()[name]
        text = (
            f"Rank {straggler} spends {show_share(share)} of its time in {name}, "
            f"the others {show_share(share - excess[name])}."
        )
        yield Note("straggler_account", text)
