"""Functions that are wrapped while a recorder runs, where torch has no hooks, and DDP's timers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial, update_wrapper
from types import CodeType, FunctionType, ModuleType, TracebackType

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stepgrade.record.timeline import (
    BACKWARD,
    BACKWARD_DONE,
    COMMUNICATION,
    D2H,
    H2D,
    INPUT,
    OPTIMIZER,
    StepTimeline,
)

_is_compiling = torch.compiler.is_compiling
_COLLECTIVES = (  # some were renamed; those that exist are timed
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
_OUR_FOLDER = __file__.rpartition("patches")[0]
_our_code: set[CodeType] = set()
# DDP's default; measuring each iteration costs a synchronisation on accelerators.
_DDP_DEFAULT_RATE = 100
_DDP_TIMES = ("backward_comm_time", "backward_compute_comm_overlap_time")


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
    for before, after in zip(kept, [*kept[1:], None], strict=True):
        before.tb_next = after
    return kept[0] if kept else None


def _disguised(
    function: Callable[..., object], original: Callable[..., object], owner: object
) -> Callable[..., object]:
    """Return the function with the name, file and line of the one it replaces.

    torch.compile goes by the file to decide what it looks into, pickle by the name, and a traceback that the
    script prints shows the line.
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


def patch_backward(patches: Patches, timeline: StepTimeline, on_done: Callable[[], None]) -> None:
    """Time every `loss.backward()`; one inside another (reentrant checkpointing) is part of it."""
    patches.wrap(torch.autograd, "backward", partial(_backward, timeline, on_done))


def _backward(
    timeline: StepTimeline,
    on_done: Callable[[], None],
    original: Callable[..., object],
    /,
    *args: object,
    **kwargs: object,
) -> object:
    if not timeline.live or timeline.direction == BACKWARD:
        return original(*args, **kwargs)
    timeline.enter(BACKWARD)
    try:
        return original(*args, **kwargs)
    finally:
        timeline.mark(BACKWARD_DONE)
        timeline.leave()
        on_done()


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

    patches.wrap(torch.autograd, "grad", partial(_backward, timeline, on_done))
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


def patch_zero_grad(
    patches: Patches, timeline: StepTimeline, is_watched: Callable[[Optimizer], bool]
) -> None:
    """Count `zero_grad` of the watched optimizers as optimizer time."""

    def timed(
        original: Callable[..., object], optimizer: Optimizer, /, *args: object, **kwargs: object
    ) -> object:
        if not is_watched(optimizer):
            return original(optimizer, *args, **kwargs)
        return _timed(timeline, OPTIMIZER, original, optimizer, *args, **kwargs)

    patches.wrap(Optimizer, "zero_grad", timed)


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


def patch_collectives(patches: Patches, timeline: StepTimeline) -> None:
    """Time collectives called from Python: FSDP's and the loop's own, not DDP's reducer."""
    if torch.distributed.is_available():
        for name in filter(partial(hasattr, torch.distributed), _COLLECTIVES):
            patches.wrap(torch.distributed, name, partial(_timed, timeline, COMMUNICATION))


def _timed(
    timeline: StepTimeline, code: int, original: Callable[..., object], /, *args: object, **kwargs: object
) -> object:
    timeline.enter(code)
    try:
        return original(*args, **kwargs)
    finally:
        timeline.leave()


class DdpTimers:
    """DDP's own timers of its gradient all-reduce, which runs inside backward where no hook reaches it."""

    def __init__(self, model: Module, *, on_host: bool) -> None:
        self._model = weakref.ref(model)  # do not keep the model alive
        self._every = 1 if on_host else _DDP_DEFAULT_RATE
        self._asked = 0
        self._exposed_ns = 0
        model._set_ddp_runtime_logging_sample_rate(self._every)  # no public API

    def exposed_ns(self) -> int:
        """Return how long the last measured all-reduce ran after the last gradient was computed."""
        model = self._model()
        if self._asked % self._every == 0 and model is not None:
            found = model._get_ddp_logging_data()
            communicated, hidden = (int(found.get(name, 0)) for name in _DDP_TIMES)
            self._exposed_ns = max(0, communicated - hidden)
        self._asked += 1
        return self._exposed_ns

    def close(self) -> None:
        """Restore DDP's sample rate."""
        model = self._model()
        if model is not None:
            model._set_ddp_runtime_logging_sample_rate(_DDP_DEFAULT_RATE)
