"""Runs of all kinds with up to three faults, for tests of what must always hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.wild_runs import Wild
from tests.wild_table import FACTORS, NAMED, can_be_told

KINDS = st.builds(
    Wild,
    seed=st.integers(0, 1000),
    rocm=st.booleans(),
    layers=st.integers(1, 6),
    layer_us=st.sampled_from([20, 100, 500]),
    steps=st.integers(1, 4),
    micro=st.integers(1, 2),
    jitter=st.floats(0.0, 0.5),
    graph=st.booleans(),
    copy_stream=st.booleans(),
    modules=st.booleans(),
    shapes=st.booleans(),
    cpu=st.booleans(),
    ranks=st.sampled_from([None, None, 2, 3]),
)
FAULTS = st.dictionaries(st.sampled_from(sorted(NAMED)), st.floats(0.1, 20.0), max_size=3)


def _made(run: Wild, faults: dict[str, float]) -> Wild:
    run = replace(run, ranks=None, graph=False) if run.cpu else run
    kept = {name: size for name, size in faults.items() if can_be_told(run, name) or not run.cpu}
    return replace(run, faults={name: 1.0 + size if name in FACTORS else size for name, size in kept.items()})


RUNS = st.builds(_made, KINDS, FAULTS)
