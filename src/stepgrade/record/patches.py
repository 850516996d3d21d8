"""Functions that are wrapped while a recorder runs, where torch has no hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from itertools import pairwise
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stepgrade.record.timeline import (
    BACKWARD,
    BACKWARD_DONE,
    D2H,
    H2D,
    INPUT,
    StepTimeline,
)

_is_compiling = torch.compiler.is_compiling
_ABSENT = object()
_OUR_FOLDER = __file__.rpartition("patches")[0]
_our_code: set[CodeType] = set()


class Patches:
    """Replaced functions of torch, and how to restore them."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, object, object]] = []

    def wrap(self, owner: object, name: str, around: Callable[..., object]) -> None:
        """Replace a function by `around(original, *arguments)`."""
        original = getattr(owner, name)

        def ours(*args: object, **kwargs: object) -> object:
            if _is_compiling():
                return original(*args, **kwargs)
            try:
                return around(original, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error.__traceback__)
                raise  # adds no frame

        self.replace(owner, name, ours)

    def time(
        self,
        owner: object,
        name: str,
        timeline: StepTimeline,
        code: int,
        applies: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """Count the calls of a function as a phase, where that applies to its first argument."""

        def timed(original: Callable[..., object], /, *args: object, **kwargs: object) -> object:
            if not applies(args[0] if args else None):
                return original(*args, **kwargs)
            timeline.enter(code)
            try:
                return original(*args, **kwargs)
            finally:
                timeline.leave()

        self.wrap(owner, name, timed)

    def replace(self, owner: object, name: str, function: Callable[..., object]) -> None:
        """Replace a function; if the original is inherited, `undo` deletes the replacement."""
        ours = _disguised(function, getattr(owner, name), owner)
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT), ours))
        setattr(owner, name, ours)

    def undo(self) -> None:
        """Restore everything, last first; what others wrapped afterwards stays wrapped."""
        while self._replaced:
            owner, name, own, ours = self._replaced.pop()
            if vars(owner).get(name) is not ours:
                continue  # their wrapper calls ours, which does nothing now
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def is_ours(code: CodeType) -> bool:
    """Return whether a frame with this code belongs to the recorder."""
    return code in _our_code or code.co_filename.startswith(_OUR_FOLDER)


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of the recorder."""
    kept = []
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code):
            kept.append(trace)
        trace = trace.tb_next
    for before, after in pairwise([*kept, None]):
        before.tb_next = after  # type: ignore[union-attr]  # only the last is None
    return kept[0] if kept else None


def _disguised(
    function: Callable[..., object], original: Callable[..., object], owner: object
) -> Callable[..., object]:
    """Return the function with the name, file and line of the one it replaces.

    torch.compile decides by the file what to trace, pickle uses the name, and tracebacks show the line.
    """
    if isinstance(original, FunctionType) and isinstance(function, FunctionType):
        theirs, code = original.__code__, function.__code__
        units = len(code.co_code) // 2
        # One entry for every eight instructions or less, each at the first line and in no column.
        lines = b"".join(
            bytes([0x80 | 13 << 3 | min(8, units - start) - 1, 0]) for start in range(0, units, 8)
        )
        code = code.replace(
            co_filename=theirs.co_filename,
            co_firstlineno=theirs.co_firstlineno,
            co_name=theirs.co_name,
            co_qualname=theirs.co_qualname,
            co_linetable=lines,
        )
        _our_code.add(code)
        ours = FunctionType(
            code, function.__globals__, original.__name__, function.__defaults__, function.__closure__
        )
        ours.__kwdefaults__ = function.__kwdefaults__
        function = ours
    update_wrapper(function, original)
    if isinstance(owner, ModuleType):
        function.__module__ = owner.__name__  # where pickle finds it
    return function


def patch_backward(patches: Patches, name: str, timeline: StepTimeline, on_done: Callable[[], None]) -> None:
    """Time backward passes; one inside another (reentrant checkpointing) is part of it."""

    def timed(original: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        if not timeline.live or timeline.direction == BACKWARD:
            return original(*args, **kwargs)
        timeline.enter(BACKWARD)
        try:
            return original(*args, **kwargs)
        finally:
            timeline.mark(BACKWARD_DONE)
            timeline.leave()
            on_done()

    patches.wrap(torch.autograd, name, timed)


def patch_until_optimizer(
    patches: Patches,
    timeline: StepTimeline,
    on_optimizer: Callable[[Optimizer], None],
    on_done: Callable[[], None],
) -> None:
    """Count `torch.autograd.grad` as backward until there is an optimizer; loops without one use it."""

    def seen(
        original: Callable[..., object], optimizer: Optimizer, /, *args: object, **kwargs: object
    ) -> object:
        on_optimizer(optimizer)
        return original(optimizer, *args, **kwargs)

    patch_backward(patches, "grad", timeline, on_done)
    patches.wrap(Optimizer, "add_param_group", seen)


def patch_input(
    patches: Patches,
    timeline: StepTimeline,
    is_watched: Callable[[_BaseDataLoaderIter], bool],
    *,
    before: Callable[[], None],
    on_batch: Callable[[object], None],
) -> None:
    """Time the wait for each batch of the watched DataLoaders, and pass it to `on_batch`."""

    def timed(original: Callable[..., object], iterator: _BaseDataLoaderIter) -> object:
        if not is_watched(iterator):
            return original(iterator)
        before()
        timeline.enter(INPUT)
        try:
            batch = original(iterator)
        finally:
            timeline.leave()
        on_batch(batch)
        return batch

    patches.wrap(_BaseDataLoaderIter, "__next__", timed)  # base class of all iterators


def patch_copies(patches: Patches, timeline: StepTimeline) -> None:
    """Time copies between host and device made by the loop itself."""

    def timed(original: Callable[..., Tensor], tensor: Tensor, /, *args: object, **kwargs: object) -> Tensor:
        if not timeline.live:
            return original(tensor, *args, **kwargs)
        started = timeline.now()
        copy = original(tensor, *args, **kwargs)
        if copy.device.type != tensor.device.type:
            timeline.span(started, H2D if tensor.device.type == "cpu" else D2H)
        return copy

    for name in ("to", "cuda", "cpu"):
        patches.wrap(Tensor, name, timed)
