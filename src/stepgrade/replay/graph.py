"""One step as a graph of what waited for what.

Nodes are moments: host calls, starts and ends of device work, and the points where the ranks of a collective
have all arrived. An edge makes its second node happen at least `lag_ns` after its first; a node happens when
its latest edge allows. All durations lie on edges, so a change to the run changes edge lengths. Edges marked
`back` come from the previous step: replaying a step after itself shows how long it takes in steady state.

The threads that drive a device count as one, in the order of their calls; PyTorch's take turns. A trace does
not record which stream waits for which. Evidence is a recorded call that makes a stream wait, or work that
starts right when work on another stream ends (STREAM). Work that merely came after work on another stream,
whether it had to or not, also gets an edge (ORDER); keeping those makes the replay most conservative.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrade.errors import NotMeasured
from stepgrade.model.columns import among, distinct, groups, median
from stepgrade.model.events import NONE, Ids, Kinds, Longs
from stepgrade.naming.torch_names import Mask, named
from stepgrade.naming.work_class import WorkClass
from stepgrade.ranks.collectives import Arrivals, ProcessGroup
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.ledger import DISPATCH_NS, waiting_calls
from stepgrade.timeline.steps import StepBasis
from stepgrade.timeline.timeline import Driver, Pieces, Timeline

_STREAM_WAIT = re.compile(r"StreamWaitEvent")
# Launch to start takes 5 to 20 microseconds: a shorter gap to another stream's end may be chance.
_SEEN_WAIT_NS = 20_000
_SMALL_PART = 0.1  # of a wait
_STREAMS = 8  # the busiest streams, whose order is examined
# A launch that takes this many times the usual while so many are queued found the queue full.
_BLOCKED, _QUEUE_FULL = 10, 128
_NEVER = np.iinfo(np.int64).min // 2
Rows = NDArray[np.intp]
MeetingKey = tuple[ProcessGroup, str, int]  # ranks, name, and index within the step


class Edge(IntEnum):
    """What the time between two moments is spent on."""

    HOST = 0  # the host works
    INPUT = 1  # the host waits for data
    WORK = 2  # a piece of work runs
    MOVE = 3  # a collective moves data, all ranks have arrived
    QUEUE = 4  # after the previous work on the same stream
    LAUNCH = 5  # after the launch
    STREAM = 6  # known to wait for another stream
    ORDER = 7  # after work on another stream, possibly by chance
    SYNC = 8  # the host waits for work
    MEET = 9  # a collective waits for a rank


class Edges(NamedTuple):
    """Edges in columns."""

    before: Longs
    after: Longs
    lag_ns: Longs  # negative if consecutive work overlaps
    kind: Kinds
    piece: Ids  # row in the graph's pieces, or NONE
    back: Mask  # from the previous step

    @classmethod
    def joined(cls, parts: Sequence[Edges]) -> Edges:
        """Return all edges, concatenated."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    @classmethod
    def of(cls, kind: Edge, before: Longs, after: Longs, lag_ns: NDArray[Any], **more: NDArray[Any]) -> Edges:
        """Return edges of one kind; `more` may have their `piece` and `back`."""
        count = len(before)
        return cls(
            np.asarray(before, np.int64),
            np.asarray(after, np.int64),
            np.asarray(lag_ns, np.int64),
            np.full(count, kind, np.int8),
            np.asarray(more.get("piece", np.full(count, NONE)), np.int32),
            np.asarray(more.get("back", np.zeros(count)), np.bool_),
        )


class StepPieces(NamedTuple):
    """The pieces of work in a step: operation, kernel, class and phase."""

    label: tuple[str, ...]
    kernel: tuple[str, ...]
    work_class: Kinds
    phase: Kinds


class StepGraph(NamedTuple):
    """One step of one rank, or of several ranks joined."""

    number: int
    ranks: int
    nodes: int
    edges: Edges
    pieces: StepPieces
    measured_ns: int  # step time, averaged over ranks
    launches: int  # host calls that launch work, averaged over ranks
    has_host: bool  # launches were recorded
    knows_waits: bool  # stream waits were recorded, or there is only one stream
    collectives: dict[MeetingKey, int]  # the piece, which is also the row of its edge
    apart: tuple[StepGraph, ...] = ()  # each of several ranks alone: its collectives wait for nobody
    waiting_ns: int = 0  # time of collectives before their last rank arrived, averaged over ranks


