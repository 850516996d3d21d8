"""Occupancy worked out anew, and how full the device is, beside independent figures on real traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepgrade.model.events import KernelLaunch, SmLimits, Trace
from stepgrade.readers.kineto.header import sm_limits
from stepgrade.timeline.timeline import Timeline, build_timeline, find_pieces
from stepgrade.trace.kernels import kernel_use, occupancy_of
from tests.kineto_traces import KINETO, read_sample
from tests.samples import shared

H100 = SmLimits(threads=2048, registers=65536, shared_bytes=233472)
FILES = (
    "modded-nanogpt_20251211_8xH100_rank0.json.gz",
    "kineto_v3_2021-06_resnet50_train_workers0_a.pt.trace.json.gz",
    "tl_h100_bert-small.json.gz",
    "hta_ns_resolution_rank0.pt.trace.json.gz",
)


def launch(threads: int, registers: int, shared: int, blocks: float) -> KernelLaunch:
    return KernelLaunch(block_threads=threads, registers=registers, shared_bytes=shared, blocks_per_sm=blocks)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (launch(1024, 32, 0, 100.0), 1.0),  # two blocks are all the warps there are
        (launch(256, 64, 0, 100.0), 0.5),  # 32 warps of 64 registers fill the file
        (launch(384, 168, 200_000, 4.0), 384 / 2048),  # shared memory for one block
        (launch(32, 16, 0, 100.0), 0.5),  # 32 blocks of one warp
        (launch(128, 32, 0, 0.5), 64 / 2048),  # less than a block for each multiprocessor
        (launch(33, 32, 0, 1.0), 33 / 2048),
    ],
)
def test_what_is_scarce_limits_the_blocks(given: KernelLaunch, expected: float) -> None:
    assert occupancy_of(given, H100, "9.0") == pytest.approx(expected, abs=1e-4)


def test_what_is_not_known_stays_so() -> None:
    whole = launch(256, 64, 0, 100.0)
    assert occupancy_of(whole, None, "9.0") is None
    assert occupancy_of(whole, H100, "6.0") is None
    assert occupancy_of(KernelLaunch(block_threads=256, blocks_per_sm=1.0), H100, "9.0") is None
    assert occupancy_of(launch(256, 64, 10**9, 1.0), H100, "9.0") is None
    assert occupancy_of(KernelLaunch(occupancy=0.25), None, None) == 0.25


def kernels(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the arguments of each kernel with the properties of its device."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    devices = {device["id"]: device for device in document["deviceProperties"]}
    for event in document["traceEvents"]:
        args = event.get("args") or {}
        if event.get("cat", "").lower() == "kernel" and "est. achieved occupancy %" in args:
            yield args, devices[args["device"]]


@pytest.mark.samples
@pytest.mark.parametrize("name", FILES)
def test_occupancy_is_that_of_the_profiler_where_it_has_one(name: str) -> None:
    compared = 0
    for args, device in kernels(shared(KINETO) / name):
        capability = f"{device['computeMajor']}.{device['computeMinor']}"
        threads = args["block"][0] * args["block"][1] * args["block"][2]
        given = launch(threads, args["registers per thread"], args["shared memory"], args["blocks per SM"])
        ours = occupancy_of(given, sm_limits(device), capability)
        if args["est. achieved occupancy %"]:
            assert ours is not None
            assert 100.0 * ours == pytest.approx(args["est. achieved occupancy %"], abs=0.51)
            compared += 1
    assert compared > 30


def plugin_efficiency(trace: Trace, timeline: Timeline) -> float:
    """Return TensorBoard's estimated efficiency over the steady steps, worked out event by event.

    Of each moment the blocks per multiprocessor of all kernels that run, at most 1.
    """
    windows, work = timeline.windows, trace.work
    assert work.launch is not None
    changes = []
    for row in range(len(work.name)):
        blocks = trace.launches[int(work.launch[row])].blocks_per_sm if work.launch[row] >= 0 else None
        if blocks and int(work.device[row]) == timeline.device:
            start = int(work.start_ns[row])
            changes += [(start, blocks), (start + int(work.dur_ns[row]), -blocks)]
    changes.sort()
    steady = [
        (int(start), int(end))
        for start, end, is_steady in zip(windows.start_ns, windows.end_ns, windows.steady, strict=True)
        if is_steady
    ]
    filled = running = 0.0
    for (at, change), (until, _) in pairwise(changes):
        running += change
        overlap = sum(max(0, min(until, end) - max(at, start)) for start, end in steady)
        filled += overlap * min(max(running, 0.0), 1.0)
    return filled / sum(end - start for start, end in steady)


@pytest.mark.samples
@pytest.mark.parametrize("name", FILES)
def test_efficiency_is_that_of_the_plugin_on_the_same_steps(name: str) -> None:
    timeline = build_timeline(read_sample(name))
    use = kernel_use(timeline, find_pieces(timeline))
    assert use is not None
    assert use.sm_efficiency is not None
    expected = plugin_efficiency(timeline.trace, timeline)
    assert 100.0 * use.sm_efficiency == pytest.approx(100.0 * expected, abs=0.1)
