"""Draw one step: its ledger, its phases, the streams of the device and the threads of the host.

Events that a screen cannot show apart are gathered into one slice, which is named after the longest of them.
"""

from __future__ import annotations

import numpy as np

from stepgrade.model.columns import groups
from stepgrade.model.events import Kinds, Wholes
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.step_view import Lane, LaneKind, StepView
from stepgrade.naming.torch_names import classes_of
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.ledger import waiting_calls
from stepgrade.timeline.links import OP, pick
from stepgrade.timeline.pieces import Pieces
from stepgrade.timeline.timeline import Driver, Timeline
from stepgrade.trace.phases import PHASES, phase_stretches

SLICES = 400  # across a step: a dot of a wide screen holds two or three
RANKS_VIEWED = 16  # of thousands, the first: nobody reads more
STREAMS_SHOWN = 6
THREADS_SHOWN = 3
LONGEST_NAME = 80
_WAIT = len(WorkClass)  # beside the classes of work: the host waits for the device


def view_steps(timeline: Timeline, pieces: Pieces, phase: Kinds) -> tuple[StepView, ...]:
    """Return the steady step in the middle of the run, the slowest and the fastest where they are others.

    None are drawn without a steady step, and where no device was seen.
    """
    steady, rank = np.flatnonzero(timeline.windows.steady), timeline.trace.rank
    if not len(steady) or (rank is not None and rank >= RANKS_VIEWED) or timeline.driver is Driver.UNSEEN:
        return ()
    by_time = steady[np.argsort(timeline.windows.dur_ns[steady], kind="stable")]
    steps = dict.fromkeys((int(steady[len(steady) // 2]), int(by_time[-1]), int(by_time[0])))
    return tuple(
        _view_step(timeline, pieces, phase, step) for step in steps if timeline.windows.dur_ns[step] > 0
    )


def _view_step(timeline: Timeline, pieces: Pieces, phase: Kinds, step: int) -> StepView:
    begin, end = int(timeline.windows.start_ns[step]), int(timeline.windows.end_ns[step])
    lanes = [_ledger_lane(timeline, begin, end), _phase_lane(pieces, phase, begin, end)]
    lanes += _stream_lanes(timeline, pieces, begin, end)
    lanes += _thread_lanes(timeline, begin, end)
    return StepView(
        rank=timeline.trace.rank,
        number=int(timeline.steps.number[step]),
        at_ns=(timeline.trace.base_ns or 0) + begin,
        dur_ns=end - begin,
        lanes=tuple(lane for lane in lanes if lane is not None and lane.start_ns),
    )


def _ledger_lane(timeline: Timeline, begin: int, end: int) -> Lane | None:
    if timeline.ledger is None:
        return None
    names = list(ACCOUNTS)
    spans = [iv.clip(spans, begin, end) for spans in timeline.ledger.by_account()]
    start = np.concatenate([part.starts for part in spans])
    stop = np.concatenate([part.ends for part in spans])
    account = np.repeat(np.arange(len(names)), [len(part.starts) for part in spans])
    return _lane("ledger", "the device", (begin, end), (start, stop, account, account), names, names)


def _phase_lane(pieces: Pieces, phase: Kinds, begin: int, end: int) -> Lane | None:
    found = phase_stretches(pieces, phase, (begin, end))
    if found is None:
        return None
    start, ends, kind = found
    which = kind.astype(np.int64)
    names = list(PHASES)
    return _lane("phases", "phases", (begin, end), (start, ends, which, which), names, names)


def _stream_lanes(timeline: Timeline, pieces: Pieces, begin: int, end: int) -> list[Lane | None]:
    if timeline.driver is not Driver.DEVICE:
        return []
    work = timeline.trace.work
    stop = pieces.start_ns + pieces.dur_ns
    rows = np.flatnonzero((stop > begin) & (pieces.start_ns < end))
    stream = work.stream[pieces.work[rows]]
    values, which, _ = groups(stream)
    busy = np.bincount(which, weights=pieces.dur_ns[rows], minlength=len(values))
    classes = [member.label for member in WorkClass]
    return [
        _lane(
            "stream",
            f"stream {int(values[place])}",
            (begin, end),
            (
                pieces.start_ns[rows][which == place],
                stop[rows][which == place],
                pieces.label[rows][which == place],
                pieces.work_class[rows][which == place],
            ),
            pieces.labels,
            classes,
        )
        for place in np.argsort(-busy, kind="stable")[:STREAMS_SHOWN].tolist()
    ]


def _thread_lanes(timeline: Timeline, begin: int, end: int) -> list[Lane | None]:
    """Return the outermost operations of the busiest threads, and when they waited for the device."""
    trace, tree = timeline.trace, timeline.tree
    if not len(tree.kind):
        return []
    outer = pick(tree.op, tree.parent) < 0
    op = tree.origin[np.flatnonzero((tree.kind == OP) & outer)]
    waits = np.flatnonzero(waiting_calls(trace, timeline.links, timeline.steps))
    start = np.concatenate([trace.ops.start_ns[op], trace.calls.start_ns[waits]])
    stop = start + np.concatenate([trace.ops.dur_ns[op], trace.calls.dur_ns[waits]])
    name = np.concatenate([trace.ops.name[op], trace.calls.name[waits]])
    thread = np.concatenate([trace.ops.thread[op], trace.calls.thread[waits]])
    look = np.concatenate(
        [classes_of(trace.strings, trace.ops.name[op]), np.full(len(waits), _WAIT, np.int8)]
    )
    inside = (stop > begin) & (start < end)
    values, which, _ = groups(thread[inside])
    busy = np.bincount(which, weights=(stop - start)[inside], minlength=len(values))
    looks = [*(member.label for member in WorkClass), "wait"]
    lanes = []
    for place in np.argsort(-busy, kind="stable")[:THREADS_SHOWN].tolist():
        own = np.flatnonzero(inside)[which == place]
        told = trace.threads[int(values[place])] if trace.threads else None
        title = "training loop" if int(values[place]) == timeline.steps.thread else "another thread"
        if told is not None and told.name and title != "training loop":
            title = told.name[:LONGEST_NAME]
        columns = (start[own], stop[own], name[own], look[own])
        lanes.append(_lane("thread", title, (begin, end), columns, trace.strings, looks))
    return lanes


def _lane(
    kind: LaneKind,
    name: str,
    extent: tuple[int, int],
    columns: tuple[Wholes, Wholes, Wholes, Wholes],
    labels: list[str] | tuple[str, ...],
    looks: list[str],
) -> Lane | None:
    """Return a lane of the events (start, end, label, look), gathered to what can be shown."""
    begin, end = extent
    start, stop, label, look = columns
    start, stop = np.clip(start, begin, end), np.clip(stop, begin, end)
    kept = np.flatnonzero(stop > start)
    if not len(kept):
        return None
    # Of what starts together the longest is last, and the order of the file does not matter.
    kept = kept[np.lexsort((look[kept], label[kept], stop[kept], start[kept]))]
    start, stop, label, look = start[kept], stop[kept], label[kept], look[kept]
    # What runs at once on one lane is cut where the next begins: a lane shows one thing at a time.
    stop = np.minimum(stop, np.append(start[1:], end))
    start, stop, label, look = (column[stop > start] for column in (start, stop, label, look))
    width = max((end - begin) // SLICES, 1)
    is_short = stop - start < width
    bucket = np.where(is_short, (start - begin) // width, -1)
    joins = np.append(False, is_short[1:] & is_short[:-1] & (bucket[1:] == bucket[:-1]))
    first = np.flatnonzero(~joins)
    slice_of = np.cumsum(~joins) - 1
    order = np.lexsort((label, stop - start, slice_of))
    longest = order[np.append(slice_of[order][1:] != slice_of[order][:-1], True)]
    return Lane(
        kind=kind,
        name=name,
        start_ns=tuple((start[first] - begin).tolist()),
        dur_ns=tuple((np.maximum.reduceat(stop, first) - start[first]).tolist()),
        label=tuple(labels[int(value)][:LONGEST_NAME] for value in label[longest]),
        look=tuple(looks[int(value)] for value in look[longest]),
        count=tuple(np.diff(np.append(first, len(start))).tolist()),
    )
