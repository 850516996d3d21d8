"""What a run communicates for: gradients, sharded weights, parts of layers, stages or experts.

It is read from what the collectives of a process group do and from where in the step they stand. Gradients
are reduced in the backward pass alone. Shards of weights are gathered before they are used, in forward too,
and their gradients scattered in backward. Where a layer is divided, its activations are reduced in both.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from stepgrade.naming.collective_kind import CollectiveKind, collective_kind
from stepgrade.naming.torch_names import EMBEDDING_TABLES, named
from stepgrade.naming.work_class import WorkClass
from stepgrade.ranks.collectives import describe, message_bytes
from stepgrade.timeline.pieces import Pieces
from stepgrade.timeline.timeline import IN_BACKWARD, IN_OPTIMIZER, Timeline
from stepgrade.units import NS_PER_MS

FORWARD, BACKWARD, OPTIMIZER = range(3)
# Smaller messages carry counts, statistics and losses: they are no kind of parallelism.
LEAST_BYTES = 256 * 1024
# A layer that is divided reduces in forward about as often as in backward; gradients never do.
LEAST_FORWARD_PART = 0.25
Counts = dict[tuple[CollectiveKind, int], int]


def communication_by_purpose(timeline: Timeline, pieces: Pieces, steps: int) -> dict[str, float]:
    """Return the milliseconds of a steady step that go to communication of each kind of parallelism.

    They are data, fsdp, tensor, pipeline, expert, or unknown; the longest is first.
    """
    chosen = pieces.steady & (pieces.work_class == WorkClass.COMMUNICATION) & (pieces.work >= 0)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return {}
    context = pieces.context[rows]
    phases = np.where(context & IN_OPTIMIZER, OPTIMIZER, np.where(context & IN_BACKWARD, BACKWARD, FORWARD))
    trains = bool((pieces.context[pieces.steady] & (IN_BACKWARD | IN_OPTIMIZER)).any())
    strings, ops = timeline.trace.strings, timeline.trace.ops
    has_tables = bool(named(strings, ops.name, EMBEDDING_TABLES).any())
    # Whole numbers until all are added: then the order does not matter, and ten tenths are one.
    times_ns: dict[tuple[str, CollectiveKind], int] = defaultdict(int)
    counts: dict[str, Counts] = defaultdict(lambda: defaultdict(int))
    for row, phase in zip(rows.tolist(), phases.tolist(), strict=True):
        name, described = describe(timeline, pieces, row)
        kind = collective_kind(name)
        group = f"{described.group} {described.group_ranks or described.group_size}"
        times_ns[group, kind] += int(pieces.dur_ns[row])
        size = message_bytes(described)
        # What no host event launched stands nowhere in the step.
        if pieces.row[row] >= 0 and (size is None or size >= LEAST_BYTES):
            counts[group][kind, phase] += 1
    found_ns: dict[str, int] = defaultdict(int)
    for (group, kind), spent_ns in times_ns.items():
        purpose = _purpose(kind, counts[group], steps, trains=trains, has_tables=has_tables)
        found_ns[purpose] += spent_ns
    longest_first = sorted(found_ns.items(), key=lambda item: (-item[1], item[0]))
    return {purpose: spent_ns / steps / NS_PER_MS for purpose, spent_ns in longest_first}


def _purpose(kind: CollectiveKind, counts: Counts, steps: int, *, trains: bool, has_tables: bool) -> str:
    """Return what the collectives of one kind in a process group are for, by all that the group does."""

    def often(which: CollectiveKind, *phases: int) -> float:
        return sum(counts.get((which, phase), 0) for phase in phases) / steps

    purpose = "unknown"
    if kind is CollectiveKind.ALL_TO_ALL and not has_tables:  # tables spread over ranks exchange rows too
        purpose = "expert"
    elif kind is CollectiveKind.SEND_RECEIVE:
        purpose = "pipeline"
    elif kind is CollectiveKind.ALL_REDUCE:
        forward, backward = often(kind, FORWARD), often(kind, BACKWARD, OPTIMIZER)
        if forward >= 2 and (not trains or forward >= LEAST_FORWARD_PART * (forward + backward)):
            purpose = "tensor"
        elif backward:
            purpose = "data"
    elif kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        purpose = _purpose_of_shards(
            gathers=often(CollectiveKind.ALL_GATHER, FORWARD) >= 1,
            gathers_again=often(CollectiveKind.ALL_GATHER, BACKWARD) >= 1,
            scatters=often(CollectiveKind.REDUCE_SCATTER, FORWARD) >= 1,
            scatters_back=often(CollectiveKind.REDUCE_SCATTER, BACKWARD, OPTIMIZER) > 0,
        )
        purpose = "unknown" if purpose == "tensor" and has_tables else purpose  # their rows are scattered too
    return purpose


def _purpose_of_shards(*, gathers: bool, gathers_again: bool, scatters: bool, scatters_back: bool) -> str:
    """Return what gathering and scattering is for; the second and last are of the backward pass."""
    if scatters:
        return "tensor"  # sequence parallel: activations are scattered in forward too
    if gathers and (scatters_back or gathers_again):
        return "fsdp"
    return "data" if scatters_back else "unknown"  # the optimizer alone is sharded
