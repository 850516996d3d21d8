"""FLOPs and bytes of operations of well-known libraries, from the places where each has its tensors.

flash-attn, Transformer Engine, Liger, bitsandbytes, torchao, vLLM, FBGEMM. An operation of a library that is
not here can be added without changing stepgrade: `costs/own_costs.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from stepgrade.costs.moving_costs import INDEX_BYTES, each_once, passes_over
from stepgrade.costs.recorded_inputs import UNKNOWN, Cost, Rule, Shapes, plus, times


class PackedPlaces(NamedTuple):
    """Where attention over sequences that are packed one behind the other has what among its parameters."""

    query: int  # key and value follow
    starts: int  # where each sequence begins, and the end of the last; of the keys: the next
    longest: int  # the longest sequence of the queries; of the keys: the next
    causal: int
    window: int | None = None  # how far back a position looks, and how far ahead
    passes: int = 1


def packed_attention(places: PackedPlaces) -> Rule:
    """Return the rule of packed attention; its FLOPs are known only if all sequences have one length.

    They have if so many of the longest fill the tensor; else their number and the longest bound the FLOPs.
    Without starts it is plain attention in a batch.
    """

    def rule(shapes: Shapes) -> Cost:
        first = places.query
        query, key, value = (shapes.tensor(first + i) for i in range(3))
        if not query or not key or not value or not len(query) == len(key) == len(value):
            return UNKNOWN
        moved = times(places.passes, shapes.bytes_at(first, first, first + 1, first + 2))
        window = (
            None if places.window is None else (shapes.value(places.window), shapes.value(places.window + 1))
        )
        causal, per_pair = (
            shapes.value(places.causal),
            2 * query[-2] * (query[-1] + value[-1]) * places.passes,
        )
        starts = shapes.tensor(places.starts)
        if len(query) == 4 and not starts:
            sequences, lengths = query[0], (query[1], key[1])
        elif len(query) == 3 and starts:
            sequences = starts[0] - 1
            lengths = shapes.value(places.longest), shapes.value(places.longest + 1)
            if (lengths[0], lengths[1]) != (query[0] / max(sequences, 1), key[0] / max(sequences, 1)):
                within = None
                if query[0] == key[0] and lengths[0] == lengths[1]:
                    within = packed_pairs(query[0], sequences, lengths[0], causal, window)
                return Cost(
                    bytes=moved,
                    flops_within=within and (within[0] * per_pair, within[1] * per_pair),
                )
        else:
            return Cost(bytes=moved)
        pairs = score_pairs((int(lengths[0]), int(lengths[1])), causal, window)
        if pairs is None:
            return Cost(bytes=moved)
        return Cost(flops=sequences * pairs * per_pair, bytes=moved)

    return rule


def packed_pairs(
    tokens: int, sequences: int, longest: object, causal: object, window: tuple[object, object] | None
) -> tuple[int, int] | None:
    """Return the fewest and the most pairs of query and key of so many sequences; None if not known.

    Longer sequences have more pairs for each token: the fewest are those of sequences of one length, the most
    those of as many of the longest as there are tokens for.
    """
    if type(longest) is not int or not 0 < longest <= tokens or not 0 < sequences <= tokens:
        return None
    each = tokens // sequences
    least = score_pairs((each, each), causal, window)
    most = score_pairs((longest, longest), causal, window)
    if least is None or most is None:
        return None
    return sequences * least, max(-(-tokens * most // longest), sequences * least)


def score_pairs(lengths: tuple[int, int], causal: object, window: tuple[object, object] | None) -> int | None:
    """Return how many pairs of query and key attention looks at; None if a setting is not known.

    A causal mask halves them; a window keeps those that are so near.
    """
    queries, keys = lengths
    if type(causal) is not bool:
        return None
    back, ahead = window or (-1, -1)
    if type(back) is not int or type(ahead) is not int:
        return None
    if back < 0 and ahead < 0:
        return queries * keys // (2 if causal else 1)
    if queries != keys:
        return None
    ahead = 0 if causal else ahead
    return _within(keys, back) + _within(keys, ahead) + keys


def _within(length: int, reach: int) -> int:
    """Return how many positions within reach on one side all positions have together; less than 0 is all."""
    reach = length - 1 if reach < 0 else min(reach, length - 1)
    return length * reach - reach * (reach + 1) // 2


def product_into(left: int, right: int, result: int) -> Rule:
    """Return the rule of a product whose result is among its parameters, whichever factor is transposed.

    (m k)(k n) / (m n) is the square of what is summed over.
    """

    def rule(shapes: Shapes) -> Cost:
        factors = [shapes.elements(place) for place in (left, right) if shapes.tensor(place)]
        made = shapes.elements(result)
        if len(factors) != 2 or not shapes.tensor(result) or not made:
            return UNKNOWN
        inner = math.isqrt(factors[0] * factors[1] // made)
        if inner * inner * made != factors[0] * factors[1]:
            return UNKNOWN
        return Cost(flops=2 * made * inner, bytes=shapes.bytes_at(left, right, result))

    return rule


def _linear(data: int, weight: int, passes: int = 1, result_item: int | None = None) -> Rule:
    """Return the rule of [..., k] times [n, k] transposed; `passes` such products."""

    def rule(shapes: Shapes) -> Cost:
        given, matrix = shapes.tensor(data), shapes.tensor(weight)
        if not given or not matrix or len(matrix) != 2 or given[-1] != matrix[1]:
            return UNKNOWN
        made = math.prod(given[:-1]) * matrix[0]
        item = result_item or shapes.item_bytes[data]
        moved = plus(shapes.bytes_at(data, weight), times(made, item))
        return Cost(flops=2 * made * given[-1] * passes, bytes=times(passes, moved))

    return rule


def _packed_linear(data: int, packed: int) -> Rule:
    """Return the rule of a product with weights of four bits, two to a byte."""

    def rule(shapes: Shapes) -> Cost:
        given, weights = shapes.tensor(data), shapes.elements(packed) * 2
        if not given or not given[-1] or not weights or weights % given[-1]:
            return UNKNOWN
        rows, columns = math.prod(given[:-1]), weights // given[-1]
        moved = plus(shapes.bytes_at(data, packed), times(rows * columns, shapes.item_bytes[data]))
        return Cost(flops=2 * rows * weights, bytes=moved)

    return rule


def unpack_4bit_cost(shapes: Shapes) -> Cost:
    """Return the traffic of writing two values of 16 bits for each byte."""
    if not shapes.is_tensor(0):
        return UNKNOWN
    return Cost(flops=0, bytes=plus(shapes.bytes_at(*shapes.tensors), 4 * shapes.elements(0)))


def int4_pack_cost(shapes: Shapes) -> Cost:
    """Return the cost of PyTorch's product with packed four bits: its scales say how many columns it has."""
    given, scales = shapes.tensor(0), shapes.tensor(3)
    if not given or not scales or len(scales) != 3:
        return UNKNOWN
    made = math.prod(given[:-1]) * scales[1]
    moved = plus(shapes.bytes_at(0, 1, 3), times(made, shapes.item_bytes[0]))
    return Cost(flops=2 * made * given[-1], bytes=moved)


