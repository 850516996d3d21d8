"""The recorded inputs of an operation, decoded: what rules work its FLOPs and bytes out from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from stepgrade.model.events import Inputs

# What decoding a stranger's text may raise: no JSON, no UTF-8, nested too deep.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
Dims = tuple[int, ...]
# The bytes of an element of each recorded type, and the short name of the type where it is displayed.
DTYPES = {
    name: (size, short)
    for size, short, names in (
        (1, "bool", ("bool",)),
        (1, "int8", ("signed char",)),
        (1, "uint8", ("unsigned char",)),
        (1, "fp8_e4m3", ("c10::float8_e4m3fn", "c10::float8_e4m3fnuz")),
        (1, "fp8_e5m2", ("c10::float8_e5m2", "c10::float8_e5m2fnuz")),
        (1, "", ("c10::float8_e8m0fnu", "byte", "char")),
        (2, "bf16", ("c10::bfloat16", "bfloat16")),
        (2, "fp16", ("c10::half", "half")),
        (2, "int16", ("short",)),
        (2, "", ("short int",)),
        (4, "fp32", ("float",)),
        (4, "int32", ("int",)),
        (8, "fp64", ("double",)),
        (8, "int64", ("long", "long int")),
        (8, "", ("c10::complex<float>",)),
        (16, "", ("c10::complex<double>",)),
    )
    for name in names
}
_LONGEST_VALUE = 200
_PLAIN_VALUES = ("Int", "Bool", "Double", "Float")  # of 2021; the types of tensors are lower case


class NotRecorded(Exception):
    """The recorded inputs do not determine the cost."""


def require(condition: object) -> None:
    """Raise NotRecorded unless the condition holds."""
    if not condition:
        raise NotRecorded


class Shapes(NamedTuple):
    """The decoded inputs of an operation, in the order of its parameters."""

    dims: tuple[Dims | None, ...]  # None: not a tensor, or a list of tensors
    lists: tuple[tuple[Dims, ...], ...]  # lists of tensors, in order
    item_bytes: tuple[int | None, ...]
    concrete: tuple[Any, ...]
    strides: tuple[Dims | None, ...] = ()
    list_item: int | None = None  # bytes of an element of the lists

    def tensor(self, index: int) -> Dims | None:
        """Return the sizes of the tensor at `index`; None if it is not a tensor or is unknown."""
        return self.dims[index] if index < len(self.dims) else None

    def need(self, index: int) -> Dims:
        """Return the sizes of the tensor at `index`; raise NotRecorded if it has none."""
        dims = self.tensor(index)
        require(dims)
        return dims or ()

    def item(self, index: int) -> int | None:
        """Return the bytes of an element of the tensor at `index`."""
        return self.item_bytes[index] if index < len(self.item_bytes) else None

    def is_tensor(self, index: int) -> bool:
        """Tell whether `index` has a tensor, one of a single element without sizes included."""
        dims = self.tensor(index)
        return bool(dims) or (dims is not None and self.item(index) is not None)

    @property
    def tensors(self) -> list[int]:
        """Return the indices of all tensors."""
        return [index for index, dims in enumerate(self.dims) if dims or self.is_tensor(index)]

    def value(self, index: int) -> Any:
        """Return the plain value at `index`, None if it was not recorded."""
        return self.concrete[index] if index < len(self.concrete) else None

    def item_size(self) -> int | None:
        """Return the bytes of an element of the first tensor whose type is known."""
        sizes = zip(self.dims, self.item_bytes, strict=False)
        return next((size for dims, size in sizes if dims and size), None)

    def elements(self, index: int) -> int:
        """Return how many elements of the tensor at `index` are in memory: expanded ones count once."""
        dims = self.tensor(index) or ()
        strides = self.strides[index] if index < len(self.strides) else None
        whole = math.prod(dims)
        if not strides or len(strides) != len(dims):
            return whole
        reach = 1
        for size, stride in zip(dims, strides, strict=True):
            reach += (size - 1) * stride if size else 0
        return min(whole, reach)

    def bytes_at(self, *indices: int) -> int | None:
        """Return the bytes of the tensors at these indices; None if a type is not known."""
        total = 0
        for index in indices:
            if not self.is_tensor(index):
                continue
            size = self.item(index)
            if size is None:
                return None
            total += self.elements(index) * size
        return total


def decode_shapes(inputs: Inputs, item: int | None = None) -> Shapes | None:
    """Return the decoded inputs, None if they do not have the form PyTorch writes.

    `item` is the size in bytes of an element whose type was not recorded, where something else shows it.
    """
    try:
        dims, types, concrete, strides = (
            msgspec.json.decode(text) for text in (inputs.dims, inputs.types, inputs.concrete, inputs.strides)
        )
    except UNREADABLE:
        return None
    if not all(isinstance(part, list) for part in (dims, types, concrete, strides)):
        return None

    def decode_value(text: Any) -> Any:
        """Return numbers, booleans and lists of them; None for everything else."""
        if not isinstance(text, str):
            return text if isinstance(text, int | float) else None
        if not 0 < len(text) < _LONGEST_VALUE:  # every tensor's is empty
            return None
        try:
            return msgspec.json.decode(text.replace("True", "true").replace("False", "false"))
        except UNREADABLE:
            return None

    sizes = tuple(decode_dims(part) for part in dims)
    known = [None if name in _PLAIN_VALUES else DTYPES.get(str(name).lower()) for name in types]
    items = [dtype[0] if dtype else None for dtype in known]
    nested = [part for part in dims if isinstance(part, list) and part and isinstance(part[0], list)]
    return Shapes(
        dims=sizes,
        lists=tuple(tuple(d for d in map(decode_dims, part) if d is not None) for part in nested),
        item_bytes=tuple(items if types else [item if part else None for part in sizes]),
        concrete=tuple(map(decode_value, concrete)),
        strides=tuple(decode_dims(part) for part in strides),
        list_item=item or next((size for size in items if size), None),
    )


def decode_dims(sizes: Any) -> Dims | None:
    """Return the sizes of a tensor, None for anything else."""
    if not isinstance(sizes, list):
        return None
    for size in sizes:
        if type(size) is not int or not 0 <= size < 2**40:
            return None
    return tuple(sizes)


class Cost(Struct, frozen=True, kw_only=True):
    """The cost of one call; None where the sizes do not determine it."""

    flops: int | None = None
    bytes: int | None = None
    at_most: bool = False  # the bytes are a bound
    flops_within: tuple[int, int] | None = None  # the least and the most, where the FLOPs are not known


UNKNOWN = Cost()
Rule = Callable[[Shapes], Cost]


def plus(*amounts: int | None) -> int | None:
    """Return the sum, None if one is not known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def times(count: int, size: int | None) -> int | None:
    """Return the product, None if the size is not known."""
    return None if size is None else count * size
