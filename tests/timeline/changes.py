"""Changes to a trace that must not change what it says, and the cut that must not lose anything."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from stepgrade.model.events import Trace
from stepgrade.model.operations import Span
from stepgrade.model.step_view import StepView
from stepgrade.ranks.packed_ranks import RankProfile, pack_spans, unpack_spans
from stepgrade.timeline.intervals import Spans
from stepgrade.timeline.timeline import Timeline, build_timeline

TABLES = ("ops", "calls", "work", "ranges")


def picked(table: Any, rows: Any) -> Any:
    """Return the table with only these rows, in this order."""
    columns = {name: getattr(table, name) for name in table.__struct_fields__}
    return type(table)(**{name: column[rows] for name, column in columns.items() if column is not None})


def shifted(trace: Trace, by_ns: int) -> Trace:
    """Return the trace with all times moved."""
    moved = {
        name: msgspec.structs.replace(getattr(trace, name), start_ns=getattr(trace, name).start_ns + by_ns)
        for name in (*TABLES, "frames", "memory")
        if getattr(trace, name) is not None
    }
    return msgspec.structs.replace(trace, **moved)


def shuffled(trace: Trace, seed: int) -> Trace:
    """Return the trace with the rows of each table in another order."""
    chance = np.random.default_rng(seed)
    tables = {name: getattr(trace, name) for name in TABLES}
    moved = {name: picked(table, chance.permutation(len(table.name))) for name, table in tables.items()}
    return msgspec.structs.replace(trace, **moved)


def renamed_streams(trace: Trace) -> Trace:
    """Return the trace with streams numbered in the opposite order."""
    work = msgspec.structs.replace(trace.work, stream=1_000_000 - trace.work.stream)
    return msgspec.structs.replace(trace, work=work)


def without_place(rank: RankProfile) -> RankProfile:
    """Return the rank without anything that tells when it was, so that moved traces can be compared."""
    steps = tuple(msgspec.structs.replace(step, start_ns=0) for step in rank.steps)
    arrivals = msgspec.structs.replace(rank.arrivals, start_ns=b"")
    profile = msgspec.structs.replace(
        rank.profile,
        operations=tuple(
            msgspec.structs.replace(op, longest=_at_zero(op.longest)) for op in rank.profile.operations
        ),
        typical_step=_at_zero(rank.profile.typical_step),
        steps_to_replay=(),  # whose pieces are numbered as the rows are; tests/whatif/test_replay.py
        views=tuple(map(_unnamed, rank.profile.views)),
    )
    alone = unpack_spans(rank.alone)
    first = alone.starts[:1].sum()
    at_zero = pack_spans(Spans(alone.starts - first, alone.ends - first))
    return msgspec.structs.replace(rank, profile=profile, steps=steps, arrivals=arrivals, alone=at_zero)


def _unnamed(view: StepView) -> StepView:
    """Return the drawn step without when it was and without the streams' numbers, which may be any."""
    lanes = tuple(msgspec.structs.replace(lane, name="") for lane in view.lanes)
    return msgspec.structs.replace(view, at_ns=0, lanes=lanes)


def _at_zero(span: Span | None) -> Span | None:
    return None if span is None else msgspec.structs.replace(span, start_ns=0)


def cut(trace: Trace, at: int) -> tuple[Trace, Trace]:
    """Return what lies before and after the start of step `at`, counted from 0.

    The cut lies where the step begins: on the host where it is marked, on the device where its first work
    starts. What overlaps a half belongs to it, and the work that ends a step belongs to both.
    """
    timeline = build_timeline(trace)
    host, device = int(timeline.steps.start_ns[at]), int(timeline.windows.start_ns[at])
    before = _host_events(timeline, lambda start, _: start < max(host, device))
    after = _host_events(timeline, lambda _, end: end > host)
    work = timeline.trace.work
    early, late = work.start_ns <= device, work.start_ns + work.dur_ns > device
    after["calls"] |= np.isin(np.arange(len(timeline.trace.calls.name)), timeline.links.call[late])
    marks = _marks(timeline)
    number = timeline.steps.number[at]
    before["ranges"] = np.where(marks >= 0, marks < number, before["ranges"])
    after["ranges"] = np.where(marks >= 0, marks >= number, after["ranges"])
    return _half(timeline.trace, before, early), _half(timeline.trace, after, late)


def _host_events(timeline: Timeline, keep: Any) -> dict[str, Any]:
    tables = {name: getattr(timeline.trace, name) for name in ("ops", "calls", "ranges")}
    return {name: keep(one.start_ns, one.start_ns + one.dur_ns) for name, one in tables.items()}


def _marks(timeline: Timeline) -> Any:
    """Return for each range the number of the step that it marks, -1 if it marks none."""
    names = [timeline.trace.strings[name] for name in timeline.trace.ranges.name.tolist()]
    return np.array([int(name[13:]) if name.startswith("ProfilerStep#") else -1 for name in names], np.int64)


def _half(trace: Trace, host: dict[str, Any], work: Any) -> Trace:
    tables = {name: picked(getattr(trace, name), mask) for name, mask in host.items()}
    return msgspec.structs.replace(trace, work=picked(trace.work, work), **tables)
