"""Operations by the shape of their inputs: where one name stands for products that are large and thin."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stepgrade.costs.call_costs import CallCosts
from stepgrade.costs.recorded_inputs import UNREADABLE, decode_dims
from stepgrade.model.columns import distinct, groups
from stepgrade.model.events import NONE, Ids, Inputs, Trace
from stepgrade.model.operations import ShapeRow
from stepgrade.timeline.pieces import Pieces
from stepgrade.units import NS_PER_MS

MOST_SHAPES = 32  # of an operation; what the others take is one row
_MOST_TENSORS = 8  # in the text of a shape
_TYPES = {
    "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
    "c10::half": "fp16",
    "half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::float8_e4m3fn": "fp8_e4m3",
    "c10::float8_e5m2": "fp8_e5m2",
    "c10::float8_e4m3fnuz": "fp8_e4m3",
    "c10::float8_e5m2fnuz": "fp8_e5m2",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "bool": "bool",
}
_TRANSFORMED = re.compile(r"winograd|fft", re.IGNORECASE)
_KNOWN = 4  # whether FLOPs are known, whether bytes are


class Calls(NamedTuple):
    """The calls that pieces of work belong to, those of one label together.

    A call is one operation, however many pieces it has.
    """

    label: Ids
    op: Ids  # row in trace.ops
    pieces: Ids  # those that an operation launched
    of_piece: NDArray[np.intp]  # the call of each of these

    @classmethod
    def of(cls, pieces: Pieces, rows: Ids) -> Calls:
        """Return the calls of these pieces."""
        linked = rows[pieces.op[rows] >= 0]  # the others are kernels that no recorded operation launched
        width = int(pieces.op.max(initial=0)) + 1
        values, which, _ = groups(pieces.label[linked].astype(np.int64) * width + pieces.op[linked])
        label, op = np.divmod(values, width)
        return cls(label.astype(np.int32), op.astype(np.int32), linked, which)


def shapes_by_label(
    trace: Trace, pieces: Pieces, rows: Ids, calls: Calls, costs: CallCosts
) -> dict[int, tuple[ShapeRow, ...]]:
    """Return the calls under each label by the shape of their inputs, longest first.

    Pieces that no operation launched are a call each.
    """
    numbers: dict[tuple[bytes, bytes], int] = {}
    shape_of = [numbers.setdefault((each.dims, each.types), len(numbers)) for each in trace.inputs]
    shapes = [Inputs(dims=dims, types=types) for dims, types in numbers]
    shape = np.array([*shape_of, NONE], np.int64)[trace.ops.inputs[calls.op]]  # the last is that of none
    flops, moved = costs.flops()[calls.op], costs.bytes()[calls.op]
    known = 2 * ~np.isnan(flops) + ~np.isnan(moved)
    width = (len(shapes) + 1) * _KNOWN
    values, which, counts = groups(calls.label * np.int64(width) + (shape + 1) * _KNOWN + known)
    of_piece = which[calls.of_piece]
    total_ns = np.bincount(of_piece, pieces.dur_ns[calls.pieces], len(values))
    # Convolutions that transform their data multiply less than is counted.
    transforms = np.zeros(len(trace.strings) + 1, np.bool_)  # the last is that of none
    for index in distinct(pieces.kernel).tolist():
        transforms[index] = index >= 0 and _TRANSFORMED.search(trace.strings[index]) is not None
    bounded = np.bincount(which, costs.at_most()[calls.op], len(values))
    bounded += np.bincount(of_piece, transforms[pieces.kernel[calls.pieces]], len(values))
    # Only where all calls of a shape have bounds do they add up to some.
    within = costs.flops_within() or (np.broadcast_to(np.nan, len(costs.flops())),) * 2
    columns = (
        values,
        counts,
        total_ns,
        bounded,
        *(
            np.bincount(which, np.where(np.isnan(column), 0.0, column), len(values))
            for column in (flops, moved)
        ),
        *(np.bincount(which, column[calls.op], len(values)) for column in within),
    )
    order = np.lexsort((-total_ns, values // width))
    found: dict[int, list[ShapeRow]] = {}
    for value, count, ns, bounds, flops_sum, bytes_sum, least, most in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        label, rest = divmod(value, width)
        number, flags = divmod(rest, _KNOWN)
        alike = found.setdefault(label, [])
        is_listed = len(alike) < MOST_SHAPES and number > 0
        alike.append(
            ShapeRow(
                shape=shape_text(shapes[number - 1]) if is_listed else None,
                ms=ns / NS_PER_MS,
                calls=float(count),
                flops=float(int(flops_sum)) if flags & 2 else None,
                bytes=float(int(bytes_sum)) if flags & 1 else None,
                at_most=bool(bounds),
                flops_least=None if math.isnan(least) else least,
                flops_most=None if math.isnan(most) else most,
            )
        )
    alone = rows[pieces.op[rows] < 0]
    of_alone = pieces.label[alone]
    labels = distinct(of_alone)
    firsts = [*np.searchsorted(of_alone, labels).tolist(), len(alone)]
    for label, (first, last) in zip(labels.tolist(), pairwise(firsts), strict=True):
        group = alone[first:last]
        row = ShapeRow(
            shape=None,
            ms=float(pieces.dur_ns[group].sum()) / NS_PER_MS,
            calls=float(len(group)),
            at_most=bool(transforms[pieces.kernel[group]].any()),
        )
        found.setdefault(label, []).append(row)
    return {label: add_shapes([alike]) for label, alike in found.items()}


def shape_text(inputs: Inputs) -> str | None:
    """Return the sizes and types of the tensors for people: 16384x768, 768x3072 bf16."""
    try:
        dims, types = (msgspec.json.decode(text) for text in (inputs.dims, inputs.types))
    except UNREADABLE:
        return None
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    shown: list[tuple[str, str]] = []
    for place, part in enumerate(dims):
        sizes = decode_dims(part)
        name = types[place] if place < len(types) else ""
        if sizes:
            shown.append(("x".join(map(str, sizes)), _TYPES.get(str(name).lower(), "")))
        elif isinstance(part, list) and part and isinstance(part[0], list):
            shown.append((f"{len(part)} tensors", ""))
    more = f", {len(shown) - _MOST_TENSORS} more" if len(shown) > _MOST_TENSORS else ""
    if len({dtype for _, dtype in shown}) == 1:
        text = f"{', '.join(sizes for sizes, _ in shown[:_MOST_TENSORS])}{more} {shown[0][1]}"
    else:
        text = ", ".join(f"{sizes} {dtype}".rstrip() for sizes, dtype in shown[:_MOST_TENSORS]) + more
    return text.rstrip() or None


def add_shapes(of_parts: Iterable[Sequence[ShapeRow]]) -> tuple[ShapeRow, ...]:
    """Return rows with equal shapes added up, longest first; beyond the most, as one row each.

    What is known of some calls of a shape and not of others stays apart, so that FLOPs and bytes are those
    of the time beside them.
    """
    alike: dict[tuple[str | None, bool, bool], ShapeRow] = {}
    for row in (row for rows in of_parts for row in rows):
        key = (row.shape, row.flops is not None, row.bytes is not None)
        alike[key] = add_rows(alike[key], row) if key in alike else row
    rows = sorted(alike.values(), key=lambda row: (-row.ms, row.shape or ""))
    if len(rows) > MOST_SHAPES + _KNOWN:
        rest = [structs.replace(row, shape=None) for row in rows[MOST_SHAPES:]]
        return add_shapes([[*rows[:MOST_SHAPES], *rest]])
    return tuple(rows)


def add_rows(left: ShapeRow, right: ShapeRow) -> ShapeRow:
    """Return two rows of one shape as one."""
    return structs.replace(
        left,
        ms=left.ms + right.ms,
        calls=left.calls + right.calls,
        flops=_both(left.flops, right.flops),
        bytes=_both(left.bytes, right.bytes),
        flops_least=_both(left.flops_least, right.flops_least),
        flops_most=_both(left.flops_most, right.flops_most),
        at_most=left.at_most or right.at_most,
    )


def _both(left: float | None, right: float | None) -> float | None:
    """Return the sum, None if one is not known."""
    return None if left is None or right is None else left + right
