"""Layers and modules in one step: those of a profile in its mean step, those of a card in the typical one."""

from __future__ import annotations

from msgspec import Struct


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
