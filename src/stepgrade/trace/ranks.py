"""Merge the profiles of a run's ranks: figures of the mean rank, steps of the slowest chain, who is late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct, structs

from stepgrade.model.activity import Straggler
from stepgrade.model.notes import Note
from stepgrade.model.profile import (
    ACCOUNTS,
    LayerTime,
    LedgerTime,
    OpTime,
    PhaseTime,
    Profile,
    RankTime,
    Source,
    Span,
    WorkKind,
)
from stepgrade.statistics import mean, median
from stepgrade.trace.activity import merge_activities
from stepgrade.trace.collectives import Arrival, MatchedCollectives, match_collectives
from stepgrade.trace.ledger import add_ledgers
from stepgrade.trace.quality import by_weight
from stepgrade.units import NS_PER_MS, show_ms, show_share

OWN_TROUBLE_SHARE = 0.02
_OF_THE_FILE = ("trace", "events", "recorded", "devices", "versions")
Known = TypeVar("Known")


class RankStep(Struct, frozen=True, kw_only=True):
    """One recorded step of a rank, on the clock of its file."""

    number: int
    start_ns: int
    dur_ns: int
    steady: bool
    ledger: LedgerTime | None


class RankProfile(Struct, frozen=True, kw_only=True):
    """One rank's profile, with what merging ranks needs beside it."""

    profile: Profile
    rank: int | None
    base_ns: int | None  # epoch nanoseconds that the steps' times count from
    steps: tuple[RankStep, ...]
    arrivals: tuple[Arrival, ...]
    process: str | None = None


class AcrossRanks(NamedTuple):
    """What only the ranks together show, over the steps that are steady on all of them."""

    times: tuple[RankTime, ...]
    step_ns: list[int]  # of the slowest chain
    skew_ms: float | None
    straggler: Straggler | None
    notes: tuple[Note, ...]


def merge_ranks(ranks: Sequence[RankProfile]) -> Profile:
    """Return the profile of the run whose ranks these are."""
    # Ranks without a number get the lowest free ones; where two have the same, all get their place.
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    taken = set(numbers)
    free = (number for number in range(len(ranks)) if number not in taken)
    by_number = dict(enumerate(ranks))
    if len(taken) == len(numbers):
        named = {next(free) if rank.rank is None else rank.rank: rank for rank in ranks}
        by_number = dict(sorted(named.items()))
    steady = [{step.number for step in rank.steps if step.steady} for rank in by_number.values()]
    common = sorted(set.intersection(*steady))
    warnings = tuple(_find_warnings([*by_number.values()], common))
    first = ranks[0].profile
    stated = _first_known(rank.profile.world_size or None for rank in ranks)
    if len(ranks) == 1:
        return structs.replace(first, warnings=by_weight([*warnings, *first.warnings]))
    profiles = [rank.profile for rank in by_number.values()]
    across = compare_ranks(by_number, common)
    files = tuple(dict.fromkeys(rank.profile.source.files[0] for rank in ranks))
    places = {file: place for place, file in enumerate(files)}
    ledgers = [time.ledger for time in across.times if time.ledger]
    flops = [None if p.matmul_flops is None else p.matmul_flops / (p.steps or 1) for p in profiles]
    activity = merge_activities([p.activity for p in profiles if p.activity])
    # The rank that holds most decides whether the run fits.
    memory = max((p.memory for p in profiles if p.memory), key=lambda m: m.peak_bytes or 0.0, default=None)
    kinds: tuple[WorkKind, ...] = ("training", "inference")  # one rank that trains makes it training
    return Profile(
        source=Source(format=first.source.format, files=files, producer=first.source.producer),
        work=next((kind for kind in kinds if any(p.work == kind for p in profiles)), "unknown"),
        steps=len(common) or None,
        recorded_steps=max(len(rank.steps) for rank in ranks),
        mean_step_ms=sum(across.step_ns) / len(common) / NS_PER_MS if common else None,
        samples_ms=tuple(ns / NS_PER_MS for ns in across.step_ns),
        phases=merge_phases(profiles, len(common)),
        layers=merge_layers(profiles, len(common)),
        operations=merge_operations(profiles, len(common), places),
        typical_step=_in_file(profiles[0].typical_step, profiles[0], places),
        tokens_per_step=_first_known(p.tokens_per_step for p in profiles),
        launches_per_step=mean([p.launches_per_step or 0.0 for p in profiles]) or None,
        ledger=add_ledgers(ledgers) if ledgers else None,
        ranks=across.times,
        world_size=max(stated, len(ranks)) if stated else None,  # files of several hosts have a part each
        device=_first_known(p.device for p in profiles),
        matmul_flops=mean([f or 0.0 for f in flops]) * len(common) if None not in flops else None,
        matmul_known_share=min(
            (p.matmul_known_share for p in profiles if p.matmul_known_share is not None), default=None
        ),
        matmul_dtype=_first_known(p.matmul_dtype for p in profiles),
        activity=structs.replace(activity, skew_ms=across.skew_ms, straggler=across.straggler),
        memory=memory,
        peak_memory_bytes=memory.peak_bytes if memory else None,
        recorded=first.recorded,
        contents=merge_contents(ranks, by_number),
        notes=merge_notes([across.notes, *(p.notes for p in profiles)]),
        warnings=by_weight(merge_notes([warnings, *(p.warnings for p in profiles)])),
    )


