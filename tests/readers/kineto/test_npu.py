"""Traces of other accelerators: Ascend's, with times as text and launches as flows; Spyre's is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kineto_traces import read_file
from tests.samples import shared

import stepgrade as sg
from stepgrade.errors import BadInput

BASE = 1_704_161_511_000_000  # microseconds


def at(offset: float) -> str:
    return f"{BASE + offset:.3f}"


def npu_events() -> list[dict[str, Any]]:
    """Return ten operations of 20 us, each of which launches a kernel of 5 us, and a wait between streams."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 800, "tid": 0, "args": {"name": "Ascend Hardware"}}
    ]
    for number in range(10):
        start, kernel = 100.0 * number, 100.0 * number + 30.5
        host = {"pid": 4376, "tid": 4376}
        ident = BASE * 1000 + round(kernel * 1000)
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": at(start), "dur": 20.25, **host},
            {"ph": "s", "cat": "async_npu", "name": "torch_to_npu", "id": ident, "ts": at(start + 5), **host},
            {
                "ph": "X",
                "name": "aclnnMm_MatMulCommon_MatMulV2",
                "pid": 800,
                "tid": 3,
                "ts": at(kernel),
                "dur": 5.0,
                "args": {"Task Type": "AI_CORE", "Stream Id": 3, "Task Id": number},
            },
            {
                "ph": "X",
                "name": "EVENT_WAIT",
                "pid": 800,
                "tid": 4,
                "ts": at(kernel + 5),
                "dur": 60.0,
                "args": {"Task Type": "EVENT_WAIT", "Stream Id": 4},
            },
            {"ph": "X", "name": "Computing", "pid": 43761100, "tid": 0, "ts": at(kernel), "dur": 5.0},
            {
                "ph": "X",
                "name": "AscendCL@aclrtSynchronizeStream",
                "pid": 437602,
                "tid": 4376,
                "ts": at(start + 40),
                "dur": 1.5,
                "args": {"level": "acl"},
            },
        ]
    return events


@pytest.mark.parametrize("spoil", [b"", b"\x01"], ids=["whole", "one letter broken"])
def test_a_trace_of_ascend_is_read(tmp_path: Path, spoil: bytes) -> None:
    path = tmp_path / "trace_view.json"
    path.write_bytes(json.dumps(npu_events()).encode().replace(b"EVENT_WAIT", b"EVENT_WAIT" + spoil, 1))
    (trace,) = read_file(path)
    work, calls = trace.work, trace.calls
    assert len(work.name) == 10
    assert work.dur_ns.tolist() == [5_000] * 10
    assert {trace.strings[name] for name in work.name.tolist()} == {"aclnnMm_MatMulCommon_MatMulV2"}
    assert trace.ops.dur_ns.tolist() == [20_250] * 10
    assert work.start_ns.tolist() == [100_000 * number + 30_500 for number in range(10)]
    launches = {int(c): int(s) for c, s in zip(calls.correlation, calls.start_ns, strict=True) if c > 0}
    assert [launches[int(c)] for c in work.correlation] == [100_000 * number + 5_000 for number in range(10)]
    profile = sg.load(path)
    mm = next(op for op in profile.operations if op.name == "aten::mm")
    assert mm.kind == "gemm"
    assert mm.ms == pytest.approx(0.005 * (mm.calls or 0.0))
    assert profile.launches_per_step == (mm.calls or 0.0) / (profile.steps or 1)


@pytest.mark.samples
def test_the_samples_are_read_or_named() -> None:
    profile = sg.load(shared("samples/kineto_more") / "ascend_trace_view.json.gz")
    assert sum(op.calls or 0.0 for op in profile.operations) > 100
    assert profile.ledger is not None
    with pytest.raises(BadInput, match="Spyre"):
        sg.load(shared("samples/kineto_more") / "aiu_allreduce_tp4.json.gz")


def test_a_queue_of_mtia_that_waits_for_another_does_no_work(tmp_path: Path) -> None:
    names = ("fc-dtype_Float", "event_wait", "Wait For Event", "dma_request", "await_norm")
    kernel = {"ph": "X", "cat": "mtia_ccp_events", "pid": 0, "tid": 3, "dur": 90.0}
    events = [kernel | {"name": name, "ts": 100.0 * place} for place, name in enumerate(names)]
    path = tmp_path / "mtia.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    (trace,) = read_file(path)
    found = [trace.strings[name] for name in trace.work.name.tolist()]
    assert found == ["fc-dtype_Float", "dma_request", "await_norm"]
    assert trace.categories["mtia_ccp_events"] == 3
