"""What kind of work a kernel or an operation is, told from its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.events import DeviceEvent, DeviceWork, Kinds


class WorkClass(IntEnum):
    """Kinds of work, from the most to the least telling name."""

    COMMUNICATION = 0
    ATTENTION = 1
    NORM = 2
    CONVOLUTION = 3
    EMBEDDING = 4
    GEMM = 5
    SOFTMAX = 6
    OPTIMIZER = 7
    POOLING = 8
    INDEXING = 9
    COPY = 10
    REDUCTION = 11
    ELEMENTWISE = 12
    OTHER = 13

    @property
    def label(self) -> str:
        """Return the name that reports use."""
        return self.name.lower()


Classes: TypeAlias = NDArray[np.int8]

# The first pattern that fits decides: cudnn::bn is a norm before it is cudnn, cutlass<flash> is attention.
_PATTERNS: tuple[tuple[WorkClass, str], ...] = (
    (
        WorkClass.COMMUNICATION,
        r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem|nvshmem|deep_ep"
        r"|cross_device_reduce|^gloo:|c10d::|record_param_comms|memcpy (ptop|peer)",
    ),
    (WorkClass.COPY, r"^mem(cpy|set)|^copybuffer|^fillbuffer"),
    (WorkClass.ATTENTION, r"flash|fmha|attention|attn|sdpa|_bwd_kernel_dk_dv|paged_kv"),
    (
        WorkClass.NORM,
        r"(batch|layer|rms|group|instance)_?norm|bn_(fw|bw|update)|batchnorm|rowwisemoments|gammabeta",
    ),
    (
        WorkClass.CONVOLUTION,
        r"conv|wgrad|dgrad|scudnn|winograd|igemm_(fwd|bwd|wrw)|implicit_gemm|im2col|col2im|cudnn::cnn|miopen"
        r"|gridwisegemm_bk0mk0",
    ),
    (WorkClass.EMBEDDING, r"embedding(?!_?kernel_norm)|pooled_embs|_embs_"),
    (
        WorkClass.GEMM,
        r"gemm|gemv|nvjet|cutlass|cijk_|xmma|splitkreduce|matmul|(^|::|_)(addmm|baddbmm|bmm|mm)\b|_mm_kernel"
        r"|(^|_)bmm_|::_(scaled|grouped|int)\w*_mm\b|scaled_mm$|aten::linear|addmv|aten::dot\b|cublas"
        r"|aten::einsum|xxt_kernel|aa_kernel",
    ),
    (WorkClass.SOFTMAX, r"softmax|cross_?entropy|nll_?loss|celoss"),
    (
        WorkClass.OPTIMIZER,
        r"multi_tensor_apply|multitensorapply|fused_?(adam|sgd|adagrad|lamb)|_fused_adam|_foreach_|optimizer",
    ),
    (WorkClass.POOLING, r"pool"),
    (WorkClass.INDEXING, r"index|gather|scatter|sort|topk|nonzero|::select|masked|unique|cumsum|scan|histc"),
    (
        WorkClass.COPY,
        r"copy|transpose|catarray|::cat\b|::contiguous|::clone|nchwtonhwc|nhwctonchw|permute|subtensorop"
        r"|aten::to\b|::stack|::fill_|::zero",
    ),
    (WorkClass.REDUCTION, r"reduc|triton_(red|per)|vector_norm|aten::(sum|mean|max|min|norm|argmax|prod)\b"),
    (
        WorkClass.ELEMENTWISE,
        r"elementwise|functor|triton|vectorized|unrolled|silu|gelu|relu|sigmoid|tanh|dropout|upsample"
        r"|threshold|tensor_op|optensor|scalepackedtensor|aten::(add|sub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs"
        r"|clamp\w*|where|addc\w+|lerp|cos|sin|eq|ne|gt|lt|ge|le|logical\w*|bitwise\w*)_?$",
    ),
)
_RULES = tuple((work_class, re.compile(pattern, re.IGNORECASE)) for work_class, pattern in _PATTERNS)


def classify(name: str) -> WorkClass:
    """Return what kind of work the kernel or operation called `name` does."""
    for work_class, pattern in _RULES:
        if pattern.search(name):
            return work_class
    return WorkClass.OTHER


def classify_work(strings: Sequence[str], work: DeviceWork) -> Classes:
    """Return the class of every piece of device work; what says it is a collective is one."""
    if not len(work.name):
        return np.zeros(0, np.int8)
    used = np.unique(work.name)
    table = np.full(len(strings), WorkClass.OTHER, np.int8)
    table[used] = [classify(strings[index]) for index in used.tolist()]
    found = np.where(work.collective >= 0, WorkClass.COMMUNICATION, table[work.name])
    return np.where(_is_copy(work.kind) & (found != WorkClass.COMMUNICATION), WorkClass.COPY, found)


def _is_copy(kind: Kinds) -> NDArray[np.bool_]:
    return kind != DeviceEvent.KERNEL
