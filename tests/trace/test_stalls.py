"""Long gaps by what the host was in, and by the work that ended them."""

from __future__ import annotations

import pytest

import stepgrade as sg
from stepgrade.model.scorecard import Finding
from stepgrade.naming.stalls import StallCause, cause_of_stall
from stepgrade.trace.profile import profile_of_traces
from tests.trace_builder import TraceBuilder

MS = 1_000_000


def stall_of(kind: str | None, name: str = "") -> Finding:
    """Return the finding on five steps, each with three gaps of 4 ms in which the host is in this."""
    out = TraceBuilder()
    for step in range(5):
        start = 30 * MS * step
        out.range(f"ProfilerStep#{step}", start, 30 * MS)
        for turn in range(3):
            at = start + 10 * MS * turn
            if kind == "call":
                out.call(name, at, 4 * MS)
            elif kind == "op":
                out.op(name, at, 4 * MS)
            elif kind == "range":
                out.range(name, at, 4 * MS)
            out.op("aten::mm", at + 4 * MS, MS)
            launch = out.call("cudaLaunchKernel", at + 4 * MS + 1000, 5000)
            out.kernel("sm90_gemm", at + 4 * MS + 10_000, 6 * MS - 10_000, correlation=launch)
    card = sg.score(profile_of_traces([out.trace()]))
    return next(found for found in card.findings if found.rule == "host-stall")


@pytest.mark.parametrize(
    ("kind", "name", "cause", "word"),
    [
        ("range", "Torch-Compiled Region: 0/1", "compiled region", "compiled region"),
        ("call", "cudaGraphLaunch", "graph launch", "graph"),
        ("call", "cudaMallocHost", "allocation", "empty_cache"),
        ("op", "entire_frame_compile", "compiling", "Compile before"),
        ("range", "gc.collect", "garbage collection", "gc.disable"),
        ("range", "save_checkpoint", "checkpoint", "Save less often"),
        ("range", "wandb.log", "logging", "Log every"),
    ],
)
def test_the_remedy_fits_what_the_host_is_in(kind: str, name: str, cause: str, word: str) -> None:
    found = stall_of(kind, name)
    assert found.evidence["cause"] == cause
    assert found.evidence["inside"] == name
    assert word in found.remedy
    assert "DataLoader" not in found.remedy


def test_an_operation_is_named() -> None:
    found = stall_of("op", "aten::slow_on_the_host")
    assert "inside aten::slow_on_the_host" in found.claim


def test_a_gap_without_any_event_has_no_cause() -> None:
    found = stall_of(None)
    assert "cause" not in found.evidence
    assert "with_stack=True" in found.remedy
    assert not any(word in found.remedy for word in ("DataLoader", "gc.", "logging"))


def test_the_kernel_that_ends_the_gaps_is_named() -> None:
    found = stall_of(None)
    assert found.evidence["ended_by"] == "sm90_gemm"
    assert "100 % of the gaps end with sm90_gemm" in found.claim


@pytest.mark.parametrize("name", ["aten::log_softmax", "aten::checkpoint_wrapper", "catalogue", "gcn_layer"])
def test_words_inside_others_are_no_cause(name: str) -> None:
    assert cause_of_stall([name]) == (StallCause.UNKNOWN, None)
