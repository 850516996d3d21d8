"""What the compiler of a whole program says of its operations: their pass, layer and scope.

Such a program runs as it was compiled. No call on the host lies around its operations and no autograd node
names them: each carries where it comes from itself.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepgrade.model.events import NONE, Compiled, Ids, Kinds, Trace
from stepgrade.naming.torch_names import Mask
from stepgrade.timeline.links import pick

_DIGITS = "0123456789"
_HELD = 0.5  # of the forward pass, for numbered scopes to be its layers


def compiled_of(trace: Trace) -> list[Compiled | None]:
    """Return for each of the trace's inputs what a compiler says; nothing where none does."""
    found = [inputs.compiled for inputs in trace.inputs]
    return found if any(found) else []


def in_direction(trace: Trace, *directions: str) -> Mask:
    """Tell which operations a compiler puts into one of these passes."""
    told = [one is not None and one.direction in directions for one in compiled_of(trace)]
    return (
        np.array([*told, False], np.bool_)[trace.ops.inputs]
        if told
        else np.zeros(len(trace.ops.name), np.bool_)
    )


def layers_by_scope(
    trace: Trace, op: Ids, dur_ns: Kinds, forward: Mask
) -> tuple[tuple[str, ...], Ids] | None:
    """Return the layers and the one of each piece; None where scopes do not hold most of the forward pass."""
    layers = [one.layer if one else None for one in compiled_of(trace)]
    kinds = Counter(layer.rstrip(_DIGITS) for layer in set(layers) if layer)
    kept = {layer for layer in layers if layer and kinds[layer.rstrip(_DIGITS)] > 1}
    if not kept:
        return None

    def order(layer: str) -> tuple[str, int, str]:
        kind = layer.rstrip(_DIGITS)
        number = layer[len(kind) :].lstrip("0")
        return kind, len(number), number  # longer is larger, with however many digits

    names = tuple(sorted(kept, key=order))
    places = {name: place for place, name in enumerate(names)}
    table = np.array([*(places.get(layer or "", NONE) for layer in layers), NONE], np.int32)
    block = table[pick(trace.ops.inputs, op)]
    held = int(dur_ns[forward & (block >= 0)].sum())
    return (names, block) if held >= _HELD * int(dur_ns[forward].sum()) else None