class _Sources(NamedTuple):
    """Work that something may have waited for, of this step and the previous one."""

    stream: Longs
    issued_ns: Longs  # launch time, or start time if no launch was recorded
    end_ns: Longs  # _NEVER if the previous step is not in the trace
    node: Longs  # end node of the same work in this step
    back: Mask

    def latest(self, streams: Sequence[int], issued_by: Longs, ended_by: Longs) -> list[Rows]:
        """Return, per stream, the last work that was issued and had ended by then; NONE without any."""
        found = []
        for stream in streams:
            rows = np.flatnonzero((self.stream == stream) & (self.end_ns > _NEVER))
            rows = rows[np.argsort(self.end_ns[rows], kind="stable")]
            issued = np.maximum.accumulate(self.issued_ns[rows])
            index = np.minimum(
                np.searchsorted(issued, issued_by, side="right"),
                np.searchsorted(self.end_ns[rows], ended_by, side="right"),
            )
            found.append(np.append(rows, NONE)[index - 1])
        return found

    def ends(self, rows: Rows) -> Longs:
        """Return when the work ended; _NEVER for NONE."""
        return np.append(self.end_ns, _NEVER)[rows]

    def last_of(self, candidates: Sequence[Rows]) -> Rows:
        """Return, per position, the candidate that ended last."""
        rows = np.array(candidates, np.intp)
        last: Rows = rows[self.ends(rows).argmax(axis=0), np.arange(rows.shape[1])]
        return last


def graph_of_rank(timeline: Timeline, pieces: Pieces, arrivals: Arrivals, number: int) -> StepGraph:
    """Return the graph of step `number`; raise NotMeasured if the trace does not contain its work."""
    found = np.flatnonzero(timeline.steps.number == number)
    if timeline.driver is Driver.UNSEEN or not len(found):
        problem = "the device's work was not recorded" if len(found) else f"there is no step {number} in it"
        raise NotMeasured(f"the step cannot be replayed: {problem}", where=timeline.trace.file)
    step = int(found[0])
    rows = np.flatnonzero(pieces.step == step)
    rows = rows[np.argsort(pieces.start_ns[rows], kind="stable")]
    strings, windows = timeline.trace.strings, timeline.windows
    graph = StepGraph(
        number=number,
        ranks=1,
        nodes=len(rows) + 3,
        edges=Edges.of(Edge.WORK, rows[:0], rows[:0], rows[:0]),
        pieces=StepPieces(
            label=tuple(pieces.labels[index] for index in pieces.label[rows].tolist()),
            kernel=tuple("" if index < 0 else strings[index] for index in pieces.kernel[rows].tolist()),
            work_class=pieces.work_class[rows],
            phase=pieces.phase[rows],
        ),
        measured_ns=int(windows.dur_ns[step]),
        launches=0,
        has_host=True,
        knows_waits=True,
        collectives={},
    )
    if timeline.driver is Driver.DEVICE:
        if not len(rows):
            problem = f"the step cannot be replayed: nothing ran on the device in step {number}"
            raise NotMeasured(problem, where=timeline.trace.file)
        return _DeviceStep(timeline, pieces, rows, step).fill(graph, arrivals)
    # The host computes: one operation after the other, then input, then what lies between operations.
    fetched = 0
    if timeline.ledger is not None:
        begin, end = windows.start_ns[[step]], windows.end_ns[[step]]
        fetched = int(iv.covered_within(timeline.ledger.time_in("idle_input"), begin, end)[0])
    is_input = timeline.context[pieces.row[rows]] & 1 > 0  # the loader's operations are in `fetched`
    own = np.where(is_input, 0, pieces.dur_ns[rows]).astype(np.int64)
    rest = max(graph.measured_ns - int(own.sum()) - fetched, 0)
    chain = np.arange(len(rows) + 2, dtype=np.int64)
    edges = [
        Edges.of(Edge.WORK, chain[:-2], chain[1:-1], own, piece=np.arange(len(rows))),
        Edges.of(Edge.INPUT, chain[-2:-1], chain[-1:], np.array([fetched])),
        Edges.of(Edge.HOST, chain[-1:], chain[-1:] + 1, np.array([rest])),
        Edges.of(Edge.QUEUE, chain[-1:] + 1, chain[:1], np.zeros(1), back=np.ones(1)),
    ]
    return graph._replace(edges=Edges.joined(edges))


