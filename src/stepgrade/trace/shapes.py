"""Operations by the shape of their inputs: where one name stands for products that are large and thin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stepgrade.model.columns import distinct, groups
from stepgrade.model.events import NONE, Ids, Inputs, Trace
from stepgrade.model.profile import ShapeTime
from stepgrade.trace.call_costs import CallCosts
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.recorded_inputs import UNREADABLE, decode_dims
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


class CallShapes:
    """What tells the calls of one operation apart: the shapes of their inputs, and what is known of each."""

    def __init__(self, trace: Trace, pieces: Pieces, costs: CallCosts) -> None:
        numbers: dict[tuple[bytes, bytes], int] = {}
        shape_of = [numbers.setdefault((each.dims, each.types), len(numbers)) for each in trace.inputs]
        self._pieces = pieces
        self._inputs = trace.ops.inputs
        self._shape_of_inputs = np.array([*shape_of, NONE], np.int32)  # the last is that of none
        self._shapes = [Inputs(dims=dims, types=types) for dims, types in numbers]
        self._flops, self._bytes, self._at_most = costs.flops(), costs.bytes(), costs.at_most()
        self._within = costs.flops_within()
        # Convolutions that transform their data multiply less than is counted.
        self._transforms = np.zeros(len(trace.strings) + 1, np.bool_)
        for index in distinct(pieces.kernel).tolist():
            self._transforms[index] = index >= 0 and _TRANSFORMED.search(trace.strings[index]) is not None

    def of(self, group: Ids, calls: Ids, linked: Ids, per_call: NDArray[np.intp]) -> tuple[ShapeTime, ...]:
        """Return the calls of one operation by the shape of their inputs, longest first.

        A call is one operation, however many pieces it has: `per_call` says of which call each of the
        `linked` pieces is. Those of the group that no operation launched are a call each.
        """
        pieces, flops, moved = self._pieces, self._flops[calls], self._bytes[calls]
        has_flops, has_bytes = ~np.isnan(flops), ~np.isnan(moved)
        known = 2 * has_flops + has_bytes
        shape = self._shape_of_inputs[self._inputs[calls]]
        values, which, counts = groups((shape + 1) * _KNOWN + known)
        of_piece = which[per_call]
        total_ns = np.bincount(of_piece, pieces.dur_ns[linked], len(values))
        sums = [
            np.bincount(which, np.where(has, column, 0.0), len(values))
            for has, column in ((has_flops, flops), (has_bytes, moved))
        ]
        # Only where all calls of a shape have bounds do they add up to some.
        none = np.broadcast_to(np.nan, len(values))
        least, most = (
            (np.bincount(which, column[calls], len(values)) for column in self._within)
            if self._within
            else (none, none)
        )
        bounded = np.bincount(which, self._at_most[calls], len(values))
        bounded += np.bincount(of_piece, self._transforms[pieces.kernel[linked]], len(values))
        found: list[ShapeTime] = []
        for place in np.argsort(-total_ns, kind="stable").tolist():
            number, flags = divmod(int(values[place]), _KNOWN)
            is_listed = len(found) < MOST_SHAPES and number > 0
            found.append(
                ShapeTime(
                    shape=shape_text(self._shapes[number - 1]) if is_listed else None,
                    total_ms=float(total_ns[place]) / NS_PER_MS,
                    calls=float(counts[place]),
                    flops=float(int(sums[0][place])) if flags & 2 else None,
                    bytes=float(int(sums[1][place])) if flags & 1 else None,
                    at_most=bool(bounded[place]),
                    flops_least=None if np.isnan(least[place]) else float(least[place]),
                    flops_most=None if np.isnan(most[place]) else float(most[place]),
                )
            )
        if len(linked) < len(group):
            alone = group[pieces.op[group] < 0]
            found.append(
                ShapeTime(
                    shape=None,
                    total_ms=float(pieces.dur_ns[alone].sum()) / NS_PER_MS,
                    calls=float(len(alone)),
                    at_most=bool(self._transforms[pieces.kernel[alone]].any()),
                )
            )
        return add_shapes([found])


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


def add_shapes(of_parts: Iterable[Sequence[ShapeTime]], scale: float = 1.0) -> tuple[ShapeTime, ...]:
    """Return rows with equal shapes added up and scaled, longest first; beyond the most, as one row each.

    What is known of some calls of a shape and not of others stays apart, so that FLOPs and bytes are those
    of the time beside them.
    """
    alike: dict[tuple[str | None, bool, bool], ShapeTime] = {}
    for row in (row for rows in of_parts for row in rows):
        key = (row.shape, row.flops is not None, row.bytes is not None)
        alike[key] = add_rows(alike[key], row) if key in alike else row
    rows = sorted(alike.values(), key=lambda row: (-row.total_ms, row.shape or ""))
    if len(rows) > MOST_SHAPES + _KNOWN:
        rest = [structs.replace(row, shape=None) for row in rows[MOST_SHAPES:]]
        return add_shapes([[*rows[:MOST_SHAPES], *rest]], scale)
    return tuple(
        structs.replace(
            row,
            total_ms=row.total_ms * scale,
            calls=row.calls * scale,
            flops=None if row.flops is None else row.flops * scale,
            bytes=None if row.bytes is None else row.bytes * scale,
            flops_least=None if row.flops_least is None else row.flops_least * scale,
            flops_most=None if row.flops_most is None else row.flops_most * scale,
        )
        for row in rows
    )


def add_rows(left: ShapeTime, right: ShapeTime) -> ShapeTime:
    """Return two rows of one shape as one."""
    return structs.replace(
        left,
        total_ms=left.total_ms + right.total_ms,
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