def _experts(data: int, up: int, down: int, chosen: int) -> Rule:
    """Return the rule of experts: each token goes through both matrices of each expert chosen for it."""

    def rule(shapes: Shapes) -> Cost:
        tokens, first, second, ids = (shapes.tensor(place) for place in (data, up, down, chosen))
        if not tokens or not first or not second or not ids or len(first) != 3 or len(second) != 3:
            return UNKNOWN
        rows = math.prod(ids)
        flops = 2 * rows * (first[1] * first[2] + second[1] * second[2])
        used = min(rows, first[0])  # an expert that no token was sent to is not read
        weights = shapes.bytes_at(up, down)
        read = None if weights is None else weights * used // max(first[0], 1)
        moved = plus(read, times(2, shapes.bytes_at(data)))
        return Cost(flops=flops, bytes=moved, at_most=True)

    return rule


def permuted_tokens(data: int, chosen: int) -> Rule:
    """Return the rule of copying every token once for each expert chosen for it."""

    def rule(shapes: Shapes) -> Cost:
        tokens, ids = shapes.tensor(data), shapes.tensor(chosen)
        if not tokens or not ids:
            return UNKNOWN
        made = times(math.prod(ids) * tokens[-1], shapes.item_bytes[data])
        return Cost(flops=0, bytes=plus(shapes.bytes_at(data), made, INDEX_BYTES * math.prod(ids)))

    return rule


