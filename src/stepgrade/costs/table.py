"""Which pattern of cost each operation follows: by its name, else by its class of work.

PyTorch's operations, Triton kernels, and those of flash-attn, Transformer Engine, Liger, bitsandbytes,
torchao, vLLM, AITER and FBGEMM. `register_cost` and plug-ins add others.
"""

from __future__ import annotations

import math
from functools import cache

from msgspec import structs

from stepgrade.costs import patterns
from stepgrade.costs.own import PLUG_IN_GROUP, REGISTERED
from stepgrade.costs.patterns import (
    INDEX_BYTES,
    BatchedAttention,
    Convolution,
    EmbeddingTables,
    PackedAttention,
    convolution_backward,
    convolution_gradient,
    each_once,
    experts,
    foreach,
    linear,
    linear_4bit,
    loss,
    matmul,
    pass_over,
    permuted_tokens,
    picked,
    pool,
    product_into,
    recurrent,
    rows_quantised,
    streamed,
)
from stepgrade.costs.recorded_inputs import UNKNOWN, Cost, NotRecorded, Rule, Shapes, decode_shapes
from stepgrade.errors import BadOption
from stepgrade.model.events import Inputs
from stepgrade.naming.work_class import WorkClass, classify
from stepgrade.plug_ins import plug_ins

