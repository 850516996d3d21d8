"""What torch has no hook for: functions that are wrapped while a recorder runs, and DDP's own timers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter as LoaderIterator,
)  # every iterator derives from it

from stepgrade.record.timeline import (
    BACKWARD,
    BACKWARD_DONE,
    COMMUNICATION,
    D2H,
    H2D,
    INPUT,
    OPTIMIZER,
    Timeline,
)

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
# What DDP starts with; measuring each iteration costs a synchronisation on accelerators.
_DDP_DEFAULT_RATE = 100
_DDP_TIMES = ("backward_comm_time", "backward_compute_comm_overlap_time")
# What is wrapped, and what wraps it: it takes and returns what torch's function does.
_Function = Callable[..., Any]


class Patches:
    """Attributes that were replaced, and how to put each of them back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, object, object]] = []

    def replace(self, owner: object, name: str, make: Callable[[_Function], _Function]) -> None:
        """Replace an attribute by `make(attribute)`; where it is inherited, `undo` only deletes ours."""
        ours = make(getattr(owner, name))
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT), ours))
        setattr(owner, name, ours)

    def undo(self) -> None:
        """Put everything back, the last first; what somebody else wrapped after us stays wrapped."""
        while self._replaced:
            owner, name, own, ours = self._replaced.pop()
            if vars(owner).get(name) is not ours:
                continue  # their function calls ours, which does nothing any more
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def patch_backward(patches: Patches, timeline: Timeline) -> None:
    """Time every `loss.backward()`; one inside another (reentrant checkpointing) is part of it."""

    def make(original: _Function) -> _Function:
        def backward(*args: object, **kwargs: object) -> None:
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


def patch_input(patches: Patches, timeline: Timeline, is_watched: Callable[[LoaderIterator], bool]) -> None:
    """Time the wait for each batch of the watched DataLoaders."""

    def make(original: _Function) -> _Function:
        def __next__(self: LoaderIterator) -> object:  # noqa: N807  that is its name
            if not is_watched(self):
                return original(self)
            timeline.enter(INPUT)
            try:
                return original(self)
            finally:
                timeline.leave()

        return __next__

    patches.replace(LoaderIterator, "__next__", make)


def patch_zero_grad(patches: Patches, timeline: Timeline, owner: object) -> None:
    """Count `zero_grad` of an optimizer, or of all of them, as the optimizer's time."""
    patches.replace(owner, "zero_grad", lambda original: _timed(original, timeline, OPTIMIZER))


def patch_grad_scaler(patches: Patches, around: _Function) -> None:
    """Replace a scaler's step by `around(original, scaler, optimizer, …)`: it may skip the optimizer's."""

    def make(original: _Function) -> _Function:
        def step(self: object, optimizer: object, *args: object, **kwargs: object) -> object:
            return around(original, self, optimizer, *args, **kwargs)

        return step

    # torch 2.2 has it under cuda only
    patches.replace(getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), "step", make)


def patch_copies(patches: Patches, timeline: Timeline) -> None:
    """Time copies between host and device that the loop itself makes."""
    for name in ("to", "cuda", "cpu"):
        patches.replace(Tensor, name, lambda original: _timed_copy(original, timeline))


def patch_collectives(patches: Patches, timeline: Timeline) -> None:
    """Time the collectives that Python calls: those of FSDP and of the loop itself, not DDP's reducer."""
    if not torch.distributed.is_available():
        return
    for name in filter(partial(hasattr, torch.distributed), _COLLECTIVES):
        patches.replace(torch.distributed, name, lambda original: _timed(original, timeline, COMMUNICATION))


def _timed(original: _Function, timeline: Timeline, code: int) -> _Function:
    def timed(*args: object, **kwargs: object) -> object:
        if _is_compiling():
            return original(*args, **kwargs)
        timeline.enter(code)
        try:
            return original(*args, **kwargs)
        finally:
            timeline.leave()

    return timed


def _timed_copy(original: _Function, timeline: Timeline) -> _Function:
    def copied(self: Tensor, *args: object, **kwargs: object) -> Tensor:
        if _is_compiling() or not timeline.live:
            return original(self, *args, **kwargs)
        started = timeline.now()
        copy: Tensor = original(self, *args, **kwargs)
        if copy.device.type != self.device.type:
            timeline.span(started, H2D if self.device.type == "cpu" else D2H)
        return copy

    return copied


class DdpTimers:
    """DDP's own timers of its gradient all-reduce, which runs inside backward where no hook reaches it."""

    def __init__(self, model: Module, *, on_host: bool) -> None:
        self._model = model
        self._every = 1 if on_host else _DDP_DEFAULT_RATE
        self._asked = 0
        self._exposed_ns = 0
        model._set_ddp_runtime_logging_sample_rate(self._every)  # noqa: SLF001  the only way to set it

    def exposed_ns(self) -> int:
        """Return how long the latest measured all-reduce went on after the last gradient was computed."""
        if self._asked % self._every == 0:
            found = self._model._get_ddp_logging_data()  # noqa: SLF001
            communicated, hidden = (int(found.get(name, 0)) for name in _DDP_TIMES)
            self._exposed_ns = max(0, communicated - hidden)
        self._asked += 1
        return self._exposed_ns

    def close(self) -> None:
        """Set DDP back to measure as seldom as before."""
        self._model._set_ddp_runtime_logging_sample_rate(_DDP_DEFAULT_RATE)  # noqa: SLF001


def ddp_timers(model: Module, *, on_host: bool) -> DdpTimers | None:
    """Return the timers of a DDP model; None for any other."""
    return DdpTimers(model, on_host=on_host) if hasattr(model, "_get_ddp_logging_data") else None
