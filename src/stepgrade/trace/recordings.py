"""Several recordings of one process, as a schedule that repeats leaves them, joined to one run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stepgrade.model.profile import LayerTime, OpTime, PhaseTime, Profile, Span
from stepgrade.trace.activity import merge_activities
from stepgrade.trace.ledger import add_ledgers
from stepgrade.trace.quality import by_weight
from stepgrade.trace.ranks import RankProfile, RankStep, merge_notes


def join_recordings(ranks: Sequence[RankProfile]) -> list[RankProfile]:
    """Return one rank for each process; recordings that name no process are ranks of their own."""
    processes: dict[str, list[RankProfile]] = {}
    for place, rank in enumerate(ranks):
        processes.setdefault(rank.process or f"file {place}", []).append(rank)
    return [parts[0] if len(parts) == 1 else _join(parts) for parts in processes.values()]


def _join(parts: Sequence[RankProfile]) -> RankProfile:
    """Return the rank whose steps are those of all the recordings, the earliest first."""
    first = min(rank.base_ns or 0 for rank in parts)
    parts = sorted(parts, key=lambda rank: rank.base_ns or 0)
    steps: list[RankStep] = []
    for rank in parts:
        # Steps without marks are counted from 0 in each recording.
        again = bool({step.number for step in rank.steps} & {step.number for step in steps})
        offset = max((step.number for step in steps), default=-1) + 1 if again else 0
        shift = (rank.base_ns or 0) - first
        steps += [
            structs.replace(step, number=step.number + offset, start_ns=step.start_ns + shift)
            for step in rank.steps
        ]
    # A recording without a steady step has nothing to add to the figures.
    profiles = [rank.profile for rank in parts if rank.profile.steps] or [parts[0].profile]
    return structs.replace(
        parts[0],
        profile=_join_profiles(profiles, tuple(rank.profile.source.files[0] for rank in parts)),
        steps=tuple(steps),
        arrivals=(),  # collectives are matched within one recording of all ranks
    )


def _join_profiles(profiles: Sequence[Profile], files: tuple[str, ...]) -> Profile:
    steps = sum(profile.steps or 0 for profile in profiles)
    per_step = [(profile.launches_per_step or 0.0) * (profile.steps or 0) for profile in profiles]
    flops = [profile.matmul_flops for profile in profiles]
    ledgers = [profile.ledger for profile in profiles if profile.ledger]
    total_ms = sum((profile.mean_step_ms or 0.0) * (profile.steps or 0) for profile in profiles)
    first = profiles[0]
    return structs.replace(
        first,
        source=structs.replace(first.source, files=files),
        steps=steps or None,
        recorded_steps=sum(profile.recorded_steps or 0 for profile in profiles),
        mean_step_ms=total_ms / steps if steps else None,
        samples_ms=tuple(ms for profile in profiles for ms in profile.samples_ms),
        phases=_join_phases(profiles, steps),
        layers=_join_layers(profiles),
        operations=_join_operations(profiles, files),
        typical_step=_in_files(first.typical_step, first, files),
        launches_per_step=sum(per_step) / steps or None if steps else None,
        ledger=add_ledgers(ledgers) if ledgers else None,
        matmul_flops=sum(f or 0.0 for f in flops) if None not in flops else None,
        matmul_known_share=min(profile.matmul_known_share or 0.0 for profile in profiles),
        activity=merge_activities([profile.activity for profile in profiles if profile.activity]),
        contents=first.contents | {"recordings": f"{len(files)} of one process"},
        notes=merge_notes([profile.notes for profile in profiles]),
        warnings=by_weight(merge_notes([profile.warnings for profile in profiles])),
    )


def _in_files(span: Span | None, profile: Profile, files: tuple[str, ...]) -> Span | None:
    return structs.replace(span, file=files.index(profile.source.files[0])) if span else None


def _join_samples(
    profiles: Sequence[Profile], parts: Sequence[PhaseTime | OpTime | None]
) -> tuple[float, ...]:
    """Return the time of a part in each steady step, 0 in those of a recording that does not have it."""
    samples: list[float] = []
    for profile, part in zip(profiles, parts, strict=True):
        samples += part.samples_ms if part is not None else [0.0] * (profile.steps or 0)
    return tuple(samples)


def _join_phases(profiles: Sequence[Profile], steps: int) -> tuple[PhaseTime, ...]:
    by_name = [{phase.name: phase for phase in profile.phases} for profile in profiles]
    joined = []
    for name in dict.fromkeys(phase.name for profile in profiles for phase in profile.phases):
        total_ms = sum((phases[name].total_ms or 0.0) for phases in by_name if name in phases)
        samples_ms = _join_samples(profiles, [phases.get(name) for phases in by_name])
        joined.append(
            PhaseTime(
                name=name, total_ms=total_ms, per_step_ms=total_ms / max(steps, 1), samples_ms=samples_ms
            )
        )
    return tuple(joined)


def _join_layers(profiles: Sequence[Profile]) -> tuple[LayerTime, ...]:
    """Return the layers with their times added up; those of the first where they differ."""
    names = [[layer.name for layer in profile.layers] for profile in profiles]
    if any(of_one != names[0] for of_one in names):
        return profiles[0].layers
    joined = []
    for alike in zip(*(profile.layers for profile in profiles), strict=True):
        ops: dict[str, float] = {}
        for layer in alike:
            for name, ms in layer.ops_total_ms.items():
                ops[name] = ops.get(name, 0.0) + ms
        joined.append(
            structs.replace(
                alike[0],
                fwd_total_ms=sum(layer.fwd_total_ms or 0.0 for layer in alike),
                bwd_total_ms=sum(layer.bwd_total_ms or 0.0 for layer in alike),
                recompute_total_ms=sum(layer.recompute_total_ms or 0.0 for layer in alike),
                ops_total_ms=ops,
            )
        )
    return tuple(joined)


def _join_operations(profiles: Sequence[Profile], files: tuple[str, ...]) -> tuple[OpTime, ...]:
    by_name = [{op.name: op for op in profile.operations} for profile in profiles]
    joined = []
    for name in dict.fromkeys(op.name for profile in profiles for op in profile.operations):
        alike = [ops[name] for ops in by_name if name in ops]
        flops, sizes = [op.flops for op in alike], [op.bytes for op in alike]
        spans = [
            _in_files(ops[name].longest, p, files)
            for ops, p in zip(by_name, profiles, strict=True)
            if name in ops
        ]
        joined.append(
            structs.replace(
                alike[0],
                total_ms=sum(op.total_ms for op in alike),
                calls=sum(op.calls or 0.0 for op in alike),
                flops=sum(f or 0.0 for f in flops) if None not in flops else None,
                bytes=sum(size or 0.0 for size in sizes) if None not in sizes else None,
                longest=max((span for span in spans if span), key=lambda span: span.dur_ns, default=None),
                samples_ms=_join_samples(profiles, [ops.get(name) for ops in by_name]),
            )
        )
    return tuple(sorted(joined, key=lambda op: (-op.total_ms, op.name)))