class _DeviceStep:
    """A step of a device and the host that drives it, while its graph is built.

    Nodes are numbered: the starts of the pieces, their ends, then the host's moments.
    """

    def __init__(self, timeline: Timeline, pieces: Pieces, rows: Rows, step: int) -> None:
        self.timeline, self.pieces, self.rows, self.step = timeline, pieces, rows, step
        self.stream = self._streams_of(rows)
        self.start_ns = pieces.start_ns[rows].astype(np.int64)
        self.end_ns = self.start_ns + pieces.dur_ns[rows]
        self.launched = pieces.launch_ns[rows] >= 0
        self.issued_ns = self._issued(rows)
        self.nodes = 2 * len(rows)
        busy = groups(self.stream)
        time = np.bincount(busy.which, weights=self.end_ns - self.start_ns, minlength=len(busy.values))
        self.streams: list[int] = busy.values[np.argsort(-time, kind="stable")][:_STREAMS].tolist()
        # Work of the previous step stands for the work at the same index from the end of its stream.
        count = len(rows)
        earlier = np.flatnonzero(pieces.step == step - 1) if step else np.empty(0, np.intp)
        earlier = earlier[np.lexsort((pieces.start_ns[earlier], self._streams_of(earlier)))]
        order = np.lexsort((self.start_ns, self.stream))
        own, theirs = self.stream[order], self._streams_of(earlier)
        from_end = np.searchsorted(theirs, theirs, side="right") - np.arange(len(theirs))
        index = np.searchsorted(own, theirs, side="right") - from_end
        known = index >= np.searchsorted(own, theirs, side="left")
        earlier, index = earlier[known], index[known]
        # On a stream without work in the previous step, its last work still precedes its first.
        values = distinct(self.stream)
        new = values[~among(values, theirs)] if len(theirs) else values
        last = order[np.searchsorted(own, new, side="right") - 1]
        never = np.full(len(new), _NEVER, np.int64)
        self.sources = _Sources(
            stream=np.concatenate([self.stream, theirs[known], new]),
            issued_ns=np.concatenate([self.issued_ns, self._issued(earlier), never]),
            end_ns=np.concatenate([self.end_ns, (pieces.start_ns + pieces.dur_ns)[earlier], never]),
            node=np.concatenate([np.arange(count), order[index], last]) + count,
            back=np.arange(count + len(earlier) + len(new)) >= count,
        )
        trace, steps = timeline.trace, timeline.steps
        self.begin_ns, self.finish_ns = int(steps.start_ns[step]), int(steps.end_ns[step])
        if not steps.joined[step] and self.launched.any():
            # No step follows directly: exclude what the host did before and after the step's work.
            issued = self.issued_ns[self.launched]
            self.begin_ns = max(self.begin_ns, min(int(issued.min()), int(timeline.windows.start_ns[step])))
            waits = waiting_calls(trace, timeline.links, steps)
            done = (trace.calls.start_ns + trace.calls.dur_ns)[waits]
            finished = int(done[done <= self.finish_ns].max(initial=0))
            if steps.basis is not StepBasis.SPAN:
                finished = max(finished, int(timeline.windows.end_ns[step]))
            self.finish_ns = min(self.finish_ns, max(int(issued.max()), finished))
        self.stream_waits = np.flatnonzero(
            named(trace.strings, trace.calls.name, _STREAM_WAIT)
            & (trace.calls.start_ns >= self.begin_ns)
            & (trace.calls.start_ns < self.finish_ns)
        )

    def _streams_of(self, rows: Rows) -> Longs:
        return self.timeline.trace.work.stream[self.pieces.work[rows]].astype(np.int64)

    def _issued(self, rows: Rows) -> Longs:
        launch = self.pieces.launch_ns[rows]
        return np.where(launch >= 0, launch, self.pieces.start_ns[rows]).astype(np.int64)

    def fill(self, graph: StepGraph, arrivals: Arrivals) -> StepGraph:
        """Return the graph with its edges, and the collectives that join it with other ranks."""
        node = np.arange(len(self.rows), dtype=np.int64)
        ran = Edges.of(Edge.WORK, node, node + len(node), self.end_ns - self.start_ns, piece=node)
        launch_node = np.full(len(node), NONE, np.int64)
        host = self._host_edges(launch_node) if self.launched.any() else []
        times = zip(self.start_ns.tolist(), (self.end_ns - self.start_ns).tolist(), strict=True)
        row_at = {when: row for row, when in enumerate(times)}
        mine = np.flatnonzero(np.frombuffer(arrivals.step, "<i8") == graph.number)
        start = arrivals.starts_ns[mine] - (self.timeline.trace.base_ns or 0)
        dur = np.frombuffer(arrivals.dur_ns, "<i8")[mine]
        calls = np.frombuffer(arrivals.call, "<i4")[mine]
        seen, collectives = Counter[ProcessGroup](), dict[MeetingKey, int]()
        for which, *when in zip(calls.tolist(), start.tolist(), dur.tolist(), strict=True):
            call = arrivals.calls[which]
            if call.peer == NONE and tuple(when) in row_at:
                collectives[call.group, call.name, seen[call.group]] = row_at[when[0], when[1]]
                seen[call.group] += 1
        return graph._replace(
            edges=Edges.joined([ran, *host, *self._start_edges(launch_node)]),
            nodes=self.nodes,
            launches=len(distinct(self.issued_ns[self.launched])),
            has_host=bool(host),
            knows_waits=len(self.streams) < 2 or bool(len(self.stream_waits)),
            collectives=collectives,
        )

    def _host_edges(self, launch_node: Longs) -> list[Edges]:
        """Return the host's path through its calls and waits; fill in the nodes of the launches."""
        timeline, sources, calls = self.timeline, self.sources, self.timeline.trace.calls
        # Calls in which the host waited for the device; a launch waits if the queue is full.
        waits = waiting_calls(timeline.trace, timeline.links, timeline.steps)
        launches = distinct(timeline.links.call[self.pieces.work[self.rows[self.launched]]])
        usual = median(calls.dur_ns[launches])
        slow = launches[calls.dur_ns[launches] > max(_BLOCKED * usual, _SEEN_WAIT_NS)]
        issued = np.searchsorted(np.sort(sources.issued_ns), calls.start_ns[slow])
        ended = np.searchsorted(np.sort(sources.end_ns), calls.start_ns[slow])
        waits[slow[issued - ended >= _QUEUE_FULL]] = True
        end_ns = calls.start_ns + calls.dur_ns
        call = np.flatnonzero(waits & (calls.start_ns >= self.begin_ns) & (end_ns <= self.finish_ns))
        asked, done = calls.start_ns[call], end_ns[call]
        awaited = sources.last_of(sources.latest(self.streams, asked, done))
        waited = sources.ends(awaited) > asked
        # The rest of the call is the host's own time.
        done = np.where(waited, np.minimum(done, sources.ends(awaited) + DISPATCH_NS), done)
        # The host's moments: launches and ends of waits; its own time lies between them.
        launch_ns, which, _ = groups(self.issued_ns[self.launched])
        at = np.concatenate([[self.begin_ns], launch_ns, done, [max(self.finish_ns, int(launch_ns.max()))]])
        until = np.concatenate([at[:1], launch_ns, np.where(waited, asked, done), at[-1:]])
        order = np.argsort(at, kind="stable")
        node = np.empty(len(at), np.int64)
        node[order] = self.nodes + 2 * np.arange(len(at))  # the node after each: the input has arrived
        self.nodes += 2 * len(at)
        launch_node[self.launched] = node[1 + which]
        at, until, chain = at[order], until[order], node[order]
        until = np.maximum(until[1:], at[:-1])
        fetched = iv.covered_within(timeline.host.fetching, at[:-1], until)
        lag = np.where(waited, done - sources.ends(awaited), 0)[awaited >= 0]
        waiter = node[1 + len(launch_ns) : -1][awaited >= 0]
        awaited = awaited[awaited >= 0]
        return [
            Edges.of(Edge.INPUT, chain[:-1], chain[:-1] + 1, fetched),
            Edges.of(Edge.HOST, chain[:-1] + 1, chain[1:], until - at[:-1] - fetched),
            Edges.of(Edge.HOST, chain[-1:], chain[:1], np.zeros(1), back=np.ones(1)),
            Edges.of(Edge.SYNC, sources.node[awaited], waiter, lag, back=sources.back[awaited]),
        ]

    def _start_edges(self, launch_node: Longs) -> list[Edges]:
        """Return what each piece comes after; the latest of these edges gets the remaining time."""
        sources = self.sources
        # The shortest launch latency in any step: work queues whenever the host is ahead.
        every = self.pieces.launch_ns >= 0
        latency = (self.pieces.start_ns - self.pieces.launch_ns)[every]
        least = min(int(latency.min()), _SEEN_WAIT_NS) if len(latency) else 0
        ready = np.where(self.launched, self.issued_ns + least, _NEVER)
        # The previous piece on each piece's stream; the first one follows the previous step.
        order = np.lexsort((self.start_ns, self.stream))
        stream = self.stream[order]
        first = np.append(True, stream[1:] != stream[:-1])[: len(stream)]
        earlier = np.flatnonzero(sources.back)
        earlier = earlier[np.argsort(sources.stream[earlier], kind="stable")]
        before = np.empty(len(order), np.intp)
        before[order] = np.append(NONE, order[:-1])[: len(order)]
        last = np.searchsorted(sources.stream[earlier], stream[first], side="right") - 1
        before[order[first]] = earlier[last]
        base = np.maximum(ready, sources.ends(before))
        others = [
            np.where(self.stream == stream, NONE, found)
            for stream, found in zip(
                self.streams, sources.latest(self.streams, self.issued_ns, self.start_ns), strict=True
            )
        ]
        waiter, awaited = self._seen_to_wait(others, base)
        bound = base.copy()
        np.maximum.at(bound, waiter, sources.ends(awaited))
        left = np.where(bound > _NEVER, self.start_ns - bound, 0)

        def after(kind: Edge, rows: Rows, source: Rows) -> Edges:
            lag = np.zeros(len(rows), np.int64)
            if kind is not Edge.ORDER:
                # Work on one stream may overlap, on the device's clock or really.
                early = np.minimum(self.start_ns[rows] - sources.ends(source), 0)
                lag = np.where(sources.ends(source) == bound[rows], left[rows], early)
            return Edges.of(kind, sources.node[source], rows, lag, back=sources.back[source])

        launched = np.flatnonzero(self.launched)
        lag = least + np.where(ready == bound, left, 0)[launched]
        return [
            Edges.of(Edge.LAUNCH, launch_node[launched], launched, lag),
            after(Edge.QUEUE, np.arange(len(self.rows)), before),
            after(Edge.STREAM, waiter, awaited),
            *(after(Edge.ORDER, np.flatnonzero(found >= 0), found[found >= 0]) for found in others),
        ]

    def _seen_to_wait(self, others: Sequence[Rows], base: Longs) -> tuple[Rows, Rows]:
        """Return which pieces are known to wait for which work of another stream."""
        sources, pieces, calls = self.sources, self.pieces, self.timeline.trace.calls
        if len(self.streams) < 2:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        near = sources.last_of(others)
        # It starts right when the other ends, and nothing else delayed it until then. After a long wait a
        # small part of it may have another cause.
        waited = self.start_ns - base
        soon = np.maximum(_SEEN_WAIT_NS, _SMALL_PART * waited)
        at_once = (waited > _SEEN_WAIT_NS) & (self.start_ns - sources.ends(near) <= soon)
        waiter = np.flatnonzero(at_once)
        awaited = near[waiter]
        if not len(self.stream_waits):
            # No evidence: assume that data is sent after it was computed, on the busiest stream.
            sends = pieces.work_class[self.rows] == WorkClass.COMMUNICATION
            sending = np.flatnonzero(sends & (others[0] >= 0))
            return np.append(waiter, sending), np.append(awaited, others[0][sending])
        # A call makes the next work of its thread wait for the latest launch on another stream.
        thread = self.timeline.links.thread[pieces.work[self.rows]].astype(np.int64)
        span = self.finish_ns - self.begin_ns + 1
        launched = np.flatnonzero(self.launched)
        key = thread[launched] * span + self.issued_ns[launched] - self.begin_ns
        order = np.argsort(key, kind="stable")
        called, caller = calls.start_ns[self.stream_waits], calls.thread[self.stream_waits].astype(np.int64)
        index = np.searchsorted(key[order], caller * span + called - self.begin_ns, side="right")
        known = index < len(order)
        piece = launched[order[index[known]]]
        same = thread[piece] == caller[known]
        piece, called = piece[same], called[known][same]
        found = np.array(sources.latest(self.streams, called, self.start_ns[piece]))
        found[self.stream[piece][None, :] == np.array(self.streams)[:, None]] = NONE
        issued = np.append(sources.issued_ns, _NEVER)[found]
        chosen = found[issued.argmax(axis=0), np.arange(len(piece))]
        return np.append(waiter, piece[chosen >= 0]), np.append(awaited, chosen[chosen >= 0])


