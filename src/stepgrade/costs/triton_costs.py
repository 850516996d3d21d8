"""Bytes of Triton kernels, whose recorded inputs are all their pointers: what they read and what they write.

Each tensor counts once. That one is updated in place is told only where it is the kernel's only one; others
count too little then, never too much. Where a kernel may use a part of a tensor (a gather, a slice) the bytes
are a bound: no more of it than the kernel has elements.
"""

from __future__ import annotations

import math

from stepgrade.costs.recorded_inputs import UNKNOWN, Cost, Shapes

GENERATED = (
    "triton_poi_",
    "triton_red_",
    "triton_per_",
    "triton_tem_",
    "triton_for_",
    "triton_mm",
    "triton_bmm",
)
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


def _has(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name for word in words)


def triton_cost(name: str, shapes: Shapes) -> Cost:
    """Return the traffic of one launch of a Triton kernel."""
    places = shapes.tensors
    sizes = [shapes.bytes_at(place) for place in places]
    known = [size for size in sizes if size is not None]
    if not places or len(known) != len(sizes):
        return UNKNOWN
    if len(places) == 1 and not _has(name, _ONLY_WRITTEN):
        return Cost(bytes=2 * known[0])
    if not _has(name, _IN_PART) or not name.startswith(GENERATED):
        return Cost(bytes=sum(known))
    moved = 0
    elements = elements_of_kernel(shapes)
    for place, size in zip(places, known, strict=True):
        count = shapes.elements(place)
        if elements is not None and count > elements:
            item = size // max(count, 1)
            size = elements * item * (2 if _has(name, _INTO_ROWS) else 1)  # noqa: PLW2901  the same, bounded
        moved += size
    return Cost(bytes=moved, at_most=True)


def elements_of_kernel(shapes: Shapes) -> int | None:
    """Return how many elements the loops of a generated kernel have: its last arguments say."""
    counts = [
        value
        for place, value in enumerate(shapes.concrete)
        if type(value) is int and value > 0 and not shapes.is_tensor(place)
    ]
    elements = math.prod(counts)
    return elements if counts and elements >= _FEWEST_ELEMENTS else None


def symmetric_flops(name: str, shapes: Shapes) -> int | None:
    """Return the FLOPs of [..., m, k] times its own transpose, [..., m, m]; None where it is no such product.

    The result is symmetric: half of it and the diagonal are worked out, and that is what counts.
    """
    if not _has(name.lower(), _SYMMETRIC) or len(places := shapes.tensors) != 2:
        return None
    given, made = (shapes.tensor(place) for place in places)
    if not given or not made or len(given) < 2 or made != (*given[:-1], given[-2]):
        return None
    *batch, rows, inner = given
    return math.prod(batch) * rows * (rows + 1) * inner
