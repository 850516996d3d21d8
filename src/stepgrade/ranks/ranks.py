"""Merge the profiles of a run's ranks: figures of the mean rank, steps of the slowest chain, who is late."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec import Struct, structs

from stepgrade.decoding import from_msgpack
from stepgrade.model.activity import HostLine, Straggler
from stepgrade.model.collectives import Communication, PipelineUse, StageRow
from stepgrade.model.layers import LayerStep, ModuleStep
from stepgrade.model.ledger import Ledger, account_words
from stepgrade.model.many_ranks import notes_of
from stepgrade.model.merge import ProfileMerge
from stepgrade.model.notes import Note
from stepgrade.model.operations import Span
from stepgrade.model.profile import Profile, RankRow, Source
from stepgrade.model.step_view import StepView, StepWait
from stepgrade.ranks.arrivals import Arrivals
from stepgrade.ranks.many_ranks import RankParts, describe_ranks
from stepgrade.ranks.matching import MatchedCollectives, Matching
from stepgrade.ranks.operation_columns import FAST, MeanOperations, PackedOperations, pack
from stepgrade.statistics import median
from stepgrade.timeline.quality import by_weight
from stepgrade.units import NS_PER_MS, show_ms, show_share

MOST_VIEWS = 32  # ranks whose steps are drawn
MOST_WAITS = 12  # of a rank that are drawn
LEAST_WAIT_SHARE = 0.002  # of a step: what is shorter cannot be seen
OWN_TROUBLE_SHARE = 0.02
Known = TypeVar("Known")


class RankStep(Struct, frozen=True, kw_only=True):
    """One recorded step of a rank, on the clock of its file."""

    number: int
    start_ns: int
    dur_ns: int
    steady: bool
    ledger: Ledger | None


class RankProfile(Struct, frozen=True, kw_only=True):
    """One rank's profile, with what merging ranks needs beside it."""

    profile: Profile
    rank: int | None
    base_ns: int | None  # epoch nanoseconds that the steps' times count from
    steps: tuple[RankStep, ...]
    arrivals: Arrivals
    process: str | None = None
    host: str | None = None  # where its file's name tells it

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that the rank was recorded in."""
        return self.profile.source.files

    @property
    def world_size(self) -> int | None:
        """Return how many ranks the run has, as far as this one knows."""
        return self.profile.world_size or None

    def unpacked(self) -> RankProfile:
        """Return the rank itself: it is as it is."""
        return self

    def packed(self) -> PackedRank:
        """Return the rank packed."""
        return PackedRank.of(self)


class PackedRank(Struct, frozen=True, kw_only=True):
    """One rank in few bytes: what is needed of all ranks at once, and the rest packed by who needs it.

    Packed is what is MessagePack in zlib.
    """

    rank: int | None
    base_ns: int | None
    steps: tuple[RankStep, ...]
    process: str | None
    host: str | None
    files: tuple[str, ...]
    world_size: int | None
    body: bytes  # packed: the profile without what follows
    operations: PackedOperations
    layers: bytes  # packed, as the next two: a run shows those of one or few ranks
    modules: bytes
    views: bytes
    program: bytes  # packed: its collectives without their times, which most ranks have in common
    times: bytes  # when each began and how long it took, in zlib

    @classmethod
    def of(cls, rank: RankProfile) -> PackedRank:
        """Return the rank packed."""
        profile, arrivals = rank.profile, rank.arrivals
        return cls(
            rank=rank.rank,
            base_ns=rank.base_ns,
            steps=rank.steps,
            process=rank.process,
            host=rank.host,
            files=rank.files,
            world_size=rank.world_size,
            body=pack(structs.replace(profile, operations=(), layers=(), modules=(), views=())),
            operations=PackedOperations.of(profile.operations),
            layers=pack(profile.layers),
            modules=pack(profile.modules),
            views=pack(profile.views),
            program=pack(structs.replace(arrivals, start_ns=b"", dur_ns=b"")),
            times=zlib.compress(arrivals.start_ns + arrivals.dur_ns, FAST),
        )

    def lean(self, *, layers: bool, modules: bool) -> Profile:
        """Return the profile under the files that it has now, with layers and modules if asked for."""
        profile = _unpack(self.body, Profile)
        # Nobody else has it yet, and a new one would have all its figures checked again.
        structs.force_setattr(profile, "source", structs.replace(profile.source, files=self.files))
        has_layers, has_modules = layers and self.layers != _NOTHING, modules and self.modules != _NOTHING
        if not has_layers and not has_modules:
            return profile
        return structs.replace(
            profile,
            layers=_unpack(self.layers, _LAYERS) if has_layers else (),
            modules=_unpack(self.modules, _MODULES) if has_modules else (),
        )

    def arrivals(self, programs: dict[bytes, Arrivals]) -> Arrivals:
        """Return its collectives; `programs` are those of ranks before, and this one's is put to them."""
        program = programs.get(self.program)
        if program is None:
            program = programs[self.program] = _unpack(self.program, Arrivals)
        times = zlib.decompress(self.times)
        half = len(times) // 2
        return structs.replace(program, start_ns=times[:half], dur_ns=times[half:])

    def unpacked(self) -> RankProfile:
        """Return the rank as it was packed, under the files that it has now."""
        return RankProfile(
            profile=structs.replace(
                self.lean(layers=True, modules=True),
                operations=self.operations.unpacked(),
                views=_unpack(self.views, _VIEWS),
            ),
            rank=self.rank,
            base_ns=self.base_ns,
            steps=self.steps,
            arrivals=self.arrivals({}),
            process=self.process,
            host=self.host,
        )

    def packed(self) -> PackedRank:
        """Return the rank itself: it is as it is."""
        return self

    def sharing(self, known: dict[bytes, bytes]) -> PackedRank:
        """Return the rank with the bytes that others have too kept once; `known` are those so far."""
        names = known.setdefault(self.operations.names, self.operations.names)
        return structs.replace(
            self,
            operations=structs.replace(self.operations, names=names),
            program=known.setdefault(self.program, self.program),
        )


