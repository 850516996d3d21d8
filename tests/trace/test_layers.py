"""Layers by modules, by ranges, by pattern, and the honest none."""

from __future__ import annotations

from itertools import count

import pytest

from stepgrade.model.events import RangeKind, Trace
from stepgrade.model.operations import LayerStep
from stepgrade.timeline.timeline import Phase, build_timeline, find_pieces
from stepgrade.trace.layers import Layers, find_layers
from tests.trace_builder import Run, TraceBuilder, analyse_trace, make_trace, play

KERNEL = 60_000
FORWARD = KERNEL // 3 + 2 * KERNEL + KERNEL // 4  # norm, two matmuls, gelu
BACKWARD = 2 * 2 * KERNEL + 2 * KERNEL


def layers_of(trace: Trace) -> Layers:
    timeline = build_timeline(trace)
    pieces = find_pieces(timeline)
    return find_layers(timeline, pieces)


def times_ns(layer: LayerStep) -> tuple[int, int, int]:
    """Return the forward, backward and recomputed time of a layer in a step."""
    times = (layer.fwd_ms, layer.bwd_ms, layer.recompute_ms)
    return tuple(round((ms or 0.0) * 1e6) for ms in times)  # type: ignore[return-value]  # three of them


def outside_ns(trace: Trace, layers: Layers) -> tuple[int, int]:
    """Return the forward and the backward time that lies in no layer."""
    timeline = build_timeline(trace)
    pieces = find_pieces(timeline)
    forward, backward = (
        int(pieces.dur_ns[pieces.steady & (pieces.phase == which)].sum())
        for which in (Phase.FORWARD, Phase.BACKWARD)
    )
    times, steps = [times_ns(layer) for layer in layers.times], int(timeline.windows.steady.sum())
    return forward - steps * sum(one[0] for one in times), backward - steps * sum(one[1] for one in times)


