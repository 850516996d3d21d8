"""The precision that a step's matrix products run in, from the types of their inputs and their kernels."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from stepgrade.model.columns import among, distinct, groups
from stepgrade.model.events import NONE, Ids, Inputs, Longs, Trace
from stepgrade.trace.classify import WorkClass
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.shapes import UNREADABLE

MATMULS = (WorkClass.ATTENTION, WorkClass.CONVOLUTION, WorkClass.GEMM)
_DTYPES = {
    "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
    "c10::half": "fp16",
    "half": "fp16",
    "float": "fp32",
    "c10::float8_e4m3fn": "fp8",
    "c10::float8_e5m2": "fp8",
    "c10::float8_e4m3fnuz": "fp8",
    "c10::float8_e5m2fnuz": "fp8",
}
# fp32 tensors may be multiplied in tf32; only the kernel's name tells.
_TF32_KERNELS = ("tf32", "s1688", "xmma_gemm_f32f32_tf32f32")
# What kernels say of the type of their inputs: cuBLAS, cuDNN, CUTLASS, nvjet; rocBLAS and hipBLASLt (Cijk_).
_KERNEL_TYPES: tuple[tuple[str, str], ...] = (
    ("fp8", r"e4m3|e5m2|fp8|nvjet_q|_F8"),
    ("bf16", r"bf16|bfloat16|nvjet_t|^Cijk_\w+?_B(B|S)S?_"),
    ("fp16", r"fp16|f16|half|[hs]884|hgemm|nvjet_h|^Cijk_\w+?_H(H|S)?S?_|^Cijk_\w+?_HB_"),
    ("tf32", r"tf32|s1688|nvjet_s"),
    ("fp32", r"sgemm|scudnn|gemm_?f32|fp32|^Cijk_\w+?_SB?_"),
)


def matmul_dtype(trace: Trace, pieces: Pieces) -> str | None:
    """Return the precision in which most matmul time is spent; None when no types were recorded."""
    time_ns = matmul_time_by_dtype(trace, pieces)
    return max(sorted(time_ns), key=lambda one: time_ns[one]) if time_ns else None


def matmul_time_by_dtype(trace: Trace, pieces: Pieces) -> dict[str, int]:
    """Return the nanoseconds of matmuls in each precision over the steady steps, where types are known."""
    rows = np.flatnonzero(pieces.steady & among(pieces.work_class, MATMULS))
    op = pieces.op[rows]
    inputs = np.where(op >= 0, trace.ops.inputs[np.maximum(op, 0)], NONE) if len(trace.ops.name) else op
    time_ns: dict[str, int] = {}
    for index in distinct(inputs[inputs >= 0]).tolist():
        dtype = dtype_of(trace.inputs[index])
        if dtype is not None:
            mine = rows[inputs == index]
            dtype = "tf32" if dtype == "fp32" and _runs_in_tf32(trace, pieces, mine) else dtype
            time_ns[dtype] = time_ns.get(dtype, 0) + int(pieces.dur_ns[mine].sum())
    return time_ns or _time_by_kernel(trace, pieces, rows)


def _time_by_kernel(trace: Trace, pieces: Pieces, rows: Longs) -> dict[str, int]:
    """Return the same by the names of the kernels, for a trace that recorded no types."""
    time_ns: dict[str, int] = {}
    kernels = pieces.kernel[rows]
    for index in distinct(kernels[kernels >= 0]).tolist():
        dtype = dtype_of_kernel(trace.strings[index])
        if dtype is not None:
            mine = rows[kernels == index]
            time_ns[dtype] = time_ns.get(dtype, 0) + int(pieces.dur_ns[mine].sum())
    return time_ns


def dtype_of_kernel(name: str) -> str | None:
    """Return the precision of a matrix product's or convolution's kernel, where its name says it."""
    text = name[:250]
    return next((dtype for dtype, pattern in _KERNEL_TYPES if re.search(pattern, text)), None)


def dtype_of_calls(trace: Trace, ops: Ids) -> str | None:
    """Return the precision of most of these operations' inputs; None when none was recorded."""
    inputs = trace.ops.inputs[ops]
    used, _, counts = groups(inputs[inputs >= 0])
    votes: dict[str, int] = {}
    for index, count in zip(used.tolist(), counts.tolist(), strict=True):
        if dtype := dtype_of(trace.inputs[index]):
            votes[dtype] = votes.get(dtype, 0) + count
    return max(sorted(votes), key=lambda dtype: votes[dtype]) if votes else None


def dtype_of(inputs: Inputs) -> str | None:
    """Return the precision of the first input whose type is one of arithmetic."""
    try:
        types = msgspec.json.decode(inputs.types, type=list[str])
    except UNREADABLE:
        return None
    return next((_DTYPES[one.lower()] for one in types if one.lower() in _DTYPES), None)


def _runs_in_tf32(trace: Trace, pieces: Pieces, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    kernels = pieces.kernel[rows]
    total = int(pieces.dur_ns[rows].sum())
    names = [index for index in distinct(kernels[kernels >= 0]).tolist() if _is_tf32(trace.strings[index])]
    return total > 0 and int(pieces.dur_ns[rows[among(kernels, names)]].sum()) * 2 > total


def _is_tf32(kernel: str) -> bool:
    return any(word in kernel for word in _TF32_KERNELS)
