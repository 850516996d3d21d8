"""Whatever numbers a broken file leaves in the columns, the facts come out and the ledger adds up."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
import numpy as np
import pytest

from stepgrade.model.events import Trace
from stepgrade.trace.profile import analyse_rank, profile_of_traces
from tests.timeline.changes import TABLES, picked
from tests.timeline.test_invariants import assert_adds_up
from tests.trace_builder import Run, make_trace

TIMES = (-(10**15), -1, 0, 1, 1_000, 10**9, 10**15)
NUMBERS = (-1, 0, 1, 2, 7, 10**12, 2**62)
SHAPES = (
    Run(),
    Run(reduce_ns=90_000, recompute=True, rank=0, world_size=2),
    Run(device=False, marks=False),
    Run(graph=True, sync=True, modules=False, ranges=True),
)


def spoiled(trace: Trace, seed: int) -> Trace:
    """Return the trace with some numbers replaced by odd ones, and some rows lost."""
    chance = np.random.default_rng(seed)
    return msgspec.structs.replace(trace, **{name: _spoil(getattr(trace, name), chance) for name in TABLES})


def _spoil(table: Any, chance: np.random.Generator) -> Any:
    columns = {
        name: column.copy()
        for name in table.__struct_fields__
        if (column := getattr(table, name)) is not None
    }
    for name, column in columns.items():
        hit = chance.random(len(column)) < chance.choice([0, 0.01, 0.2])
        if name in ("start_ns", "dur_ns"):
            column[hit] = chance.choice(TIMES, int(hit.sum()))
        elif column.dtype == np.int64:
            column[hit] = chance.choice(NUMBERS, int(hit.sum()))
        elif name in ("name", "thread", "kind", "device"):
            column[hit] = chance.permutation(column[hit])
    kept = chance.random(len(columns["name"])) < chance.choice([0.3, 0.95, 1])
    return picked(type(table)(**columns), kept)


@pytest.mark.parametrize("shape", SHAPES)
def test_spoiled_traces_still_add_up(shape: Run) -> None:
    trace = make_trace(shape)
    for seed in range(150):
        broken = spoiled(trace, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rank = analyse_rank(broken)
        assert_adds_up(rank)
        msgspec.json.encode(rank)


def test_spoiled_ranks_still_join() -> None:
    for seed in range(40):
        profile_of_traces([spoiled(make_trace(SHAPES[1]), seed), spoiled(make_trace(SHAPES[1]), seed + 1)])
