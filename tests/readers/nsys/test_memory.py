"""Memory of an export with many kernels: what benchmarks/nsys.py measures, at a tenth of its size and exactly."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from benchmarks.nsys import make

from stepgrade.readers.nsys import read
from stepgrade.readers.source import ByteSource
from stepgrade.trace.profile import profile_of_traces

KERNELS = 100_000


def test_analysing_a_kernel_takes_less_than_160_bytes(tmp_path: Path) -> None:
    make(path := tmp_path / "run.sqlite", KERNELS)
    with ByteSource(str(path)) as source:
        traces = [*(read(source).traces or ())]
    tracemalloc.start()  # only now: it makes reading many times slower, and its peak is lower
    try:
        profile = profile_of_traces(traces)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert profile.recorded_steps == KERNELS // 1000
    # Of a million kernels and 1.2 million calls 160 MB; their columns are 40, the interpreter with numpy 45.
    assert most_bytes < 160 * KERNELS