_TEMPLATES = ("triton_tem_", "triton_mm", "triton_bmm")
GENERATED = ("triton_poi_", "triton_red_", "triton_per_", "triton_for_", *_TEMPLATES)
# Words in the names of kernels, each with the operations that they are named after.
_IN_PART = (
    *("embedding", "index", "gather", "scatter", "select", "slice", "take", "masked", "where", "nll_loss"),
    *("pool", "cat_", "_cat", "roll"),
)
# What adds into the rows of a table reads them too.
_INTO_ROWS = ("embedding_dense_backward", "index_put", "scatter", "index_add")
_ONLY_WRITTEN = (
    *("zeros", "ones", "full", "empty", "arange", "rand", "fill", "new_"),
    *("embedding_dense_backward", "index_put", "scatter"),
)
# A matrix times its own transpose, as BLAS (syrk) and the Muon optimizer call it.
_SYMMETRIC = ("xxt", "syrk")
_FEWEST_ELEMENTS = 2
NORM_FLOPS_PER_ELEMENT = 5
NORM_BACKWARD_FLOPS_PER_ELEMENT = 8
_MOST_TENSORS = 64  # of a compiler's kernel, among which the factors of its product are looked for
# How many tensors an element-wise operation takes.
_ARITY = {
    name: count
    for count, names in (
        (
            1,
            "abs bitwise_not ceil clamp clamp_max clamp_min cos elu erf exp floor gelu hardtanh isfinite",
        ),
        (1, "isinf isnan leaky_relu log logical_not neg reciprocal relu round rsqrt sigmoid sign silu sin"),
        (1, "sqrt square tanh threshold"),
        (2, "add bitwise_and bitwise_or bitwise_xor div eq fmod ge gt le logical_and logical_or"),
        (2, "logical_xor lt maximum minimum mul ne pow remainder rsub sub"),
        (3, "addcdiv addcmul lerp where"),
    )
    for name in names.split()
}
# Their results are booleans, of one byte.
_COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le", "logical_", "isnan", "isinf", "isfinite")
_SDPA = "_scaled_dot_product"
_LOSSES = (
    *("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "kl_div"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
# Operations that PyTorch may also record without `aten::`; names are separated by blanks.
_WITH_ALIAS: tuple[tuple[str, Rule], ...] = (
    ("mm bmm matmul _scaled_mm mv dot vdot", matmul(0, 1)),
    ("_int_mm", matmul(0, 1, result_item=4)),
    ("addmm addmm_ _addmm_activation baddbmm baddbmm_ addbmm addmv addmv_", matmul(1, 2)),
    ("linear mkldnn_linear mkldnn::_linear_pointwise", linear(0, 1)),
    ("_grouped_mm _scaled_grouped_mm", patterns.grouped_matmul()),
    ("convolution _convolution convolution_overrideable", Convolution(3, 4, 5, 6)),
    ("conv1d conv2d conv3d", Convolution(3, 4, 5)),
    ("conv_transpose1d conv_transpose2d conv_transpose3d", Convolution(3, 4, 7, transposed=True)),
    ("cudnn_convolution", Convolution(3, 2, 4)),
    ("cudnn_convolution_transpose", Convolution(4, 2, 5, transposed=True)),
    ("cudnn_convolution_relu miopen_convolution_relu", Convolution(3, 4, 5)),
    ("cudnn_convolution_add_relu miopen_convolution_add_relu", Convolution(5, 6, 7)),
    ("miopen_convolution miopen_depthwise_convolution mkldnn_convolution", Convolution(4, 3, 5)),
    ("mkldnn::_convolution_pointwise _mps_convolution", Convolution(4, 3, 5)),
    ("miopen_convolution_transpose", Convolution(5, 3, 6, transposed=True)),
    ("_nnpack_spatial_convolution", Convolution(4, 3)),
    ("thnn_conv2d _slow_conv2d_forward slow_conv3d slow_conv3d_forward", Convolution(4, 5)),
    ("slow_conv_dilated2d slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d", Convolution(4, 5, 6)),
    ("slow_conv_transpose2d slow_conv_transpose3d", Convolution(4, 5, 7, transposed=True)),
    ("convolution_backward", convolution_backward(0, 1, mask=10, transposed=7)),
    ("convolution_backward_overrideable", convolution_backward(0, 1, mask=9, transposed=6)),
    ("thnn_conv2d_backward _slow_conv2d_backward", convolution_backward(0, 1, mask=6)),
    ("cudnn_convolution_backward miopen_convolution_backward", convolution_backward(1, 0, mask=10)),
    ("mkldnn_convolution_backward", convolution_backward(1, 0, mask=7)),
    (
        "cudnn_convolution_backward_input miopen_convolution_backward_input",
        convolution_gradient(of_weight=False),
    ),
    (
        "cudnn_convolution_backward_weight miopen_convolution_backward_weight",
        convolution_gradient(of_weight=True),
    ),
    (f"{_SDPA}_flash_attention {_SDPA}_flash_attention_for_cpu", BatchedAttention(0, 4)),
    (f"{_SDPA}_efficient_attention {_SDPA}_cudnn_attention", BatchedAttention(0, 6)),
    (f"{_SDPA}_fused_attention_overrideable scaled_dot_product_attention", BatchedAttention(0, 5)),
    ("_flash_attention_forward", BatchedAttention(0, 8, heads=2, packed=(3, 4), window=11)),
    ("_efficient_attention_forward", BatchedAttention(0, 9, heads=2, packed=(4, 5), window=13)),
    ("_cudnn_attention_forward", BatchedAttention(0, 10, packed=(4, 5))),
    (f"{_SDPA}_flash_attention_backward", BatchedAttention(1, 11, passes=2, packed=(6, 7))),
    (f"{_SDPA}_flash_attention_for_cpu_backward", BatchedAttention(1, 7, passes=2)),
    (f"{_SDPA}_efficient_attention_backward", BatchedAttention(1, 11, passes=2)),
    (f"{_SDPA}_cudnn_attention_backward", BatchedAttention(1, 14, passes=2, packed=(9, 10))),
    (f"{_SDPA}_fused_attention_overrideable_backward", BatchedAttention(1, 13, passes=2, packed=(8, 9))),
    ("_flash_attention_backward", BatchedAttention(1, 11, heads=2, passes=2, packed=(6, 7), window=15)),
    ("_efficient_attention_backward", BatchedAttention(1, 14, heads=2, passes=2, packed=(6, 7), window=18)),
    ("_cudnn_attention_backward", BatchedAttention(1, 14, passes=2, packed=(9, 10))),
    ("flash_attn::_flash_attn_forward", BatchedAttention(0, 5, heads=2, window=6)),
    ("flash_attn::_flash_attn_backward", BatchedAttention(1, 11, heads=2, passes=2, window=12)),
    ("lstm gru rnn_tanh rnn_relu mkldnn_rnn_layer _cudnn_rnn miopen_rnn", recurrent(1)),
    ("mkldnn_rnn_layer_backward _cudnn_rnn_backward miopen_rnn_backward", recurrent(2)),
    ("embedding", patterns.embedding()),
    ("copy_", patterns.copy()),
    ("fill_ zero_", streamed(0, passes=1)),
    ("_softmax _log_softmax", streamed(NORM_FLOPS_PER_ELEMENT, passes=2)),
    ("_softmax_backward_data _log_softmax_backward_data", streamed(NORM_FLOPS_PER_ELEMENT, passes=3)),
    # Statistics are read from the data alone; the gradient's need data and gradient.
    ("batch_norm_stats batch_norm_update_stats", streamed(3, passes=1)),
    ("batch_norm_gather_stats_with_counts", streamed(0, passes=0)),
    ("batch_norm_backward_reduce", streamed(3, passes=2)),
    ("_foreach_zero_", foreach(read=0, written=1)),
    ("_foreach_copy_", foreach(read=1, written=1)),
    ("_foreach_norm", foreach(read=None, written=0)),
    ("_fused_adam_ _fused_adamw_", foreach(read=None, written=3)),
    ("_fused_sgd_", foreach(read=None, written=1)),
)
# PyTorch's operations that move and pick data.
_ATEN: tuple[tuple[str, Rule], ...] = (
    ("cat _cat", patterns.concatenated()),
    ("index_select", patterns.index_select()),
    ("index _unsafe_index", patterns.indexed()),
    ("_index_put_impl_", patterns.index_put()),
    ("gather scatter scatter_", picked(2, 2)),
    ("scatter_add scatter_add_ scatter_reduce scatter_reduce_", picked(2, 3)),
    ("sort", pass_over(0, 2, result_item=INDEX_BYTES)),
    ("topk", patterns.top_k()),
    ("nonzero", patterns.nonzero()),
    ("cumsum cumsum_ cumprod logcumsumexp flip roll tril triu tril_ triu_", pass_over(0, 2)),
    ("max_pool2d_with_indices", pool(2, with_indices=True)),
    ("max_pool3d_with_indices", pool(3, with_indices=True)),
    ("avg_pool2d", pool(2, with_indices=False)),
    ("avg_pool3d", pool(3, with_indices=False)),
    # The gradient of the input is as large as the input, the second.
    ("max_pool2d_with_indices_backward max_pool3d_with_indices_backward", each_once()),
    ("avg_pool2d_backward avg_pool3d_backward", each_once()),
    ("_adaptive_avg_pool2d _adaptive_avg_pool3d upsample_nearest2d upsample_bilinear2d", patterns.resized()),
    ("upsample_bicubic2d upsample_nearest3d upsample_trilinear3d", patterns.resized()),
    ("native_dropout _fused_dropout", pass_over(0, 2, result_item=1)),
    ("native_dropout_backward masked_fill_", each_once(0)),
    ("bernoulli_ normal_ uniform_ random_ exponential_", pass_over(0, 1)),
    ("embedding_dense_backward", patterns.embedding_backward()),
    ("_embedding_bag _embedding_bag_forward_only", patterns.embedding_bag()),
    ("nll_loss_forward nll_loss2d_forward", patterns.picked_loss()),
    ("nll_loss_backward nll_loss2d_backward", pass_over(1, 1)),
    (" ".join(_LOSSES), loss(0, 1)),
    (" ".join(f"{name}_backward" for name in _LOSSES), loss(1, 2, written=1)),
    ("_local_scalar_dense", each_once()),
    ("bincount histc isin", pass_over(0, 1)),
    # torchao's quantised weights
    ("_weight_int4pack_mm", patterns.linear_int4()),
    ("_weight_int8pack_mm", linear(0, 1)),
)
# The optimizers that FBGEMM fuses into the backward pass of its tables.
_TABLE_OPTIMIZERS = (
    *("adagrad", "adam", "lamb", "lars_sgd", "none", "partial_rowwise_adam", "partial_rowwise_lamb"),
    *("rowwise_adagrad", "rowwise_adagrad_with_counter", "rowwise_weighted_adagrad", "sgd"),
)
_LOOKUP, _BACKWARD = "fbgemm::split_embedding_codegen_lookup", "fbgemm::split_embedding_backward_codegen"
_LIBRARIES: tuple[tuple[str, Rule], ...] = (
    ("flash_attn::_flash_attn_varlen_forward", PackedAttention(0, 3, 5, 9, 10)),
    ("flash_attn::_flash_attn_varlen_backward", PackedAttention(1, 9, 11, 15, 16, passes=2)),
    ("flash_attn_3::fwd flash_attn_3::_flash_attn_forward", PackedAttention(0, 7, 12, 24, 25)),
    ("flash_attn_3::bwd", PackedAttention(1, 9, 13, 16, 17, passes=2)),
    ("flash_attn_3::_flash_attn_backward", PackedAttention(1, 6, 10, 13, 14, passes=2)),
    # Transformer Engine
    ("tex_ts::te_gemm_ts te_gemm_ts", product_into(0, 5, 10)),
    ("_Linear _LayerNormLinear", linear(1, 0)),
    ("moe_permute_fwd tex::moe_permute_fwd _moe_permute_index_map", permuted_tokens(0, 1)),
    # Liger
    ("LigerRMSNormFunction LigerLayerNormFunction", pass_over(0, 2)),
    ("LigerRMSNormFunctionBackward LigerLayerNormFunctionBackward", pass_over(0, 3)),
    ("LigerSiLUMulFunction LigerGELUMulFunction LigerCrossEntropyFunction", each_once(0)),
    ("LigerSiLUMulFunctionBackward LigerGELUMulFunctionBackward", pass_over(0, 5)),
    ("LigerRopeFunction", each_once(0, 1)),
    ("LigerFusedLinearCrossEntropyFunction", patterns.linear_with_loss()),
    # bitsandbytes
    ("bitsandbytes::dequantize_4bit", patterns.unpacked_4bit()),
    ("bitsandbytes::gemv_4bit MatMul4Bit", linear_4bit(0, 1)),
    ("bitsandbytes::int8_linear_matmul bitsandbytes::igemmlt", linear(0, 1, result_item=4)),
    ("MatMul8bitLt", linear(0, 1)),
    (
        "bitsandbytes::optimizer_update_8bit_blockwise bitsandbytes::optimizer_update_32bit",
        each_once(1, 2, 3),
    ),
    # torchao
    (
        "torchao::triton_to_mxfp8_dim0 torchao::triton_to_mxfp8_dim1 torchao::mxfp8_quantize",
        patterns.to_mx(),
    ),
    ("torchao::triton_mx_block_rearrange", pass_over(0, 2)),
    ("torchao::triton_mx_block_rearrange_per_group_3d", pass_over(0, 2)),
    ("torchao::mx_block_rearrange_2d_M_groups", pass_over(0, 2)),
    ("torchao::triton_mx_block_rearrange_2d_M_groups", pass_over(0, 2)),
    # vLLM and AITER
    ("_C::rms_norm _C::silu_and_mul _C::gelu_and_mul _C::mul_and_silu", each_once()),
    ("_C::static_scaled_fp8_quant _C::dynamic_scaled_fp8_quant", each_once()),
    ("_C::fused_add_rms_norm", each_once(0, 1)),
    ("_C::rotary_embedding", patterns.rotary()),
    ("_C_cache_ops::reshape_and_cache_flash", patterns.cache_write()),
    ("vllm::outplace_fused_experts vllm::inplace_fused_experts aiter::fused_moe_", experts(0, 1, 2, 4)),
    ("aiter::_groupnorm_run", pass_over(0, 2)),
    # FBGEMM
    ("fbgemm::FloatToFP8RowwiseQuantized", rows_quantised(8, 1)),
    ("fbgemm::FP8RowwiseQuantizedToFloat", rows_quantised(-8, 4)),
    ("fbgemm::FloatToHFP8Quantized", rows_quantised(0, 1)),
    ("fbgemm::HFP8QuantizedToFloat", rows_quantised(0, 4)),
    ("fbgemm::permute_pooled_embs_auto_grad", pass_over(0, 2)),
    ("fbgemm::recat_embedding_grad_output_mixed_D_batch", pass_over(0, 2)),
    ("fbgemm::asynchronous_complete_cumsum", pass_over(0, 2)),
    ("fbgemm::permute_2D_sparse_data fbgemm::permute_sparse_features", each_once(1, 2, 3)),
    ("fbgemm::bounds_check_indices", each_once()),
    (
        " ".join(f"{_LOOKUP}_{name}_function" for name in _TABLE_OPTIMIZERS),
        EmbeddingTables((1, 0), 8, 11, 12),
    ),
    (
        " ".join(f"{_LOOKUP}_{name}_function_cpu" for name in _TABLE_OPTIMIZERS),
        EmbeddingTables((0,), 5, 8, 9),
    ),
    ("fbgemm::dense_embedding_codegen_lookup_function", EmbeddingTables((0,), 4, 7, 8)),
    (
        " ".join(f"{_BACKWARD}_{name}_cpu" for name in _TABLE_OPTIMIZERS),
        EmbeddingTables((1,), 5, 8, 9, gradient=0, limits=4, row_passes=2),
    ),
    (
        "fbgemm::split_embedding_codegen_grad_indice_weights_cpu",
        EmbeddingTables((1,), None, 4, 5, gradient=0, limits=3),
    ),
)
_PERMUTE_BACKWARD = (
    "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >"
)
RULES: dict[str, Rule] = {
    **{name: rule for names, rule in (*_LIBRARIES, *_WITH_ALIAS) for name in names.split()},
    **{
        f"aten::{name}": rule
        for names, rule in (*_ATEN, *_WITH_ALIAS)
        for name in names.split()
        if "::" not in name
    },
    _PERMUTE_BACKWARD: pass_over(0, 2),
}
CONVOLUTIONS = frozenset(
    name for name, rule in RULES.items() if isinstance(rule, Convolution) and "::" in name
)
_CLASS_RULES: dict[WorkClass, Rule] = {
    WorkClass.NORM: streamed(NORM_FLOPS_PER_ELEMENT, passes=2),
    WorkClass.REDUCTION: streamed(1, passes=1),
    WorkClass.OPTIMIZER: foreach(read=None, written=1),
}
_NORM_BACKWARD = streamed(NORM_BACKWARD_FLOPS_PER_ELEMENT, passes=3)


def register_cost(name: str, rule: Rule) -> None:
    """Register `rule` as the cost of one call of the operation `name`, in this process.

    It gets the recorded inputs, `Shapes`, and returns a `Cost`, None where the sizes do not determine it. It
    takes precedence over stepgrade's own costs. A package registers its costs through entry points in the
    group `stepgrade.costs`, each named after an operation.
    """
    if not name:
        raise BadOption("must name an operation, as mylib::attention", field="name")
    REGISTERED[name] = rule


def _checked(name: str, rule: Rule) -> Rule:
    def checked(shapes: Shapes) -> Cost:
        try:
            cost = rule(shapes)
        except Exception as error:
            problem = f"the cost of {name!r} cannot be calculated: {type(error).__name__}: {error}"
            raise BadOption(problem, hint="fix the function that was registered for it") from error
        figures = (cost.flops, cost.bytes) if isinstance(cost, Cost) else (-1,)
        if any(figure is not None and not 0 <= figure < float("inf") for figure in figures):
            problem = f"the cost of {name!r} is not a stepgrade.Cost with figures of 0 or more"
            raise BadOption(problem, hint="fix the function that was registered for it")
        return cost

    return checked


@cache
def _entry_points() -> dict[str, Rule]:
    """Return the rules that installed packages bring, by operation."""
    found: dict[str, Rule] = {}
    for point in plug_ins(PLUG_IN_GROUP):
        try:
            rule = point.load()
        except (ImportError, AttributeError) as error:
            problem = f"the cost of {point.name!r} cannot be loaded: {error}"
            raise BadOption(problem, hint="fix or uninstall the package that provides it") from error
        if not callable(rule):
            problem = f"the cost of {point.name!r} is not a function"
            raise BadOption(problem, hint="fix or uninstall the package that provides it")
        found[point.name] = rule
    return found


def _has(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name for word in words)


def triton_cost(name: str, shapes: Shapes) -> Cost:
    """Return the traffic of one launch of a Triton kernel: all its recorded inputs are pointers.

    Each tensor counts once. An update in place is known only where it is the kernel's only tensor; others
    count too little then, never too much. Where a kernel may use a part of a tensor (a gather, a slice) the
    bytes are a bound: no more of it than the kernel has elements.
    """
    tensors = shapes.tensors
    sizes = [shapes.bytes_at(index) for index in tensors]
    known = [size for size in sizes if size is not None]
    if not tensors or len(known) != len(sizes):
        return UNKNOWN
    if len(tensors) == 1 and not _has(name, _ONLY_WRITTEN):
        return Cost(bytes=2 * known[0])
    if not _has(name, _IN_PART) or not name.startswith(GENERATED):
        return Cost(bytes=sum(known))
    # The last arguments of a generated kernel are the sizes of its loops.
    loops = [
        value
        for index, value in enumerate(shapes.concrete)
        if type(value) is int and value > 0 and not shapes.is_tensor(index)
    ]
    elements = math.prod(loops)
    moved = 0
    for index, size in zip(tensors, known, strict=True):
        count = shapes.elements(index)
        if loops and _FEWEST_ELEMENTS <= elements < count:
            moved += elements * (size // count) * (2 if _has(name, _INTO_ROWS) else 1)
        else:
            moved += size
    return Cost(bytes=moved, at_most=True)


def triton_flops(name: str, shapes: Shapes) -> int | None:
    """Return the FLOPs of a compiler's product, or of [..., m, k] times its own transpose; None for others.

    A product's template multiplies two tensors into a later one. Of a symmetric result only one half and the
    diagonal are computed, and count.
    """
    if name.startswith(_TEMPLATES) and "mm" in name:
        tensors = [dims for dims in shapes.dims if dims and len(dims) in (2, 3)][:_MOST_TENSORS]
        for index, left in enumerate(tensors):
            for right in tensors[index + 1 :]:
                made = (*left[:-1], right[-1])
                if len(left) == len(right) and left[-1] == right[-2] and made in tensors[index + 2 :]:
                    return 2 * math.prod(made) * left[-1]
        return None
    if not _has(name.lower(), _SYMMETRIC) or len(indices := shapes.tensors) != 2:
        return None
    given, result = (shapes.tensor(index) for index in indices)
    if not given or not result or len(given) < 2 or result != (*given[:-1], given[-2]):
        return None
    *batch, rows, inner = given
    return math.prod(batch) * rows * (rows + 1) * inner


def cost_of(name: str, inputs: Inputs, item: int | None = None) -> Cost:
    """Return the cost of one call of the operation with these recorded inputs.

    `item` is the size in bytes of an element whose type was not recorded, where a kernel shows it.
    """
    if inputs.compiled is not None:
        return Cost(flops=inputs.compiled.flops, bytes=inputs.compiled.bytes)
    rule = _rule_of(name, is_triton=inputs.is_triton)
    shapes = decode_shapes(inputs, item) if rule else None
    try:
        return rule(shapes) if rule and shapes else UNKNOWN
    except NotRecorded:
        return UNKNOWN


def cost_of_result(inputs: Inputs, of_taker: Inputs) -> Cost:
    """Return the cost of a convolution by the input of what may have taken its result."""
    shapes, taken = decode_shapes(inputs), decode_shapes(of_taker)
    try:
        return patterns.cost_by_result(shapes, taken) if shapes and taken else UNKNOWN
    except NotRecorded:
        return UNKNOWN


def _rule_of(name: str, *, is_triton: bool) -> Rule | None:
    if name in REGISTERED:
        return _checked(name, REGISTERED[name])
    if name in RULES:
        return RULES[name]
    if is_triton or name.startswith(GENERATED):
        return lambda shapes: structs.replace(triton_cost(name, shapes), flops=triton_flops(name, shapes))
    if not name.startswith("aten::"):
        plugged_in = _entry_points().get(name)
        return _checked(name, plugged_in) if plugged_in else None
    work_class = classify(name)
    if work_class is WorkClass.ELEMENTWISE:
        plain = name.removeprefix("aten::")
        word = plain.strip("_")
        to_bool = word.startswith(_COMPARISONS)
        return patterns.elementwise(_ARITY.get(word), in_place=plain.endswith("_"), to_bool=to_bool)
    is_norm_backward = work_class is WorkClass.NORM and "backward" in name
    return _NORM_BACKWARD if is_norm_backward else _CLASS_RULES.get(work_class)
