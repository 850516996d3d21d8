"""The facts of a trace and of a run of several ranks: what the scorecard is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from stepgrade.model.activity import Activity
from stepgrade.model.columns import distinct
from stepgrade.model.events import Longs, Trace
from stepgrade.model.notes import Note
from stepgrade.naming.torch_names import GRAPH_LAUNCH, named
from stepgrade.trace import intervals as iv
from stepgrade.trace.activity import watch
from stepgrade.trace.collectives import (
    Arrival,
    CollectiveFacts,
    arrivals,
    sum_collectives,
)
from stepgrade.trace.fitness import check_fitness
from stepgrade.trace.layers import LayersFacts, find_layers
from stepgrade.trace.ledger import ACCOUNTS, waiting_calls
from stepgrade.trace.operations import OperationFacts, sum_operations
from stepgrade.trace.phases import PhaseFacts, phase_of, sum_phases
from stepgrade.trace.pieces import Pieces, break_up
from stepgrade.trace.precision import matmul_dtype
from stepgrade.trace.steps import NOTES, steps_of
from stepgrade.trace.timeline import Driver, Timeline, lay_out
from stepgrade.trace.tokens import TokenFacts, count_tokens
from stepgrade.trace.windows import StepMark
from stepgrade.units import show_ms

NS_PER_MS = 1e6
MATMULS = {"gemm", "convolution", "attention"}


class StepFacts(Struct, frozen=True, kw_only=True):
    """One step: its time on the device, and what it was."""

    number: int
    start_ns: int
    dur_ns: int
    host_dur_ns: int
    mark: str  # steady, warm-up, flush, empty
    kind: int  # steps of one kind have the same amount of work
    end_known: bool  # False: the last step, whose end had to be told from its own work and its host


class LedgerFacts(Struct, frozen=True, kw_only=True):
    """Where time went, in ns; the seven accounts add up to `total_ns` exactly."""

    total_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_input_ns: int
    idle_host_ns: int
    idle_sync_ns: int
    unattributed_ns: int

    def shares(self) -> dict[str, float]:
        """Return each account as a share of the total; all zero for an empty one."""
        return {name: getattr(self, f"{name}_ns") / max(self.total_ns, 1) for name in ACCOUNTS}


class CallFacts(Struct, frozen=True, kw_only=True):
    """Calls of one name in which the host waited for the device, in totals over the steady steps."""

    name: str
    count: int
    total_ns: int


class LaunchFacts(Struct, frozen=True, kw_only=True):
    """What the host launched, in totals over the steady steps."""

    kernels: int
    launches: int  # calls; a graph launch is one
    graph_launches: int


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """The device that the facts are about, as far as the trace describes it."""

    index: int | None
    name: str | None
    memory_bytes: int | None
    sm_count: int | None
    capability: str | None
    visible: int  # devices the trace lists
    busy: int  # devices that did anything


class TraceFacts(Struct, frozen=True, kw_only=True):
    """Everything that one rank's trace tells about a step; totals are over the steady steps."""

    file: str
    rank: int | None
    world_size: int | None
    driver: str  # device, host, unseen
    base_ns: int | None
    file_zero_ns: int  # what the times of steps and operations count from, by the file's own clock
    basis: str  # what the steps were found from
    on_device: bool  # steps are timed on the device
    steps: tuple[StepFacts, ...]
    ledger: LedgerFacts | None
    step_ledgers: tuple[LedgerFacts, ...]  # one for each step
    dispatch_ns: int  # the part of idle_host in which the next work was already launched
    communication_ns: int  # with what compute hides
    phases: tuple[PhaseFacts, ...]
    operations: tuple[OperationFacts, ...]
    layers: LayersFacts
    collectives: tuple[CollectiveFacts, ...]
    arrivals: tuple[Arrival, ...]
    waits: tuple[CallFacts, ...]
    launches: LaunchFacts
    tokens: TokenFacts | None
    matmul_flops: int | None  # of matmuls, convolutions and attention whose sizes tell; None if none does
    matmul_dtype: str | None  # in which most of their time is spent
    matmul_known_share: float | None  # of the time of those operations, how much has its FLOPs known
    device: DeviceFacts
    activity: Activity
    fitness: tuple[Note, ...]
    notes: tuple[Note, ...]

    @property
    def steady_ns(self) -> tuple[int, ...]:
        """Return how long each steady step took."""
        return tuple(step.dur_ns for step in self.steps if step.mark == StepMark.STEADY)


