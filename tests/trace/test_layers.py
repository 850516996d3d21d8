"""Layers by modules, by ranges, by pattern, and the honest none."""

from __future__ import annotations

import pytest

from stepgrade.trace import analyse_trace
from stepgrade.trace.facts import TraceFacts
from tests.trace_builder import Run, TraceBuilder, make_trace, play

KERNEL = 60_000
FORWARD = KERNEL // 3 + 2 * KERNEL + KERNEL // 4  # norm, two matmuls, gelu
BACKWARD = 2 * 2 * KERNEL + 2 * KERNEL


def facts_of(run: Run) -> TraceFacts:
    return analyse_trace(make_trace(run))


@pytest.mark.parametrize(
    ("run", "basis", "names"),
    [
        (Run(), "modules", ["Block_0", "Block_1", "Block_2"]),
        (Run(modules=False, ranges=True), "ranges", ["block 0", "block 1", "block 2"]),
        (Run(modules=False), "pattern", ["block 0", "block 1", "block 2"]),
    ],
)
def test_forward_and_backward_of_each_layer(run: Run, basis: str, names: list[str]) -> None:
    layers = facts_of(run).layers
    assert (layers.basis, [one.name for one in layers.layers]) == (basis, names)
    for one in layers.layers:
        assert (one.forward_ns, one.backward_ns, one.recompute_ns) == (4 * FORWARD, 4 * BACKWARD, 0)
        assert sum(one.ops_ns.values()) == one.forward_ns + one.backward_ns
    assert layers.outside_forward_ns == 4 * KERNEL // 5  # the embedding
    assert layers.outside_backward_ns == 0


@pytest.mark.parametrize("modules", [True, False])
def test_forward_work_done_again_is_told_apart(modules: bool) -> None:
    facts = facts_of(Run(recompute=True, modules=modules))
    assert facts.layers.recompute_ns == 4 * 3 * FORWARD
    for one in facts.layers.layers:
        assert (one.forward_ns, one.backward_ns, one.recompute_ns) == (4 * FORWARD, 4 * BACKWARD, 4 * FORWARD)
    assert any("done again" in note.text for note in facts.notes)


def test_a_model_of_two_layers_shows_no_pattern() -> None:
    layers = facts_of(Run(modules=False, layers=2)).layers
    assert layers.basis is None
    assert "with_stack=True" in (layers.note or "")


def test_a_compiled_model_cannot_tell_its_layers() -> None:
    made = play(Run(modules=False))
    for row in [one for one in made.ranges if one[0] == made.text("ProfilerStep#6")]:
        made.range("## Call CompiledFxGraph abc ##", row[2] + 10, 100)
    layers = analyse_trace(made.trace()).layers
    assert layers.basis is None
    assert "torch.compile" in (layers.note or "")


def test_nodes_find_their_forward_thread_by_name() -> None:
    """Two threads number their operations alike: the names of the nodes tell which one is meant."""
    made = TraceBuilder()
    made.range("ProfilerStep#1", 0, 1_000_000)
    for thread, op in ((0, "aten::mul"), (7, "aten::relu")):
        for layer in range(2):
            start = 1_000 + 20_000 * layer
            made.range(f"{op} {layer}", start, 15_000, thread=thread)
            made.op(op, start + 100, 10_000, thread=thread, sequence=layer, forward_thread=0)
            correlation = made.call("cudaLaunchKernel", start + 200, 100, thread=thread)
            made.kernel(
                "kernel", start + 90_000 + 5_000 * thread, 1_000, correlation=correlation, stream=thread
            )
    for layer in range(2):
        start = 300_000 + 20_000 * layer
        made.op("MulBackward0", start, 10_000, thread=1, sequence=layer, forward_thread=3)
        correlation = made.call("cudaLaunchKernel", start + 200, 100, thread=1)
        made.kernel("kernel", start + 5_000, 2_000 + layer, correlation=correlation)
    layers = analyse_trace(made.trace()).layers
    assert {one.name: one.backward_ns for one in layers.layers} == {
        "aten::mul 0": 2_000,
        "aten::mul 1": 2_001,
    }
