"""What an event costs in memory: a trace of gigabytes has tens of millions of them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import numpy as np

from stepgrade.model.events import Trace
from tests.kineto_traces import read_file
from tests.trace_builder import Run, analyse_trace, make_trace

# 71 and 36 when this was written; with 64-bit columns, and intermediate ones for all rows at once, 101 and 52.
ANALYSIS_BYTES = 82
COLUMN_BYTES = 42
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "traces" / "gpt_fused.json.gz"
_TABLES = ("ops", "calls", "work", "ranges")


def count_events(trace: Trace) -> int:
    return sum(len(getattr(trace, table).name) for table in _TABLES)


def narrowed(trace: Trace) -> Trace:
    """Return the trace with columns as the reader makes them."""
    return msgspec.structs.replace(trace, **{table: _narrow(getattr(trace, table)) for table in _TABLES})


def _narrow(table: msgspec.Struct) -> msgspec.Struct:
    known = [name for name in table.__struct_fields__ if getattr(table, name) is not None]
    wide = [name for name in known if getattr(table, name).dtype == np.int64]
    return msgspec.structs.replace(
        table, **{name: getattr(table, name).astype(np.int32) for name in wide if name != "start_ns"}
    )


def peak_bytes(trace: Trace) -> int:
    """Return the least peak of three: what is imported, or another test's thread allocates, is not the analysis."""
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            analyse_trace(trace)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)


def test_the_analysis_needs_few_bytes_for_an_event() -> None:
    small, large = (narrowed(make_trace(Run(steps=steps, layers=24))) for steps in (20, 160))
    events = count_events(large) - count_events(small)
    assert events > 50_000
    assert (peak_bytes(large) - peak_bytes(small)) / events < ANALYSIS_BYTES


def test_columns_are_as_narrow_as_their_numbers() -> None:
    trace = read_file(EXAMPLE)[0]
    tables = [getattr(trace, name) for name in _TABLES]
    columns = [getattr(table, name) for table in tables for name in table.__struct_fields__]
    held = sum(column.nbytes for column in columns if column is not None)
    assert held / count_events(trace) < COLUMN_BYTES
