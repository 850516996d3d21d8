"""FLOPs and bytes of generated kernels, of libraries and of what moves data, worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.costs import table
from stepgrade.costs.recorded_inputs import Cost, Shapes
from stepgrade.costs.table import cost_of
from stepgrade.errors import BadOption
from stepgrade.model.events import Inputs

BF16, F16, F32, FP8 = "c10::BFloat16", "c10::Half", "float", "c10::Float8_e4m3fn"
I64, U8 = "long int", "unsigned char"
HEADS = [1024, 6, 128]  # 1024 packed positions, six heads


def inputs(dims: list[Any], types: list[str], concrete: list[str] = [], **more: Any) -> Inputs:  # noqa: B006
    texts = (json.dumps(part).encode() for part in (dims, types, concrete))
    return Inputs(**dict(zip(("dims", "types", "concrete"), texts, strict=True)), **more)


def flash_3(starts: int, longest: int, causal: str, window: tuple[int, int]) -> Inputs:
    dims: list[Any] = [HEADS] * 3 + [[]] * 4 + [[starts], [starts]] + [[]] * 25
    concrete = [""] * 12 + [str(longest)] * 2 + [""] * 10 + [causal, str(window[0]), str(window[1])]
    return inputs(dims, [BF16] * 3 + [""] * 4 + ["int"] * 2, concrete)


MOVED = 4 * 1024 * 6 * 128 * 2  # query, key, value, result
FLAT = 2 * 6 * 256  # FLOPs of a pair of query and key in six heads of 128


@pytest.mark.parametrize(
    ("name", "given", "flops", "moved"),
    [
        # Four sequences of 256 fill the tensor: all are that long.
        ("flash_attn_3::fwd", flash_3(5, 256, "False", (-1, -1)), FLAT * 4 * 256 * 256, MOVED),
        ("flash_attn_3::fwd", flash_3(5, 256, "True", (-1, -1)), FLAT * 4 * 256 * 256 // 2, MOVED),
        # Each looks back at 7 others at most: the first at none, the second at one …
        ("flash_attn_3::fwd", flash_3(5, 256, "True", (7, 0)), FLAT * 4 * (256 * 8 - 28), MOVED),
        # Not attention as the library defines it: one size for each tensor.
        ("flash_attn_3::fwd", inputs([[8], [8], [8]], [BF16] * 3), None, None),
        # How long each of six sequences of at most 256 is, nobody knows.
        ("flash_attn_3::fwd", flash_3(7, 256, "True", (-1, -1)), None, MOVED),
        (
            "flash_attn::_flash_attn_varlen_forward",
            inputs([HEADS] * 3 + [[2], [2]], [BF16] * 3, [""] * 5 + ["1024", "1024", "0.", "1.", "False"]),
            None,  # whether there is a window was not recorded
            MOVED,
        ),
        (
            "tex_ts::te_gemm_ts",
            inputs([[64, 32], [], [], [], [], [128, 32], [], [], [], [], [128, 64]], [FP8] * 10 + [BF16]),
            2 * 128 * 64 * 32,
            64 * 32 + 128 * 32 + 2 * 128 * 64,
        ),
        ("LigerSiLUMulFunction", inputs([[8, 16], [8, 16]], [BF16] * 2), 0, 2 * 3 * 128),
        (
            "LigerFusedLinearCrossEntropyFunction",
            inputs([[8, 16], [100, 16]], [BF16] * 2),
            3 * 2 * 8 * 100 * 16,
            3 * 2 * (128 + 1600),
        ),
        (
            "MatMul4Bit",  # 64 x 32 weights in 1024 bytes
            inputs([[8, 32], [1024, 1]], [BF16, U8]),
            2 * 8 * 32 * 64,
            2 * 256 + 1024 + 2 * 8 * 64,
        ),
        (
            "bitsandbytes::int8_linear_matmul",
            inputs([[8, 32], [64, 32]], ["signed char"] * 2),
            2 * 8 * 32 * 64,
            256 + 2048 + 4 * 512,
        ),
        ("torchao::triton_to_mxfp8_dim0", inputs([[64, 32]], [BF16]), 2048, 2 * 2048 + 2048 + 64),
        (
            "vllm::outplace_fused_experts",  # 8 tokens, each to two of four experts
            inputs([[8, 16], [4, 64, 16], [4, 16, 32], [8, 2], [8, 2]], [BF16] * 3 + [F32, "int"]),
            2 * 16 * (64 * 16 + 16 * 32),
            2 * 4 * (64 * 16 + 16 * 32) + 2 * 2 * 128,
        ),
        ("_C::fused_add_rms_norm", inputs([[8, 16], [8, 16], [16]], [BF16] * 3), 0, 2 * (4 * 128 + 16)),
        ("fbgemm::FloatToFP8RowwiseQuantized", inputs([[10, 256]], [F32]), 0, 4 * 2560 + 10 * 264),
        (
            "fbgemm::split_embedding_codegen_lookup_adam_function",  # the widest of two tables has 8 columns
            inputs(
                [[0], [96], [0], [0, 0], [2], [2], [3], [], [], [3], [], [7], [5]],
                [F32, F16, F16, F16, "int", I64, "int", "Scalar", "Scalar", I64, "Scalar", I64, I64],
                ["", "", "", "", "", "", "", "12", "8", "", "6", "", ""],
            ),
            0,
            7 * 8 * 2 + 5 * 8 * 4 + 8 * (7 + 5),
        ),
        (
            "fbgemm::split_embedding_codegen_lookup_sgd_function",  # how wide they are was not recorded
            inputs(
                [[0], [96], [0], [0, 0], [2], [2], [3], [], [], [3], [], [7], [5]],
                [F32, F16, F16, F16, "int", I64, "int", "Scalar", "Scalar", I64, "Scalar", I64, I64],
            ),
            None,
            None,
        ),
        (
            "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function_cpu",
            inputs(
                [[96], [2], [2], [3], [], [], [3], [], [7], [5]],
                [F16, "int", I64, "int", "Scalar", "Scalar", I64, "Scalar", I64, I64],
                ["", "", "", "", "12", "8", "", "6", "", ""],
            ),
            0,
            7 * 8 * 2 + 5 * 8 * 4 + 8 * (7 + 5),
        ),
        (
            "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu",  # rows are read and written
            inputs(
                [[4, 8], [96], [1], [1], [2], [], [2], [], [7], [5]],
                [F32, F16, "int", I64, "int", "Scalar", I64, "Scalar", I64, I64],
                ["", "", "", "", "", "8", "", "4", "", ""],
            ),
            0,
            2 * 7 * 8 * 2 + 7 * 8 * 4 + 8 * (7 + 5),
        ),
        (
            "fbgemm::split_embedding_codegen_grad_indice_weights_cpu",  # one table, as wide as its gradient
            inputs([[4, 8], [96], [1], [2], [7], [5]], [F32, F16, I64, "int", I64, I64]),
            0,
            7 * 8 * 2 + 7 * 8 * 4 + 8 * (7 + 5),
        ),
        ("aten::cat", inputs([[[8, 4], [2, 4]], []], ["TensorList", "Scalar"]), 0, None),
        ("aten::index_select", inputs([[100, 16], [], [7]], [F32, "", I64], ["", "0"]), 0, 4 * 2 * 112 + 56),
        ("aten::gather", inputs([[8, 16], [], [8, 2]], [BF16, "", I64]), 0, 2 * 2 * 16 + 8 * 16),
        (
            "aten::_index_put_impl_",
            inputs([[100, 16], [], [7, 16]], [F32, "", F32], ["", "", "", "True"]),
            0,
            4 * 3 * 112,
        ),
        ("aten::sort", inputs([[100]], [F32]), 0, 4 * 200 + 800),
        ("aten::topk", inputs([[8, 16], []], [F32, "Scalar"], ["", "2"]), 0, 4 * 128 + 12 * 16),
        (
            "aten::max_pool2d_with_indices",
            inputs([[2, 4, 8, 8]], [F32], ["", "[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]"]),
            512,
            4 * 512 + 12 * 128,
        ),
        ("aten::native_dropout", inputs([[8, 4]], [BF16]), 0, 2 * 64 + 32),
        (
            "aten::embedding_dense_backward",
            inputs([[8, 4], [8]], [F32, I64], ["", "", "10"]),
            32,
            4 * 72 + 64,
        ),
        ("aten::nll_loss_forward", inputs([[8, 100], [8]], [F32, I64]), 8, 32 + 64),
        ("aten::mse_loss_backward", inputs([[], [8, 4], [8, 4]], [F32] * 3), 32, 4 * 96),
        # A counter: one element without sizes is a tensor too, and does not widen what it is multiplied with.
        ("aten::add_", inputs([[], [], []], [I64, I64, "Scalar"]), 1, 8 * 3),
        ("aten::mul", inputs([[8, 4], []], [BF16, "double"]), 32, 2 * 64 + 8),
        ("aten::gt", inputs([[8, 4], []], [F32, "Scalar"]), 32, 4 * 32 + 32),
    ],
)
def test_costs(name: str, given: Inputs, flops: int | None, moved: int | None) -> None:
    found = cost_of(name, given)
    assert (found.flops, found.bytes) == (flops, moved)


def test_a_list_has_the_width_that_its_kernel_says() -> None:
    assert (
        cost_of("aten::cat", inputs([[[8, 4], [2, 4]], []], ["TensorList", "Scalar"]), 2).bytes == 2 * 2 * 40
    )


TABLE = inputs(
    [[16384], [50304, 768], [16384, 768], []], ["int", BF16, BF16, "Scalar"], ["", "", "", "12582912"]
)


@pytest.mark.parametrize(
    ("name", "given", "moved", "at_most"),
    [
        ("triton_poi_fused_mul_0", inputs([[64], [64], []], [BF16, F32, "Scalar"]), 64 * 6, False),
        ("triton_poi_fused_add_0", inputs([[64], []], [F32, "Scalar"]), 2 * 256, False),  # in place
        ("triton_poi_fused_zeros_0", inputs([[64], []], [F32, "Scalar"]), 256, False),
        ("triton_poi_fused_embedding_0", TABLE, 4 * 16384 + 2 * 2 * 12582912, True),
        ("my_kernel", inputs([[64], [64]], [F32, F32], is_triton=True), 512, False),
        ("my_kernel", inputs([[64], [64]], [F32, F32]), None, False),
        ("triton_poi_fused_mul_0", inputs([[64], [64], []], ["odd", F32, "Scalar"]), None, False),
    ],
)
def test_bytes_of_triton(name: str, given: Inputs, moved: int | None, at_most: bool) -> None:
    found = cost_of(name, given)
    assert (found.flops, found.bytes, found.at_most) == (None, moved, at_most)


def test_an_own_operation_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "REGISTERED", {})
    given = inputs([[8, 16], [16, 4]], [BF16] * 2)
    assert cost_of("mylib::mm", given).flops is None

    def rule(shapes: Shapes) -> Cost:
        return Cost(flops=2 * 8 * 16 * 4, bytes=shapes.bytes_at(0, 1))

    sg.register_cost("mylib::mm", rule)
    assert cost_of("mylib::mm", given) == Cost(flops=1024, bytes=384)


@pytest.mark.parametrize("wrong", [lambda _: 1 / 0, lambda _: 7, lambda _: Cost(flops=-1)])
def test_a_wrong_own_cost_is_said(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.setattr(table, "REGISTERED", {})
    sg.register_cost("mylib::mm", wrong)
    with pytest.raises(BadOption, match="mylib::mm"):
        cost_of("mylib::mm", inputs([[8, 16]], [BF16]))
