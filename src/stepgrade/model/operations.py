"""The operations of a step with their shapes and kernels, and its layers and modules.

A profile has them for the mean step; scoring scales them to the typical step and adds shares and roofs.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct, field, structs

PRODUCTS = ("gemm", "convolution", "attention")  # the kinds of operations that arithmetic may limit
_SUMS = ("ms", "calls", "flops", "bytes", "flops_least", "flops_most")


class Span(Struct, frozen=True, kw_only=True):
    """A stretch of time in a trace, by the clock of that file; `file` is its index in `Source.files`."""

    file: int
    start_ns: int
    dur_ns: int


class ShapeRow(Struct, frozen=True, kw_only=True):
    """The calls of an operation whose inputs have one shape; FLOPs and bytes are of all of them."""

    shape: str | None  # None: not recorded, or the sum of the rows that are too many to list
    ms: float
    calls: float
    flops: float | None = None
    bytes: float | None = None
    at_most: bool = False  # a bound: how much of a tensor is used, or how a product was made, is not known
    flops_least: float | None = None  # bounds, where the FLOPs are not known
    flops_most: float | None = None
    roof: str | None = None
    roof_share: float | None = None


class KernelRow(Struct, frozen=True, kw_only=True):
    """One kernel under an operation; figures of its launches are means, weighted by time."""

    name: str
    ms: float
    calls: float
    occupancy: float | None = None  # share of the warps that a multiprocessor can hold
    blocks_per_sm: float | None = None
    registers: float | None = None  # of a thread
    tensor_cores: bool | None = None  # of matrix products; None where the name does not say


_Row = TypeVar("_Row", bound=Struct)


class Operation(Struct, frozen=True, kw_only=True):
    """One operation of a step; FLOPs and bytes are of the calls whose own are known.

    How long a call takes, its rates and its share of the roof do not depend on the step: they are means over
    all calls. Calls, FLOPs and bytes are means per step.
    """

    name: str
    kind: str | None = field(name="class", default=None)
    ms: float | None = None
    share: float | None = None
    calls: float | None = None
    flops: float | None = None
    bytes: float | None = None
    known_share: float | None = None  # of its time, how much has FLOPs or bytes; None: all or nothing
    roof_share: float | None = None  # of what the device allows for its FLOPs and bytes
    roof: str | None = None  # compute or memory, whichever is lower
    mean_ms: float | None = None  # of a call
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    longest: Span | None = None  # where its longest call is
    where: str | None = None  # "file.py:line" of the user's code that most of its time comes from
    module: str | None = None  # the kinds of the modules around that: GPT.Block.Attention
    samples_ms: tuple[float, ...] = ()
    shapes: tuple[
        ShapeRow, ...
    ] = ()  # longest first, where inputs were recorded: they add up to the operation
    kernels: tuple[KernelRow, ...] = ()  # the longest
    dtype: str | None = None

    @property
    def rows(self) -> tuple[ShapeRow, ...]:
        """Return its calls by shape; where no shapes are known, those with known work and the others."""
        if self.shapes:
            return self.shapes
        known, ms, calls = (
            1.0 if self.known_share is None else self.known_share,
            self.ms or 0.0,
            self.calls or 0.0,
        )
        row = ShapeRow(shape=None, ms=ms * known, calls=calls * known, flops=self.flops, bytes=self.bytes)
        if known >= 1.0:
            return (row,)
        rest = ShapeRow(shape=None, ms=ms * (1.0 - known), calls=calls * (1.0 - known))
        return (row, rest) if known > 0.0 else (rest,)

    def with_rows(self, rows: tuple[ShapeRow, ...]) -> Operation:
        """Return the operation with these rows, and what is known of them together."""
        flops = [row.flops for row in rows if row.flops is not None]
        moved = [row.bytes for row in rows if row.bytes is not None]
        # Of what no product is, FLOPs alone say nothing: memory limits it.
        is_product = self.kind in PRODUCTS
        known_ms = sum(row.ms for row in rows if row.bytes is not None or (is_product and row.flops))
        return structs.replace(
            self,
            shapes=rows if any(row.shape for row in rows) else (),
            flops=sum(flops) if flops else None,
            bytes=sum(moved) if moved else None,
            known_share=min(1.0, known_ms / self.ms) if self.ms else None,
        )

    def per_step(self, steps: float) -> Operation:
        """Return the operation of one step, where this one is that of so many."""
        return structs.replace(
            _divided(self, steps),
            shapes=tuple(_divided(row, steps) for row in self.shapes),
            kernels=tuple(_divided(row, steps) for row in self.kernels),
        )


def _divided(row: _Row, steps: float) -> _Row:
    sums = {name: getattr(row, name, None) for name in _SUMS}
    return structs.replace(row, **{name: value / steps for name, value in sums.items() if value is not None})


class LayerStep(Struct, frozen=True, kw_only=True):
    """One layer of the model."""

    layer: int
    name: str | None = None
    fwd_ms: float | None = None
    bwd_ms: float | None = None
    recompute_ms: float | None = None
    ops: dict[str, float] = {}  # in ms
    ratio: float | None = None  # backward over forward
    top_op: str | None = None
    top_op_share: float | None = None
    slow: tuple[str, ...] = ()  # forward, backward: where it takes clearly longer than the other layers
    fwd_samples_ms: tuple[float, ...] = ()  # one for each steady step, where the source has them
    bwd_samples_ms: tuple[float, ...] = ()


class ModuleStep(Struct, frozen=True, kw_only=True):
    """One module of the model with all that is in it; `parent` is the index of the module around it."""

    name: str
    parent: int | None = None
    fwd_ms: float = 0.0
    bwd_ms: float = 0.0
    recompute_ms: float = 0.0
    share: float = 0.0  # of the step, once that is scored
    memory_bytes: float | None = None  # that its forward pass leaves allocated
    ops: dict[str, float] = {}  # of what it does itself, not the modules in it, in ms
    kernels: dict[str, dict[str, float]] = {}  # of each of these operations, on a device, in ms
