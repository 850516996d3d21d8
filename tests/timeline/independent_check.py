"""The independent check over a few made traces, as a program: it fails where the analysis does not agree."""

from __future__ import annotations

import stepgrade
from stepgrade.model.events import Trace
from tests.timeline.test_independent import assert_host_ledgers, assert_ledgers, assert_windows
from tests.trace_builder import Run, TraceBuilder, make_trace

ON_DEVICE = (
    Run(steps=3, reduce_ns=400_000, sync=True, input_ns=900_000, host_op_ns=60_000),
    Run(steps=3, reduce_ns=40_000, kernel_ns=200_000, host_op_ns=2_000),
    Run(steps=4, marks=False, kernel_ns=5_000, host_op_ns=40_000, sync=True),
    Run(steps=3, marks=False, optimizer=False, input_ns=20_000, copy_ns=90_000),
    Run(steps=3, reduce_ns=150_000, kernel_ns=30_000, copy_ns=200_000, recompute=True),
)
ON_HOST = (
    Run(steps=3, device=False, input_ns=900_000),
    Run(steps=3, device=False, marks=False, input_ns=20_000),
)


def slow_to_start() -> Trace:
    """Return steps whose kernels start long after a launch that took long itself."""
    out = TraceBuilder()
    for step in range(4):
        begin = 1_000_000 * (step + 1)
        out.range(f"ProfilerStep#{step}", begin, 1_000_000)
        for place in range(2):
            at = begin + 450_000 * place
            out.op("aten::mm", at, 60_000)
            launched = out.call("cudaLaunchKernel", at + 5_000, 50_000)
            out.kernel("sgemm", at + 300_000, 100_000, correlation=launched)
    return out.trace()


def batches_made_by_operations() -> Trace:
    """Return steps of a processor whose loader calls operations."""
    out = TraceBuilder(devices=())
    for step in range(3):
        begin = 1_000_000 * (step + 1)
        out.range(f"ProfilerStep#{step}", begin, 1_000_000)
        out.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin + 1_000, 500_000)
        out.op("aten::stack", begin + 100_000, 200_000)
        out.op("aten::mm", begin + 600_000, 300_000)
    return out.trace()


def main() -> None:
    """Compare every step of the made traces."""
    print(stepgrade.__file__)
    for run in ON_DEVICE:
        trace = make_trace(run)
        assert assert_windows(trace) >= run.steps - 1
        assert_ledgers(trace)
    trace = slow_to_start()
    assert assert_windows(trace) > 0
    assert_ledgers(trace)
    for trace in (*map(make_trace, ON_HOST), batches_made_by_operations()):
        assert assert_host_ledgers(trace) > 0


if __name__ == "__main__":
    main()
