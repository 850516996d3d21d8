"""Matrix products: the precision they run in, and the shapes that take the most time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec
import numpy as np

from stepgrade.model.activity import GemmTally
from stepgrade.model.columns import among, distinct, groups
from stepgrade.model.events import NONE, Ids, Inputs, Trace
from stepgrade.naming.work_class import WorkClass
from stepgrade.trace.costs import UNREADABLE, decode_shapes
from stepgrade.trace.pieces import Pieces
from stepgrade.units import NS_PER_MS

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
# fp32 tensors may be multiplied in tf32; only the kernel's name shows it.
_TF32_KERNELS = ("tf32", "s1688", "xmma_gemm_f32f32_tf32f32")
# Types of inputs in the names of kernels: cuBLAS, cuDNN, CUTLASS, nvjet; rocBLAS and hipBLASLt (Cijk_).
_KERNEL_TYPES: tuple[tuple[str, str], ...] = (
    ("fp8", r"e4m3|e5m2|fp8|nvjet_q|_F8"),
    ("bf16", r"bf16|bfloat16|nvjet_t|^Cijk_\w+?_B(B|S)S?_"),
    ("fp16", r"fp16|f16|half|[hs]884|hgemm|nvjet_h|^Cijk_\w+?_H(H|S)?S?_|^Cijk_\w+?_HB_"),
    ("tf32", r"tf32|s1688|nvjet_s"),
    ("fp32", r"sgemm|scudnn|gemm_?f32|fp32|^Cijk_\w+?_SB?_"),
)
SHAPES_KEPT = 40
_LEFT_OPERAND = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


def matmul_time_by_dtype(trace: Trace, pieces: Pieces) -> dict[str, int]:
    """Return the nanoseconds of matmuls in each precision over the steady steps.

    The precision is that of the recorded inputs; in a trace without any, that in the names of the kernels.
    """
    rows = np.flatnonzero(pieces.steady & among(pieces.work_class, MATMULS))
    op, kernels = pieces.op[rows], pieces.kernel[rows]
    inputs = np.where(op >= 0, trace.ops.inputs[np.maximum(op, 0)], NONE) if len(trace.ops.name) else op
    time_ns: dict[str, int] = {}
    known = np.flatnonzero(inputs >= 0)
    known = known[np.argsort(inputs[known], kind="stable")]
    edges = np.flatnonzero(np.diff(inputs[known])) + 1
    for alike in np.split(known, edges) if len(known) else []:
        dtype = dtype_of(trace.inputs[int(inputs[alike[0]])])
        if dtype is None:
            continue
        used = rows[alike]
        total = int(pieces.dur_ns[used].sum())
        if dtype == "fp32":
            of_used = pieces.kernel[used]
            tf32 = [
                kernel
                for kernel in distinct(of_used[of_used >= 0]).tolist()
                if any(word in trace.strings[kernel] for word in _TF32_KERNELS)
            ]
            in_tf32 = int(pieces.dur_ns[used[among(of_used, tf32)]].sum())
            dtype = "tf32" if total > 0 and in_tf32 * 2 > total else dtype
        time_ns[dtype] = time_ns.get(dtype, 0) + total
    if time_ns:
        return time_ns
    names, which, _ = groups(kernels)
    totals = np.bincount(which, weights=pieces.dur_ns[rows], minlength=len(names))
    for index, total_ns in zip(names.tolist(), totals.tolist(), strict=True):
        name = trace.strings[index][:250] if index >= 0 else ""
        dtype = next((dtype for dtype, pattern in _KERNEL_TYPES if re.search(pattern, name)), None)
        if dtype is not None:
            time_ns[dtype] = time_ns.get(dtype, 0) + int(total_ns)
    return time_ns


def dtype_of(inputs: Inputs) -> str | None:
    """Return the precision of the first input whose type is one of arithmetic."""
    try:
        types = msgspec.json.decode(inputs.types, type=list[str])
    except UNREADABLE:
        return None
    return next((_DTYPES[name.lower()] for name in types if name.lower() in _DTYPES), None)


def dtype_of_calls(trace: Trace, ops: Ids) -> str | None:
    """Return the precision of most of these operations' inputs; None when none was recorded."""
    inputs = trace.ops.inputs[ops]
    used, _, counts = groups(inputs[inputs >= 0])
    votes: dict[str, int] = {}
    for index, count in zip(used.tolist(), counts.tolist(), strict=True):
        if dtype := dtype_of(trace.inputs[index]):
            votes[dtype] = votes.get(dtype, 0) + count
    return most_of(votes)


def most_of(amounts: Mapping[str, float]) -> str | None:
    """Return the name with the largest amount, of equal ones the first by name."""
    return max(sorted(amounts), key=lambda name: amounts[name]) if amounts else None


def tally_gemms(trace: Trace, pieces: Pieces, steps: int) -> tuple[GemmTally, ...]:
    """Return the shapes of matrix products with the most time in a steady step, longest first."""
    names = [index for index, text in enumerate(trace.strings) if text in _LEFT_OPERAND]
    chosen = pieces.steady & (pieces.op >= 0) & among(pieces.name, names)
    rows = np.flatnonzero(chosen)
    rows = rows[trace.ops.inputs[pieces.op[rows]] >= 0] if len(rows) else rows
    if not len(rows):
        return ()
    ops, of_op, _ = groups(pieces.op[rows])
    width = max(1, len(trace.inputs))
    pairs, which, calls = groups(trace.ops.name[ops].astype(np.int64) * width + trace.ops.inputs[ops])
    total = np.bincount(which[of_op], weights=pieces.dur_ns[rows])
    found = []
    for pair, count, ns in zip(pairs.tolist(), calls.tolist(), total.tolist(), strict=True):
        name, inputs = trace.strings[pair // width], trace.inputs[pair % width]
        shapes = decode_shapes(inputs)
        if shapes is None:
            continue
        left, right = (shapes.tensor(_LEFT_OPERAND[name] + place) for place in (0, 1))
        if not left or not right or len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
            continue
        batch, m, k, n = math.prod(left[:-2]), left[-2], left[-1], right[-1]
        item = shapes.item_size()
        moved = None if item is None else float(item * batch * (m * k + k * n + m * n))
        found.append(
            GemmTally(
                batch=batch,
                m=m,
                k=k,
                n=n,
                dtype=dtype_of(inputs),
                calls=count / steps,
                ms=ns / steps / NS_PER_MS,
                flops=2.0 * batch * m * k * n * (count / steps),
                bytes=None if moved is None else moved * (count / steps),
            )
        )
    found.sort(key=lambda gemm: (-gemm.ms, gemm.m, gemm.n, gemm.k, gemm.dtype or ""))
    return tuple(found[:SHAPES_KEPT])
