"""Merge the profiles of a run's ranks: mean figures, steps of the slowest chain, and which rank is late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from stepgrade.costs.call_costs import add_shapes
from stepgrade.model.activity import HostLine, Straggler
from stepgrade.model.ledger import ACCOUNTS, Ledger, account_words
from stepgrade.model.merge import ProfileMerge
from stepgrade.model.notes import Note, by_weight
from stepgrade.model.operations import LayerStep, Operation, Span
from stepgrade.model.profile import PhaseShare, Profile, RankRow, RecordedStep, Source
from stepgrade.model.ranks import Communication, PipelineUse, StageRow, notes_of
from stepgrade.model.step_view import StepView, StepWait
from stepgrade.ranks.collectives import Arrivals
from stepgrade.ranks.many_ranks import RankParts, describe_ranks
from stepgrade.ranks.matching import MatchedCollectives, Matching
from stepgrade.ranks.packed_ranks import AnyRank, MeanOperations, RankProfile, RankStep, unpack_spans
from stepgrade.statistics import median
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.intervals import Spans
from stepgrade.units import NS_PER_MS, show_ms, show_share

_FEW_RECORDINGS = 4  # a part that fewer than one in so many have has no times by step
Part = TypeVar("Part", PhaseShare, Operation)
MOST_EDGES = 1_000_000  # of a step that is replayed, of all its ranks: seconds for each question
MOST_VIEWS = 32  # ranks whose steps are drawn
MOST_WAITS = 12  # of a rank that are drawn
LEAST_WAIT_SHARE = 0.002  # of a step: what is shorter cannot be seen
OWN_TROUBLE_SHARE = 0.02


def join_recordings(ranks: Sequence[AnyRank]) -> list[AnyRank]:
    """Return one rank for each process, as a repeating schedule records several; others stay as they are."""
    processes: dict[str, list[AnyRank]] = {}
    for index, rank in enumerate(ranks):
        processes.setdefault(rank.process or f"file {index}", []).append(rank)
    return [
        parts[0] if len(parts) == 1 else _join([part.unpacked() for part in parts])
        for parts in processes.values()
    ]


def _join(parts: Sequence[RankProfile]) -> RankProfile:
    """Return the rank with the steps of all its recordings, the earliest first."""
    first_ns = min(rank.base_ns or 0 for rank in parts)
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
        shift = (rank.base_ns or 0) - first_ns
        steps += [
            structs.replace(step, number=step.number + offset, start_ns=step.start_ns + shift)
            for step in rank.steps
        ]
    # A recording without a steady step has nothing to add to the figures.
    profiles = [rank.profile for rank in parts if rank.profile.steps] or [parts[0].profile]
    files = tuple(rank.profile.source.files[0] for rank in parts)
    file_index = {file: index for index, file in reversed([*enumerate(files)])}
    count = max(sum(profile.steps or 0 for profile in profiles), 1)
    weights = [(profile.steps or 0) / count for profile in profiles]
    merge, first = ProfileMerge("recordings"), profiles[0]
    for profile in profiles:
        merge.add(profile)
    phases = [
        PhaseShare(
            name=name,
            ms=sum((phase.ms or 0.0) * (profiles[index].steps or 0) for index, phase in same.items()) / count,
            samples_ms=_join_samples(profiles, same),
        )
        for name, same in _by_name([profile.phases for profile in profiles]).items()
    ]
    merged = merge.result(
        source=structs.replace(first.source, files=files),
        phases=tuple(phases),
        layers=_join_layers(profiles, weights),
        operations=_join_operations(profiles, weights, file_index),
        typical_step=in_file(first.typical_step, first, file_index),
        contents=first.contents | {"recordings": f"{len(files)} of one process"},
    )
    return structs.replace(
        parts[0],
        profile=structs.replace(merged, warnings=by_weight(merged.warnings)),
        steps=tuple(steps),
        alone=b"",
        arrivals=Arrivals(),  # collectives are matched within one recording of all ranks
    )


def _by_name(parts: Sequence[Sequence[Part]]) -> dict[str, dict[int, Part]]:
    """Return the parts of each name, by the index of their recording."""
    found: dict[str, dict[int, Part]] = {}
    for index, own in enumerate(parts):
        for part in own:
            found.setdefault(part.name, {})[index] = part
    return found


def _join_samples(profiles: Sequence[Profile], parts: Mapping[int, Part]) -> tuple[float, ...]:
    """Return the time of a part in each steady step, 0 in those of a recording that does not have it.

    A part in few of many recordings gets none: parts of their own in each would take their square.
    """
    if len(parts) * _FEW_RECORDINGS < len(profiles):
        return ()
    samples: list[float] = []
    for index, profile in enumerate(profiles):
        samples += parts[index].samples_ms if index in parts else [0.0] * (profile.steps or 0)
    return tuple(samples)


def _join_layers(profiles: Sequence[Profile], weights: Sequence[float]) -> tuple[LayerStep, ...]:
    """Return the layers of the mean step; those of the first recording where they differ."""
    names = [[layer.name for layer in profile.layers] for profile in profiles]
    if any(own != names[0] for own in names):
        return profiles[0].layers
    joined = []
    for alike in zip(*(profile.layers for profile in profiles), strict=True):
        weighted = [*zip(alike, weights, strict=True)]
        ops: dict[str, float] = {}
        for layer, weight in weighted:
            for name, ms in layer.ops.items():
                ops[name] = ops.get(name, 0.0) + ms * weight
        means = {
            figure: sum((getattr(layer, figure) or 0.0) * weight for layer, weight in weighted)
            for figure in ("fwd_ms", "bwd_ms", "recompute_ms")
        }
        joined.append(structs.replace(alike[0], **means, ops=ops))
    return tuple(joined)


def _join_operations(
    profiles: Sequence[Profile], weights: Sequence[float], file_index: Mapping[str, int]
) -> tuple[Operation, ...]:
    joined = []
    for ops in _by_name([profile.operations for profile in profiles]).values():
        alike = [op.per_step(1 / weights[index]) for index, op in ops.items()]
        spans = [in_file(op.longest, profiles[index], file_index) for index, op in ops.items()]
        whole = structs.replace(
            alike[0],
            ms=sum(op.ms or 0.0 for op in alike),
            calls=sum(op.calls or 0.0 for op in alike),
            longest=max((span for span in spans if span), key=lambda span: span.dur_ns, default=None),
            samples_ms=_join_samples(profiles, ops),
        )
        joined.append(whole.with_rows(add_shapes([op.rows for op in alike])))
    return tuple(sorted(joined, key=lambda op: (-(op.ms or 0.0), op.name)))


class AcrossRanks(NamedTuple):
    """What only the ranks together show, over the steps that are steady on all of them."""

    times: tuple[RankRow, ...]
    step_ns: list[int]  # of the slowest chain
    skew_ms: float | None
    straggler: Straggler | None
    clock_offsets_ns: Mapping[int, int]
    notes: tuple[Note, ...]
    links: Communication | None = None


def merge_ranks(recordings: Sequence[AnyRank]) -> Profile:
    """Return the profile of the run with these ranks; packed ones are unpacked one by one."""
    ranks = join_recordings(recordings)
    by_number = {number: ranks[index] for number, index in number_ranks([r.rank for r in ranks]).items()}
    steady = [{step.number for step in rank.steps if step.steady} for rank in by_number.values()]
    common = sorted(set.intersection(*steady))
    warnings = tuple(_find_warnings([*by_number.values()], common))
    if len(ranks) == 1:
        first = ranks[0].unpacked().profile
        return structs.replace(first, warnings=by_weight([*warnings, *first.warnings]))
    files = tuple(dict.fromkeys(rank.files[0] for rank in ranks))
    file_index = {file: index for index, file in enumerate(files)}
    merge, operations, matching = ProfileMerge("ranks"), MeanOperations(len(ranks)), Matching()
    lines, views, programs = {}, list[StepView](), dict[bytes, Arrivals]()
    recorded: dict[int, list[RecordedStep]] | None = {}
    first = next(iter(by_number.values())).packed().lean(layers=False, modules=False)
    has_layers = has_modules = False  # of the first rank that has any; the others' are not unpacked
    for number, rank in by_number.items():
        packed = rank.packed()
        profile = packed.lean(layers=not has_layers, modules=not has_modules)
        has_layers, has_modules = has_layers or bool(profile.layers), has_modules or bool(profile.modules)
        if len({view.rank for view in views}) < MOST_VIEWS:
            views += [structs.replace(view, rank=number) for view in packed.drawn()]
        if recorded is not None:
            for step in packed.recorded():
                recorded.setdefault(step.number, []).append(step)
            edges = (sum(step.edges for step in steps) for steps in recorded.values())
            recorded = recorded if min(edges, default=0) <= MOST_EDGES else None
        merge.add(profile, number)
        operations.add(packed.operations, profile.steps, file_index[profile.source.files[0]])
        matching.add(number, packed.arrivals(programs))
        if profile.activity:
            lines[number] = profile.activity.lines
    across = compare_ranks(by_number, common, matching, lines)
    world = _first_known(rank.world_size for rank in ranks)
    ledgers = [time.ledger for time in across.times if time.ledger]
    node_devices = first.links.node_devices if first.links else None
    numbered = set(common)
    many = describe_ranks(
        across.times,
        {
            number: [step.ledger for step in rank.steps if step.ledger and step.number in numbered]
            for number, rank in by_number.items()
        },
        RankParts.of(
            programs.values(), {number: rank.host for number, rank in by_number.items()}, node_devices
        ),
        across.links.collectives if across.links else (),
    )
    merged = merge.result(
        source=Source(format=first.source.format, files=files, producer=first.source.producer),
        steps=len(common) or None,
        recorded_steps=max(len(rank.steps) for rank in ranks),
        mean_step_ms=sum(across.step_ns) / len(common) / NS_PER_MS if common else None,
        samples_ms=tuple(ns / NS_PER_MS for ns in across.step_ns),
        views=tuple(_draw_steps(views, matching, across)),
        steps_to_replay=tuple(
            step for steps in (recorded or {}).values() for step in steps if len(steps) == len(ranks)
        ),
        operations=operations.result(),
        typical_step=in_file(first.typical_step, first, file_index),
        ledger=Ledger.sum(ledgers) if ledgers else None,
        rank=None,
        ranks=across.times,
        world_size=max(world, len(ranks)) if world else None,  # files of several hosts have a part each
        links=structs.replace(across.links, node_devices=node_devices) if across.links else first.links,
        many_ranks=many,
    )
    activity = merged.activity
    return structs.replace(
        merged,
        activity=activity and structs.replace(activity, skew_ms=across.skew_ms, straggler=across.straggler),
        notes=(*across.notes, *(notes_of(many) if many else ()), *merged.notes),
        warnings=by_weight([*warnings, *merged.warnings]),
    )


def in_file(span: Span | None, profile: Profile, file_index: Mapping[str, int]) -> Span | None:
    """Return the span of one rank with the index that its file has in the run."""
    return structs.replace(span, file=file_index[profile.source.files[0]]) if span else None


def number_ranks(stated: Sequence[int | None]) -> dict[int, int]:
    """Return the index of each rank by its number, in the order of numbers.

    Ranks without a number get the lowest free ones; where two have the same, all get their index.
    """
    numbers = [number for number in stated if number is not None]
    taken = set(numbers)
    if len(taken) < len(numbers):
        return {index: index for index in range(len(stated))}
    free = (number for number in range(len(stated)) if number not in taken)
    named = {next(free) if number is None else number: index for index, number in enumerate(stated)}
    return dict(sorted(named.items()))


def share_clock(ranks: Sequence[tuple[int | None, tuple[str, ...]]]) -> bool:
    """Return, by the epochs and files of ranks, whether their times can be compared.

    They can be where the epochs are known, or where all ranks are in one merged file.
    """
    undated = [base_ns is None for base_ns, _ in ranks]
    return not any(undated) or (all(undated) and len({files for _, files in ranks}) == 1)


def _draw_steps(views: Sequence[StepView], matching: Matching, across: AcrossRanks) -> Iterator[StepView]:
    """Yield the first step, and others that all ranks drew, each on one clock and with its longest waits."""
    drawn = Counter(view.number for view in views)
    ranks = len({view.rank for view in views})
    for index, (number, times) in enumerate(drawn.items()):
        if index > 0 and times != ranks:
            continue
        offsets = across.clock_offsets_ns
        same = {
            view.rank or 0: structs.replace(view, at_ns=view.at_ns - offsets.get(view.rank or 0, 0))
            for view in views
            if view.number == number
        }
        begins = [view.at_ns for view in same.values()]
        if max(begins) - min(begins) > max(view.dur_ns for view in same.values()):  # the clocks are not one
            same = {rank: structs.replace(view, at_ns=0) for rank, view in same.items()}
        waits: dict[int, list[StepWait]] = {rank: [] for rank in same}
        is_dated = across.links is not None and next(iter(same.values())).at_ns != 0
        for wait in matching.waits([number], offsets, same) if is_dated else ():
            view = same[wait.rank]
            if wait.dur_ns >= LEAST_WAIT_SHARE * view.dur_ns:
                start = wait.start_ns - view.at_ns
                waits[wait.rank].append(
                    StepWait(start_ns=start, dur_ns=wait.dur_ns, late=wait.late, name=wait.name)
                )
        for rank, view in same.items():
            longest = sorted(waits[rank], key=lambda wait: -wait.dur_ns)[:MOST_WAITS]
            in_order = tuple(sorted(longest, key=lambda wait: wait.start_ns))
            yield structs.replace(view, waits=in_order) if is_dated else view


def compare_ranks(
    by_number: Mapping[int, AnyRank],
    common: Sequence[int],
    matching: Matching,
    lines: Mapping[int, Mapping[str, tuple[HostLine, ...]]],
) -> AcrossRanks:
    """Return how long each rank and each common step took, and which rank the others wait for."""
    steps, numbers = max(len(common), 1), set(common)
    dur_ns: dict[int, list[int]] = {}
    for number, rank in by_number.items():
        of_step = {step.number: step.dur_ns for step in rank.steps}
        dur_ns[number] = [of_step[step] for step in common]
    can_compare = share_clock([(rank.base_ns, rank.files) for rank in by_number.values()])

    def alone(number: int) -> Spans:
        """Return when a rank communicates and does nothing else in the common steps."""
        rank = by_number[number]
        inside = [step for step in rank.steps if step.number in numbers]
        starts = np.array([step.start_ns for step in inside], np.int64)
        steps_of_rank = iv.union(starts, starts + np.array([step.dur_ns for step in inside], np.int64))
        exposed = iv.intersect(steps_of_rank, unpack_spans(rank.alone))
        return Spans(exposed.starts + (rank.base_ns or 0), exposed.ends + (rank.base_ns or 0))

    matched = matching.match(common, max(map(sum, dur_ns.values())), alone) if can_compare else None
    waits = {wait.rank: wait.wait_ns for wait in matched.ranks} if matched else {}
    times = []
    for number, rank in by_number.items():
        ledger = Ledger.sum([step.ledger for step in rank.steps if step.ledger and step.number in numbers])
        times.append(
            RankRow(
                rank=number,
                step_ms=sum(dur_ns[number]) // steps / NS_PER_MS,
                wait_ms=waits[number] // steps / NS_PER_MS if number in waits else None,
                ledger=(ledger.with_waiting(matched.waited_alone_ns.get(number, 0)) if matched else ledger)
                if ledger.total
                else None,
            )
        )
    if matched is None:  # ranks whose clocks cannot be compared give the longest of their own times
        longest = [max(same) for same in zip(*dur_ns.values(), strict=True)]
        return AcrossRanks(tuple(times), longest, None, None, {}, tuple(_find_notes(by_number, times, None)))
    straggler, worst = None, matched.straggler
    if worst is not None:
        trouble, excess = largest_excess(times, worst.rank)
        # The line that its host is in while its own step waits.
        own_lines = lines.get(worst.rank, {}).get("input" if trouble == "idle_input" else "stall", ())
        straggler = Straggler(
            rank=worst.rank,
            caused_ms=worst.caused_ns / steps / NS_PER_MS,
            last_share=worst.last / max(matched.matched, 1),
            trouble=trouble,
            trouble_excess=excess,
            ranks=len(times),
            line=own_lines[0] if own_lines else None,
        )
    # A step of the run begins when its last rank has begun it, and lasts until the last rank has ended it.
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number, rank in by_number.items():
        shift = (rank.base_ns or 0) - matched.clock_offsets_ns.get(number, 0)
        for step in rank.steps:
            begin = step.start_ns + shift
            begins[step.number] = max(begins.get(step.number, begin), begin)
            ends[step.number] = max(ends.get(step.number, begin), begin + step.dur_ns)
    return AcrossRanks(
        times=tuple(times),
        step_ns=[ends[number] - begins[number] for number in common],
        skew_ms=matched.skew_ns / steps / NS_PER_MS,
        straggler=straggler,
        clock_offsets_ns=matched.clock_offsets_ns,
        notes=tuple(_find_notes(by_number, times, matched, straggler)),
        links=links_between(matched, times, steps),
    )


def links_between(matched: MatchedCollectives, times: Sequence[RankRow], steps: int) -> Communication:
    """Return the communication between ranks; stages are those that send messages, in the order of ranks."""
    ledgers = {time.rank: time.ledger for time in times}
    stages = []
    for own in matched.messages:
        ledger = ledgers.get(own.rank)
        busy = (ledger.compute or 0) if ledger else 0
        whole = ledger.total if ledger else 0
        transfer = min(own.transfer_ns, max(whole - busy, 0))
        bubble = whole - busy - transfer
        stages.append(
            StageRow(
                rank=own.rank,
                busy_ms=busy / steps / NS_PER_MS,
                bubble_ms=bubble / steps / NS_PER_MS,
                transfer_ms=transfer / steps / NS_PER_MS,
                wait_ms=own.wait_ns / steps / NS_PER_MS,
                bubble_share=bubble / max(busy + bubble + transfer, 1),
            )
        )
    most = max((count for own in matched.messages for count in own.sent.values()), default=0)
    pipeline = PipelineUse.of(stages, most / steps) if len(stages) > 1 else None
    return Communication(collectives=matched.rates, pipeline=pipeline, experts=matched.experts)


def largest_excess(times: Sequence[RankRow], rank: int) -> tuple[str | None, float]:
    """Return the account in which a rank exceeds the median of the others most, and by what share."""
    own = next((time.ledger for time in times if time.rank == rank), None)
    others = [time.ledger.shares() for time in times if time.rank != rank and time.ledger]
    if own is None or not others:
        return None, 0.0
    excesses = {
        account: share - median(other[account] for other in others)
        for account, share in own.shares().items()
        if ACCOUNTS[account].late
    }
    largest = max(excesses, key=lambda account: excesses[account])
    return (largest, excesses[largest]) if excesses[largest] > 0.0 else (None, 0.0)


def _find_notes(
    by_number: Mapping[int, AnyRank],
    times: Sequence[RankRow],
    matched: MatchedCollectives | None,
    straggler: Straggler | None = None,
) -> Iterator[Note]:
    if any(rank.rank is None for rank in by_number.values()):
        yield Note("ranks_unnamed", "Some traces do not name their rank: they are numbered in file order.")
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
            does = account_words(straggler.trouble) if is_known else "is idle without a recorded reason"
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


def _find_warnings(ranks: Sequence[AnyRank], common: Sequence[int]) -> Iterator[Note]:
    world = _first_known(rank.world_size for rank in ranks)
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


def _first_known(values: Iterable[int | None]) -> int | None:
    return next((value for value in values if value is not None), None)