def compare_ranks(by_number: dict[int, RankProfile], common: Sequence[int]) -> AcrossRanks:
    """Return how long each rank and each common step took, and which rank the others wait for."""
    ranks = [*by_number.values()]
    steps, numbers = max(len(common), 1), set(common)
    dur_ns: dict[int, list[int]] = {}
    for number, rank in by_number.items():
        of_step = {step.number: step.dur_ns for step in rank.steps}
        dur_ns[number] = [of_step[step] for step in common]
    # Times can be compared if the epochs are known, or if all ranks are of one merged file.
    undated = [rank.base_ns is None for rank in ranks]
    share_clock = not any(undated) or (
        all(undated) and len({rank.profile.source.files for rank in ranks}) == 1
    )
    arrivals = {number: rank.arrivals for number, rank in by_number.items()} if share_clock else {}
    matched = match_collectives(arrivals, numbers, max(map(sum, dur_ns.values())))
    waits = {wait.rank: wait.wait_ns for wait in matched.ranks} if matched else {}
    times = []
    for number, rank in by_number.items():
        ledger = add_ledgers([step.ledger for step in rank.steps if step.ledger and step.number in numbers])
        times.append(
            RankTime(
                rank=number,
                mean_step_ms=sum(dur_ns[number]) // steps / NS_PER_MS,
                wait_ms=waits[number] // steps / NS_PER_MS if number in waits else None,
                ledger=ledger if ledger.total_ns else None,
            )
        )
    straggler = _describe_straggler(matched, times, steps) if matched else None
    late = by_number[straggler.rank].profile.activity if straggler else None
    if straggler and late:  # the line that its host is in while its own step waits
        lines = late.lines.get("input" if straggler.trouble == "idle_input" else "stall", ())
        straggler = structs.replace(straggler, line=lines[0] if lines else None)
    # Ranks whose clocks cannot be compared give the longest of their own times.
    longest = [max(of_ranks) for of_ranks in zip(*dur_ns.values(), strict=True)]
    return AcrossRanks(
        times=tuple(times),
        step_ns=_slowest_chain(by_number, common, matched) if matched else longest,
        skew_ms=matched.skew_ns / steps / NS_PER_MS if matched else None,
        straggler=straggler,
        notes=tuple(_find_notes(by_number, times, matched, straggler)),
    )


def _slowest_chain(
    by_number: dict[int, RankProfile], common: Sequence[int], matched: MatchedCollectives
) -> list[int]:
    """Return how long each common step took the run.

    A step has begun when the last rank has begun it: from there to where the last rank begins the next one.
    """
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number, rank in by_number.items():
        shift = (rank.base_ns or 0) - matched.clock_offsets_ns.get(number, 0)
        for step in rank.steps:
            begin = step.start_ns + shift
            begins[step.number] = max(begins.get(step.number, begin), begin)
            ends[step.number] = max(ends.get(step.number, begin), begin + step.dur_ns)
    return [ends[number] - begins[number] for number in common]


