"""The recordings of a run's ranks as one run: what they reach together, and whom the others wait for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stepgrade.errors import BadInput
from stepgrade.model import RECORDER, Note, Profile, RankRow, Source
from stepgrade.model.activity import Activity, Straggler
from stepgrade.model.merge import ProfileMerge
from stepgrade.ranks.packed_ranks import MeanOperations, PackedOperations
from stepgrade.ranks.ranks import largest_excess
from stepgrade.statistics import mean
from stepgrade.units import NS_PER_MS

# A rank that the others wait for less than this share of the step is no straggler, but noise.
LEAST_WAIT_SHARE = 0.02
# It causes most of the waiting: with the next one as late, none stands out.
MOST_OF_THE_WAITING = 0.5


def merge_recordings(profiles: Sequence[Profile]) -> Profile:
    """Return the run whose ranks were recorded; raise BadInput for files that are not ranks of one run.

    Its steps are those of the slowest rank, its tokens and samples those of all ranks together, and the rest
    is that of the mean rank.
    """
    if len(profiles) == 1:
        return profiles[0]
    by_rank = _by_rank(profiles)
    ranks = [*by_rank.values()]
    slowest = max(ranks, key=lambda profile: profile.mean_step_ms or 0.0)
    files = tuple(profile.source.files[0] for profile in ranks)
    # How long a step communicates on each rank with nothing to hide it, waits included.
    communication_ms = {
        number: sum(phase.ms or 0.0 for phase in profile.phases if phase.name == "communication")
        for number, profile in by_rank.items()
    }
    # Whoever comes last to a collective does not wait in it: its time is the collective alone.
    wait_ms = {number: ms - min(communication_ms.values()) for number, ms in communication_ms.items()}
    for number, profile in by_rank.items():
        if profile.ledger is not None:
            waited_ns = round(wait_ms[number] * (profile.steps or 1) * NS_PER_MS)
            by_rank[number] = structs.replace(profile, ledger=profile.ledger.with_waiting(waited_ns))
    times = tuple(
        RankRow(
            rank=number,
            step_ms=profile.mean_step_ms or 0.0,
            wait_ms=wait_ms[number],
            ledger=profile.ledger,
        )
        for number, profile in by_rank.items()
    )
    # The rank that the others wait for, if one stands out: how much later it comes than the one before it.
    last, *others = sorted(times, key=lambda time: time.wait_ms or 0.0)
    caused_ms, ahead_ms = mean([time.wait_ms or 0.0 for time in others]), others[0].wait_ms or 0.0
    straggler = None
    is_noise = caused_ms < LEAST_WAIT_SHARE * (slowest.mean_step_ms or 0.0)
    if not is_noise and ahead_ms >= MOST_OF_THE_WAITING * caused_ms:
        trouble, excess = largest_excess(times, last.rank)
        straggler = Straggler(
            rank=last.rank, caused_ms=caused_ms, trouble=trouble, trouble_excess=excess, ranks=len(times)
        )
    merge, operations = ProfileMerge("recorded ranks"), MeanOperations(len(ranks))
    for index, (number, profile) in enumerate(by_rank.items()):
        merge.add(profile, number)
        operations.add(PackedOperations.of(profile.operations), profile.steps, index)
    merged = merge.result(
        source=Source(format=slowest.source.format, files=files, producer=RECORDER),
        operations=operations.result(),
        rank=None,
        counted_ranks=len(ranks),
        ranks=times,
    )
    world = slowest.world_size or len(ranks)
    missing = f"{len(ranks)} of {world} ranks were given: the throughput is theirs, not the whole run's"
    return structs.replace(
        merged,
        activity=structs.replace(
            merged.activity or Activity(driver="unseen"),
            skew_ms=mean([time.wait_ms or 0.0 for time in times]),
            straggler=straggler,
        ),
        warnings=(*((Note("ranks_missing", missing),) if world > len(ranks) else ()), *merged.warnings),
    )


def _by_rank(profiles: Sequence[Profile]) -> dict[int, Profile]:
    """Return the recordings by rank, in order."""
    found: dict[int, Profile] = {}
    for profile in profiles:
        where = profile.source.files[0]
        if profile.source.producer != RECORDER or profile.rank is None:
            hint = "several sources are the ranks of one run: traces, or our own recordings"
            raise BadInput("is not a rank of a run", where=where, hint=hint)
        other = found.get(profile.rank)
        if other is not None:
            problem = f"{other.source.files[0]} and {where} both say they are rank {profile.rank}"
            raise BadInput(problem, hint="give the files of one run, one for each rank")
        found[profile.rank] = profile
    if len({profile.world_size for profile in profiles}) > 1:
        sizes = ", ".join(f"{profile.source.files[0]}: {profile.world_size}" for profile in profiles)
        raise BadInput(f"are from runs with different numbers of ranks ({sizes})")
    return dict(sorted(found.items()))