def join_ranks(graphs: Sequence[StepGraph]) -> StepGraph:
    """Return the graphs of several ranks as one: a collective moves data once all its ranks have arrived."""
    if len(graphs) == 1:
        return graphs[0]
    nodes, rows, pieces = 0, 0, 0
    moved = list[Edges]()
    members = dict[MeetingKey, list[tuple[int, int]]]()  # edge and start node per rank
    for graph in graphs:
        edges = graph.edges
        piece = np.where(edges.piece >= 0, edges.piece + pieces, NONE).astype(np.int32)
        moved.append(edges._replace(before=edges.before + nodes, after=edges.after + nodes, piece=piece))
        for key, row in graph.collectives.items():
            members.setdefault(key, []).append((rows + row, nodes + row))
        nodes, rows, pieces = nodes + graph.nodes, rows + len(piece), pieces + len(graph.pieces.label)
    joined = Edges.joined(moved)
    meetings = [meeting for meeting in members.values() if len(meeting) > 1]
    for node, meeting in enumerate(meetings, start=nodes):
        edge = [row for row, _ in meeting]
        joined.before[edge], joined.kind[edge] = node, Edge.MOVE
        joined.lag_ns[edge] = joined.lag_ns[edge].min()  # the last rank to arrive waits for nobody
    apart, row = list[StepGraph](), 0
    for graph in graphs:
        lag_ns = joined.lag_ns[row : row + len(graph.edges.before)].copy()
        apart.append(graph._replace(edges=graph.edges._replace(lag_ns=lag_ns)))
        row += len(lag_ns)
    start = np.array([start for meeting in meetings for _, start in meeting], np.int64)
    end = joined.after[[row for meeting in meetings for row, _ in meeting]]
    met = nodes + np.repeat(np.arange(len(meetings)), [len(meeting) for meeting in meetings])
    none = np.zeros(len(start))
    # Without the meeting, a collective still ends no sooner than it starts: no work before it is skipped.
    meet = [Edges.of(Edge.MEET, start, met, none), Edges.of(Edge.QUEUE, start, end, none)]
    return StepGraph(
        number=graphs[0].number,
        ranks=len(graphs),
        nodes=nodes + len(meetings),
        edges=Edges.joined([joined, *meet]),
        pieces=StepPieces(
            tuple(label for graph in graphs for label in graph.pieces.label),
            tuple(kernel for graph in graphs for kernel in graph.pieces.kernel),
            np.concatenate([graph.pieces.work_class for graph in graphs]),
            np.concatenate([graph.pieces.phase for graph in graphs]),
        ),
        measured_ns=round(sum(graph.measured_ns for graph in graphs) / len(graphs)),
        launches=round(sum(graph.launches for graph in graphs) / len(graphs)),
        has_host=all(graph.has_host for graph in graphs),
        knows_waits=all(graph.knows_waits for graph in graphs),
        collectives={},
        apart=tuple(apart),
        waiting_ns=sum(
            int((graph.edges.lag_ns - alone.edges.lag_ns).sum())
            for graph, alone in zip(graphs, apart, strict=True)
        )
        // len(graphs),
    )
