"""Detect steps from weight updates when no optimizer is used."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

_WEIGHTS = 4  # to look at, the smallest ones: biases and norms, which every step changes
_ELEMENTS = 1024  # per weight
_is_transforming = torch._C._functorch.peek_interpreter_stack  # no public API


class _Seen(NamedTuple):
    """A weight, and some of its elements after a backward pass."""

    weight: weakref.ref[Parameter]
    elements: Tensor


class OwnUpdates:
    """Detects whether the weights were updated since the last backward pass.

    Unchanged weights with gradients mean accumulation. Weights on a device are not read, as the training
    would wait: there each backward pass counts as a step, as does each of `torch.func.grad`, whose weights
    belong to no model. For an optimizer whose steps are not seen, inside torch.compile, torch's own count of
    changes of each weight is used.
    """

    def __init__(self) -> None:
        self.is_possible = False  # without an optimizer, or if its steps are not seen
        self.is_certain = True  # all steps were detected from readable weights
        self.passes = 0  # since the last step ended
        self._seen: list[_Seen] = []
        self._optimizer: weakref.ref[Optimizer] | None = None  # whose steps have not been seen yet
        self._changes: list[int] = []
        self._has_changed = False

    def leave_to(self, optimizer: Optimizer) -> None:
        """Stop detecting steps, unless this optimizer's steps are never seen."""
        self.is_possible = False
        self._optimizer, self._changes = weakref.ref(optimizer), []

    def see_step(self) -> None:
        """Stop detecting steps: an optimizer ends them."""
        self.is_possible, self._optimizer = False, None

    @property
    def has_optimizer(self) -> bool:
        """Return whether there is an optimizer whose steps have not been seen."""
        return self._optimizer is not None

    def look(self, models: Iterable[Module]) -> None:
        """Sample the weights after a backward pass, those with gradients first."""
        self.passes += 1
        if self._optimizer is not None:
            before, self._changes = self._changes, self._count_changes()
            self._has_changed |= len(before) == len(self._changes) > 0 and before != self._changes
            self.is_possible |= self._has_changed
        elif not self.is_possible or _is_transforming() is not None:
            self._seen = []
        elif not self._seen or any(seen.weight() is None for seen in self._seen):
            found = {id(weight): weight for model in models for weight in model.parameters()}
            readable = [
                weight
                for weight in found.values()
                if weight.requires_grad
                and weight.device.type == "cpu"
                and weight.layout is torch.strided
                and type(weight.data) is Tensor
            ]
            chosen = sorted(readable, key=lambda weight: (weight.grad is None, weight.numel()))[:_WEIGHTS]
            self._seen = [_Seen(weakref.ref(weight), _some_of(weight).clone()) for weight in chosen]
        else:
            for seen in self._seen:
                weight = seen.weight()
                if weight is not None:
                    seen.elements.copy_(_some_of(weight))

    def _count_changes(self) -> list[int]:
        optimizer = None if self._optimizer is None else self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return [weight._version for group in groups for weight in group["params"]]  # no public API

    def is_step_over(self) -> bool:
        """Return whether weights changed, or gradients were reset, since the last sample."""
        if self._optimizer is not None:
            return self._has_changed or self._count_changes() != self._changes
        weights = [(weight, seen.elements) for seen in self._seen if (weight := seen.weight()) is not None]
        if not weights or _is_transforming() is not None:
            self.is_certain = False
            return True
        return any(not torch.equal(_some_of(weight), before) for weight, before in weights) or not any(
            weight.grad is not None and bool(_some_of(weight.grad).any()) for weight, _ in weights
        )

    def begin_step(self) -> None:
        """Reset the count of backward passes."""
        self.passes, self._has_changed = 0, False
        self._changes = self._count_changes()


def _some_of(weight: Tensor) -> Tensor:
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)]
