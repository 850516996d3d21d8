"""Matrix products by shape: which sizes the time goes to."""

from __future__ import annotations

import math

import numpy as np

from stepgrade.model.activity import GemmTally
from stepgrade.model.columns import among, groups
from stepgrade.model.events import Trace
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.precision import dtype_of
from stepgrade.trace.shapes import Dims, Shapes, decode_shapes
from stepgrade.units import NS_PER_MS

SHAPES_KEPT = 40
_PLACES = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


def tally_gemms(trace: Trace, pieces: Pieces, steps: int) -> tuple[GemmTally, ...]:
    """Return the shapes of matrix products with the most time in a steady step, longest first."""
    names = [index for index, text in enumerate(trace.strings) if text in _PLACES]
    chosen = pieces.steady & (pieces.op >= 0) & among(pieces.name, names)
    rows = np.flatnonzero(chosen)
    rows = rows[trace.ops.inputs[pieces.op[rows]] >= 0] if len(rows) else rows
    if not len(rows):
        return ()
    ops, of_op, _ = groups(pieces.op[rows])
    width = max(1, len(trace.inputs))
    pairs, which, calls = groups(trace.ops.name[ops].astype(np.int64) * width + trace.ops.inputs[ops])
    total = np.bincount(which[of_op], weights=pieces.dur_ns[rows])
    found = [
        _tally(trace, divmod(one, width), calls=count / steps, ms=ns / steps / NS_PER_MS)
        for one, count, ns in zip(pairs.tolist(), calls.tolist(), total.tolist(), strict=True)
    ]
    known = [one for one in found if one is not None]
    return tuple(sorted(known, key=lambda one: (-one.ms, one.m, one.n, one.k, one.dtype or ""))[:SHAPES_KEPT])


def _tally(trace: Trace, pair: tuple[int, int], *, calls: float, ms: float) -> GemmTally | None:
    name, inputs = trace.strings[pair[0]], trace.inputs[pair[1]]
    shapes = decode_shapes(inputs)
    sizes = None if shapes is None else _sizes(name, shapes)
    if sizes is None or shapes is None:
        return None
    batch, m, k, n = sizes
    item = shapes.item_size()
    return GemmTally(
        batch=batch,
        m=m,
        k=k,
        n=n,
        dtype=dtype_of(inputs),
        calls=calls,
        ms=ms,
        flops=2.0 * batch * m * k * n * calls,
        bytes=None if item is None else float(item * batch * (m * k + k * n + m * n)) * calls,
    )


def _sizes(name: str, shapes: Shapes) -> tuple[int, int, int, int] | None:
    place = _PLACES[name]
    left, right = shapes.tensor(place), shapes.tensor(place + 1)
    if not _fit(left, right) or left is None or right is None:
        return None
    return math.prod(left[:-2]), left[-2], left[-1], right[-1]


def _fit(left: Dims | None, right: Dims | None) -> bool:
    return bool(left and right and len(left) >= 2 and len(right) >= 2 and left[-1] == right[-2])
