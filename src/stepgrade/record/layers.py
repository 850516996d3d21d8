"""Hooks on modules, and the times of blocks: forward between two hooks, backward between two gradients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from stepgrade.record.timeline import (
    BACKWARD,
    BWD_IN,
    BWD_OUT,
    FORWARD,
    FWD_IN,
    FWD_OUT,
    PARAMETER,
    RECOMPUTE_IN,
    RECOMPUTE_OUT,
    StepTimeline,
    layer_code,
)

Before = Callable[[Module, tuple[object, ...], dict[str, object]], None]
After = Callable[[Module, object, object], None]

_HOOK = -1  # torch counts its own hooks up from 0
_NOTHING = object()
_is_compiling = torch.compiler.is_compiling


def around_calls(module: Module, before: Before, after: After) -> list[Callable[[], None]]:
    """Run `before` and `after` around the module's calls, failing ones too; return what undoes it."""
    compiled = getattr(module, "_compiled_call_impl", None)
    if compiled is None:
        return [
            module.register_forward_pre_hook(before, with_kwargs=True).remove,
            module.register_forward_hook(after, always_call=True).remove,
        ]

    # Stay outside the graph that `module.compile()` made: hooks would be traced into it.
    def call(*args: object, **kwargs: object) -> object:
        before(module, args, kwargs)
        output = None
        try:
            output = compiled(*args, **kwargs)
        finally:
            after(module, args, output)
        return output

    module._compiled_call_impl = call  # noqa: SLF001  where torch keeps it
    return [lambda: setattr(module, "_compiled_call_impl", compiled)]


class LayerHooks:
    """Times every call of the blocks; `ends_by` says whose backward begins where another's ends.

    A block's backward begins when the gradient of its output is there and ends when that of its input
    is: hooks on these two tensors cost far less than module backward hooks, and change no graph. Where the
    input is the output of the block before, one hook serves both.
    """

    def __init__(self, timeline: StepTimeline) -> None:
        self.ends_by: dict[int, int | None] = {}
        self._timeline = timeline
        self._left: object = _NOTHING  # what the last block gave, until the next one is called
        self._left_by = -1
        self._graphed: set[int] = set()
        self._by_parameters: set[int] = set()
        self._undo: list[Callable[[], None]] = []

    def attach(self, blocks: list[Module], first: int = 0) -> None:
        """Put hooks on the blocks, numbered from `first`."""
        for layer, block in enumerate(blocks, start=first):
            self._undo += around_calls(block, self._before(layer), self._after(layer))

    def detach(self) -> None:
        """Take every hook off again."""
        while self._undo:
            self._undo.pop()()
        self.release()

    def release(self) -> None:
        """Drop the reference to the last block's output."""
        self._left = _NOTHING

    def _before(self, layer: int) -> Before:
        timeline, edges, now = self._timeline, self._timeline.edges, self._timeline.now
        forward, recompute = layer_code(layer, FWD_IN), layer_code(layer, RECOMPUTE_IN)
        ends_by, ended = self.ends_by, self._marker(layer_code(layer, BWD_OUT))

        def before(module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if _is_compiling():
                return  # inside a compiled graph there is nothing to time, and this leaves no trace in it
            direction = timeline.direction
            if direction == FORWARD:
                if args and args[0] is self._left:  # the usual way, so it has to be short
                    ends_by[layer] = self._left_by
                elif not self._mark_input(layer, args or tuple(kwargs.values()), ended):
                    self._mark_parameters(layer, module)
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
        begun = self._marker(layer_code(layer, BWD_IN))

        def after(_module: Module, _args: object, output: object) -> None:
            if _is_compiling():
                return
            direction = timeline.direction
            if direction == FORWARD:
                edges.append(now())
                edges.append(forward)
                leaving = output if type(output) is Tensor else _first_tensor(output)
                if _mark_gradient(leaving, begun):
                    self._graphed.add(layer)
                    self._left, self._left_by = leaving, layer
                else:
                    self._graphed.discard(layer)
            elif direction == BACKWARD:
                edges.append(now())
                edges.append(recompute)
                if layer not in self._graphed:  # checkpoints of the reentrant kind make their graph only now
                    _mark_gradient(_first_tensor(output), begun)

        return after

    def _mark_input(self, layer: int, values: tuple[object, ...], ended: Callable[[Tensor], None]) -> bool:
        """Mark the end of this layer's backward at its input's gradient; return whether it has one."""
        entering = _first_tensor(values)
        if entering is not None and entering is self._left:
            self.ends_by[layer] = self._left_by
            return True
        self.ends_by[layer] = None
        if entering is None or not entering.requires_grad:
            return False
        if entering.grad_fn is not None:
            _mark_gradient(entering, ended)
        elif self._timeline.direction == BACKWARD:
            entering.register_hook(ended)  # a leaf, but a copy that goes away: others keep their hooks
        return True

    def _mark_parameters(self, layer: int, module: Module) -> None:
        """Mark the gradients of the layer's parameters: its input has none, so the last of them ends it.

        The end of the whole pass would include the gradients' all-reduce. Sharded ones are left alone.
        """
        if layer in self._by_parameters:
            return
        self._by_parameters.add(layer)
        mark = self._marker(layer_code(layer, PARAMETER))
        for parameter in module.parameters():
            if type(parameter) is Parameter and parameter.requires_grad and parameter.is_leaf:
                self._undo.append(parameter.register_post_accumulate_grad_hook(mark).remove)

    def _marker(self, code: int) -> Callable[[Tensor], None]:
        timeline, edges, now = self._timeline, self._timeline.edges, self._timeline.now

        def mark(_gradient: Tensor) -> None:
            if timeline.direction == BACKWARD:
                edges.append(now())
                edges.append(code)

        return mark


def _mark_gradient(tensor: Tensor | None, mark: Callable[[Tensor], None]) -> bool:
    """Call `mark` when the tensor's gradient is there; return whether it will have one.

    This is `register_hook` without its handle, in a fraction of its time, unless the tensor has hooks.
    """
    node = None if tensor is None else tensor.grad_fn
    if tensor is None or node is None:
        return False
    if tensor._backward_hooks is None and hasattr(node, "_register_hook_dict"):  # noqa: SLF001  as torch does
        tensor._backward_hooks = OrderedDict(((_HOOK, mark),))  # noqa: SLF001
        node._register_hook_dict(tensor)  # noqa: SLF001
    else:
        tensor.register_hook(mark)
    return True


def _first_tensor(value: object) -> Tensor | None:
    """Return the first floating-point tensor in a tensor, a sequence or a map; not any deeper."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, tuple | list):
        for item in value:
            if isinstance(item, Tensor) and item.is_floating_point():
                return item
        return None
    return _first_tensor(tuple(value.values())) if hasattr(value, "values") else None
