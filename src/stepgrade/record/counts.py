"""What is counted in every step: backward passes, collectives called from Python, and DDP's own."""

from __future__ import annotations

import re
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch.distributed as dist
from msgspec import Struct
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from stepgrade.model.activity import CollectiveTally, Counted
from stepgrade.record.patches import Patches
from stepgrade.record.timeline import COMMUNICATION, StepTimeline
from stepgrade.units import NS_PER_MS

_COLLECTIVE = re.compile(
    "all_gather(_into_tensor|_single)?|all_reduce|all_to_all(_single)?|barrier|broadcast|reduce"
    "|reduce_scatter(_single|_tensor)?"  # some were renamed; those that exist are timed
)
# DDP's default; measuring each iteration costs a synchronisation on accelerators.
_DDP_DEFAULT_RATE = 100
_DDP_TIMES = ("backward_comm_time", "backward_compute_comm_overlap_time")


class _Sum(Struct):
    count: int = 0
    bytes: int = 0
    ns: int = 0


class StepCounts:
    """Counts backward passes, collectives, and DDP's gradient all-reduces since the steady steps began."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = defaultdict(_Sum)
        self._first_step: int | None = None
        self._passes = self._synced_passes = 0
        self._used = self._unused = 0  # gradients, counted by their elements
        self._gradients: dict[int, _Gradients] = {}
        self._world: int | None = None
        self._ddp: _Ddp | None = None

    def watch_calls(self, patches: Patches, timeline: StepTimeline) -> None:
        """Time the collectives that are called from Python: FSDP's and the loop's own."""
        if dist.is_available():
            for name in filter(_COLLECTIVE.fullmatch, dir(dist)):
                patches.wrap(dist, name, self._timed(name, timeline))

    def watch_model(self, model: Module, *, on_host: bool) -> None:
        """Ask a DDP model for its own timers and buckets; of several, the first."""
        if self._ddp is None and hasattr(type(model), "_get_ddp_logging_data"):
            self._ddp = _Ddp(model, on_host=on_host)

    def start(self, step: int) -> None:
        """Count from this step on."""
        self._first_step = step

    def after_backward(self) -> None:
        """Count the backward pass that has just ended, and what DDP reduced in it."""
        self._passes += self._first_step is not None
        found = self._ddp.after_backward() if self._ddp is not None else None
        if found is not None and self._first_step is not None:
            self._synced_passes += 1
            self._add("all_reduce", found)

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Remember the gradients that an optimizer has used."""
        known = self._gradients.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            weights = sum(weight.numel() for group in optimizer.param_groups for weight in group["params"])
        else:
            weights = known.weights
        self._gradients[id(optimizer)] = _Gradients(weakref.ref(optimizer), weights, _looks_of(optimizer))
        self._used += weights if self._first_step is not None else 0

    def before_zero_grad(self, optimizer: Optimizer) -> None:
        """Count gradients that were computed since the optimizer's last step, and are dropped now."""
        known = self._gradients.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer or self._first_step is None:
            return
        looks = _looks_of(optimizer)
        if looks != known.seen and any(each is not None for each in looks):
            self._unused += known.weights

    def take_exposed_ns(self) -> int:
        """Return how long DDP reduced with nothing left to compute, in the passes since the last call."""
        return self._ddp.take_exposed_ns() if self._ddp is not None else 0

    def counted(self, ended: int) -> Counted | None:
        """Return the means of the steps so far; None before the first steady step has ended."""
        steps = ended - (self._first_step or 0)
        if self._first_step is None or steps < 1:
            return None
        rows = [
            CollectiveTally(
                name=name,
                group_size=self._world,
                count=found.count / steps,
                ms=found.ns / steps / NS_PER_MS,
                bytes=found.bytes / steps,
            )
            for name, found in sorted(self._sums.items(), key=lambda item: -item[1].ns)
        ]
        return Counted(
            backward_passes=self._passes / steps,
            synced_passes=self._synced_passes / steps,
            unused_gradients_share=self._unused / (self._used + self._unused) if self._used else None,
            collectives=tuple(rows),
        )

    def close(self) -> None:
        """Restore DDP's own settings."""
        if self._ddp is not None:
            self._ddp.close()

    def _add(self, name: str, more: _Sum) -> None:
        known = self._sums[name]
        self._world = self._world or dist.get_world_size()  # known until the group is destroyed
        known.count, known.bytes, known.ns = (
            known.count + more.count,
            known.bytes + more.bytes,
            known.ns + more.ns,
        )

    def _timed(self, name: str, timeline: StepTimeline) -> Callable[..., object]:
        def timed(original: Callable[..., object], /, *args: object, **kwargs: object) -> object:
            timeline.enter(COMMUNICATION)
            began_ns = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                timeline.leave()
                if self._first_step is not None and timeline.live and not timeline.is_elsewhere:
                    size = max(map(_bytes_of, (*args, *kwargs.values())), default=0)
                    self._add(name, _Sum(1, size, time.perf_counter_ns() - began_ns))

        return timed


class _Gradients(NamedTuple):
    """An optimizer's weights, and what their gradients looked like when it last stepped."""

    optimizer: weakref.ref[Optimizer]
    weights: int
    seen: tuple[object, ...]


def _looks_of(optimizer: Optimizer) -> tuple[object, ...]:
    """Return what changes when a backward pass adds to the gradients of an optimizer's weights."""
    chosen = (group["params"][-1] for group in optimizer.param_groups if group["params"])
    gradients = [weight.grad for weight in chosen]
    return tuple(None if each is None else (id(each), each._version) for each in gradients)  # no public API


class _Ddp:
    """DDP's own timers of its gradient all-reduce, which runs inside backward where no hook reaches it."""

    def __init__(self, model: Module, *, on_host: bool) -> None:
        self._model = weakref.ref(model)  # do not keep the model alive
        self._on_host = on_host
        self._asked = self._exposed_ns = 0
        model._set_ddp_runtime_logging_sample_rate(1 if on_host else _DDP_DEFAULT_RATE)  # no public API

    def after_backward(self) -> _Sum | None:
        """Return the buckets that a backward pass reduced; None without a reduction."""
        model = self._model()
        if model is None or not getattr(model, "require_backward_grad_sync", False):
            return None
        if not self._on_host:
            return None  # its timers are read once in a hundred steps
        found: Mapping[str, object] = model._get_ddp_logging_data()
        communicated, hidden = (int(str(found.get(name, 0))) for name in _DDP_TIMES)
        self._exposed_ns += max(0, communicated - hidden)
        sizes = str(found.get("rebuilt_bucket_sizes") or found.get("bucket_sizes") or "").split(",")
        known = [int(size) for size in sizes if size.strip().isdecimal()]
        return _Sum(len(known), sum(known), communicated)

    def take_exposed_ns(self) -> int:
        """Return how long reductions ran with nothing left to compute, since the last call."""
        if self._on_host:
            exposed_ns, self._exposed_ns = self._exposed_ns, 0
            return exposed_ns
        model = self._model()
        if self._asked % _DDP_DEFAULT_RATE == 0 and model is not None:
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


def _bytes_of(value: object) -> int:
    """Return the bytes of a tensor or of a list of them; 0 for anything else."""
    if isinstance(value, Tensor):
        return int(value.nbytes)
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 0