_LAYERS = tuple[LayerStep, ...]
_MODULES = tuple[ModuleStep, ...]
_VIEWS = tuple[StepView, ...]
_NOTHING = pack(())


def _unpack(packed: bytes, kind: type[Known]) -> Known:
    return from_msgpack(zlib.decompress(packed), kind)


AnyRank: TypeAlias = RankProfile | PackedRank


class AcrossRanks(NamedTuple):
    """What only the ranks together show, over the steps that are steady on all of them."""

    times: tuple[RankRow, ...]
    step_ns: list[int]  # of the slowest chain
    skew_ms: float | None
    straggler: Straggler | None
    clock_offsets_ns: Mapping[int, int]
    notes: tuple[Note, ...]
    links: Communication | None = None


def merge_ranks(ranks: Sequence[AnyRank]) -> Profile:
    """Return the profile of the run whose ranks these are; packed ones are unpacked one by one."""
    places = number_ranks([rank.rank for rank in ranks])
    by_number = {number: ranks[place] for number, place in places.items()}
    steady = [{step.number for step in rank.steps if step.steady} for rank in by_number.values()]
    common = sorted(set.intersection(*steady))
    warnings = tuple(_find_warnings([*by_number.values()], common))
    if len(ranks) == 1:
        first = ranks[0].unpacked().profile
        return structs.replace(first, warnings=by_weight([*warnings, *first.warnings]))
    files = tuple(dict.fromkeys(rank.files[0] for rank in ranks))
    of_file = {file: place for place, file in enumerate(files)}
    merge, operations, matching = ProfileMerge("ranks"), MeanOperations(len(ranks)), Matching()
    lines, views, programs = {}, list[StepView](), dict[bytes, Arrivals]()
    first = next(iter(by_number.values())).packed().lean(layers=False, modules=False)
    has_layers = has_modules = False  # of the first rank that has any; the others' are not unpacked
    for number, rank in by_number.items():
        packed = rank.packed()
        profile = packed.lean(layers=not has_layers, modules=not has_modules)
        has_layers, has_modules = has_layers or bool(profile.layers), has_modules or bool(profile.modules)
        if len({view.rank for view in views}) < MOST_VIEWS:
            views += [structs.replace(view, rank=number) for view in _unpack(packed.views, _VIEWS)]
        merge.add(profile, number)
        operations.add(packed.operations, profile.steps, of_file[profile.source.files[0]])
        matching.add(number, packed.arrivals(programs))
        if profile.activity:
            lines[number] = profile.activity.lines
    across = compare_ranks(by_number, common, matching, lines)
    stated = _first_known(rank.world_size for rank in ranks)
    ledgers = [time.ledger for time in across.times if time.ledger]
    of_node = first.links.node_devices if first.links else None
    numbered = set(common)
    many = describe_ranks(
        across.times,
        {
            number: [step.ledger for step in rank.steps if step.ledger and step.number in numbered]
            for number, rank in by_number.items()
        },
        RankParts.of(programs.values(), {number: rank.host for number, rank in by_number.items()}, of_node),
        across.links.collectives if across.links else (),
    )
    merged = merge.result(
        source=Source(format=first.source.format, files=files, producer=first.source.producer),
        steps=len(common) or None,
        recorded_steps=max(len(rank.steps) for rank in ranks),
        mean_step_ms=sum(across.step_ns) / len(common) / NS_PER_MS if common else None,
        samples_ms=tuple(ns / NS_PER_MS for ns in across.step_ns),
        views=_drawn_steps(views, matching, across),
        operations=operations.result(),
        typical_step=in_file(first.typical_step, first, of_file),
        ledger=Ledger.sum(ledgers) if ledgers else None,
        rank=None,
        ranks=across.times,
        world_size=max(stated, len(ranks)) if stated else None,  # files of several hosts have a part each
        links=structs.replace(across.links, node_devices=of_node) if across.links else first.links,
        many_ranks=many,
    )
    activity = merged.activity
    return structs.replace(
        merged,
        activity=activity and structs.replace(activity, skew_ms=across.skew_ms, straggler=across.straggler),
        notes=(*across.notes, *(notes_of(many) if many else ()), *merged.notes),
        warnings=by_weight([*warnings, *merged.warnings]),
    )


