"""Matrix products: the precision they run in, and the shapes that take the most time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from stepgrade.costs.recorded_inputs import UNREADABLE, decode_shapes
from stepgrade.decoding import from_json
from stepgrade.model.activity import GemmTally
from stepgrade.model.columns import among, groups
from stepgrade.model.events import NONE, Ids, Inputs, Kinds, Trace, Wholes
from stepgrade.naming.precision import PRECISIONS, precision_of_kernel
from stepgrade.naming.work_class import MATMULS
from stepgrade.timeline.pieces import Pieces
from stepgrade.units import NS_PER_MS

_DTYPES = {
    "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
    "c10::half": "fp16",
    "half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::float8_e4m3fn": "fp8",
    "c10::float8_e5m2": "fp8",
    "c10::float8_e4m3fnuz": "fp8",
    "c10::float8_e5m2fnuz": "fp8",
    "signed char": "int8",
}
# Tensors of fp32 may be multiplied in fewer bits; only the kernel's name shows it.
_NARROWER = frozenset({"tf32", "bf16", "fp16", "fp8", "int8"})
SHAPES_KEPT = 40
_LEFT_OPERAND = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


def precisions_of(trace: Trace, pieces: Pieces, rows: Ids) -> Kinds:
    """Return the precision of each of these pieces as a place in PRECISIONS, NONE where nothing tells.

    It is that of the recorded inputs, and where these are of fp32 or not recorded that of the kernel.
    """
    op = pieces.op[rows]
    inputs = np.where(op >= 0, trace.ops.inputs[np.maximum(op, 0)], NONE) if len(trace.ops.name) else op
    place = {name: number for number, name in enumerate(PRECISIONS)}
    kernels, which, _ = groups(pieces.kernel[rows])
    said = (precision_of_kernel(trace.strings[index]) if index >= 0 else None for index in kernels.tolist())
    by_kernel = np.array([place.get(name or "", NONE) for name in said], np.int8)[which]
    used, which, _ = groups(inputs)
    said = (dtype_of(trace.inputs[index]) if index >= 0 else None for index in used.tolist())
    by_inputs = np.array([place.get(name or "", NONE) for name in said], np.int8)
    # Helpers of a product, as the sum of its parts, have names of their own: most of the time decides.
    width = len(PRECISIONS) + 1
    spent = np.bincount(which * width + by_kernel + 1, pieces.dur_ns[rows], len(used) * width)
    by_name = spent.reshape(len(used), width)
    most = by_name.argmax(axis=1)
    narrowed = (by_inputs == place["fp32"]) & among(most - 1, [place[name] for name in _NARROWER])
    narrowed &= 2 * by_name.max(axis=1, initial=0) > by_name.sum(axis=1)
    by_inputs = np.where(narrowed, most - 1, by_inputs).astype(np.int8)
    found: Kinds = np.where(by_inputs[which] >= 0, by_inputs[which], by_kernel)
    return found


def time_by_precision(precisions: Kinds, dur_ns: Wholes) -> dict[str, int]:
    """Return the nanoseconds in each precision, in the order of PRECISIONS."""
    known = precisions >= 0
    sums = np.bincount(precisions[known], weights=dur_ns[known], minlength=len(PRECISIONS)).tolist()
    return {name: int(ns) for name, ns in zip(PRECISIONS, sums, strict=True) if ns}


def matmul_time_by_dtype(trace: Trace, pieces: Pieces) -> dict[str, int]:
    """Return the nanoseconds of matmuls in each precision over the steady steps."""
    rows = np.flatnonzero(pieces.steady & among(pieces.work_class, MATMULS)).astype(np.int32)
    return time_by_precision(precisions_of(trace, pieces, rows), pieces.dur_ns[rows])


def dtype_of(inputs: Inputs) -> str | None:
    """Return the precision of the first input whose type is one of arithmetic."""
    try:
        types = from_json(inputs.types, list[str])
    except UNREADABLE:
        return None
    return next((_DTYPES[name.lower()] for name in types if name.lower() in _DTYPES), None)


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
