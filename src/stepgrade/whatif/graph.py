"""One step as a graph of what waited for what.

Nodes are moments: a call of the host, the start and the end of a piece of work, the meeting of a collective's
ranks. An edge says that one moment comes no sooner than so long after another; a moment is as late as the
latest of its edges says. What took time lies on edges, so that a change of the run is a change of their
lengths. Edges marked `back` come from the step before: a step that is replayed behind itself again and again
shows the time that it takes in the long run.

The threads that drive a device are taken as one, in the order of their calls: those of PyTorch take turns. A
trace does not say which stream waits for which. Evidence is a recorded call that makes one wait, and work
that starts just when work of another stream ends (STREAM). That work came after other work on another stream,
whether it had to or not, is an edge as well (ORDER), with which a replay changes least.
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
from stepgrade.model.columns import among, distinct, groups
from stepgrade.model.events import NONE, Ids, Kinds, Longs
from stepgrade.naming.torch_names import Mask, named
from stepgrade.naming.work_class import WorkClass
from stepgrade.ranks.arrivals import Arrivals, ProcessGroup
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.ledger import DISPATCH_NS, waiting_calls
from stepgrade.timeline.pieces import Pieces
from stepgrade.timeline.steps import StepBasis
from stepgrade.timeline.timeline import Driver, Timeline

STREAM_WAIT = re.compile(r"StreamWaitEvent")
# Launch to start takes 5 to 20 microseconds: what comes sooner after another stream's end may be chance.
SEEN_WAIT_NS = 20_000
STREAMS = 8  # whose order is looked at: the busiest
_BLOCKED = 10  # times as long as its kind usually takes: a launch that found the queue full
_QUEUE_FULL = 128  # launches that wait at least, for that
_NEVER = np.iinfo(np.int64).min // 2
Rows = NDArray[np.intp]
MeetingKey = tuple[ProcessGroup, str, int]  # the ranks, the name, and which of the step it is


class Edge(IntEnum):
    """What the time between two moments is."""

    HOST = 0  # the host works
    INPUT = 1  # the host waits for data
    WORK = 2  # a piece of work runs
    MOVE = 3  # a collective's data moves: all of its ranks are there
    QUEUE = 4  # work comes after other work of its stream
    LAUNCH = 5  # work comes after its launch
    STREAM = 6  # work was seen to wait for another stream
    ORDER = 7  # work came after that of another stream, whether it had to or not
    SYNC = 8  # the host waits for work
    MEET = 9  # a collective waits for a rank


class Edges(NamedTuple):
    """Edges in columns."""

    before: Longs
    after: Longs
    lag_ns: Longs  # less than 0 where two overlap that come one after the other
    kind: Kinds
    piece: Ids  # row in the pieces of the graph, or NONE
    back: Mask  # from the step before

    @classmethod
    def joined(cls, several: Sequence[Edges]) -> Edges:
        """Return all of them one after the other."""
        return cls(*(np.concatenate(columns) for columns in zip(*several, strict=True)))

    @classmethod
    def of(cls, kind: Edge, before: Longs, after: Longs, lag_ns: NDArray[Any], **more: NDArray[Any]) -> Edges:
        """Return edges of one kind; `more` has their pieces, or tells which are back."""
        rows = len(before)
        piece = np.asarray(more.get("piece", np.full(rows, NONE)), np.int32)
        back = np.asarray(more.get("back", np.zeros(rows)), np.bool_)
        return cls(
            np.asarray(before, np.int64),
            np.asarray(after, np.int64),
            np.asarray(lag_ns, np.int64),
            np.full(rows, kind, np.int8),
            piece,
            back,
        )


class StepPieces(NamedTuple):
    """The pieces of work in the step: what each is called, and its class."""

    label: tuple[str, ...]
    kernel: tuple[str, ...]
    work_class: Kinds


class StepGraph(NamedTuple):
    """One step of one rank, or of several joined ones."""

    number: int
    ranks: int
    nodes: int
    edges: Edges
    pieces: StepPieces
    measured_ns: int  # how long the step took, of several ranks on average
    launches: int  # calls of the host that launch work, of one rank
    has_host: bool  # launches were recorded
    knows_waits: bool  # so were calls that make a stream wait, or there is one stream only
    collectives: dict[MeetingKey, int]  # the piece, which is also the row of its edge


class _Sources(NamedTuple):
    """The work that something may have waited for: of this step, and of the one before."""

    stream: Longs
    issued_ns: Longs  # launched, or started where no launch was recorded
    end_ns: Longs  # long ago where the step before is not in the trace
    node: Longs  # of its end, in the step that it stands for
    back: Mask

    def latest(self, streams: Sequence[int], issued_by: Longs, ended_by: Longs) -> list[Rows]:
        """Return for each stream the last work that was issued and had ended by then; NONE without any."""
        found = []
        for stream in streams:
            rows = np.flatnonzero((self.stream == stream) & (self.end_ns > _NEVER))
            rows = rows[np.argsort(self.end_ns[rows], kind="stable")]
            issued = np.maximum.accumulate(self.issued_ns[rows])
            place = np.minimum(
                np.searchsorted(issued, issued_by, side="right"),
                np.searchsorted(self.end_ns[rows], ended_by, side="right"),
            )
            found.append(np.append(rows, NONE)[place - 1])
        return found

    def ends(self, rows: Rows) -> Longs:
        """Return when the work ended; long ago for NONE."""
        return np.append(self.end_ns, _NEVER)[rows]

    def last_of(self, several: Sequence[Rows]) -> Rows:
        """Return of each row's several the one that ended last."""
        rows = np.array(several, np.intp)
        last: Rows = rows[self.ends(rows).argmax(axis=0), np.arange(rows.shape[1])]
        return last


