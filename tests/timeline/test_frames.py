"""The user's lines under a time, held against a stack that is walked call by call."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stepgrade.model.events import HostFrames, Trace
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.links import find_loop_frames
from tests.trace_builder import TraceBuilder

NAMES = ("train.py(1): main", "train.py(9): step", "torch/nn/x.py(3): forward", "<built-in function sleep>")
Call = tuple[int, int, int]  # name, start, end


@st.composite
def stacks(draw: st.DrawFn) -> list[Call]:
    """Draw calls that nest as Python's do."""
    calls: list[Call] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while depth < 4 and at < high and draw(st.booleans()):
            start = draw(st.integers(at, high - 1))
            end = draw(st.integers(start + 1, high))
            calls.append((draw(st.integers(0, 3)), start, end))
            fill(start, end, depth + 1)
            at = end

    fill(0, 60, 0)
    return calls


def trace_of(calls: list[Call]) -> Trace:
    builder = TraceBuilder()
    builder.op("aten::add", 0, 1)
    trace = builder.trace()
    strings = (*trace.strings, *NAMES)
    order = sorted(calls, key=lambda call: (call[1], -call[2]))
    frames = HostFrames(
        name=np.array([len(trace.strings) + name for name, _, _ in order], np.int32),
        start_ns=np.array([start for _, start, _ in order], np.int64),
        dur_ns=np.array([end - start for _, start, end in order], np.int64),
        thread=np.zeros(len(order), np.int32),
    )
    return structs.replace(trace, strings=strings, frames=frames)


@given(stacks(), st.integers(0, 60), st.integers(0, 60))
def test_each_moment_belongs_to_the_innermost_function_of_the_user(
    calls: list[Call], low: int, high: int
) -> None:
    spent: dict[str, int] = {}
    for moment in range(low, high):
        running = [
            call for call in calls if call[1] <= moment < call[2]
        ]  # outermost first, as they were drawn
        users = [NAMES[name] for name, _, _ in running if name < 2]
        if users:
            spent[users[-1]] = spent.get(users[-1], 0) + 1
    frames = find_loop_frames(trace_of(calls), 0)
    spans = iv.union(np.array([low], np.int64), np.array([high], np.int64))
    found = {line.where: round(line.ms * 1e6) for line in frames.lines_of(spans, 1)}
    shown = {"train.py(1): main": "train.py:1", "train.py(9): step": "train.py:9"}
    assert found == {shown[name]: ns for name, ns in spent.items()}


def test_what_the_line_calls_is_the_outermost_function_of_a_library() -> None:
    calls = [(0, 0, 50), (2, 10, 40), (3, 12, 38)]
    (line,) = find_loop_frames(trace_of(calls), 0).lines_of(iv.union(np.array([5]), np.array([40])), 1)
    assert (line.where, line.function, line.calls) == ("train.py:1", "main", "torch.forward")
    assert line.shown == "train.py:1 main, in torch.forward"


def test_without_stacks_there_are_no_lines() -> None:
    builder = TraceBuilder()
    builder.op("aten::add", 0, 1)
    frames = find_loop_frames(builder.trace(), 0)
    assert frames.lines_of(iv.union(np.array([0]), np.array([9])), 1) == ()
    assert frames.lines_at(np.array([3]), np.array([1]), 1) == ()
