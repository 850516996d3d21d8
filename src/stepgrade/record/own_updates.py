"""Steps of loops that update their weights themselves: told by the weights, for no optimizer tells them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter

_WEIGHTS = 4  # that are looked at, the smallest ones: biases and norms, which every step changes
_ELEMENTS = 1024  # of each of them


class _Seen(NamedTuple):
    """A weight, and some of its elements after a backward pass."""

    weight: weakref.ref[Parameter]
    elements: Tensor


class OwnUpdates:
    """Tells whether the weights were updated since the last backward pass.

    Where they did not change although there are gradients, more of these are being accumulated. What a device
    holds is not read, for the training would wait: each of its backward passes is taken for a step.
    """

    def __init__(self) -> None:
        self.is_possible = False  # until there is an optimizer
        self.is_certain = True  # every step was told by weights that could be read
        self.passes = 0  # since the last step ended
        self._seen: list[_Seen] = []

    def remember(self, models: Iterable[Module]) -> None:
        """Look at the weights after a backward pass, at those first that it gave gradients."""
        self.passes += 1
        if not self._seen or any(seen.weight() is None for seen in self._seen):
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
            return
        for seen in self._seen:
            weight = seen.weight()
            if weight is not None:
                seen.elements.copy_(_some_of(weight))

    def is_step_over(self) -> bool:
        """Tell whether the weights have changed, or their gradients were reset, since the last look."""
        weights = [(weight, seen.elements) for seen in self._seen if (weight := seen.weight()) is not None]
        if not weights:
            self.is_certain = False
            return True
        return any(not torch.equal(_some_of(weight), before) for weight, before in weights) or not any(
            weight.grad is not None and bool(_some_of(weight.grad).any()) for weight, _ in weights
        )

    def begin_step(self) -> None:
        """Count backward passes anew."""
        self.passes = 0


def _some_of(weight: Tensor) -> Tensor:
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)]