def analyse_trace(trace: Trace) -> TraceFacts:
    """Return the facts of one rank's trace."""
    line = lay_out(trace)
    pieces = break_up(line)
    phase = phase_of(line, pieces)
    seen = line.driver is not Driver.UNSEEN
    operations = sum_operations(line, pieces) if seen else ()
    ledgers = _ledgers(line)
    layers = find_layers(line, pieces, phase)
    steps = _steps(line)
    collectives = sum_collectives(line, pieces)
    return TraceFacts(
        file=trace.file,
        rank=trace.rank,
        world_size=trace.world_size,
        driver=line.driver.value,
        base_ns=trace.base_ns,
        file_zero_ns=trace.file_zero_ns,
        basis=line.steps.basis.value,
        on_device=line.windows.on_device,
        steps=steps,
        ledger=_added(ledgers, steps),
        step_ledgers=ledgers,
        dispatch_ns=_within(line, "dispatch"),
        communication_ns=_within(line, "communication"),
        phases=sum_phases(line, pieces, phase) if seen else (),
        operations=operations,
        layers=layers,
        collectives=collectives,
        arrivals=arrivals(line, pieces),
        waits=_waits(line),
        launches=_launches(line, pieces),
        tokens=count_tokens(line),
        matmul_flops=_flops(operations),
        matmul_dtype=matmul_dtype(trace, pieces),
        matmul_known_share=_known_share(operations),
        device=_device(line),
        activity=watch(line, pieces, phase, collectives),
        fitness=check_fitness(line),
        notes=tuple(_notes(line, steps, layers)),
    )


def _steps(line: Timeline) -> tuple[StepFacts, ...]:
    windows, host = line.windows, line.steps
    columns = zip(
        host.number.tolist(),
        windows.start_ns.tolist(),
        windows.dur_ns.tolist(),
        (host.end_ns - host.start_ns).tolist(),
        windows.mark,
        windows.kind.tolist(),
        windows.end_known.tolist(),
        strict=True,
    )
    names = StepFacts.__struct_fields__
    return tuple(StepFacts(**dict(zip(names, row, strict=True))) for row in columns)


def _ledgers(line: Timeline) -> tuple[LedgerFacts, ...]:
    if line.ledger is None:
        return ()
    accounts = line.ledger.within(line.windows.start_ns, line.windows.end_ns)
    columns = [line.windows.dur_ns.tolist(), *(accounts[name].tolist() for name in ACCOUNTS)]
    names = LedgerFacts.__struct_fields__
    return tuple(LedgerFacts(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))


def _added(ledgers: Sequence[LedgerFacts], steps: Sequence[StepFacts]) -> LedgerFacts | None:
    """Return the ledgers of the steady steps added up."""
    if not ledgers:
        return None
    steady = [one for one, step in zip(ledgers, steps, strict=True) if step.mark == StepMark.STEADY]
    return add_ledgers(steady)


def add_ledgers(ledgers: Iterable[LedgerFacts]) -> LedgerFacts:
    """Return the sum of ledgers, account by account."""
    rows = list(ledgers)
    return LedgerFacts(
        **{name: sum(getattr(one, name) for one in rows) for name in LedgerFacts.__struct_fields__}
    )


def _within(line: Timeline, account: str) -> int:
    if line.ledger is None:
        return 0
    return int(_steady_sum(line, getattr(line.ledger, account)))


def _steady_sum(line: Timeline, spans: iv.Spans) -> int:
    steady = line.windows.steady
    return int(iv.covered_within(spans, line.windows.start_ns[steady], line.windows.end_ns[steady]).sum())


def _waits(line: Timeline) -> tuple[CallFacts, ...]:
    """Return the calls in which the host waited during the steady steps, longest first."""
    calls = line.trace.calls
    chosen = waiting_calls(line.trace, line.links, line.steps)
    chosen &= _in_steady(line, calls.start_ns)
    names = calls.name[chosen]
    count = np.bincount(names, minlength=1)
    total = np.bincount(names, weights=calls.dur_ns[chosen], minlength=1).astype(np.int64)
    found = [
        CallFacts(name=line.trace.strings[name], count=int(count[name]), total_ns=int(total[name]))
        for name in np.flatnonzero(count).tolist()
    ]
    return tuple(sorted(found, key=lambda one: (-one.total_ns, one.name)))