def in_file(span: Span | None, profile: Profile, places: Mapping[str, int]) -> Span | None:
    """Return the span of one rank with the index that its file has in the run."""
    return structs.replace(span, file=places[profile.source.files[0]]) if span else None


def number_ranks(stated: Sequence[int | None]) -> dict[int, int]:
    """Return which of the ranks has which number, in their order.

    Those without a number get the lowest free ones; where two have the same, all get their place.
    """
    numbers = [number for number in stated if number is not None]
    taken = set(numbers)
    if len(taken) < len(numbers):
        return {place: place for place in range(len(stated))}
    free = (number for number in range(len(stated)) if number not in taken)
    named = {next(free) if number is None else number: place for place, number in enumerate(stated)}
    return dict(sorted(named.items()))


def share_clock(ranks: Sequence[tuple[int | None, tuple[str, ...]]]) -> bool:
    """Tell, by the epochs and files of ranks, whether times of one can be compared with those of another.

    They can be where the epochs are known, or where all ranks are of one merged file.
    """
    undated = [base_ns is None for base_ns, _ in ranks]
    return not any(undated) or (all(undated) and len({files for _, files in ranks}) == 1)


def _drawn_steps(views: Sequence[StepView], matching: Matching, across: AcrossRanks) -> tuple[StepView, ...]:
    """Return the first step, and others that all ranks drew, each on one clock and with its waits."""
    drawn = Counter(view.number for view in views)
    ranks = len({view.rank for view in views})
    return tuple(
        view
        for place, (number, times) in enumerate(drawn.items())
        if place == 0 or times == ranks
        for view in _with_waits(_on_one_clock(views, number, across.clock_offsets_ns), matching, across)
    )


def _on_one_clock(
    views: Sequence[StepView], number: int, offsets_ns: Mapping[int, int]
) -> tuple[StepView, ...]:
    """Return this step of all ranks, each where the ranks' common clock says it begins."""
    same = [view for view in views if view.number == number]
    shifted = [structs.replace(view, at_ns=view.at_ns - offsets_ns.get(view.rank or 0, 0)) for view in same]
    # Clocks that are a step apart are not one.
    spread = max((view.at_ns for view in shifted), default=0) - min(
        (view.at_ns for view in shifted), default=0
    )
    if spread > max((view.dur_ns for view in shifted), default=0):
        return tuple(structs.replace(view, at_ns=0) for view in shifted)
    return tuple(shifted)


def _with_waits(views: tuple[StepView, ...], matching: Matching, across: AcrossRanks) -> tuple[StepView, ...]:
    """Return the drawn steps with the longest waits in them, and for which rank each was."""
    if across.links is None or not views or views[0].at_ns == 0:
        return views
    waits: dict[int, list[StepWait]] = {}
    begins = {view.rank or 0: view for view in views}
    for wait in matching.waits([views[0].number], across.clock_offsets_ns, begins):
        view = begins[wait.rank]
        if wait.dur_ns >= LEAST_WAIT_SHARE * view.dur_ns:
            start = wait.start_ns - view.at_ns
            drawn = StepWait(start_ns=start, dur_ns=wait.dur_ns, late=wait.late, name=wait.name)
            waits.setdefault(wait.rank, []).append(drawn)
    longest = {rank: sorted(those, key=lambda one: -one.dur_ns)[:MOST_WAITS] for rank, those in waits.items()}
    return tuple(
        structs.replace(
            view, waits=tuple(sorted(longest.get(view.rank or 0, ()), key=lambda one: one.start_ns))
        )
        for view in views
    )


