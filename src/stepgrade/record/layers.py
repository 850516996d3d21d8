"""Time blocks: forward around their calls, backward between two gradients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module

from stepgrade.record.calls import After, Around, Before, ModuleCalls
from stepgrade.record.timeline import (
    BACKWARD,
    BWD_IN,
    BWD_OUT,
    FORWARD,
    FWD_IN,
    FWD_OUT,
    RECOMPUTE_IN,
    RECOMPUTE_OUT,
    StepTimeline,
    layer_code,
)

_HOOK = -1  # torch counts its own hooks up from 0
_NOTHING = object()


class LayerHooks:
    """Times every call of the blocks; `ends_by` maps a block to the one whose backward starts where it ends.

    A block's backward lasts from the gradient of its output to that of its input. Hooks on these two tensors
    cost far less than module backward hooks and leave the graph unchanged; if the input is the output of the
    previous block, one hook serves both.
    """

    def __init__(self, timeline: StepTimeline) -> None:
        self.ends_by: dict[int, int | None] = {}
        self._timeline = timeline
        self._left: object = _NOTHING  # the last block's output, until the next block is called
        self._left_by = -1
        self._graphed: set[int] = set()

    def attach(self, calls: ModuleCalls, blocks: list[Module], first: int = 0) -> None:
        """Time the calls of the blocks, numbered from `first`."""
        for layer, block in enumerate(blocks, start=first):
            calls.watch(block, Around(self._before(layer), self._after(layer)))

    def release(self) -> None:
        """Drop the reference to the last block's output."""
        self._left = _NOTHING

    def _before(self, layer: int) -> Before:
        timeline, edges, now = self._timeline, self._timeline.edges, self._timeline.now
        forward, recompute = layer_code(layer, FWD_IN), layer_code(layer, RECOMPUTE_IN)
        ends_by, ended = self.ends_by, _GradientMark(self._marker(layer_code(layer, BWD_OUT)))

        def before(_module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            direction = timeline.direction
            if direction == FORWARD:
                if args and args[0] is self._left:  # the common case, kept short
                    ends_by[layer] = self._left_by
                else:
                    self._mark_input(layer, args or tuple(kwargs.values()), ended)
                self._left = _NOTHING
                edges.append(now())
                edges.append(forward)
            elif direction == BACKWARD:
                if layer not in self._graphed:
                    self._mark_input(layer, args or tuple(kwargs.values()), ended)
                edges.append(now())
                edges.append(recompute)

        return before

    def _after(self, layer: int) -> After:
        timeline, edges, now = self._timeline, self._timeline.edges, self._timeline.now
        forward, recompute = layer_code(layer, FWD_OUT), layer_code(layer, RECOMPUTE_OUT)
        begun = _GradientMark(self._marker(layer_code(layer, BWD_IN)))

        def after(_module: Module, _args: object, output: object) -> None:
            direction = timeline.direction
            if direction == FORWARD:
                edges.append(now())
                edges.append(forward)
                leaving = output if type(output) is Tensor else _first_tensor(output)
                if begun.put_on(leaving):
                    self._graphed.add(layer)
                    self._left, self._left_by = leaving, layer
                else:
                    self._graphed.discard(layer)
            elif direction == BACKWARD:
                edges.append(now())
                edges.append(recompute)
                if layer not in self._graphed:  # reentrant checkpoints build their graph only now
                    begun.put_on(_first_tensor(output))

        return after

    def _mark_input(self, layer: int, values: tuple[object, ...], ended: _GradientMark) -> None:
        """Mark the end of this layer's backward at its input's gradient, if it will have one."""
        entering = _first_tensor(values)
        if entering is not None and entering is self._left:
            self.ends_by[layer] = self._left_by
            return
        self.ends_by[layer] = None
        if entering is None or not entering.requires_grad:
            return
        if not ended.put_on(entering) and self._timeline.direction == BACKWARD:
            entering.register_hook(ended.mark)  # a leaf, but a temporary copy: others keep their hooks

    def _marker(self, code: int) -> Callable[[Tensor], None]:
        timeline, edges, now = self._timeline, self._timeline.edges, self._timeline.now

        def mark(_gradient: Tensor) -> None:
            if timeline.direction == BACKWARD:
                edges.append(now())
                edges.append(code)

        return mark


class _GradientMark:
    """Calls `mark` when the gradient of a tensor is ready, by a hook on its node in the graph.

    A hook on the tensor itself would make saving it warn, and change the gradient that the script's own hooks
    see after an in-place operation.
    """

    def __init__(self, mark: Callable[[Tensor], None]) -> None:
        self.mark = mark
        self._carrier = torch.empty(0)  # torch reads hooks from a tensor
        self._carrier._backward_hooks = OrderedDict(((_HOOK, mark),))  # as torch does

    def put_on(self, tensor: Tensor | None) -> bool:
        """Mark this tensor's gradient; return whether it will have one."""
        node = None if tensor is None else tensor.grad_fn
        if tensor is None or node is None:
            return False
        if tensor.output_nr == 0 and hasattr(node, "_register_hook_dict"):
            node._register_hook_dict(self._carrier)  # much faster than `register_hook`
        else:
            node.register_prehook(lambda gradients: self.mark(gradients[0]))
        return True


def _first_tensor(value: object) -> Tensor | None:
    """Return the first floating-point tensor in a tensor, sequence or mapping, not nested deeper."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, tuple | list):
        for item in value:
            if isinstance(item, Tensor) and item.is_floating_point():
                return item
        return None
    return _first_tensor(tuple(value.values())) if hasattr(value, "values") else None