def _in_steady(line: Timeline, times: Longs) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    steady = np.append(line.windows.steady, [False, False])
    step = steps_of(times, line.steps)
    return steady[np.where(step >= 0, step, len(steady) - 1)]


def _launches(line: Timeline, pieces: Pieces) -> LaunchFacts:
    if line.driver is not Driver.DEVICE:
        return LaunchFacts(kernels=0, launches=0, graph_launches=0)
    work = pieces.work[pieces.steady]
    calls = distinct(line.links.call[work])
    calls = calls[calls >= 0]
    graphs = named(line.trace.strings, line.trace.calls.name[calls], GRAPH_LAUNCH)
    return LaunchFacts(kernels=len(work), launches=len(calls), graph_launches=int(graphs.sum()))


def _matmuls(operations: Sequence[OperationFacts]) -> list[OperationFacts]:
    return [one for one in operations if one.work_class in MATMULS]


def _flops(operations: Sequence[OperationFacts]) -> int | None:
    known = [one.costed_flops for one in _matmuls(operations) if one.costed_flops]
    return sum(known) if known else None


def _known_share(operations: Sequence[OperationFacts]) -> float | None:
    total = sum(one.total_ns for one in _matmuls(operations))
    return sum(one.costed_ns for one in _matmuls(operations)) / total if total else None


def _device(line: Timeline) -> DeviceFacts:
    """Describe the device; ROCm numbers agents, not devices, so all being alike is as good as a match."""
    listed = line.trace.devices
    match = next((one for one in listed if one.index == line.device), None)
    if match is None and listed and len({one.name for one in listed}) == 1:
        match = listed[0]
    return DeviceFacts(
        index=line.device,
        name=match.name if match else None,
        memory_bytes=match.memory_bytes if match else None,
        sm_count=match.sm_count if match else None,
        capability=match.capability if match else None,
        visible=len(listed),
        busy=len(distinct(line.trace.work.device)),
    )


def _notes(line: Timeline, steps: Sequence[StepFacts], layers: LayersFacts) -> Iterable[Note]:
    if line.steps.basis in NOTES:
        yield Note("steps_basis", NOTES[line.steps.basis])
    yield from _left_out(steps)
    yield from _kind_notes(steps)
    if layers.note:
        yield Note("layers_basis" if layers.layers else "no_layers", layers.note)
    if layers.recompute_ns:
        per_step = layers.recompute_ns / NS_PER_MS / max(1, sum(s.mark == StepMark.STEADY for s in steps))
        yield Note(
            "recompute", f"{show_ms(per_step)} a step are forward work done again in the backward pass."
        )
    if len(distinct(line.trace.work.device)) > 1:
        text = f"The trace holds several devices; the ledger is that of device {line.device}, the busiest."
        yield Note("several_devices", text)


def _left_out(steps: Sequence[StepFacts]) -> Iterable[Note]:
    """Say which steps do not stand for the run, and how long they took."""
    steady = [step.dur_ns for step in steps if step.mark == StepMark.STEADY]
    for mark, place in ((StepMark.WARM_UP, "first"), (StepMark.FLUSH, "last")):
        odd = [step.dur_ns for step in steps if step.mark == mark]
        if odd and steady:
            theirs, usual = float(np.median(odd)), float(np.median(steady))
            reason = mark if theirs > usual else "start-up"
            times = f"{show_ms(theirs / NS_PER_MS)}, the others {show_ms(usual / NS_PER_MS)}"
            text = f"The {place} {len(odd)} of {len(steps)} steps are left out as {reason}: {times}."
            yield Note(f"{place}_steps_left_out", text)


def _kind_notes(steps: Sequence[StepFacts]) -> Iterable[Note]:
    """Say that steps are of several kinds, if more than one kind comes back."""
    kinds: dict[int, list[int]] = {}
    for step in steps:
        if step.mark == StepMark.STEADY:
            kinds.setdefault(step.kind, []).append(step.dur_ns)
    if sum(len(members) > 1 for members in kinds.values()) > 1:
        times = " and ".join(
            show_ms(float(np.median(members)) / NS_PER_MS) for _, members in sorted(kinds.items())
        )
        yield Note(
            "kinds_of_steps", f"Steps are of {len(kinds)} kinds with different amounts of work: {times}."
        )
