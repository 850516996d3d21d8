"""From the facts of a run to its Profile: what every format has, and the ledger and ranks on top."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from stepgrade.model import (
    DeviceSeen,
    LayerTime,
    LedgerTime,
    OpTime,
    PhaseTime,
    Profile,
    RankTime,
    Recorded,
    Source,
    Span,
)
from stepgrade.model.events import Trace
from stepgrade.model.notes import Note
from stepgrade.statistics import mean
from stepgrade.trace.facts import LedgerFacts, TraceFacts, analyse_trace
from stepgrade.trace.joined import join_activities
from stepgrade.trace.operations import OperationFacts
from stepgrade.trace.phases import PhaseFacts
from stepgrade.trace.run import RankFacts, RunFacts, join_ranks
from stepgrade.trace.windows import StepMark
from stepgrade.units import NS_PER_MS, show_count

FORMAT = "kineto"
PRODUCER = "torch.profiler"


def profile_of_traces(traces: Iterable[Trace]) -> Profile:
    """Analyse the ranks of one run, taken one by one and not kept, and sum them up."""
    seen: list[dict[str, str]] = []
    recorded: list[Recorded] = []
    lost: list[str] = []
    files: list[str] = []

    def facts_of(trace: Trace) -> TraceFacts:
        seen.append(_contents(trace))
        recorded.append(Recorded(versions=trace.versions, settings=tuple(sorted(trace.recorded))))
        lost.extend(trace.lost)
        files.append(trace.file)
        return analyse_trace(trace)

    run = join_ranks([*map(facts_of, traces)])  # a loop would keep one trace while the next is read
    profile = _profile(run, seen, tuple(dict.fromkeys(files)), tuple(dict.fromkeys(lost)))
    return structs.replace(profile, recorded=recorded[0] if recorded else None)


def _profile(
    run: RunFacts, seen: list[dict[str, str]], files: tuple[str, ...], lost: tuple[str, ...]
) -> Profile:
    facts = run.traces
    steps = len(run.step_ns)
    unfitness = [*run.fitness, *(note for fact in facts for note in fact.fitness)]
    tokens = next((fact.tokens for fact in facts if fact.tokens), None)
    return Profile(
        source=Source(format=FORMAT, files=files, producer=PRODUCER),
        steps=steps or None,
        recorded_steps=max((len(fact.steps) for fact in facts), default=None),
        mean_step_ms=sum(run.step_ns) / steps / NS_PER_MS if steps else None,
        samples_ms=tuple(ns / NS_PER_MS for ns in run.step_ns),
        phases=_phases(facts, steps),
        layers=_layers(facts, steps),
        operations=_operations(facts, steps, files),
        typical_step=_typical_step(facts, files),
        tokens_per_step=tokens.per_step if tokens else None,
        launches_per_step=_mean(facts, lambda fact: fact.launches.launches / _steady(fact)) or None,
        ledger=_ledger(run.ledger),
        ranks=tuple(_rank(rank) for rank in run.ranks) if len(run.ranks) > 1 else (),
        world_size=run.world_size,
        device=_device(facts),
        matmul_flops=_matmul_flops(facts, steps),
        matmul_known_share=min((fact.matmul_known_share or 0.0 for fact in facts), default=None),
        matmul_dtype=next((fact.matmul_dtype for fact in facts if fact.matmul_dtype), None),
        activity=join_activities(run),
        contents=_joined(seen, run),
        notes=_each_once([*run.notes, *(note for fact in facts for note in fact.notes)]),
        warnings=_each_once(
            [
                *(note for note in unfitness if note.fatal),
                *(Note("lost", f"lost in reading: {text}") for text in lost),
                *(note for note in unfitness if not note.fatal),
            ]
        ),
    )


def _steady(fact: TraceFacts) -> int:
    return max(1, len(fact.steady_ns))


def _mean(facts: Sequence[TraceFacts], figure: Callable[[TraceFacts], float]) -> float:
    return mean([figure(fact) for fact in facts]) if facts else 0.0


def _each_once(notes: list[Note]) -> tuple[Note, ...]:
    """Return the first note of each code, with how many more ranks have the same one."""
    first: dict[str, Note] = {}
    counts: dict[str, int] = {}
    for note in notes:
        first.setdefault(note.code, note)
        counts[note.code] = counts.get(note.code, 0) + 1
    return tuple(structs.replace(note, more_ranks=counts[code] - 1) for code, note in first.items())


def _typical_step(facts: Sequence[TraceFacts], files: tuple[str, ...]) -> Span | None:
    """Return where the steady step of middle length of the first rank is."""
    steady = [step for step in facts[0].steps if step.mark == StepMark.STEADY] if facts else []
    if not steady:
        return None
    middle = sorted(steady, key=lambda step: step.dur_ns)[len(steady) // 2]
    return _span(facts[0], files, middle.start_ns, middle.dur_ns)


def _span(fact: TraceFacts, files: tuple[str, ...], start_ns: int, dur_ns: int) -> Span:
    return Span(file=files.index(fact.file), start_ns=fact.file_zero_ns + start_ns, dur_ns=dur_ns)


def _phases(facts: Sequence[TraceFacts], steps: int) -> tuple[PhaseTime, ...]:
    """Return the phases' own time on the mean rank: where phases run at once, only one has the time."""
    per_step: dict[str, float] = {}
    for fact in facts:
        for phase in fact.phases:
            ms = phase.own_ns / _steady(fact) / len(facts) / NS_PER_MS
            per_step[phase.name] = per_step.get(phase.name, 0.0) + ms
    samples = _samples(facts, [fact.phases for fact in facts])
    return tuple(
        PhaseTime(name=name, total_ms=ms * steps, per_step_ms=ms, samples_ms=samples.get(name, ()))
        for name, ms in per_step.items()
    )