def fused_loss_cost(shapes: Shapes) -> Cost:
    """Return the cost of Liger's last layer with its loss: logits and both gradients, made in the forward."""
    one = _linear(0, 1)(shapes)
    return Cost(flops=times(3, one.flops), bytes=times(3, shapes.bytes_at(0, 1)))


def to_mx_cost(shapes: Shapes) -> Cost:
    """Return the traffic of writing one byte for each element, and a scale for each 32 of them."""
    if not shapes.tensor(0):
        return UNKNOWN
    count = shapes.elements(0)
    return Cost(flops=count, bytes=plus(shapes.bytes_at(0), count + count // 32))


def rotary_cost(shapes: Shapes) -> Cost:
    """Return the traffic of rotating queries and keys in place; of the table only the used rows are read."""
    if not shapes.tensor(1):
        return UNKNOWN
    return Cost(flops=0, bytes=plus(times(2, shapes.bytes_at(1, 2)), shapes.bytes_at(0)))


def cache_write_cost(shapes: Shapes) -> Cost:
    """Return the traffic of copying keys and values into a cache of perhaps another width."""
    if not shapes.tensor(0) or len(shapes.item_bytes) < 4:
        return UNKNOWN
    written = [times(shapes.elements(place), shapes.item_bytes[place + 2]) for place in (0, 1)]
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0, 1), *written))


def _rows_quantised(extra: int, to_item: int) -> Rule:
    """Return the rule of rows that change their width, with `extra` bytes more in a row of the result."""

    def rule(shapes: Shapes) -> Cost:
        data = shapes.tensor(0)
        if not data:
            return UNKNOWN
        made = math.prod(data[:-1]) * max(data[-1] + extra, 0) * to_item
        return Cost(flops=0, bytes=plus(shapes.bytes_at(0), made))

    return rule


class TablePlaces(NamedTuple):
    """Where what tells the traffic of FBGEMM's embedding tables stands among the inputs."""

    weights: tuple[int, ...]  # on the device, else on the host: the first that holds any
    width: int | None  # of the widest table; None: there is none, and only that of one table can be told
    indices: int
    bags: int
    gradient: int | None = None  # [samples, columns of all tables]
    limits: int | None = None  # where the columns of each table begin, and the last one's end


def embedding_tables(at: TablePlaces, weight_passes: int) -> Rule:
    """Return the rule of lookups in FBGEMM's tables: at most a row of the widest table for each index.

    What goes in or out beside the tables is a row of the widest one for each bag forward; backward it is the
    gradient's row for each index. `weight_passes` says how often a row of a table is touched.
    """

    def rule(shapes: Shapes) -> Cost:
        weights = next((place for place in at.weights if (shapes.tensor(place) or (0,))[0]), None)
        index, bags = shapes.tensor(at.indices), shapes.tensor(at.bags)
        width = shapes.value(at.width) if at.width is not None else None
        gradient = shapes.tensor(at.gradient) if at.gradient is not None else None
        if at.limits is not None and width is None and gradient and shapes.tensor(at.limits) == (2,):
            width = gradient[-1]  # of the one table
        if weights is None or type(width) is not int or not index or not bags:
            return UNKNOWN
        rows = times(weight_passes * math.prod(index) * width, shapes.item_bytes[weights])
        count, item = math.prod(bags), _SUM_BYTES
        if at.gradient is not None:
            count, item = math.prod(index), shapes.item_bytes[at.gradient] or _SUM_BYTES
        moved = plus(rows, count * width * item)
        return Cost(flops=0, bytes=plus(moved, shapes.bytes_at(at.indices, at.bags)), at_most=True)

    return rule


