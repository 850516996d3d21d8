"""What torch has no hook for: functions that are wrapped while a recorder runs and put back after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch.utils.data import dataloader as loaders

from stepgrade.record.codes import BACKWARD, BACKWARD_DONE, COMMUNICATION, D2H, H2D, INPUT, OPTIMIZER
from stepgrade.record.timeline import Timeline

_is_compiling = torch.compiler.is_compiling
_COLLECTIVES = (  # torch has renamed some of them; those that it has are timed
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
)
_ABSENT = object()


class Patches:
    """Attributes that were replaced, and how to put each of them back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(what is there)` in its place; inherited attributes are uncovered again by `undo`."""
        ours = make(getattr(owner, name))
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT), ours))
        setattr(owner, name, ours)

    def undo(self) -> None:
        """Put everything back, the last first; what somebody wrapped after us is left to them."""
        while self._replaced:
            owner, name, own, ours = self._replaced.pop()
            if vars(owner).get(name) is not ours:
                continue  # theirs calls ours, which does nothing any more
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def patch_backward(patches: Patches, timeline: Timeline) -> None:
    """Time every `loss.backward()`; one inside another (reentrant checkpointing) is part of it."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def backward(*args: Any, **kwargs: Any) -> None:
            if _is_compiling() or not timeline.live or timeline.direction == BACKWARD:
                original(*args, **kwargs)
                return
            timeline.enter(BACKWARD)
            try:
                original(*args, **kwargs)
            finally:
                timeline.mark(BACKWARD_DONE)
                timeline.leave()

        return backward

    patches.replace(torch.autograd, "backward", make)


def patch_input(patches: Patches, timeline: Timeline, is_watched: Callable[[Any], bool]) -> None:
    """Time the wait for each batch of the watched DataLoaders."""

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __next__(self: Any) -> Any:  # noqa: N807  that is its name
            if not is_watched(self):
                return original(self)
            timeline.enter(INPUT)
            try:
                return original(self)
            finally:
                timeline.leave()

        return __next__

    patches.replace(loaders._BaseDataLoaderIter, "__next__", make)  # noqa: SLF001  every iterator derives from it


def patch_zero_grad(patches: Patches, timeline: Timeline, owner: Any) -> None:
    """Count `zero_grad` of an optimizer, or of all of them, as the optimizer's time."""
    patches.replace(owner, "zero_grad", lambda original: _timed(original, timeline, OPTIMIZER))


def patch_grad_scaler(patches: Patches, around: Callable[..., Any]) -> None:
    """Let `around(original, scaler, optimizer, …)` stand for a scaler's step, which may skip its own."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return around(original, self, optimizer, *args, **kwargs)

        return step

    # torch 2.2 has it under cuda only
    patches.replace(getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), "step", make)


def patch_copies(patches: Patches, timeline: Timeline) -> None:
    """Time copies between host and device that the loop itself makes."""
    for name in ("to", "cuda", "cpu"):
        patches.replace(torch.Tensor, name, lambda original: _timed_copy(original, timeline))


def patch_collectives(patches: Patches, timeline: Timeline) -> None:
    """Time the collectives that Python calls: those of FSDP and of the loop itself, not DDP's reducer."""
    if not torch.distributed.is_available():
        return
    for name in filter(partial(hasattr, torch.distributed), _COLLECTIVES):
        patches.replace(torch.distributed, name, lambda original: _timed(original, timeline, COMMUNICATION))


def _timed(original: Callable[..., Any], timeline: Timeline, code: int) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(*args, **kwargs)
        timeline.enter(code)
        try:
            return original(*args, **kwargs)
        finally:
            timeline.leave()

    return timed


def _timed_copy(original: Callable[..., Any], timeline: Timeline) -> Callable[..., Any]:
    def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or not timeline.live:
            return original(self, *args, **kwargs)
        started = timeline.now()
        copy = original(self, *args, **kwargs)
        if copy.device.type != self.device.type:
            timeline.span(started, H2D if self.device.type == "cpu" else D2H)
        return copy

    return copied