@pytest.mark.parametrize(
    ("run", "basis", "names"),
    [
        (Run(), "modules", ["Block_0", "Block_1", "Block_2"]),
        (Run(modules=False, ranges=True), "ranges", ["block 0", "block 1", "block 2"]),
        (Run(modules=False), "pattern", ["block 0", "block 1", "block 2"]),
    ],
)
def test_forward_and_backward_of_each_layer(run: Run, basis: str, names: list[str]) -> None:
    trace = make_trace(run)
    layers = layers_of(trace)
    assert (layers.basis, [layer.name for layer in layers.times]) == (basis, names)
    for layer in layers.times:
        assert times_ns(layer) == (FORWARD, BACKWARD, 0)
        assert sum(layer.ops.values()) == pytest.approx((FORWARD + BACKWARD) / 1e6)
    assert outside_ns(trace, layers) == (3 * (KERNEL // 5), 0)  # the embedding
    assert analyse_trace(trace).layers == layers.times


@pytest.mark.parametrize("modules", [True, False])
def test_forward_work_done_again_is_distinguishable(modules: bool) -> None:
    profile = analyse_trace(make_trace(Run(recompute=True, modules=modules)))
    assert profile.activity is not None
    assert profile.activity.recompute_ms == pytest.approx(3 * FORWARD / 1e6)
    for layer in profile.layers:
        assert times_ns(layer) == (FORWARD, BACKWARD, FORWARD)
    assert any("done again" in note.text for note in profile.notes)


def test_a_model_of_two_layers_shows_no_pattern() -> None:
    layers = layers_of(make_trace(Run(modules=False, layers=2)))
    assert layers.basis is None
    assert layers.note
    assert "with_stack=True" in layers.note.text


def test_a_compiled_model_cannot_tell_its_layers() -> None:
    made = play(Run(modules=False))
    for row in [one for one in made.ranges if one[0] == made.text("ProfilerStep#6")]:
        made.range("## Call CompiledFxGraph abc ##", row[2] + 10, 100)
    layers = layers_of(made.trace())
    assert layers.basis is None
    assert layers.note
    assert "torch.compile" in layers.note.text


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
    assert {layer.name: times_ns(layer)[1] for layer in layers} == {
        "aten::mul 0": 2_000,
        "aten::mul 1": 2_001,
    }


LEAVES = {
    "Linear": ("aten::linear", "gemm"),
    "LayerNorm": ("aten::native_layer_norm", "vectorized_layer_norm_kernel"),
    "GELU": ("aten::gelu", "vectorized_elementwise_kernel"),
}


def nested(depth: list[tuple[str, int, int]]) -> Trace:
    """Return one step of module frames (name, start and length in µs), with a kernel for each of `LEAVES`."""
    made = TraceBuilder()
    made.range("ProfilerStep#1", 0, 1000_000)
    for name, start, length in depth:
        made.range(f"nn.Module: {name}", start * 1000, length * 1000, kind=RangeKind.MODULE)
        if (leaf := name.split("_")[0]) in LEAVES:
            operation, kernel = LEAVES[leaf]
            made.op(operation, start * 1000 + 100, length * 1000 - 200)
            call = made.call("cudaLaunchKernel", start * 1000 + 200, 100)
            made.kernel(kernel, start * 1000 + 500, length * 1000 - 600, correlation=call)
    return made.trace()


def names_of(depth: list[tuple[str, int, int]]) -> list[str | None]:
    return [layer.name for layer in layers_of(nested(depth)).times]


def block(number: int, at: int, kind: str = "Block") -> list[tuple[str, int, int]]:
    """Return a block of 100 µs with a stack of two layers inside."""
    return [
        (f"{kind}_{number}", at, 100),
        (f"Sequential_{number}", at + 1, 98),
        (f"Linear_{2 * number}", at + 2, 40),
        (f"Linear_{2 * number + 1}", at + 45, 40),
    ]


def test_the_outer_blocks_are_the_layers() -> None:
    frames = [("Model_0", 0, 900), *(part for n in range(4) for part in block(n, 10 + 110 * n))]
    assert names_of(frames) == [f"Block_{n}" for n in range(4)]


def test_a_stack_of_blocks_is_not_a_layer() -> None:
    stages = [(f"Stage_{n}", 5 + 340 * n, 335) for n in range(2)]
    blocks = [part for n in range(6) for part in block(n, 10 + 110 * n + 10 * (n // 3))]
    assert names_of([("Model_0", 0, 900), *stages, *blocks]) == [f"Block_{n}" for n in range(6)]


def test_blocks_that_hold_little_of_the_step_are_no_layers() -> None:
    frames = [("Model_0", 0, 990), *block(0, 10), *block(1, 120), ("Linear_9", 300, 600)]
    assert names_of(frames) == []
    assert "covers most" in str(layers_of(nested(frames)).note)


def test_one_block_that_does_everything_is_not_one_of_several_layers() -> None:
    frames = [("Model_0", 0, 990), ("Part_0", 10, 800), ("Linear_0", 20, 780)]
    frames += [("Part_1", 820, 10), ("Linear_1", 822, 6), ("Part_2", 840, 10), ("Linear_2", 842, 6)]
    assert names_of(frames) == []


def in_a_row(*blocks: list[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Return a model of blocks, each given by its leaves and their lengths in µs."""
    frames: list[tuple[str, int, int]] = [("Model_0", 0, 990)]
    now = 10
    for number, leaves in enumerate(blocks):
        begin, inner = now, []
        for place, (leaf, length) in enumerate(leaves):
            inner.append((f"{leaf}_{100 * number + place}", now + 1, length))
            now += length + 2
        frames += [(f"Block_{number}", begin, now - begin), *inner]
        now += 2
    return frames


USUAL = [("LayerNorm", 5), ("Linear", 15), ("GELU", 5)]


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("slow", [20, 60, 200, 600])
def test_a_slow_layer_is_still_one_of_the_layers(place: int, slow: int) -> None:
    blocks = [USUAL] * 5
    blocks[place] = [("LayerNorm", 5), ("Linear", slow), ("GELU", 5)]
    layers = layers_of(nested(in_a_row(*blocks))).times
    assert [layer.name for layer in layers] == [f"Block_{n}" for n in range(5)]
    times = [layer.fwd_ms or 0.0 for layer in layers]
    assert times.index(max(times)) == place


@pytest.mark.parametrize(
    "other",
    [
        [("Linear", 600)],  # does only some of the work: a head
        [*USUAL * 5, ("Linear", 400)],  # holds many more modules: a backbone beside its heads
    ],
)
def test_a_large_part_that_is_built_otherwise_is_no_slow_layer(other: list[tuple[str, int]]) -> None:
    assert names_of(in_a_row(other, *[USUAL] * 4)) == []


def test_one_large_linear_among_small_ones_is_no_slow_layer() -> None:
    assert names_of(in_a_row([("Linear", 600)], *[[("Linear", 15)]] * 6)) == []


def uneven(parts: list[list[str]]) -> list[tuple[str, int, int]]:
    """Return blocks of these kinds of parts, of which the second takes fifty times as long as another."""
    frames, at, numbers = [("Model_0", 0, 990)], 10, count()
    for number, kinds in enumerate(parts):
        length = 300 if number == 1 else 6
        frames.append((f"Part_{number}", at, length * len(kinds) + 4))
        for place, kind in enumerate(kinds):
            frames.append((f"{kind}_{next(numbers)}", at + 2 + place * length, length))
        at += length * len(kinds) + 8
    return frames


def test_a_slow_block_is_still_one_of_the_layers() -> None:
    assert names_of(uneven([["Linear", "Linear"]] * 5)) == [f"Part_{number}" for number in range(5)]


@pytest.mark.parametrize(
    "parts",
    [
        [["Linear"]] * 5,  # mere wrappers
        [["Linear", "Linear"]] * 3,  # too few to tell what is usual
        [["Linear"], ["Linear", "LinearNorm"], *[["Linear"]] * 3],
        [["Linear", "Linear"], ["Linear", "LinearNorm"], *[["Linear", "Linear"]] * 3],
    ],
)
def test_a_large_block_that_is_built_otherwise_is_none_of_them(parts: list[list[str]]) -> None:
    assert not {f"Part_{number}" for number in range(len(parts))} & set(names_of(uneven(parts)))
