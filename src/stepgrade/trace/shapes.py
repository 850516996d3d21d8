"""Operations by the shape of their inputs: where one name stands for products that are large and thin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec import structs

from stepgrade.model.columns import groups
from stepgrade.model.events import NONE, Ids, Inputs, Trace
from stepgrade.model.profile import ShapeTime
from stepgrade.naming.torch_names import Mask
from stepgrade.trace.call_costs import CallCosts
from stepgrade.trace.links import pick
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


def time_by_shape(
    trace: Trace, pieces: Pieces, rows: Ids, costs: CallCosts
) -> dict[int, tuple[ShapeTime, ...]]:
    """Return for each label the calls of these pieces by the shape of their inputs, longest first."""
    if not len(rows):
        return {}
    op = pieces.op[rows]
    numbers: dict[tuple[bytes, bytes], int] = {}
    shape_of = np.array(
        [*(numbers.setdefault((each.dims, each.types), len(numbers)) for each in trace.inputs), NONE],
        np.int32,
    )
    shape = shape_of[pick(trace.ops.inputs, op)] if len(trace.ops.name) else np.full(len(rows), NONE)
    flops, moved, bound = (
        np.append(column, none)[op]  # the last is that of what no operation launched
        for column, none in ((costs.flops(), np.nan), (costs.bytes(), np.nan), (costs.at_most(), False))
    )
    bound |= makes_fewer(trace, pieces, rows)
    known = 2 * ~np.isnan(flops) + ~np.isnan(moved)
    width = len(numbers) + 1
    key = (pieces.label[rows].astype(np.int64) * width + shape + 1) * _KNOWN + known
    values, which, _ = groups(key)
    total_ns = np.bincount(which, pieces.dur_ns[rows])
    # A call is one operation, however many pieces it has; what none launched is a call itself.
    own = np.where(op >= 0, op, len(trace.ops.name) + np.arange(len(rows)))
    pair = which.astype(np.int64) * (len(trace.ops.name) + len(rows)) + own
    order = np.argsort(pair, kind="stable")
    first = order[np.append(True, pair[order[1:]] != pair[order[:-1]])]
    of_call = which[first]
    counts = np.bincount(of_call, minlength=len(values))
    sums = [np.bincount(of_call, np.nan_to_num(column[first]), len(values)) for column in (flops, moved)]
    bounded = np.bincount(which, bound, len(values)) > 0
    found: dict[int, list[ShapeTime]] = {}
    texts = [Inputs(dims=dims, types=types) for dims, types in numbers]
    for place in np.argsort(-total_ns, kind="stable").tolist():
        with_shape, flags = divmod(int(values[place]), _KNOWN)
        label, number = divmod(with_shape, width)
        alike = found.setdefault(label, [])
        is_listed = len(alike) < MOST_SHAPES and number > 0
        alike.append(
            ShapeTime(
                shape=shape_text(texts[number - 1]) if is_listed else None,
                total_ms=float(total_ns[place]) / NS_PER_MS,
                calls=float(counts[place]),
                flops=float(int(sums[0][place])) if flags & 2 else None,
                bytes=float(int(sums[1][place])) if flags & 1 else None,
                at_most=bool(bounded[place]),
            )
        )
    return {label: add_shapes([alike]) for label, alike in found.items()}


def makes_fewer(trace: Trace, pieces: Pieces, rows: Ids) -> Mask:
    """Tell which pieces are of convolutions that transform their data and multiply less than is counted."""
    kernels, which, _ = groups(pieces.kernel[rows])
    fewer = [
        index >= 0 and _TRANSFORMED.search(trace.strings[index]) is not None for index in kernels.tolist()
    ]
    return np.array(fewer, np.bool_)[which]


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
        )
        for row in rows
    )


def add_rows(left: ShapeTime, right: ShapeTime) -> ShapeTime:
    """Return two rows of one shape as one."""
    return structs.replace(
        left,
        total_ms=left.total_ms + right.total_ms,
        calls=left.calls + right.calls,
        flops=None if left.flops is None or right.flops is None else left.flops + right.flops,
        bytes=None if left.bytes is None or right.bytes is None else left.bytes + right.bytes,
        at_most=left.at_most or right.at_most,
    )