def graph_of_rank(timeline: Timeline, pieces: Pieces, arrivals: Arrivals, number: int) -> StepGraph:
    """Return the graph of the step of that number; raise NotMeasured where the trace does not hold it."""
    found = np.flatnonzero(timeline.steps.number == number)
    if timeline.driver is Driver.UNSEEN or not len(found):
        problem = "the device's work was not recorded" if len(found) else f"there is no step {number} in it"
        raise NotMeasured(f"the step cannot be replayed: {problem}", where=timeline.trace.file)
    step = int(found[0])
    rows = np.flatnonzero(pieces.step == step)
    rows = rows[np.argsort(pieces.start_ns[rows], kind="stable")]
    if timeline.driver is Driver.DEVICE and not len(rows):
        problem = f"the step cannot be replayed: nothing ran on the device in step {number}"
        raise NotMeasured(problem, where=timeline.trace.file)
    if timeline.driver is Driver.HOST:
        return _graph_of_host(timeline, pieces, rows, step)
    return _DeviceStep(timeline, pieces, rows, step).graph(arrivals)


def _named(pieces: Pieces, rows: Rows, strings: Sequence[str]) -> StepPieces:
    return StepPieces(
        label=tuple(pieces.labels[place] for place in pieces.label[rows].tolist()),
        kernel=tuple("" if place < 0 else strings[place] for place in pieces.kernel[rows].tolist()),
        work_class=pieces.work_class[rows],
    )


def _graph_of_host(timeline: Timeline, pieces: Pieces, rows: Rows, step: int) -> StepGraph:
    """Return the step of a host that computes: one operation after the other, and what lies between them."""
    windows = timeline.windows
    measured = int(windows.dur_ns[step])
    fetched = 0
    if timeline.ledger is not None:
        begin, end = windows.start_ns[[step]], windows.end_ns[[step]]
        fetched = int(iv.covered_within(timeline.ledger.time_in("idle_input"), begin, end)[0])
    input_piece = timeline.context[pieces.row[rows]] & 1 > 0  # the loader's own operations are its time
    own = np.where(input_piece, 0, pieces.dur_ns[rows]).astype(np.int64)
    rest = max(measured - int(own.sum()) - fetched, 0)
    chain = np.arange(len(rows) + 2, dtype=np.int64)
    edges = [
        Edges.of(Edge.WORK, chain[:-2], chain[1:-1], own, piece=np.arange(len(rows))),
        Edges.of(Edge.INPUT, chain[-2:-1], chain[-1:], np.array([fetched])),
        Edges.of(Edge.HOST, chain[-1:], chain[-1:] + 1, np.array([rest])),
        Edges.of(Edge.QUEUE, chain[-1:] + 1, chain[:1], np.zeros(1), back=np.ones(1)),
    ]
    return StepGraph(
        number=int(timeline.steps.number[step]),
        ranks=1,
        nodes=len(rows) + 3,
        edges=Edges.joined(edges),
        pieces=_named(pieces, rows, timeline.trace.strings),
        measured_ns=measured,
        launches=0,
        has_host=True,
        knows_waits=True,
        collectives={},
    )


