"""Several recordings of one process, as a schedule that repeats leaves them, joined to one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import structs

from stepgrade.costs.shapes import add_shapes
from stepgrade.model.layers import LayerStep
from stepgrade.model.merge import ProfileMerge
from stepgrade.model.operations import Operation
from stepgrade.model.profile import PhaseShare, Profile
from stepgrade.ranks.arrivals import Arrivals
from stepgrade.ranks.ranks import AnyRank, RankProfile, RankStep, in_file
from stepgrade.timeline.quality import by_weight

_FEW_RECORDINGS = 4  # a part that fewer than one in so many have has no times by step
Part = TypeVar("Part", PhaseShare, Operation)


def join_recordings(ranks: Sequence[AnyRank]) -> list[AnyRank]:
    """Return one rank for each process; recordings that name no process are ranks of their own."""
    processes: dict[str, list[AnyRank]] = {}
    for place, rank in enumerate(ranks):
        processes.setdefault(rank.process or f"file {place}", []).append(rank)
    return [
        parts[0] if len(parts) == 1 else _join([part.unpacked() for part in parts])
        for parts in processes.values()
    ]


def _join(parts: Sequence[RankProfile]) -> RankProfile:
    """Return the rank whose steps are those of all the recordings, the earliest first."""
    first = min(rank.base_ns or 0 for rank in parts)
    parts = sorted(parts, key=lambda rank: rank.base_ns or 0)
    steps: list[RankStep] = []
    taken: set[int] = set()
    highest = -1
    for rank in parts:
        # Steps without marks are counted from 0 in each recording.
        numbers = [step.number for step in rank.steps]
        offset = highest + 1 if not taken.isdisjoint(numbers) else 0
        taken.update(number + offset for number in numbers)
        highest = max((number + offset for number in numbers if number + offset > highest), default=highest)
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
        arrivals=Arrivals(),  # collectives are matched within one recording of all ranks
    )


def _join_profiles(profiles: Sequence[Profile], files: tuple[str, ...]) -> Profile:
    steps = sum(profile.steps or 0 for profile in profiles)
    weights = [(profile.steps or 0) / max(steps, 1) for profile in profiles]
    merge, first = ProfileMerge("recordings"), profiles[0]
    for profile in profiles:
        merge.add(profile)
    merged = merge.result(
        source=structs.replace(first.source, files=files),
        phases=_join_phases(profiles, steps),
        layers=_join_layers(profiles, weights),
        operations=_join_operations(profiles, weights, files),
        typical_step=in_file(first.typical_step, first, _places(files)),
        contents=first.contents | {"recordings": f"{len(files)} of one process"},
    )
    return structs.replace(merged, warnings=by_weight(merged.warnings))


def _places(files: Sequence[str]) -> dict[str, int]:
    """Return where each file stands, the first time that it does."""
    return {file: place for place, file in reversed([*enumerate(files)])}


def _by_name(parts: Sequence[Sequence[Part]]) -> dict[str, dict[int, Part]]:
    """Return the recordings' parts of each name, by the place of the recording."""
    found: dict[str, dict[int, Part]] = {}
    for place, of_one in enumerate(parts):
        for part in of_one:
            found.setdefault(part.name, {})[place] = part
    return found


def _join_samples(profiles: Sequence[Profile], parts: Mapping[int, Part]) -> tuple[float, ...]:
    """Return the time of a part in each steady step, 0 in those of a recording that does not have it.

    What is in few of many recordings has none: a part of its own in each would take their square.
    """
    if len(parts) * _FEW_RECORDINGS < len(profiles):
        return ()
    samples: list[float] = []
    for place, profile in enumerate(profiles):
        samples += parts[place].samples_ms if place in parts else [0.0] * (profile.steps or 0)
    return tuple(samples)


def _join_phases(profiles: Sequence[Profile], steps: int) -> tuple[PhaseShare, ...]:
    joined = []
    for name, phases in _by_name([profile.phases for profile in profiles]).items():
        total_ms = sum((phase.ms or 0.0) * (profiles[place].steps or 0) for place, phase in phases.items())
        samples_ms = _join_samples(profiles, phases)
        joined.append(PhaseShare(name=name, ms=total_ms / max(steps, 1), samples_ms=samples_ms))
    return tuple(joined)


def _join_layers(profiles: Sequence[Profile], weights: Sequence[float]) -> tuple[LayerStep, ...]:
    """Return the layers of the mean step; those of the first recording where they differ."""
    names = [[layer.name for layer in profile.layers] for profile in profiles]
    if any(of_one != names[0] for of_one in names):
        return profiles[0].layers
    joined = []
    for alike in zip(*(profile.layers for profile in profiles), strict=True):
        weighted = [*zip(alike, weights, strict=True)]
        ops: dict[str, float] = {}
        for layer, weight in weighted:
            for name, ms in layer.ops.items():
                ops[name] = ops.get(name, 0.0) + ms * weight
        joined.append(
            structs.replace(
                alike[0],
                fwd_ms=sum((layer.fwd_ms or 0.0) * weight for layer, weight in weighted),
                bwd_ms=sum((layer.bwd_ms or 0.0) * weight for layer, weight in weighted),
                recompute_ms=sum((layer.recompute_ms or 0.0) * weight for layer, weight in weighted),
                ops=ops,
            )
        )
    return tuple(joined)


def _join_operations(
    profiles: Sequence[Profile], weights: Sequence[float], files: tuple[str, ...]
) -> tuple[Operation, ...]:
    places = _places(files)
    joined = []
    for ops in _by_name([profile.operations for profile in profiles]).values():
        alike = [op.per_step(1 / weights[place]) for place, op in ops.items()]
        spans = [in_file(op.longest, profiles[place], places) for place, op in ops.items()]
        whole = structs.replace(
            alike[0],
            ms=sum(op.ms or 0.0 for op in alike),
            calls=sum(op.calls or 0.0 for op in alike),
            longest=max((span for span in spans if span), key=lambda span: span.dur_ns, default=None),
            samples_ms=_join_samples(profiles, ops),
        )
        joined.append(whole.with_rows(add_shapes([op.rows for op in alike])))
    return tuple(sorted(joined, key=lambda op: (-(op.ms or 0.0), op.name)))
