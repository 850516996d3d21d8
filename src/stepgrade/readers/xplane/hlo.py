"""HLO modules in a profile: what each operation computes, where it comes from and what one execution costs.

A multiply-add is two FLOPs. The body of a loop counts once: its events show how often it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from stepgrade.protobuf import LENGTH, VARINT, WireField, varint, walk

Dims = tuple[int, ...]
CONTROL_FLOW: Final = frozenset({"while", "conditional", "call", "async-start", "async-done"})
# Numbers of XLA's types: the name that PyTorch has for the same, and the bytes of an element.
_TYPES: Final = {
    1: ("bool", 1),
    **dict.fromkeys((2, 21, 26), ("signed char", 1)),
    3: ("short", 2),
    4: ("int", 4),
    5: ("long", 8),
    6: ("unsigned char", 1),
    7: ("short", 2),
    8: ("int", 4),
    9: ("long", 8),
    10: ("c10::half", 2),
    11: ("float", 4),
    12: ("double", 8),
    15: ("c10::complex<float>", 8),
    16: ("c10::bfloat16", 2),
    18: ("c10::complex<double>", 16),
    19: ("c10::float8_e5m2", 1),
    20: ("c10::float8_e4m3fn", 1),
    24: ("c10::float8_e5m2fnuz", 1),
    25: ("c10::float8_e4m3fnuz", 1),
}
_ARITHMETIC: Final = frozenset(
    (
        *(
            "add",
            "subtract",
            "multiply",
            "divide",
            "maximum",
            "minimum",
            "power",
            "exponential",
            "log",
            "tanh",
        ),
        *("logistic", "rsqrt", "sqrt", "negate", "cosine", "sine", "exponential-minus-one", "log-plus-one"),
        *("erf", "abs", "compare", "select", "clamp", "reduce", "reduce-window", "atan2", "cbrt", "sign"),
    )
)
_LARGEST: Final = 1 << 62
_DEEPEST: Final = 64
_MOST_CALLED: Final = 32  # computations that a fusion calls; circles of them take no longer


class Shape(Struct, frozen=True):
    """A tensor, or the tensors of a tuple."""

    type: int = 0
    dims: Dims = ()
    parts: tuple[Shape, ...] = ()

    @property
    def first(self) -> Shape:
        """Return the tensor itself, or the first of a tuple."""
        return self.parts[0].first if self.parts else self

    @property
    def elements(self) -> int:
        """Return how many elements it has."""
        return min(math.prod(self.dims), _LARGEST)

    @property
    def bytes(self) -> int:
        """Return how many bytes it takes."""
        own = 0 if self.parts else self.elements * _TYPES.get(self.type, ("", 0))[1]
        return own + sum(part.bytes for part in self.parts)

    @property
    def type_name(self) -> str | None:
        """Return the type of its elements, as PyTorch calls it."""
        return _TYPES.get(self.type, (None, 0))[0]


class Instruction(Struct, kw_only=True):
    """One instruction of a module."""

    name: str = ""
    opcode: str = ""
    shape: Shape = Shape()
    path: str = ""  # where in the program it comes from
    target: str = ""
    number: int = 0
    operands: Dims = ()
    called: Dims = ()
    computation: int = 0
    dot: tuple[Dims, Dims] | None = None  # dimensions of the left operand: contracted, batch
    kernel_features: int | None = None  # the dimension of a convolution's kernel with its output's features
    base_dilation: int = 1
    batch_groups: int = 1
    group_size: int | None = None
    config: tuple[int, int] = (0, 0)


class Module:
    """A compiled program."""

    def __init__(self, data: bytes, offset: int, end: int) -> None:
        self.data = data
        self.instructions: dict[int, Instruction] = {}
        self.by_name: dict[str, Instruction] = {}
        self.computations: dict[int, list[Instruction]] = {}
        self.passes: dict[int, set[str | None]] = {}  # of each computation and of what it calls
        self.entry = 0
        modules = [field for field in walk(data, offset, end) if (field.number, field.kind) == (1, LENGTH)]
        for field in (part for each in modules for part in walk(data, each.value, each.after)):
            if field.number == 6 and field.kind == VARINT:
                self.entry = field.value
            elif field.number == 3 and field.kind == LENGTH:
                number, found = 0, []
                for part in walk(data, field.value, field.after):
                    if part.number == 2 and part.kind == LENGTH:
                        found.append(_read_instruction(data, part.value, part.after))
                    elif part.number == 5 and part.kind == VARINT:
                        number = part.value
                self.computations[number] = found
                for instruction in found:
                    instruction.computation = number
                    self.instructions[instruction.number] = instruction
                    self.by_name.setdefault(instruction.name, instruction)
        # Who calls a computation: the first that does.
        self.callers: dict[int, Instruction] = {}
        for instruction in self.instructions.values():
            for called in instruction.called:
                self.callers.setdefault(called, instruction)

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield an instruction and what it calls, each once: of a fusion all, of a loop its first parts."""
        seen: set[int] = set()
        waiting = [*instruction.called]
        yield instruction
        while waiting and len(seen) < _MOST_CALLED:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            for inner in self.computations.get(number, ()):
                yield inner
                waiting.extend(inner.called)

    def around(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the callers of an instruction, innermost first."""
        for _ in range(_DEEPEST):
            caller = self.callers.get(instruction.computation)
            if caller is None or caller is instruction:
                return
            yield caller
            instruction = caller

    def operand(self, instruction: Instruction, offset: int) -> Shape:
        """Return the shape of an operand."""
        if offset >= len(instruction.operands):
            return Shape()
        found = self.instructions.get(instruction.operands[offset])
        return found.shape if found else Shape()

    def product_flops(self, instruction: Instruction) -> int | None:
        """Return the FLOPs of a matrix product or convolution; None for other operations."""
        shape, target = instruction.shape.first, instruction.target
        contracted: Dims | None = None
        if instruction.opcode == "dot" and instruction.dot:
            contracted = instruction.dot[0]
        elif instruction.opcode == "custom-call" and ("gemm" in target or "matmul" in target):
            config = self.config_of(instruction)
            nested = config.get("gemm_backend_config", config)
            numbers = nested.get("dot_dimension_numbers") if isinstance(nested, dict) else None
            axes = numbers.get("lhs_contracting_dimensions") if isinstance(numbers, dict) else None
            if isinstance(axes, list) and all(str(axis).isdecimal() and len(str(axis)) < 4 for axis in axes):
                contracted = tuple(map(int, axes))
        if contracted is not None:
            left = self.operand(instruction, 0).first.dims
            if any(axis >= len(left) for axis in contracted):
                return None
            return min(2 * shape.elements * math.prod(left[axis] for axis in contracted), _LARGEST)
        if instruction.kernel_features is None:
            return None
        made, kernel = shape, self.operand(instruction, 1).first
        if "BackwardInput" in target:
            made = self.operand(instruction, 0).first
        elif "BackwardFilter" in target:
            made, kernel = kernel, shape
        if instruction.kernel_features >= len(kernel.dims) or not kernel.dims[instruction.kernel_features]:
            return None
        taps = kernel.elements // kernel.dims[instruction.kernel_features]
        whole = 2 * made.elements * taps // (instruction.base_dilation * instruction.batch_groups)
        return min(whole, _LARGEST)

    def config_of(self, instruction: Instruction) -> dict[str, Any]:
        """Return the backend config of an instruction."""
        offset, end = instruction.config
        try:
            found = msgspec.json.decode(self.data[offset:end])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def trips(self, loop: Instruction) -> int | None:
        """Return the trip count of a loop, if the compiler knows it."""
        known = self.config_of(loop).get("known_trip_count")
        count = str(known.get("n")) if isinstance(known, dict) else ""
        return int(count) if count.isdecimal() and len(count) < 8 and int(count) else None

    def arithmetic_flops(self, instruction: Instruction) -> int:
        """Return the FLOPs of elementwise operations: one per computed element."""
        total = 0
        for inner in self.inside(instruction):
            if inner.opcode in _ARITHMETIC:
                reduces = inner.opcode.startswith("reduce")
                total += (self.operand(inner, 0) if reduces else inner.shape).first.elements
        return min(total, _LARGEST)

    def moved_bytes(self, instruction: Instruction) -> int:
        """Return the bytes of operands and results, each once."""
        operands = (self.operand(instruction, offset).bytes for offset in range(len(instruction.operands)))
        return min(sum(operands) + instruction.shape.bytes, _LARGEST)


def _text(data: bytes, field: WireField) -> str:
    return data[field.value : min(field.after, field.value + 4000)].decode("utf-8", "replace")


def _whole(data: bytes, field: WireField) -> Dims:
    """Return the whole numbers of a field that may be packed or not."""
    if field.kind == VARINT:
        return (field.value,)
    found, offset = [], field.value
    try:
        while offset < field.after and field.kind == LENGTH:
            value, offset = varint(data, offset, field.after)
            found.append(value)
    except ValueError:
        pass
    return tuple(found)


def _read_shape(data: bytes, offset: int, end: int, depth: int = 0) -> Shape:
    kind = 0
    dims: Dims = ()
    parts: list[Shape] = []
    for field in walk(data, offset, end):
        if field.number == 2 and field.kind == VARINT:
            kind = field.value
        elif field.number == 3:
            dims = (*dims, *_whole(data, field))
        elif field.number == 4 and field.kind == LENGTH and depth < _DEEPEST:
            parts.append(_read_shape(data, field.value, field.after, depth + 1))
    return Shape(kind, tuple(min(size, _LARGEST) for size in dims), tuple(parts))


def _read_instruction(data: bytes, offset: int, end: int) -> Instruction:
    numbers: dict[int, int] = {}
    parts: dict[int, WireField] = {}
    operands: list[int] = []
    called: list[int] = []
    for field in walk(data, offset, end):
        if field.number in (36, 38):
            (operands if field.number == 36 else called).extend(_whole(data, field))
        elif field.kind == VARINT:
            numbers[field.number] = field.value
        elif field.kind == LENGTH:
            parts.setdefault(field.number, field)

    def text(number: int) -> str:
        return _text(data, parts[number]) if number in parts else ""

    def inside(number: int) -> Iterator[WireField]:
        part = parts.get(number)
        return walk(data, part.value, part.after) if part else iter(())

    config, shape = parts.get(43), parts.get(3)
    kernel = {part.number: part.value for part in inside(16) if part.kind == VARINT}
    dot: dict[int, Dims] = {}
    for part in inside(30):
        dot[part.number] = (*dot.get(part.number, ()), *_whole(data, part))
    dilation = 1  # of a convolution's input
    for window in inside(15):
        if window.number == 1 and window.kind == LENGTH:
            sizes = {
                part.number: part.value
                for part in walk(data, window.value, window.after)
                if part.kind == VARINT
            }
            dilation *= max(1, sizes.get(6, 1))
    return Instruction(
        name=text(1),
        opcode=text(2),
        shape=_read_shape(data, shape.value, shape.after) if shape else Shape(),
        path=next((_text(data, part) for part in inside(7) if (part.number, part.kind) == (2, LENGTH)), ""),
        target=text(28),
        number=numbers.get(35, 0),
        operands=tuple(operands),
        called=tuple(called),
        dot=(dot.get(1, ()), dot.get(3, ())) if 30 in parts else None,
        kernel_features=kernel.get(4, 0) if 16 in parts else None,
        base_dilation=min(dilation, 1 << 30),
        batch_groups=max(1, min(numbers.get(58, 1), 1 << 30)),
        # How many devices a group of replicas has.
        group_size=sum(len(_whole(data, part)) for part in inside(49) if part.number == 1)
        if 49 in parts
        else None,
        config=(config.value, config.after) if config else (0, 0),
    )
