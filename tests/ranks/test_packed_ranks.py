"""Operations in columns: packed and unpacked they are the same, and columns add up as the rows do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.model.operations import KernelRow, Operation, ShapeRow, Span
from stepgrade.ranks import packed_ranks
from stepgrade.ranks.packed_ranks import MeanOperations, PackedOperations

times = st.floats(0.001, 1e6)
maybe = st.none() | times
shapes = st.builds(
    ShapeRow,
    shape=st.none() | st.sampled_from(["2x3", "3x2 bf16", "é"]),
    ms=times,
    calls=times,
    flops=maybe,
    bytes=maybe,
    at_most=st.booleans(),
)
operations = st.builds(
    Operation,
    name=st.sampled_from(["aten::mm", "a", "b", "ü"]),
    ms=times,
    calls=maybe,
    kind=st.none() | st.just("gemm"),
    flops=maybe,
    bytes=maybe,
    known_share=st.none() | st.floats(0.0, 1.0),
    samples_ms=st.lists(times, min_size=2, max_size=2).map(tuple) | st.just(()),
    longest=st.none()
    | st.builds(Span, file=st.just(0), start_ns=st.integers(0, 9), dur_ns=st.integers(0, 9)),
    shapes=st.lists(shapes, max_size=4).map(tuple),
    kernels=st.lists(st.builds(KernelRow, name=st.just("k"), ms=times, calls=times), max_size=2).map(tuple),
)
ranks = st.lists(operations, max_size=4, unique_by=lambda op: op.name).map(tuple)


@given(ranks)
def test_packed_operations_are_the_same_again(rank: tuple[Operation, ...]) -> None:
    assert PackedOperations.of(rank).unpacked() == rank


@given(st.lists(ranks, min_size=1, max_size=4))
def test_columns_add_up_as_rows_do(of_ranks: list[tuple[Operation, ...]]) -> None:
    share, mean = 1 / len(of_ranks), MeanOperations(len(of_ranks))
    for file, rank in enumerate(of_ranks):
        mean.add(PackedOperations.of(rank), 2, file)
    found = mean.result()
    assert {op.name for op in found} == {op.name for rank in of_ranks for op in rank}
    for op in found:
        alike = [(file, one) for file, rank in enumerate(of_ranks) for one in rank if one.name == op.name]
        rows = [row for _, one in alike for row in one.rows]
        assert op.ms == pytest.approx(share * sum(one.ms for _, one in alike))
        assert op.calls == pytest.approx(share * sum(one.calls or 0.0 for _, one in alike))
        known = [row.flops for row in rows if row.flops is not None]
        assert (op.flops is None) == (not known)
        assert (op.flops or 0.0) == pytest.approx(share * sum(known))
        assert {row.shape for row in op.shapes} == ({row.shape for row in rows} if op.shapes else set())
        assert op.kernels == alike[0][1].kernels
        spans = [(one.longest.dur_ns, -file) for file, one in alike if one.longest]
        assert (op.longest and (op.longest.dur_ns, -op.longest.file)) == max(spans, default=None)
        samples = [one.samples_ms for _, one in alike if one.samples_ms]
        assert op.samples_ms == pytest.approx([share * sum(both) for both in zip(*samples, strict=True)])


def test_shapes_of_a_thousand_ranks_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts get as many tokens as there happen to be: every rank has other shapes, and other names."""
    monkeypatch.setattr(packed_ranks, "_MOST_PLANS", 4)
    mean = MeanOperations(1)
    for rank in range(1000):
        rows = (ShapeRow(shape=f"{rank}x8", ms=1.0, calls=1.0, flops=2.0, bytes=3.0),)
        op = Operation(name="mm", ms=1.0, calls=1.0, flops=2.0, bytes=3.0, shapes=rows)
        mean.add(PackedOperations.of([op]), rank, 0)
    (whole,) = mean.result()
    assert (whole.ms, whole.flops, whole.bytes) == (1000.0, 2000.0, 3000.0)
    assert sum(row.ms for row in whole.shapes) == 1000.0
    assert len(whole.shapes) < 40
    assert (len(mean._plans), len(mean._slots)) == (4, 2 + 4 * (packed_ranks._MOST_ROWS + 1))
