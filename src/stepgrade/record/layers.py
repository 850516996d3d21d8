"""Hooks on the blocks: forward between two module hooks, backward between the gradients of its ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepgrade.record.calls import around_calls
from stepgrade.record.codes import (
    AGAIN_IN,
    AGAIN_OUT,
    BACKWARD,
    BWD_IN,
    BWD_OUT,
    FORWARD,
    FWD_IN,
    FWD_OUT,
    layer_code,
)
from stepgrade.record.timeline import Timeline

_is_compiling = torch.compiler.is_compiling


class LayerHooks:
    """Times every call of the blocks; `ends_by` says whose backward begins where another's ends.

    A block's backward begins when the gradient of its output is there and ends when that of its input
    is: hooks on these two tensors cost a tenth of module backward hooks, and change no graph. Where the
    input is the output of the block before, one hook serves both.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.ends_by: dict[int, int | None] = {}
        self._timeline = timeline
        self._last: tuple[int, Tensor] | None = None
        self._graphed: set[int] = set()
        self._undo: list[Callable[[], None]] = []

    def attach(self, blocks: list[Any], first: int = 0) -> None:
        """Put hooks on the blocks, numbered from `first`."""
        for layer, block in enumerate(blocks, start=first):
            self._undo.append(around_calls(block, self._before(layer), self._after(layer)))

    def detach(self) -> None:
        """Take every hook off again."""
        while self._undo:
            self._undo.pop()()
        self.release()

    def release(self) -> None:
        """Hold on to no tensor of the model."""
        self._last = None

    def _before(self, layer: int) -> Callable[..., None]:
        timeline, edges, now = self._timeline, self._timeline.edges, self._timeline.now
        forward, again = layer_code(layer, FWD_IN), layer_code(layer, AGAIN_IN)

        def before(_module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if _is_compiling():
                return  # inside a compiled graph there is nothing to time, and this leaves no trace in it
            direction = timeline.direction
            if direction == FORWARD:
                self._follow_input(layer, args, kwargs)
                edges.append(now())
                edges.append(forward)
            elif direction == BACKWARD:
                if layer not in self._graphed:
                    self._follow_input(layer, args, kwargs)
                edges.append(now())
                edges.append(again)

        return before

    def _after(self, layer: int) -> Callable[..., None]:
        timeline, edges, now = self._timeline, self._timeline.edges, self._timeline.now
        forward, again = layer_code(layer, FWD_OUT), layer_code(layer, AGAIN_OUT)
        begun = self._marker(layer_code(layer, BWD_IN))

        def after(_module: object, _args: object, output: object) -> None:
            if _is_compiling():
                return
            direction = timeline.direction
            if direction == FORWARD:
                edges.append(now())
                edges.append(forward)
                self._follow_output(layer, output, begun)
            elif direction == BACKWARD:
                edges.append(now())
                edges.append(again)
                if layer not in self._graphed:  # checkpoints of the reentrant kind make their graph only now
                    self._follow_later(output, begun)

        return after

    def _follow_input(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let the end of this layer's backward be marked when the gradient of its input is there."""
        last, self._last = self._last, None
        entering = _first_tensor(args) if args else _first_tensor(tuple(kwargs.values()))
        if last is not None and entering is last[1]:
            self.ends_by[layer] = last[0]
            return
        self.ends_by[layer] = None
        inner = self._timeline.direction == BACKWARD  # there even a leaf is a copy that goes away
        if entering is not None and entering.requires_grad and (inner or entering.grad_fn is not None):
            entering.register_hook(self._marker(layer_code(layer, BWD_OUT)))

    def _follow_output(self, layer: int, output: object, begun: Callable[[Tensor], None]) -> None:
        leaving = _first_tensor(output)
        if leaving is None or leaving.grad_fn is None:
            self._graphed.discard(layer)
            return
        self._graphed.add(layer)
        leaving.register_hook(begun)
        self._last = (layer, leaving)

    def _follow_later(self, output: object, begun: Callable[[Tensor], None]) -> None:
        leaving = _first_tensor(output)
        if leaving is not None and leaving.grad_fn is not None:
            leaving.register_hook(begun)

    def _marker(self, code: int) -> Callable[[Tensor], None]:
        timeline, edges, now = self._timeline, self._timeline.edges, self._timeline.now

        def mark(_gradient: Tensor) -> None:
            if timeline.direction == BACKWARD:
                edges.append(now())
                edges.append(code)

        return mark


def _first_tensor(value: object) -> Tensor | None:
    """Return the first floating-point tensor in a tensor, a sequence or a map; not any deeper."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, tuple | list):
        return next((item for item in value if isinstance(item, Tensor) and item.is_floating_point()), None)
    return _first_tensor(tuple(value.values())) if hasattr(value, "values") else None