_SUM_BYTES = 4  # of an element of what a lookup makes, which is fp32 or narrower
# The optimizers that FBGEMM fuses into the backward pass of its tables.
_TABLE_OPTIMIZERS = (
    *("adagrad", "adam", "lamb", "lars_sgd", "none", "partial_rowwise_adam", "partial_rowwise_lamb"),
    *("rowwise_adagrad", "rowwise_adagrad_with_counter", "rowwise_weighted_adagrad", "sgd"),
)
_LOOKUP = "fbgemm::split_embedding_codegen_lookup_{}_function"
_TABLES = {
    **{
        _LOOKUP.format(name): embedding_tables(TablePlaces((1, 0), 8, 11, 12), 1)
        for name in _TABLE_OPTIMIZERS
    },
    **{
        f"{_LOOKUP.format(name)}_cpu": embedding_tables(TablePlaces((0,), 5, 8, 9), 1)
        for name in _TABLE_OPTIMIZERS
    },
    "fbgemm::dense_embedding_codegen_lookup_function": embedding_tables(TablePlaces((0,), 4, 7, 8), 1),
    # A row is read and written.
    **{
        f"fbgemm::split_embedding_backward_codegen_{name}_cpu": embedding_tables(
            TablePlaces((1,), 5, 8, 9, gradient=0, limits=4), 2
        )
        for name in _TABLE_OPTIMIZERS
    },
    "fbgemm::split_embedding_codegen_grad_indice_weights_cpu": embedding_tables(
        TablePlaces((1,), None, 4, 5, gradient=0, limits=3), 1
    ),
}
_NORM_FORWARD, _NORM_BACKWARD = passes_over(0, 2), passes_over(0, 3)
_FLASH_3 = PackedPlaces(0, 7, 12, 24, 25)
_FLASH_3_BACKWARD = PackedPlaces(1, 9, 13, 16, 17, passes=2)
_PERMUTE_BACKWARD = (
    "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >"
)
LIBRARIES: dict[str, Rule] = {
    # flash-attn 2 and 3
    "flash_attn::_flash_attn_varlen_forward": packed_attention(PackedPlaces(0, 3, 5, 9, 10)),
    "flash_attn::_flash_attn_varlen_backward": packed_attention(PackedPlaces(1, 9, 11, 15, 16, passes=2)),
    **dict.fromkeys(("flash_attn_3::fwd", "flash_attn_3::_flash_attn_forward"), packed_attention(_FLASH_3)),
    "flash_attn_3::bwd": packed_attention(_FLASH_3_BACKWARD),
    "flash_attn_3::_flash_attn_backward": packed_attention(PackedPlaces(1, 6, 10, 13, 14, passes=2)),
    # Transformer Engine
    **dict.fromkeys(("tex_ts::te_gemm_ts", "te_gemm_ts"), product_into(0, 5, 10)),
    **dict.fromkeys(("_Linear", "_LayerNormLinear"), _linear(1, 0)),
    **dict.fromkeys(
        ("moe_permute_fwd", "tex::moe_permute_fwd", "_moe_permute_index_map"), permuted_tokens(0, 1)
    ),
    # Liger
    **dict.fromkeys(("LigerRMSNormFunction", "LigerLayerNormFunction"), _NORM_FORWARD),
    **dict.fromkeys(("LigerRMSNormFunctionBackward", "LigerLayerNormFunctionBackward"), _NORM_BACKWARD),
    **dict.fromkeys(("LigerSiLUMulFunction", "LigerGELUMulFunction"), each_once(0)),
    **dict.fromkeys(("LigerSiLUMulFunctionBackward", "LigerGELUMulFunctionBackward"), passes_over(0, 5)),
    "LigerRopeFunction": each_once(0, 1),
    "LigerCrossEntropyFunction": each_once(0),
    "LigerFusedLinearCrossEntropyFunction": fused_loss_cost,
    # bitsandbytes
    "bitsandbytes::dequantize_4bit": unpack_4bit_cost,
    "bitsandbytes::gemv_4bit": _packed_linear(0, 1),
    "MatMul4Bit": _packed_linear(0, 1),
    **dict.fromkeys(
        ("bitsandbytes::int8_linear_matmul", "bitsandbytes::igemmlt"), _linear(0, 1, result_item=4)
    ),
    "MatMul8bitLt": _linear(0, 1),
    **dict.fromkeys(
        ("bitsandbytes::optimizer_update_8bit_blockwise", "bitsandbytes::optimizer_update_32bit"),
        each_once(1, 2, 3),
    ),
    # torchao, and PyTorch's own for its quantised weights
    "aten::_weight_int4pack_mm": int4_pack_cost,
    "aten::_weight_int8pack_mm": _linear(0, 1),
    **dict.fromkeys(
        ("torchao::triton_to_mxfp8_dim0", "torchao::triton_to_mxfp8_dim1", "torchao::mxfp8_quantize"),
        to_mx_cost,
    ),
    **dict.fromkeys(
        (
            "torchao::triton_mx_block_rearrange",
            "torchao::triton_mx_block_rearrange_per_group_3d",
            "torchao::mx_block_rearrange_2d_M_groups",
            "torchao::triton_mx_block_rearrange_2d_M_groups",
        ),
        passes_over(0, 2),
    ),
    # vLLM and AITER
    **dict.fromkeys(
        ("_C::rms_norm", "_C::silu_and_mul", "_C::gelu_and_mul", "_C::mul_and_silu"), each_once()
    ),
    **dict.fromkeys(("_C::static_scaled_fp8_quant", "_C::dynamic_scaled_fp8_quant"), each_once()),
    "_C::fused_add_rms_norm": each_once(0, 1),
    "_C::rotary_embedding": rotary_cost,
    "_C_cache_ops::reshape_and_cache_flash": cache_write_cost,
    **dict.fromkeys(("vllm::outplace_fused_experts", "vllm::inplace_fused_experts"), _experts(0, 1, 2, 4)),
    "aiter::fused_moe_": _experts(0, 1, 2, 4),
    "aiter::_groupnorm_run": _NORM_FORWARD,
    # FBGEMM
    "fbgemm::FloatToFP8RowwiseQuantized": _rows_quantised(8, 1),
    "fbgemm::FP8RowwiseQuantizedToFloat": _rows_quantised(-8, 4),
    "fbgemm::FloatToHFP8Quantized": _rows_quantised(0, 1),
    "fbgemm::HFP8QuantizedToFloat": _rows_quantised(0, 4),
    **dict.fromkeys(
        (
            "fbgemm::permute_pooled_embs_auto_grad",
            "fbgemm::recat_embedding_grad_output_mixed_D_batch",
            "fbgemm::asynchronous_complete_cumsum",
            _PERMUTE_BACKWARD,
        ),
        passes_over(0, 2),
    ),
    **dict.fromkeys(
        ("fbgemm::permute_2D_sparse_data", "fbgemm::permute_sparse_features"), each_once(1, 2, 3)
    ),
    "fbgemm::bounds_check_indices": each_once(),
    **_TABLES,
}
