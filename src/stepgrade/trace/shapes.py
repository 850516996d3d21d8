"""The recorded inputs of an operation, decoded: sizes, element types, plain values."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec

from stepgrade.model.events import Inputs

Dims = tuple[int, ...]

_ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "c10::float8_e4m3fnuz": 1,
    "c10::float8_e5m2fnuz": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "half": 2,
    "bfloat16": 2,
}


# What decoding a stranger's text may raise: no JSON, no UTF-8, nested too deep.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class Shapes(NamedTuple):
    """What is known of an operation's inputs, in the order of its parameters."""

    dims: tuple[Dims | None, ...]  # None: not a tensor, or a list of tensors
    lists: tuple[tuple[Dims, ...], ...]  # lists of tensors, in order
    item_bytes: tuple[int | None, ...]
    concrete: tuple[Any, ...]

    def tensor(self, place: int) -> Dims | None:
        """Return the sizes of the tensor at `place`; None if it is none or is not known."""
        return self.dims[place] if place < len(self.dims) else None

    def value(self, place: int) -> Any:
        """Return the plain value at `place`, None if it was not recorded."""
        return self.concrete[place] if place < len(self.concrete) else None

    def item_size(self) -> int | None:
        """Return the bytes of an element of the first tensor whose type is known."""
        for dims, size in zip(self.dims, self.item_bytes, strict=False):
            if dims and size:
                return size
        return None


def decode_shapes(inputs: Inputs) -> Shapes | None:
    """Return the decoded inputs, None if they do not have the form PyTorch writes."""
    try:
        dims = msgspec.json.decode(inputs.dims)
        types = msgspec.json.decode(inputs.types)
        concrete = msgspec.json.decode(inputs.concrete)
    except UNREADABLE:
        return None
    if not all(isinstance(part, list) for part in (dims, types, concrete)):
        return None
    return Shapes(
        dims=tuple(_dims(one) for one in dims),
        lists=tuple(tuple(d for d in map(_dims, one) if d is not None) for one in dims if _is_list(one)),
        item_bytes=tuple(_ITEM_BYTES.get(str(one).lower()) for one in types),
        concrete=tuple(_value(one) for one in concrete),
    )


def _is_list(one: Any) -> bool:
    return isinstance(one, list) and bool(one) and isinstance(one[0], list)


def _dims(one: Any) -> Dims | None:
    if not isinstance(one, list) or not all(type(size) is int and 0 <= size < 2**40 for size in one):
        return None
    return tuple(one)


def _value(text: Any) -> Any:
    """Return numbers, truth values and lists of them; everything else as None."""
    if not isinstance(text, str):
        return text if isinstance(text, int | float) else None
    plain = text.replace("True", "true").replace("False", "false")
    try:
        return msgspec.json.decode(plain) if len(plain) < 200 else None
    except UNREADABLE:
        return None


def elements(dims: Dims) -> int:
    """Return the number of elements of a tensor."""
    return math.prod(dims)
