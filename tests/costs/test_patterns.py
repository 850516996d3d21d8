"""Patterns of cost at their edges, worked out by hand: sizes that fit by one, settings that were not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from stepgrade.costs.call_costs import MOST_SHAPES, add_shapes, shape_text
from stepgrade.costs.table import cost_of
from stepgrade.model.events import Inputs
from stepgrade.model.operations import ShapeRow
from tests.costs.test_more_costs import BF16, F32, FP8, I64, U8, inputs

LIST = "TensorList"
CONV = [[1, 8, 4, 4], [1, 4, 4, 4], [8, 4, 3, 3]]  # gradient, data, weight
EXPERTS: list[Any] = [[3, 16, 8], [3, 8, 16]]


@pytest.mark.parametrize(
    ("name", "given", "flops", "moved"),
    [
        ("aten::index", inputs([[10, 4, 5], [[3], [3]]], [F32, LIST]), 0, 2 * 15 * 4 + 8 * 3),
        ("aten::index", inputs([[10], [[3], [3]]], [F32, LIST]), None, None),  # more indices than dimensions
        ("aten::index_select", inputs([[10, 4], [], [3]], [F32], ["", "1", ""]), 0, 2 * 30 * 4 + 8 * 3),
        ("aten::index_select", inputs([[10, 4], [], [3]], [F32], ["", "-2", ""]), 0, 2 * 12 * 4 + 8 * 3),
        ("aten::index_select", inputs([[10, 4], [], [3]], [F32], ["", "2", ""]), None, None),
        ("aten::index_select", inputs([[10, 4], [], [3]], [F32], ["", "-3", ""]), None, None),
        ("aten::gather", inputs([[8, 4], [], [8, 2]], [F32, "", I64]), 0, 2 * 16 * 4 + 8 * 16),
        ("aten::scatter_add_", inputs([[8, 4], [], [8, 2]], [F32, "", I64]), 0, 3 * 16 * 4 + 8 * 16),
        (
            "aten::_index_put_impl_",
            inputs([[100, 8], [], [5, 8]], [F32, "", F32], ["", "", "", "True"]),
            0,
            3 * 160,
        ),
        (
            "aten::_index_put_impl_",
            inputs([[100, 8], [], [5, 8]], [F32, "", F32], ["", "", "", "False"]),
            0,
            2 * 160,
        ),
        ("aten::topk", inputs([[6, 10]], [F32], ["", "3"]), 0, 240 + 18 * 4 + 18 * 8),
        ("aten::topk", inputs([[6, 10]], [F32], ["", "0"]), 0, 240),
        ("aten::topk", inputs([[6, 10]], [F32], ["", "-1"]), None, None),
        ("aten::nonzero", inputs([[6, 10]], ["bool"]), 0, 60 + 8 * 2 * 60),
        (
            "aten::max_pool2d_with_indices",
            inputs([[2, 3, 8, 8]], [F32], ["", "[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]"]),
            384,
            1536 + 6 * 16 * (4 + 8),  # sixteen windows of each image's plane, with indices
        ),
        (
            "aten::avg_pool2d",
            inputs([[2, 3, 8, 8]], [F32], ["", "[2, 2]", "[]", "[0, 0]"]),
            384,
            1536 + 6 * 16 * 4,
        ),
        ("aten::avg_pool2d", inputs([[8, 8]], [F32], ["", "[2, 2]", "[]", "[0, 0]"]), None, None),
        ("aten::upsample_nearest2d", inputs([[2, 3, 4, 4]], [F32], ["", "[8, 8]"]), 0, 96 * 4 + 384 * 4),
        ("aten::upsample_nearest2d", inputs([[4, 4]], [F32], ["", "[8, 8]"]), None, None),
        ("aten::_embedding_bag", inputs([[100, 8], [20], [4]], [F32, I64, I64]), 160, 24 * 8 * 4 + 160),
        ("aten::_embedding_bag", inputs([[10, 8], [20], [4]], [F32, I64, I64]), 160, 14 * 8 * 4 + 160),
        (
            "aten::embedding_dense_backward",
            inputs([[8, 4], [8]], [F32, I64], ["", "", "100"]),
            32,
            128 + 1600 + 64,
        ),
        ("aten::nll_loss_forward", inputs([[8, 10], [8]], [F32, I64]), 8, 8 * 4 + 8 * 8),
        ("aten::mse_loss", inputs([[8, 4], [8, 4]], [F32] * 2), 32, 256),
        ("aten::mse_loss_backward", inputs([[], [8, 4], [8, 4]], [F32] * 3), 32, 256 + 128),
        (
            "aten::lstm",
            inputs([[5, 2, 8], [[1, 2, 16]], [[64, 8], [64, 16], [64]]], [F32, LIST, LIST]),
            30720,
            6464,
        ),
        ("aten::lstm", inputs([[5, 2, 8], [[1, 2, 16]], [[64], [64]]], [F32, LIST, LIST]), None, None),
        (
            "aten::convolution_backward",
            inputs(CONV, [F32] * 3, [""] * 10 + ["[True, False, True]"]),
            9216,
            1920,
        ),
        (
            "aten::convolution_backward",
            inputs(CONV, [F32] * 3, [""] * 10 + ["[True, True, True]"]),
            18432,
            3840,
        ),
        ("aten::convolution_backward", inputs(CONV, [F32] * 3, [""] * 10 + ["[False, False, True]"]), 0, 0),
        ("fbgemm::FloatToFP8RowwiseQuantized", inputs([[4, 16]], [F32]), 0, 256 + 4 * 24),
        ("fbgemm::FP8RowwiseQuantizedToFloat", inputs([[4, 24]], [U8]), 0, 96 + 4 * 16 * 4),
        ("fbgemm::FP8RowwiseQuantizedToFloat", inputs([[4, 7]], [U8]), 0, 28),  # a row of scales alone
        ("torchao::mxfp8_quantize", inputs([[64]], [BF16]), 64, 128 + 64 + 2),
        ("bitsandbytes::dequantize_4bit", inputs([[32]], [U8]), 0, 32 + 4 * 32),
        ("bitsandbytes::gemv_4bit", inputs([[1, 16], [128]], [BF16, U8]), 512, 32 + 128 + 16 * 2),
        ("bitsandbytes::gemv_4bit", inputs([[1, 15], [128]], [BF16, U8]), None, None),
        (
            "aten::_weight_int4pack_mm",
            inputs([[4, 32], [2, 8], [], [1, 16, 2]], [BF16, "int", "", BF16]),
            2 * 4 * 16 * 32,
            256 + 64 + 64 + 4 * 16 * 2,
        ),
        (
            "_C_cache_ops::reshape_and_cache_flash",
            inputs([[4, 2, 8], [4, 2, 8], [9], [9]], [BF16, BF16, FP8, FP8]),
            0,
            2 * 128 + 2 * 64,
        ),
        ("_C::rotary_embedding", inputs([[4], [4, 16], [4, 16]], [I64, BF16, BF16]), 0, 2 * 256 + 32),
        ("moe_permute_fwd", inputs([[4, 8], [4, 2]], [BF16, "int"]), 0, 64 + 128 + 64),
        ("aiter::fused_moe_", inputs([[4, 8], *EXPERTS, [], [4, 2]], [BF16] * 3), 4096, 1536 + 128),
        ("aiter::fused_moe_", inputs([[4, 8], *EXPERTS, [], [1, 2]], [BF16] * 3), 1024, 1024 + 128),
        (
            "fbgemm::split_embedding_codegen_lookup_sgd_function",
            inputs([[1000], [0], *[[]] * 9, [20], [5]], [F32, F32, *[""] * 9, I64, I64], [""] * 8 + ["16"]),
            0,
            20 * 16 * 4 + 5 * 16 * 4 + 8 * 25,  # the device holds no rows: the host's tables are read
        ),
        # Products of a compiler's template: two factors, and later their result.
        ("triton_tem_fused_mm_0", inputs([[8, 16], [16, 4], [8, 4]], [F32] * 3), 1024, 4 * 224),
        ("triton_tem_fused_bmm_0", inputs([[3, 8, 16], [3, 16, 4], [3, 8, 4]], [F32] * 3), 3072, 4 * 672),
        ("triton_tem_fused_mm_0", inputs([[8, 4], [8, 16], [16, 4]], [F32] * 3), None, 4 * 224),
        ("triton_tem_fused_relu_0", inputs([[8, 16], [16, 4], [8, 4]], [F32] * 3), None, 4 * 224),
        # Of x times its own transpose, one half and the diagonal.
        ("xxt_kernel", inputs([[8, 16], [8, 8]], [F32] * 2, is_triton=True), 8 * 9 * 16, 4 * 192),
        ("xxt_kernel", inputs([[3, 8, 16], [3, 8, 8]], [F32] * 2, is_triton=True), 3 * 8 * 9 * 16, 4 * 576),
        ("xxt_kernel", inputs([[8, 16], [8, 16]], [F32] * 2, is_triton=True), None, 4 * 256),
        (
            "triton_poi_fused_index_put_0",
            inputs([[16], [100, 8], [16, 8], []], [I64, F32, F32, "Scalar"], ["", "", "", "128"]),
            None,
            128 + 2 * 128 * 4 + 512,  # of the table 128 elements, read and written
        ),
        # Not sizes: below 0, or larger than any tensor's.
        ("aten::mm", inputs([[-1, 16], [16, 4]], [F32] * 2), None, None),
        ("aten::mm", inputs([[0, 16], [16, 4]], [F32] * 2), 0, 4 * 64),
        ("aten::mm", inputs([[2**40, 1], [1, 1]], [F32] * 2), None, None),
    ],
)
def test_costs_by_hand(name: str, given: Inputs, flops: int | None, moved: int | None) -> None:
    found = cost_of(name, given)
    assert (found.flops, found.bytes) == (flops, moved)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (inputs([[16384, 768], [768, 3072]], [BF16] * 2), "16384x768, 768x3072 bf16"),
        (inputs([[4], [4]], [BF16, F32]), "4 bf16, 4 fp32"),
        (inputs([[4], [4]], [BF16]), "4 bf16, 4"),  # the type of the second was not recorded
        (inputs([[[2, 2], [3]]], [LIST]), "2 tensors"),
        (inputs([[2]] * 8, [F32] * 8), "2, 2, 2, 2, 2, 2, 2, 2 fp32"),
        (inputs([[2]] * 10, [F32] * 10), "2, 2, 2, 2, 2, 2, 2, 2, 2 more fp32"),
        (inputs([[], []], ["Scalar"] * 2), None),
        (Inputs(dims=b'{"0": [4]}', types=b"[]"), None),
        (Inputs(dims=b"[[4]]", types=b"{}"), None),
        (Inputs(dims=b"[[4]", types=b"[]"), None),
    ],
)
def test_shapes_in_words(given: Inputs, text: str | None) -> None:
    assert shape_text(given) == text


def shape_rows(count: int) -> list[ShapeRow]:
    return [ShapeRow(shape=f"{index:02}", ms=100.0 - index, calls=1.0, flops=2.0) for index in range(count)]


def test_rows_beyond_the_most_are_one_row() -> None:
    kept = add_shapes([shape_rows(MOST_SHAPES + 4)])
    assert len(kept) == MOST_SHAPES + 4  # as many as there would be with rows for the rest
    cut = add_shapes([shape_rows(MOST_SHAPES + 5)])
    assert [row.shape for row in cut] == [None, *(f"{index:02}" for index in range(MOST_SHAPES))]
    rest = cut[0]
    assert (rest.ms, rest.calls, rest.flops) == (68.0 + 67 + 66 + 65 + 64, 5.0, 10.0)


def test_rows_with_and_without_costs_stay_apart() -> None:
    known = ShapeRow(shape="2x2", ms=1.0, calls=1.0, flops=8.0, bytes=16.0, flops_least=1.0)
    bounded = ShapeRow(shape="2x2", ms=2.0, calls=3.0, flops=8.0, bytes=16.0, at_most=True)
    unknown = ShapeRow(shape="2x2", ms=4.0, calls=5.0, flops=8.0)
    assert add_shapes([[known], [bounded, unknown]]) == (
        unknown,
        ShapeRow(shape="2x2", ms=3.0, calls=4.0, flops=16.0, bytes=32.0, at_most=True),
    )