def compare_ranks(
    by_number: Mapping[int, AnyRank],
    common: Sequence[int],
    matching: Matching,
    lines: Mapping[int, Mapping[str, tuple[HostLine, ...]]],
) -> AcrossRanks:
    """Return how long each rank and each common step took, and which rank the others wait for."""
    ranks = [*by_number.values()]
    steps, numbers = max(len(common), 1), set(common)
    dur_ns: dict[int, list[int]] = {}
    for number, rank in by_number.items():
        of_step = {step.number: step.dur_ns for step in rank.steps}
        dur_ns[number] = [of_step[step] for step in common]
    can_compare = share_clock([(rank.base_ns, rank.files) for rank in ranks])
    matched = matching.match(common, max(map(sum, dur_ns.values()))) if can_compare else None
    waits = {wait.rank: wait.wait_ns for wait in matched.ranks} if matched else {}
    times = []
    for number, rank in by_number.items():
        ledger = Ledger.sum([step.ledger for step in rank.steps if step.ledger and step.number in numbers])
        times.append(
            RankRow(
                rank=number,
                step_ms=sum(dur_ns[number]) // steps / NS_PER_MS,
                wait_ms=waits[number] // steps / NS_PER_MS if number in waits else None,
                ledger=ledger if ledger.total else None,
            )
        )
    straggler = _describe_straggler(matched, times, steps) if matched else None
    if straggler:  # the line that its host is in while its own step waits
        waiting = "input" if straggler.trouble == "idle_input" else "stall"
        of_host = lines.get(straggler.rank, {}).get(waiting, ())
        straggler = structs.replace(straggler, line=of_host[0] if of_host else None)
    # Ranks whose clocks cannot be compared give the longest of their own times.
    longest = [max(of_ranks) for of_ranks in zip(*dur_ns.values(), strict=True)]
    return AcrossRanks(
        times=tuple(times),
        step_ns=_slowest_chain(by_number, common, matched) if matched else longest,
        skew_ms=matched.skew_ns / steps / NS_PER_MS if matched else None,
        straggler=straggler,
        clock_offsets_ns=matched.clock_offsets_ns if matched else {},
        notes=tuple(_find_notes(by_number, times, matched, straggler)),
        links=links_between(matched, times, steps) if matched else None,
    )


def links_between(matched: MatchedCollectives, times: Sequence[RankRow], steps: int) -> Communication:
    """Return what the ranks tell each other; stages are those that send messages, in the order of ranks."""
    ledgers = {time.rank: time.ledger for time in times}
    stages = []
    for one in matched.messages:
        ledger = ledgers.get(one.rank)
        busy = (ledger.compute or 0) if ledger else 0
        whole = ledger.total if ledger else 0
        transfer = min(one.transfer_ns, max(whole - busy, 0))
        bubble = whole - busy - transfer
        stages.append(
            StageRow(
                rank=one.rank,
                busy_ms=busy / steps / NS_PER_MS,
                bubble_ms=bubble / steps / NS_PER_MS,
                transfer_ms=transfer / steps / NS_PER_MS,
                wait_ms=one.wait_ns / steps / NS_PER_MS,
                bubble_share=bubble / max(busy + bubble + transfer, 1),
            )
        )
    most = max((count for one in matched.messages for count in one.sent.values()), default=0)
    pipeline = PipelineUse.of(stages, most / steps) if len(stages) > 1 else None
    return Communication(collectives=matched.rates, pipeline=pipeline, experts=matched.experts)


def _slowest_chain(
    by_number: Mapping[int, AnyRank], common: Sequence[int], matched: MatchedCollectives
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
    matched: MatchedCollectives, times: Sequence[RankRow], steps: int
) -> Straggler | None:
    """Return the rank that the others wait for, and the account in which its device exceeds theirs most."""
    worst = matched.straggler
    if worst is None:
        return None
    trouble, excess = largest_excess(times, worst.rank)
    return Straggler(
        rank=worst.rank,
        caused_ms=worst.caused_ns / steps / NS_PER_MS,
        last_share=worst.last / max(matched.matched, 1),
        trouble=trouble,
        trouble_excess=excess,
        ranks=len(times),
    )


def largest_excess(times: Sequence[RankRow], rank: int) -> tuple[str | None, float]:
    """Return the account in which a rank exceeds the median of the others most, and by what share."""
    own = next((time.ledger for time in times if time.rank == rank), None)
    others = [time.ledger.shares() for time in times if time.rank != rank and time.ledger]
    if own is None or not others:
        return None, 0.0
    excesses = {
        account: share - median(other[account] for other in others)
        for account, share in own.shares().items()
        if account != "exposed_communication"
    }
    largest = max(excesses, key=lambda account: excesses[account])
    return (largest, excesses[largest]) if excesses[largest] > 0.0 else (None, 0.0)


def _find_notes(
    by_number: Mapping[int, AnyRank],
    times: Sequence[RankRow],
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


def _first_known(values: Iterable[Known | None]) -> Known | None:
    return next((value for value in values if value is not None), None)