def _describe_straggler(
    matched: MatchedCollectives, times: Sequence[RankTime], steps: int
) -> Straggler | None:
    """Return the rank that the others wait for, and the account in which its device exceeds theirs most."""
    worst = matched.straggler
    if worst is None:
        return None
    trouble, excess = None, 0.0
    own = next((time.ledger for time in times if time.rank == worst.rank), None)
    others = [time.ledger.shares() for time in times if time.rank != worst.rank and time.ledger]
    if own is not None and others:
        excesses = {
            account: share - median(other[account] for other in others)
            for account, share in own.shares().items()
            if account != "exposed_communication"
        }
        largest = max(excesses, key=lambda account: excesses[account])
        if excesses[largest] > 0.0:
            trouble, excess = largest, excesses[largest]
    return Straggler(
        rank=worst.rank,
        caused_ms=worst.caused_ns / steps / NS_PER_MS,
        last_share=worst.last / max(matched.matched, 1),
        trouble=trouble,
        trouble_excess=excess,
        ranks=len(times),
    )


def _find_notes(
    by_number: dict[int, RankProfile],
    times: Sequence[RankTime],
    matched: MatchedCollectives | None,
    straggler: Straggler | None,
) -> Iterator[Note]:
    if any(rank.rank is None for rank in by_number.values()):
        yield Note("ranks_unnamed", "Some traces name no rank: they are numbered in the order of the files.")
    if matched and matched.straggler and straggler:
        text = (
            f"Rank {straggler.rank} arrives last in {matched.straggler.last} of {matched.matched} "
            f"collectives; the others wait {straggler.caused_ms:.1f} ms a step for it on average."
        )
        yield Note("straggler", text)
        own = next((time.ledger for time in times if time.rank == straggler.rank), None)
        if own and straggler.trouble and straggler.trouble_excess > OWN_TROUBLE_SHARE:
            share = own.shares()[straggler.trouble]
            is_known = straggler.trouble != "unattributed"
            does = ACCOUNTS[straggler.trouble] if is_known else "is idle without a recorded reason"
            text = (
                f"The device of rank {straggler.rank} {does} for {show_share(share)} of its time, "
                f"those of the others for {show_share(share - straggler.trouble_excess)}."
            )
            yield Note("straggler_account", text)
    if matched and matched.clock_offsets_ns:
        shifts = ", ".join(
            f"rank {number} by {show_ms(offset / 1e6)}" for number, offset in matched.clock_offsets_ns.items()
        )
        yield Note("clocks_corrected", f"Clocks were corrected by the common ends of collectives: {shifts}.")


def _find_warnings(ranks: Sequence[RankProfile], common: Sequence[int]) -> Iterator[Note]:
    world = _first_known(rank.profile.world_size or None for rank in ranks)
    if world and world > len(ranks):
        were = "was" if len(ranks) == 1 else "were"
        text = f"{len(ranks)} of {world} ranks {were} given: waiting can be seen, but not for whom."
        yield Note("ranks_missing", text)
    if len(ranks) > 1 and not common:
        text = "The ranks share no steady step: they were not recorded at the same time."
        yield Note("ranks_apart", text, fatal=True)
    # Equal steps of the ranks should not lie more than a step apart.
    dated = [rank for rank in ranks if rank.base_ns is not None and rank.steps]
    shared = set.intersection(*({step.number for step in rank.steps} for rank in dated)) if dated else set()
    if len(dated) < 2 or not shared:
        return
    number = min(shared)
    steps = [next(step for step in rank.steps if step.number == number) for rank in dated]
    begins = [(rank.base_ns or 0) + step.start_ns for rank, step in zip(dated, steps, strict=True)]
    spread = max(begins) - min(begins)
    if spread > max(step.dur_ns for step in steps):
        text = (
            f"Step {number} begins {show_ms(spread / 1e6)} apart on the ranks: they were recorded at "
            "different times, or their clocks differ."
        )
        yield Note("started_apart", text)


def merge_notes(of_ranks: Sequence[Sequence[Note]]) -> tuple[Note, ...]:
    """Return each note once; where several ranks have one, the first with how many more do."""
    merged: dict[tuple[str, int], Note] = {}
    for notes in of_ranks:
        seen: Counter[str] = Counter()
        for note in notes:
            key = (note.code, seen[note.code])  # a rank may have several notes of one code
            seen[note.code] += 1
            first = merged.get(key)
            merged[key] = structs.replace(first, more_ranks=first.more_ranks + 1) if first else note
    return tuple(merged.values())


def _first_known(values: Iterable[Known | None]) -> Known | None:
    return next((value for value in values if value is not None), None)