class _DeviceStep:
    """The step of a device and of the host that drives it, while its graph is made.

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
        self.streams: list[int] = busy.values[np.argsort(-time, kind="stable")][:STREAMS].tolist()
        self.sources = self._sources()
        trace, steps = timeline.trace, timeline.steps
        self.begin_ns, self.finish_ns = int(steps.start_ns[step]), int(steps.end_ns[step])
        if not steps.joined[step] and self.launched.any():
            # Nothing follows it: what the host did before and after the work of the step is not of it.
            issued = self.issued_ns[self.launched]
            self.begin_ns = max(self.begin_ns, min(int(issued.min()), int(timeline.windows.start_ns[step])))
            waits = waiting_calls(trace, timeline.links, steps)
            done = (trace.calls.start_ns + trace.calls.dur_ns)[waits]
            last = int(done[done <= self.finish_ns].max(initial=0))
            if steps.basis is not StepBasis.SPAN:
                last = max(last, int(timeline.windows.end_ns[step]))
            self.finish_ns = min(self.finish_ns, max(int(issued.max()), last))
        self.told = np.flatnonzero(
            named(trace.strings, trace.calls.name, STREAM_WAIT)
            & (trace.calls.start_ns >= self.begin_ns)
            & (trace.calls.start_ns < self.finish_ns)
        )

    def _streams_of(self, rows: Rows) -> Longs:
        return self.timeline.trace.work.stream[self.pieces.work[rows]].astype(np.int64)

    def _issued(self, rows: Rows) -> Longs:
        launch = self.pieces.launch_ns[rows]
        return np.where(launch >= 0, launch, self.pieces.start_ns[rows]).astype(np.int64)

    def _sources(self) -> _Sources:
        """Return the work of this step and, by its place from the end of its stream, of the step before."""
        pieces, count = self.pieces, len(self.rows)
        earlier = np.flatnonzero(pieces.step == self.step - 1) if self.step else np.empty(0, np.intp)
        earlier = earlier[np.lexsort((pieces.start_ns[earlier], self._streams_of(earlier)))]
        order = np.lexsort((self.start_ns, self.stream))
        own, theirs = self.stream[order], self._streams_of(earlier)
        from_end = np.searchsorted(theirs, theirs, side="right") - np.arange(len(theirs))
        place = np.searchsorted(own, theirs, side="right") - from_end
        known = place >= np.searchsorted(own, theirs, side="left")
        earlier, place = earlier[known], place[known]
        # Where the step before has nothing on a stream, its last work comes before its first all the same.
        values = distinct(self.stream)
        new = values[~among(values, theirs)] if len(theirs) else values
        last = order[np.searchsorted(own, new, side="right") - 1]
        never = np.full(len(new), _NEVER, np.int64)
        return _Sources(
            stream=np.concatenate([self.stream, theirs[known], new]),
            issued_ns=np.concatenate([self.issued_ns, self._issued(earlier), never]),
            end_ns=np.concatenate([self.end_ns, (pieces.start_ns + pieces.dur_ns)[earlier], never]),
            node=np.concatenate([np.arange(count), order[place], last]) + count,
            back=np.arange(count + len(earlier) + len(new)) >= count,
        )

    def graph(self, arrivals: Arrivals) -> StepGraph:
        """Return the graph, with the collectives by which it is joined with those of other ranks."""
        count = len(self.rows)
        node = np.arange(count, dtype=np.int64)
        ran = Edges.of(Edge.WORK, node, node + count, self.end_ns - self.start_ns, piece=node)
        launch_node = np.full(count, NONE, np.int64)
        host = self._host_edges(launch_node) if self.launched.any() else []
        return StepGraph(
            number=int(self.timeline.steps.number[self.step]),
            ranks=1,
            edges=Edges.joined([ran, *host, *self._start_edges(launch_node)]),
            nodes=self.nodes,
            pieces=_named(self.pieces, self.rows, self.timeline.trace.strings),
            measured_ns=int(self.timeline.windows.dur_ns[self.step]),
            launches=len(distinct(self.issued_ns[self.launched])),
            has_host=bool(host),
            knows_waits=len(self.streams) < 2 or bool(len(self.told)),
            collectives=self._collectives(arrivals),
        )

    def _host_edges(self, launch_node: Longs) -> list[Edges]:
        """Return the host's way through its calls and its waits; fill in the moments of the launches."""
        trace, sources = self.timeline.trace, self.sources
        launch_ns, which, _ = groups(self.issued_ns[self.launched])
        call = self._waiting_calls()
        asked = trace.calls.start_ns[call]
        done = asked + trace.calls.dur_ns[call]
        awaited = sources.last_of(sources.latest(self.streams, asked, done))
        waited = sources.ends(awaited) > asked
        # What the call takes after that is the host's own.
        done = np.where(waited, np.minimum(done, sources.ends(awaited) + DISPATCH_NS), done)
        # The host's moments: when it launches, and when it is done waiting; its own time lies between them.
        at = np.concatenate([[self.begin_ns], launch_ns, done, [max(self.finish_ns, int(launch_ns.max()))]])
        until = np.concatenate([at[:1], launch_ns, np.where(waited, asked, done), at[-1:]])
        order = np.argsort(at, kind="stable")
        node = np.empty(len(at), np.int64)
        node[order] = self.nodes + 2 * np.arange(len(at))  # between two of them one more: the input is there
        self.nodes += 2 * len(at)
        launch_node[self.launched] = node[1 + which]
        at, until, chain = at[order], until[order], node[order]
        until = np.maximum(until[1:], at[:-1])
        fetched = iv.covered_within(self.timeline.host.fetching, at[:-1], until)
        lag = np.where(waited, done - sources.ends(awaited), 0)[awaited >= 0]
        waiter = node[1 + len(launch_ns) : -1][awaited >= 0]
        awaited = awaited[awaited >= 0]
        return [
            Edges.of(Edge.INPUT, chain[:-1], chain[:-1] + 1, fetched),
            Edges.of(Edge.HOST, chain[:-1] + 1, chain[1:], until - at[:-1] - fetched),
            Edges.of(Edge.HOST, chain[-1:], chain[:1], np.zeros(1), back=np.ones(1)),
            Edges.of(Edge.SYNC, sources.node[awaited], waiter, lag, back=sources.back[awaited]),
        ]

    def _waiting_calls(self) -> Rows:
        """Return the calls in which the host waited for the device; a launch does where the queue is full."""
        timeline, sources = self.timeline, self.sources
        calls = timeline.trace.calls
        waits = waiting_calls(timeline.trace, timeline.links, timeline.steps)
        launches = distinct(timeline.links.call[self.pieces.work[self.rows[self.launched]]])
        usual = float(np.median(calls.dur_ns[launches]))
        slow = launches[calls.dur_ns[launches] > max(_BLOCKED * usual, SEEN_WAIT_NS)]
        issued = np.searchsorted(np.sort(sources.issued_ns), calls.start_ns[slow])
        ended = np.searchsorted(np.sort(sources.end_ns), calls.start_ns[slow])
        waits[slow[issued - ended >= _QUEUE_FULL]] = True
        end_ns = calls.start_ns + calls.dur_ns
        return np.flatnonzero(waits & (calls.start_ns >= self.begin_ns) & (end_ns <= self.finish_ns))

    def _start_edges(self, launch_node: Longs) -> list[Edges]:
        """Return what each piece of work comes after; the last of it has the time that was left."""
        sources = self.sources
        # The least that a launch was seen to take, in any step: where the host is ahead, work is queued.
        every = self.pieces.launch_ns >= 0
        latency = (self.pieces.start_ns - self.pieces.launch_ns)[every]
        least = min(int(latency.min()), SEEN_WAIT_NS) if len(latency) else 0
        ready = np.where(self.launched, self.issued_ns + least, _NEVER)
        before = self._queued_behind()
        base = np.maximum(ready, sources.ends(before))
        others = sources.latest(self.streams, self.issued_ns, self.start_ns)
        others = [
            np.where(self.stream == stream, NONE, found)
            for stream, found in zip(self.streams, others, strict=True)
        ]
        waiter, awaited = self._seen_to_wait(others, base)
        bound = base.copy()
        np.maximum.at(bound, waiter, sources.ends(awaited))
        left = np.where(bound > _NEVER, self.start_ns - bound, 0)

        def after(kind: Edge, rows: Rows, source: Rows) -> Edges:
            # Two of a stream may overlap, by the clock of the device or for good.
            early = np.minimum(self.start_ns[rows] - sources.ends(source), 0)
            lag = np.where(sources.ends(source) == bound[rows], left[rows], early)
            return Edges.of(kind, sources.node[source], rows, lag, back=sources.back[source])

        launched = np.flatnonzero(self.launched)
        lag = least + np.where(ready == bound, left, 0)[launched]
        edges = [
            Edges.of(Edge.LAUNCH, launch_node[launched], launched, lag),
            after(Edge.QUEUE, np.arange(len(self.rows)), before),
            after(Edge.STREAM, waiter, awaited),
        ]
        for found in others:
            rows = np.flatnonzero(found >= 0)
            source = found[rows]
            some = Edges.of(
                Edge.ORDER, sources.node[source], rows, np.zeros(len(rows)), back=sources.back[source]
            )
            edges.append(some)
        return edges

    def _queued_behind(self) -> Rows:
        """Return for each piece the one before it on its stream, of the step before for the first."""
        order = np.lexsort((self.start_ns, self.stream))
        stream = self.stream[order]
        first = np.append(True, stream[1:] != stream[:-1])[: len(stream)]
        earlier = np.flatnonzero(self.sources.back)
        earlier = earlier[np.argsort(self.sources.stream[earlier], kind="stable")]
        last = earlier[np.searchsorted(self.sources.stream[earlier], stream[first], side="right") - 1]
        before = np.empty(len(order), np.intp)
        before[order] = np.append(NONE, order[:-1])[: len(order)]
        before[order[first]] = last
        return before

    def _seen_to_wait(self, others: Sequence[Rows], base: Longs) -> tuple[Rows, Rows]:
        """Return which pieces are known to wait for which work of another stream."""
        sources, pieces, trace = self.sources, self.pieces, self.timeline.trace
        if len(self.streams) < 2:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        near = sources.last_of(others)
        # It starts just when the other ends, and nothing of its own kept it until then.
        at_once = (self.start_ns - base > SEEN_WAIT_NS) & (self.start_ns - sources.ends(near) <= SEEN_WAIT_NS)
        waiter = np.flatnonzero(at_once)
        awaited = near[waiter]
        if not len(self.told):
            # Nothing tells: what is sent was computed before, on the stream that computes.
            sends = pieces.work_class[self.rows] == WorkClass.COMMUNICATION
            sending = np.flatnonzero(sends & (others[0] >= 0))
            return np.append(waiter, sending), np.append(awaited, others[0][sending])
        # A call makes the next work of its thread wait for what was launched last on another stream.
        thread = self.timeline.links.thread[pieces.work[self.rows]].astype(np.int64)
        span = self.finish_ns - self.begin_ns + 1
        launched = np.flatnonzero(self.launched)
        key = thread[launched] * span + self.issued_ns[launched] - self.begin_ns
        order = np.argsort(key, kind="stable")
        called = trace.calls.start_ns[self.told]
        wanted = trace.calls.thread[self.told].astype(np.int64) * span + called - self.begin_ns
        place = np.searchsorted(key[order], wanted, side="right")
        known = place < len(order)
        piece = launched[order[place[known]]]
        called = called[known]
        same = thread[piece] == trace.calls.thread[self.told][known]
        piece, called = piece[same], called[same]
        found = np.array(sources.latest(self.streams, called, self.start_ns[piece]))
        found[self.stream[piece][None, :] == np.array(self.streams)[:, None]] = NONE
        issued = np.append(sources.issued_ns, _NEVER)[found]
        chosen = found[issued.argmax(axis=0), np.arange(len(piece))]
        return (
            np.append(waiter, piece[chosen >= 0]),
            np.append(awaited, chosen[chosen >= 0]),
        )

    def _collectives(self, arrivals: Arrivals) -> dict[MeetingKey, int]:
        """Return the collectives of the step, each by its ranks, its name and its place among theirs."""
        number = int(self.timeline.steps.number[self.step])
        base = self.timeline.trace.base_ns or 0
        times = zip(self.start_ns.tolist(), (self.end_ns - self.start_ns).tolist(), strict=True)
        row_at = {when: row for row, when in enumerate(times)}
        mine = np.flatnonzero(np.frombuffer(arrivals.step, "<i8") == number)
        start = arrivals.starts_ns[mine] - base
        dur = np.frombuffer(arrivals.dur_ns, "<i8")[mine]
        call = np.frombuffer(arrivals.call, "<i4")[mine]
        seen: Counter[ProcessGroup] = Counter()
        found = {}
        for which, when in zip(call.tolist(), zip(start.tolist(), dur.tolist(), strict=True), strict=True):
            told = arrivals.calls[which]
            if told.peer == NONE and when in row_at:
                found[told.group, told.name, seen[told.group]] = row_at[when]
                seen[told.group] += 1
        return found


