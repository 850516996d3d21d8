"""Nesting, launches and own time against the obvious slow version."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.model.events import Longs, Trace
from stepgrade.timeline.links import BLOCK_ROWS, CALL, OP, HostTree, build_tree, link_work, nearest
from stepgrade.timeline.timeline import self_times
from tests.trace_builder import TraceBuilder

EVENTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2), st.booleans()), max_size=25
)


@pytest.fixture(autouse=True, scope="module", params=[4, BLOCK_ROWS])
def _rows_in_a_block(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with trees of many blocks too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepgrade.timeline.links.BLOCK_ROWS", request.param)
        yield


def grown(events: list[tuple[int, int, int, bool]]) -> TraceBuilder:
    made = TraceBuilder()
    for start, dur, thread, is_call in events:
        add = made.call if is_call else made.op
        add("event", start, dur, thread=thread)
    return made


def slow_parents(start: list[int], end: list[int], thread: list[int]) -> list[int]:
    found: list[int] = []
    stack: list[int] = []
    for row in range(len(start)):
        while stack and (thread[stack[-1]] != thread[row] or end[stack[-1]] <= start[row]):
            stack.pop()
        found.append(stack[-1] if stack else -1)
        stack.append(row)
    return found


def times_of(tree: HostTree, trace: Trace) -> tuple[Longs, Longs, Longs]:
    """Return start, end and thread of each row of a tree without ranges."""
    calls, ops = trace.calls, trace.ops
    start, end, thread = (np.zeros(len(tree.kind), np.int64) for _ in range(3))
    for rows, table in ((tree.of_op, ops), (tree.of_call, calls)):
        start[rows], end[rows] = table.start_ns, table.start_ns + table.dur_ns
        thread[rows] = table.thread
    return start, end, thread


@given(EVENTS)
def test_parents_are_those_of_a_stack(events: list[tuple[int, int, int, bool]]) -> None:
    trace = grown(events).trace()
    tree = build_tree(trace)
    start, end, thread = times_of(tree, trace)
    assert tree.parent.tolist() == slow_parents(start.tolist(), end.tolist(), thread.tolist())


@given(EVENTS)
def test_nearest_walks_up(events: list[tuple[int, int, int, bool]]) -> None:
    trace = grown(events).trace()
    tree = build_tree(trace)
    for wanted in (tree.kind == OP, times_of(tree, trace)[0] % 2 == 0):
        for row, found in enumerate(nearest(tree.parent, wanted).tolist()):
            chain = [row]
            while tree.parent[chain[-1]] >= 0:
                chain.append(int(tree.parent[chain[-1]]))
            assert found == next((one for one in chain if wanted[one]), -1)


def test_a_call_belongs_to_the_innermost_operation_around_it() -> None:
    made = TraceBuilder()
    made.op("aten::linear", 0, 100)
    made.op("aten::addmm", 10, 80)
    correlation = made.call("cudaLaunchKernel", 20, 10)
    made.call("cudaLaunchKernel", 25, 3, thread=4)
    made.kernel("gemm", 50, 10, correlation=correlation)
    made.kernel("lost", 70, 10, correlation=999)
    trace = made.trace()
    tree = build_tree(trace)
    links = link_work(trace, tree)
    assert links.call.tolist() == [0, -1]
    assert [trace.strings[trace.ops.name[op]] for op in links.op.tolist() if op >= 0] == ["aten::addmm"]
    assert (tree.kind == CALL).sum() == 2
    assert self_times(trace, tree).tolist() == [20, 80]


def test_rounded_times_still_nest() -> None:
    made = TraceBuilder()
    made.op("outer", 10, 9)  # rounding to microseconds has cut its end below its child's
    made.op("inner", 11, 9)
    made.op("next", 20, 5)
    tree = build_tree(made.trace())
    assert tree.parent.tolist() == [-1, 0, -1]