def _samples(
    facts: Sequence[TraceFacts], parts: Sequence[Sequence[PhaseFacts | OperationFacts]]
) -> dict[str, tuple[float, ...]]:
    """Return by name the time in each steady step on the mean rank; nothing when the ranks' steps differ."""
    counts = {len(fact.steady_ns) for fact in facts}
    if len(counts) != 1:
        return {}
    sums: dict[str, list[float]] = {}
    for part in (one for own in parts for one in own):
        row = sums.setdefault(part.name, [0.0] * max(counts))
        for place, ns in enumerate(part.step_ns):
            row[place] += ns / NS_PER_MS / len(facts)
    return {name: tuple(row) for name, row in sums.items()}


def _operations(facts: Sequence[TraceFacts], steps: int, files: tuple[str, ...]) -> tuple[OpTime, ...]:
    """Return the operations of the mean rank; work is known only where every rank and call tells it."""
    rows: dict[str, OpTime] = {}
    for fact in facts:
        scale = steps / _steady(fact) / len(facts)
        for op in fact.operations:
            before = rows.get(op.name)
            rows[op.name] = OpTime(
                name=op.name,
                total_ms=op.total_ns * scale / NS_PER_MS + (before.total_ms if before else 0.0),
                calls=op.calls * scale + (before.calls or 0.0 if before else 0.0),
                kind=op.work_class,
                flops=_added(op.flops, before, "flops", scale),
                bytes=_added(op.bytes, before, "bytes", scale),
                dtype=op.dtype,
                longest=_longer(
                    before.longest if before else None,
                    _span(fact, files, op.longest_start_ns, op.longest_ns),
                ),
            )
    samples = _samples(facts, [fact.operations for fact in facts])
    found = [structs.replace(op, samples_ms=samples.get(op.name, ())) for op in rows.values()]
    return tuple(sorted(found, key=lambda op: (-op.total_ms, op.name)))


def _longer(before: Span | None, span: Span) -> Span:
    return before if before is not None and before.dur_ns >= span.dur_ns else span


def _added(count: int | None, before: OpTime | None, name: str, scale: float) -> float | None:
    earlier = getattr(before, name) if before else 0.0
    return None if count is None or earlier is None else count * scale + earlier


def _layers(facts: Sequence[TraceFacts], steps: int) -> tuple[LayerTime, ...]:
    """Return the layers of the first rank that has them: ranks may hold different parts of a model."""
    fact = next((fact for fact in facts if fact.layers.layers), None)
    if fact is None:
        return ()
    scale = steps / _steady(fact) / NS_PER_MS
    return tuple(
        LayerTime(
            layer=layer.layer,
            name=layer.name,
            fwd_total_ms=layer.forward_ns * scale,
            bwd_total_ms=layer.backward_ns * scale,
            recompute_total_ms=layer.recompute_ns * scale,
            ops_total_ms={name: ns * scale for name, ns in layer.ops_ns.items()},
        )
        for layer in fact.layers.layers
    )


def _ledger(facts: LedgerFacts | None) -> LedgerTime | None:
    if facts is None or not facts.total_ns:
        return None
    return LedgerTime(**{name: getattr(facts, name) for name in LedgerTime.__struct_fields__})


def _rank(rank: RankFacts) -> RankTime:
    return RankTime(
        rank=rank.rank,
        mean_step_ms=rank.step_ns / NS_PER_MS,
        wait_ms=None if rank.wait_ns is None else rank.wait_ns / NS_PER_MS,
        ledger=_ledger(rank.ledger),
    )


def _device(facts: Sequence[TraceFacts]) -> DeviceSeen | None:
    # A trace lists the machine's accelerators even when the run did not use them.
    device = next((fact.device for fact in facts if fact.driver == "device" and fact.device.name), None)
    if device is None:
        return None
    return DeviceSeen(name=device.name, memory_bytes=device.memory_bytes, sm_count=device.sm_count)


def _matmul_flops(facts: Sequence[TraceFacts], steps: int) -> float | None:
    """Return the FLOPs of matmuls, convolutions and attention over all steps on the mean rank."""
    if not facts or any(fact.matmul_flops is None for fact in facts):
        return None
    return _mean(facts, lambda fact: (fact.matmul_flops or 0) / _steady(fact)) * steps


def _contents(trace: Trace) -> dict[str, str]:
    counts = sorted(trace.categories.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{show_count(count)} {name}" for name, count in counts[:5])
    return {
        "trace": trace.era,
        "events": listed,
        "recorded": ", ".join(sorted(trace.recorded)) or "neither shapes nor stacks",
        "devices": ", ".join(sorted({device.name or "unnamed" for device in trace.devices})),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(trace.versions.items())),
    }


def _joined(seen: list[dict[str, str]], run: RunFacts) -> dict[str, str]:
    """Return what the traces hold: each line once, and which ranks they are."""
    joined: dict[str, str] = {}
    for name in seen[0] if seen else ():
        texts = list(dict.fromkeys(one[name] for one in seen if one[name]))
        if texts:
            joined[name] = texts[0] if len(texts) == 1 else f"{texts[0]} (and others)"
    facts = run.traces
    if len(facts) > 1:
        joined["ranks"] = ", ".join(str(one.rank) for one in run.ranks)
    layers = next((fact.layers for fact in facts if fact.layers.basis), None)
    return joined | {"steps from": facts[0].basis} | ({"layers from": str(layers.basis)} if layers else {})