def merge_contents(ranks: Sequence[RankProfile], by_number: dict[int, RankProfile]) -> dict[str, str]:
    """Return what the traces contain: each text once, and which ranks they are."""
    merged: dict[str, str] = {}
    for name in _OF_THE_FILE:
        contents = [rank.profile.contents for rank in ranks]
        texts = list(dict.fromkeys(content[name] for content in contents if name in content))
        if texts:
            merged[name] = texts[0] if len(texts) == 1 else f"{texts[0]} (and others)"
    merged["ranks"] = ", ".join(map(str, by_number))
    for name in ("steps from", "layers from"):
        text = _first_known(rank.profile.contents.get(name) for rank in by_number.values())
        if text:
            merged[name] = text
    return merged


def _in_file(span: Span | None, profile: Profile, places: dict[str, int]) -> Span | None:
    """Return the span of one rank with the place that its file has in the run."""
    return structs.replace(span, file=places[profile.source.files[0]]) if span else None


def merge_phases(profiles: Sequence[Profile], steps: int) -> tuple[PhaseTime, ...]:
    """Return the phases of the mean rank."""
    per_step: dict[str, float] = {}
    for phase in (phase for profile in profiles for phase in profile.phases):
        per_step[phase.name] = per_step.get(phase.name, 0.0) + (phase.per_step_ms or 0.0) / len(profiles)
    samples = _mean_samples(profiles, [profile.phases for profile in profiles])
    return tuple(
        PhaseTime(name=name, total_ms=ms * steps, per_step_ms=ms, samples_ms=samples.get(name, ()))
        for name, ms in per_step.items()
    )


def _mean_samples(
    profiles: Sequence[Profile], of_ranks: Sequence[Sequence[PhaseTime | OpTime]]
) -> dict[str, tuple[float, ...]]:
    """Return by name the time in each steady step on the mean rank; nothing when the ranks' steps differ."""
    if len({profile.steps for profile in profiles}) != 1:
        return {}
    sums: dict[str, list[float]] = {}
    for part in (part for parts in of_ranks for part in parts if part.samples_ms):
        row = sums.setdefault(part.name, [0.0] * (profiles[0].steps or 0))
        for place, ms in enumerate(part.samples_ms):
            row[place] += ms / len(profiles)
    return {name: tuple(row) for name, row in sums.items()}


def merge_layers(profiles: Sequence[Profile], steps: int) -> tuple[LayerTime, ...]:
    """Return the layers of the first rank that has them: ranks may have different parts of a model."""
    profile = next((profile for profile in profiles if profile.layers), None)
    if profile is None:
        return ()
    scale = steps / (profile.steps or 1)
    return tuple(
        structs.replace(
            layer,
            fwd_total_ms=(layer.fwd_total_ms or 0.0) * scale,
            bwd_total_ms=(layer.bwd_total_ms or 0.0) * scale,
            recompute_total_ms=(layer.recompute_total_ms or 0.0) * scale,
            ops_total_ms={name: ms * scale for name, ms in layer.ops_total_ms.items()},
        )
        for layer in profile.layers
    )


def merge_operations(profiles: Sequence[Profile], steps: int, places: dict[str, int]) -> tuple[OpTime, ...]:
    """Return the operations of the mean rank; work is known only where every rank knows it."""
    merged: dict[str, OpTime] = {}
    samples = _mean_samples(profiles, [profile.operations for profile in profiles])
    for profile in profiles:
        scale = steps / (profile.steps or 1) / len(profiles)
        for op in profile.operations:
            before = merged.get(op.name, OpTime(name=op.name, total_ms=0.0, calls=0.0, flops=0.0, bytes=0.0))
            longest = _in_file(op.longest, profile, places)
            if before.longest and (not longest or before.longest.dur_ns >= longest.dur_ns):
                longest = before.longest
            merged[op.name] = structs.replace(
                op,
                total_ms=op.total_ms * scale + before.total_ms,
                calls=(op.calls or 0.0) * scale + (before.calls or 0.0),
                flops=None if op.flops is None or before.flops is None else op.flops * scale + before.flops,
                bytes=None if op.bytes is None or before.bytes is None else op.bytes * scale + before.bytes,
                longest=longest,
                samples_ms=samples.get(op.name, ()),
            )
    return tuple(sorted(merged.values(), key=lambda op: (-op.total_ms, op.name)))
