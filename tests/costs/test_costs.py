"""FLOPs and bytes from recorded sizes, worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepgrade.costs.table import cost_of
from stepgrade.model.events import Inputs
from tests.complexity.shapes import event, step, trace
from tests.kineto_traces import read_trace
from tests.trace_builder import Run, analyse_trace, make_trace

BF16, F32 = "c10::BFloat16", "float"
IMAGE, KERNEL = [8, 64, 56, 56], [128, 64, 3, 3]
PAIR = "[{0}, {0}]"
QUERY = [2, 16, 1024, 64]
SCORES = 2 * 16 * 1024 * 1024


def cost(name: str, dims: list[Any], types: list[str], concrete: list[str]) -> tuple[int | None, int | None]:
    made = cost_of(
        name,
        Inputs(
            dims=json.dumps(dims).encode(),
            types=json.dumps(types).encode(),
            concrete=json.dumps(concrete).encode(),
        ),
    )
    return made.flops, made.bytes


def conv(stride: int, padding: int) -> list[str]:
    settings = [PAIR.format(number) for number in (stride, padding, 1)]
    return ["", "", "", *settings, "False", PAIR.format(0), "1"]


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "flops", "moved"),
    [
        ("aten::mm", [[8, 16], [16, 4]], [BF16] * 2, [], 2 * 8 * 16 * 4, 2 * (128 + 64 + 32)),
        ("aten::addmm", [[4], [8, 16], [16, 4], [], []], [F32] * 3, [], 1024, 4 * 224),
        ("aten::bmm", [[3, 8, 16], [3, 16, 4]], [F32] * 2, [], 3 * 1024, 4 * 3 * 224),
        ("aten::baddbmm", [[3, 8, 4], [3, 8, 16], [3, 16, 4]], [F32] * 3, [], 3 * 1024, 4 * 3 * 224),
        ("aten::linear", [[2, 4, 16], [4, 16], [4]], [F32] * 3, [], 1024, 4 * 224),
        (
            "aten::_grouped_mm",
            [[100, 16], [5, 16, 4]],
            [BF16] * 2,
            [],
            2 * 100 * 16 * 4,
            2 * (1600 + 320 + 400),
        ),
        (
            "aten::convolution",
            [IMAGE, KERNEL, [], [], [], [], [], [], []],
            [F32] * 2,
            conv(2, 1),
            2 * 8 * 128 * 28 * 28 * 64 * 9,
            4 * (8 * 64 * 56 * 56 + 128 * 64 * 9 + 8 * 128 * 28 * 28),
        ),
        (
            "aten::cudnn_convolution",
            [IMAGE, KERNEL],
            [F32] * 2,
            ["", "", PAIR.format(1), PAIR.format(2), PAIR.format(1), "1"],
            2 * 8 * 128 * 28 * 28 * 64 * 9,
            4 * (8 * 64 * 56 * 56 + 128 * 64 * 9 + 8 * 128 * 28 * 28),
        ),
        (
            "aten::convolution_backward",
            [[8, 128, 28, 28], IMAGE, KERNEL, [], [], [], [], [], [], [], []],
            [F32] * 3,
            [""] * 10 + ["[False, True, False]"],
            2 * 8 * 128 * 28 * 28 * 64 * 9,
            4 * (8 * 128 * 28 * 28 + 8 * 64 * 56 * 56 + 128 * 64 * 9),
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            [QUERY] * 3,
            [BF16] * 3,
            ["", "", "", "0.", "True"],
            2 * SCORES * 128 // 2,
            2 * 4 * SCORES // 1024 * 64,
        ),
        (
            "aten::_flash_attention_forward",
            [[2, 1024, 16, 64]] * 3,
            [BF16] * 3,
            ["", "", "", "", "", "", "", "0.", "False"],
            2 * SCORES * 128,
            2 * 4 * SCORES // 1024 * 64,
        ),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            [QUERY] * 4,
            [BF16] * 4,
            [""] * 11 + ["True"],
            2 * SCORES * 128,
            2 * 8 * SCORES // 1024 * 64,
        ),
        ("aten::embedding", [[1000, 64], [8, 128]], [F32, "long int"], [], 0, 4 * 2024 * 64 + 8 * 1024),
        ("aten::add", [[8, 4], [8, 4], []], [F32, F32, "Scalar"], [], 32, 4 * 96),
        ("aten::native_layer_norm", [[8, 4], [], [4], [4]], [F32, "", F32, F32], [], 160, 256),
        ("aten::copy_", [[8, 4], [8, 4], []], [BF16, F32, ""], [], 0, 32 * 6),
        ("aten::sum", [[8, 4]], [F32], [], 32, 128),
        ("aten::_foreach_add_", [[[8], [4]], [[8], [4]]], [F32], [], 12, 4 * 36),
    ],
)
def test_costs(
    name: str, dims: list[Any], types: list[str], concrete: list[str], flops: int, moved: int
) -> None:
    assert cost(name, dims, types, concrete) == (flops, moved)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("nanogpt::mm", [[8, 16], [16, 4]]),
        ("aten::mm", [[8, 16], [5, 4]]),
        ("aten::mm", []),
        ("aten::mm", [["x", 16], [16, 4]]),
        ("aten::cudnn_convolution", [IMAGE, KERNEL]),
        ("aten::_flash_attention_forward", [[2048, 16, 64]] * 3),
        ("aten::unique_consecutive", [[8, 4]]),
    ],
)
def test_what_the_sizes_do_not_tell_is_none(name: str, dims: list[Any]) -> None:
    assert cost(name, dims, [F32] * 3, []) == (None, None)


def test_packed_sequences_of_unknown_lengths_bound_the_flops() -> None:
    """Any lengths that add up to the tokens, none longer than the longest, have FLOPs within the bounds."""
    tokens, heads, width, longest, count = 64, 2, 8, 24, 6
    dims = [[tokens, heads, width]] * 3 + [[]] * 4 + [[count + 1]] * 2 + [[]] * 25
    for causal, window in (("False", -1), ("True", -1), ("True", 5)):
        concrete = (
            [""] * 12 + [str(longest)] * 2 + [""] * 9 + ["0.1", causal, str(window), str(min(window, 0))]
        )
        inputs = Inputs(
            dims=json.dumps(dims).encode(),
            types=json.dumps(["c10::BFloat16"] * 3 + [""] * 4 + ["int"] * 2 + [""] * 25).encode(),
            concrete=json.dumps([*concrete, *[""] * (34 - len(concrete))]).encode(),
        )
        found = cost_of("flash_attn_3::fwd", inputs)
        assert found.flops is None
        assert found.flops_within is not None
        for lengths in ([11, 11, 11, 11, 10, 10], [24, 24, 16, 0, 0, 0], [24, 20, 10, 5, 4, 1]):
            pairs = sum(
                1
                for length in lengths
                for row in range(length)
                for column in range(length)
                if (causal == "False" or column <= row) and (window < 0 or row - column <= window)
            )
            flops = pairs * 4 * heads * width
            assert found.flops_within[0] <= flops
            # Without a window a causal mask is counted as half of all pairs, without the diagonal's half.
            assert flops <= found.flops_within[1] + 4 * heads * width * tokens


def test_a_matrix_times_its_own_transpose_counts_half() -> None:
    def flops(name: str, *dims: list[int]) -> int | None:
        inputs = Inputs(
            dims=json.dumps([*dims, []]).encode(),
            types=b'["c10::BFloat16", "c10::BFloat16", "Scalar"]',
            concrete=b'["", "", "768"]',
            is_triton=True,
        )
        return cost_of(name, inputs).flops

    assert flops("XXT_kernel_0", [2, 768, 3072], [2, 768, 768]) == 2 * 768 * 769 * 3072
    assert flops("my_syrk", [64, 32], [64, 64]) == 64 * 65 * 32
    assert flops("XXT_kernel_0", [2, 768, 3072], [2, 3072, 3072]) is None
    assert flops("XXT_kernel_0", [768]) is None
    assert flops("copy_kernel", [2, 768, 768], [2, 768, 768]) is None


def test_unknown_element_types_leave_the_flops() -> None:
    assert cost("aten::mm", [[8, 16], [16, 4]], ["nv_fp4"] * 2, []) == (1024, None)


def test_text_that_is_no_json_is_none() -> None:
    made = cost_of("aten::mm", Inputs(dims=b"[[8, 16], [16"))
    assert (made.flops, made.bytes) == (None, None)


def test_operations_carry_their_costs() -> None:
    profile = analyse_trace(make_trace(Run(steps=3, layers=3)))
    found = {one.name: one for one in profile.operations}
    addmm = found["aten::addmm"]
    assert addmm.calls == 2 * 3
    assert addmm.flops == 6 * 2 * 1024 * 64 * 64
    assert addmm.kind == "gemm"
    assert found["aten::mm"].flops is None  # its sizes were not recorded
    assert profile.matmul_flops == addmm.flops
    share = profile.matmul_known_share or 0
    assert share == pytest.approx(addmm.ms / (addmm.ms + found["aten::mm"].ms))


def test_tokens_come_from_the_embedding() -> None:
    profile = analyse_trace(make_trace(Run(batch=4, sequence=32)))
    assert profile.activity is not None
    assert (profile.tokens_per_step, profile.activity.sequence) == (128, 32)
    assert analyse_trace(make_trace(Run(shapes=False))).tokens_per_step is None


def test_a_product_and_the_operation_in_it_that_computes_are_one_call() -> None:
    """By the number of products it is told whether a backward pass is whole: two for each of the forward pass."""
    rows = []
    for number in range(4):
        at = number * 1000
        rows += [
            step(number, at, 900),
            event("cpu_op", "aten::linear", at + 10, 200),
            event("cpu_op", "aten::addmm", at + 20, 150),
            event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 300, 400),
            event("cpu_op", "AddmmBackward0", at + 310, 350),
            event("cpu_op", "aten::mm", at + 320, 100),
            event("cpu_op", "aten::mm", at + 450, 100),
        ]
    profile = analyse_trace(read_trace(trace(rows)["f"]))
    assert profile.activity is not None
    products = {part.direction: part.calls for part in profile.activity.parts if part.work_class == "gemm"}
    assert products == {"forward": 1.0, "backward": 2.0}
