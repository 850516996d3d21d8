"""What nsys-ai 0.3.0 and a count by hand say of the samples, beside what is read from them here."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from stepgrade.model.events import DeviceEvent, Trace
from stepgrade.timeline.links import CALL, nearest, pick
from stepgrade.timeline.timeline import build_timeline
from tests.readers.nsys.test_nsys import MS, NAMES, SAMPLES, covered_ns, reference, traces_of, union_ms
from tests.samples import shared

pytestmark = pytest.mark.samples
# Those with kernels. A graph that was recorded as a whole has none, and nsys-ai no time for it (docs/casebook.md).
EXPORTS = (
    "aaronpt_gb200_report1",
    "bolong_opt",
    "cs336jsun_fwdbwd_rtx3070ti",
    "cs336zx_small_a100",
    "ddp53",
    "nsysai_mfu_2gpu_after",
    "nsysai_mfu_2gpu_before",
)
ROUNDED_MS = 0.0051  # nsys-ai writes two digits
COPIES = {1: DeviceEvent.COPY_H2D, 2: DeviceEvent.COPY_D2H, 8: DeviceEvent.COPY_D2D}


def compared(name: str) -> tuple[list[Trace], dict[str, list[dict[str, Any]]]]:
    traces = traces_of(shared(SAMPLES) / f"{NAMES.get(name, name)}.sqlite")
    return traces, reference("nsys_ai.json")["files"][name]


def is_kernel(trace: Trace, device: int, words: str = "") -> np.ndarray:
    said = np.array([words in text.lower() for text in trace.strings], np.bool_)[trace.work.name]
    kernel: np.ndarray = (trace.work.kind == DeviceEvent.KERNEL) & (trace.work.device == device) & said
    return kernel


@pytest.mark.parametrize("name", EXPORTS)
def test_kernels_streams_and_copies_are_those_of_nsys_ai(name: str) -> None:
    traces, theirs = compared(name)
    calls: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    copies: Counter[tuple[int, str]] = Counter()
    for trace in traces:
        work = trace.work
        columns = (work.name, work.kind, work.dur_ns, work.device, work.stream, work.bytes)
        for text, kind, dur_ns, device, stream, size in zip(
            *(each.tolist() for each in columns), strict=True
        ):
            if kind == DeviceEvent.KERNEL:
                for what in (trace.strings[text], f"device {device} stream {stream}"):
                    calls[what] += 1
                    total_ns[what] += dur_ns
            else:
                copies[kind, "count"] += 1
                copies[kind, "ns"] += dur_ns
                copies[kind, "bytes"] += size
    for row in theirs["top_kernels"]:
        assert calls[row["kernel_name"]] == row["invocations"]
        assert total_ns[row["kernel_name"]] / MS == pytest.approx(row["total_ms"], abs=ROUNDED_MS)
    for row in theirs["stream_concurrency"]:
        stream = f"device {row['deviceId']} stream {row['streamId']}"
        assert calls[stream] == row["kernel_count"]
        assert total_ns[stream] / MS == pytest.approx(row["total_gpu_ms"], abs=ROUNDED_MS)
    for row in theirs["memory_transfers"]:
        if "copyKind" in row:  # it abstains where there is no table of copies
            kind = COPIES[row["copyKind"]]
            assert copies[kind, "count"] == row["count"]
            assert copies[kind, "ns"] / MS == pytest.approx(row["total_ms"], abs=ROUNDED_MS)
            assert copies[kind, "bytes"] / 1e6 == pytest.approx(row["total_mb"], abs=ROUNDED_MS)


@pytest.mark.parametrize("name", EXPORTS)
def test_what_hides_what_is_what_nsys_ai_says(name: str) -> None:
    traces, theirs = compared(name)
    (row,) = theirs["overlap_breakdown"]
    device = row["device_id"]
    (trace,) = (one for one in traces if (one.work.device == device).any())
    kernels, talks = is_kernel(trace, device), is_kernel(trace, device, "nccl")
    both, compute, talk = (union_ms(trace, rows) for rows in (kernels, kernels & ~talks, talks))
    assert both - talk == pytest.approx(row["compute_only_ms"], abs=ROUNDED_MS)
    assert both - compute == pytest.approx(row["nccl_only_ms"], abs=ROUNDED_MS)
    assert compute + talk - both == pytest.approx(row["overlap_ms"], abs=ROUNDED_MS)
    assert (int((kernels & ~talks).sum()), int(talks.sum())) == (row["compute_kernels"], row["nccl_kernels"])
    for found in theirs["nccl_breakdown"]:
        if "stream_id" not in found:
            continue
        rows = is_kernel(trace, found["device_id"], found["type"]) & talks
        rows &= trace.work.stream == found["stream_id"]
        assert int(rows.sum()) == found["count"]
        assert int(trace.work.dur_ns[rows].sum()) / MS == pytest.approx(found["total_ms"], abs=ROUNDED_MS)


@pytest.mark.parametrize("name", EXPORTS)
def test_busy_time_is_that_of_nsys_ai_within_its_span(name: str) -> None:
    """It counts from the first kernel to the last; copies before and after are not in it, and memsets never."""
    traces, theirs = compared(name)
    for row in theirs["pipeline_bubble_metrics"]:
        device = row["deviceId"]
        (trace,) = (one for one in traces if (one.work.device == device).any())
        work, kernels = trace.work, is_kernel(trace, device)
        first, last = int(work.start_ns[kernels].min()), int((work.start_ns + work.dur_ns)[kernels].max())
        busy = np.flatnonzero((work.device == device) & (work.kind != DeviceEvent.MEMSET))
        spans = [
            *zip(work.start_ns[busy].tolist(), (work.start_ns + work.dur_ns)[busy].tolist(), strict=True)
        ]
        assert (last - first) / MS == pytest.approx(row["total_span_ms"], rel=1e-4)
        assert covered_ns(spans, first, last) / (last - first) == pytest.approx(
            row["active_ms"] / row["total_span_ms"], abs=1e-3
        )


def test_kernels_of_ddp_lie_in_the_ranges_that_were_counted_by_hand() -> None:
    theirs = reference("own_nsys_nvtx.json")["new nsys/ddp_2xRTX3090_nsys2026.3.sqlite"]
    found: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for trace in traces_of(shared(SAMPLES) / f"{NAMES['ddp53']}.sqlite"):
        timeline = build_timeline(trace)
        tree, kernels = timeline.tree, np.flatnonzero(trace.work.kind == DeviceEvent.KERNEL)
        around = pick(nearest(tree.parent, tree.kind != CALL), timeline.links.row[kernels])
        names = pick(tree.name, around)
        for text, kernel in zip(names.tolist(), kernels.tolist(), strict=True):
            name = trace.strings[text] if text >= 0 else "(none)"
            if trace.work.collective[kernel] >= 0:  # NCCL's own ranges tell what their kernels send
                name = f"nccl {trace.collectives[trace.work.collective[kernel]].name}"
            found[name] += int(trace.work.dur_ns[kernel])
            calls[name] += 1
    assert sum(calls.values()) == theirs["kernels"]
    assert sum(found.values()) / MS == pytest.approx(theirs["kernel_ms"], abs=1e-6)
    for theirs_name, (ms, count) in theirs["by_innermost_op_ms"].items():
        name = theirs_name.lower().replace("nccl", "nccl ") if theirs_name.startswith("nccl") else theirs_name
        assert calls[name] == count, name
        assert found[name] / MS == pytest.approx(ms, abs=1e-3), name