def join_ranks(graphs: Sequence[StepGraph]) -> StepGraph:
    """Return the graphs of several ranks as one: a collective moves data once all of its ranks are there."""
    if len(graphs) == 1:
        return graphs[0]
    nodes, rows, pieces = 0, 0, 0
    moved = list[Edges]()
    members = dict[MeetingKey, list[tuple[int, int, int]]]()  # edge, start and duration of each rank's
    for graph in graphs:
        edges = graph.edges
        piece = np.where(edges.piece >= 0, edges.piece + pieces, NONE).astype(np.int32)
        moved.append(edges._replace(before=edges.before + nodes, after=edges.after + nodes, piece=piece))
        for key, row in graph.collectives.items():
            members.setdefault(key, []).append((rows + row, nodes + row, int(edges.lag_ns[row])))
        nodes, rows, pieces = nodes + graph.nodes, rows + len(piece), pieces + len(graph.pieces.label)
    joined = Edges.joined(moved)
    meetings = [those for those in members.values() if len(those) > 1]
    for place, those in enumerate(meetings):
        edge = [one[0] for one in those]
        joined.before[edge], joined.kind[edge] = nodes + place, Edge.MOVE
        joined.lag_ns[edge] = min(one[2] for one in those)  # the last to arrive waits for nobody
    start = np.array([one[1] for those in meetings for one in those], np.int64)
    meeting = nodes + np.repeat(np.arange(len(meetings)), [len(those) for those in meetings])
    meet = Edges.of(Edge.MEET, start, meeting, np.zeros(len(start)))
    return StepGraph(
        number=graphs[0].number,
        ranks=len(graphs),
        nodes=nodes + len(meetings),
        edges=Edges.joined([joined, meet]),
        pieces=StepPieces(
            tuple(label for graph in graphs for label in graph.pieces.label),
            tuple(kernel for graph in graphs for kernel in graph.pieces.kernel),
            np.concatenate([graph.pieces.work_class for graph in graphs]),
        ),
        measured_ns=round(sum(graph.measured_ns for graph in graphs) / len(graphs)),
        launches=round(sum(graph.launches for graph in graphs) / len(graphs)),
        has_host=all(graph.has_host for graph in graphs),
        knows_waits=all(graph.knows_waits for graph in graphs),
        collectives={},
    )
