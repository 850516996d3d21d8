"""The graphs of a rank's steps in bytes: which steps are kept for replays, and how they are read again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct

from stepgrade.decoding import from_msgpack
from stepgrade.errors import NotMeasured
from stepgrade.model.columns import median
from stepgrade.model.events import Longs
from stepgrade.model.profile import RecordedStep
from stepgrade.ranks.collectives import Arrivals, ProcessGroup
from stepgrade.replay.graph import Edges, StepGraph, StepPieces, graph_of_rank
from stepgrade.timeline.timeline import Driver, Pieces, Timeline

MOST_STEPS = 8
MOST_EDGES = 30_000  # of all kept steps: a question then takes some hundredths of a second
_MOST_PIECES = 200_000  # of one step, beyond which not even one is kept
_SPREAD = 2654435761  # Knuth's multiplier: numbers of steps in an order that all ranks agree on
_COLUMNS = {
    "before": "<i4",
    "after": "<i4",
    "lag_ns": "<i8",
    "kind": "i1",
    "piece": "<i4",
    "back": "?",
}


class _Packed(Struct, array_like=True):
    """A graph of one rank; columns are bytes."""

    graph: tuple[
        int, int, int, int, bool, bool
    ]  # number, nodes, measured_ns, launches, has_host, knows_waits
    columns: dict[str, bytes]
    names: tuple[str, ...]
    label: bytes
    kernel: bytes
    work_class: bytes
    phase: bytes
    collectives: tuple[tuple[ProcessGroup, str, int, int], ...]


def record_steps(timeline: Timeline, pieces: Pieces, arrivals: Arrivals) -> tuple[RecordedStep, ...]:
    """Return steady steps to replay, packed, the first choice first; none if they cannot be.

    Those nearest to the median, on the device and on the host; where there are other ranks, those that each
    of them would choose.
    """
    found, edges = list[RecordedStep](), 0
    if timeline.driver is Driver.UNSEEN:
        return ()
    steps, steady = timeline.steps, np.flatnonzero(timeline.windows.steady & (timeline.windows.dur_ns > 0))
    off = np.zeros(len(steady))
    if arrivals.calls:
        off += steps.number[steady].astype(np.int64) * _SPREAD % 2**32
    elif len(steady):
        for dur_ns in (timeline.windows.dur_ns[steady], (steps.end_ns - steps.start_ns)[steady]):
            off += np.abs(dur_ns / max(median(dur_ns), 1.0) - 1.0)
    for number in steps.number[steady[np.argsort(off, kind="stable")[:MOST_STEPS]]].tolist():
        in_step = pieces.step == np.flatnonzero(timeline.steps.number == number)[0]
        if np.count_nonzero(in_step) > _MOST_PIECES:
            continue
        try:
            graph = graph_of_rank(timeline, pieces, arrivals, number)
        except NotMeasured:
            continue
        edges += len(graph.edges.before)
        if found and edges > MOST_EDGES:
            break
        found.append(RecordedStep(number=number, edges=len(graph.edges.before), packed=_pack(graph)))
    return tuple(found)


def _pack(graph: StepGraph) -> bytes:
    names = dict.fromkeys((*graph.pieces.label, *graph.pieces.kernel))
    index = {name: number for number, name in enumerate(names)}

    def indices(of: Sequence[str]) -> bytes:
        return np.array([index[name] for name in of], "<i4").tobytes()

    packed = _Packed(
        (graph.number, graph.nodes, graph.measured_ns, graph.launches, graph.has_host, graph.knows_waits),
        {name: getattr(graph.edges, name).astype(kind).tobytes() for name, kind in _COLUMNS.items()},
        tuple(names),
        indices(graph.pieces.label),
        indices(graph.pieces.kernel),
        graph.pieces.work_class.astype("i1").tobytes(),
        graph.pieces.phase.astype("i1").tobytes(),
        tuple((*key, row) for key, row in graph.collectives.items()),
    )
    return msgspec.msgpack.encode(packed)


def unpack_graph(packed: bytes) -> StepGraph:
    """Return the graph of one rank's step."""
    found = from_msgpack(packed, _Packed)
    number, nodes, measured_ns, launches, has_host, knows_waits = found.graph
    columns = {name: np.frombuffer(found.columns[name], kind) for name, kind in _COLUMNS.items()}

    def texts(indices: bytes) -> tuple[str, ...]:
        return tuple(found.names[index] for index in np.frombuffer(indices, "<i4").tolist())

    def longs(name: str) -> Longs:
        return columns[name].astype(np.int64)

    return StepGraph(
        number=number,
        ranks=1,
        nodes=nodes,
        edges=Edges(
            longs("before"),
            longs("after"),
            longs("lag_ns"),
            columns["kind"].astype(np.int8),
            columns["piece"].astype(np.int32),
            columns["back"].astype(np.bool_),
        ),
        pieces=StepPieces(
            texts(found.label),
            texts(found.kernel),
            np.frombuffer(found.work_class, "i1").astype(np.int8),
            np.frombuffer(found.phase, "i1").astype(np.int8),
        ),
        measured_ns=measured_ns,
        launches=launches,
        has_host=has_host,
        knows_waits=knows_waits,
        collectives={(group, name, index): row for group, name, index, row in found.collectives},
    )
