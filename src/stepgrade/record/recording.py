"""A recording that runs: what is hooked, the current step, and the sums over steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.profiler import profile
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stepgrade.record import patches
from stepgrade.record.batches import BatchCounter
from stepgrade.record.blocks import find_blocks, unique_names
from stepgrade.record.clock import EventClock, HostClock, clock_for
from stepgrade.record.environment import Sensors, autocast_dtype, device_of, sensors_for
from stepgrade.record.layers import LayerHooks, around_calls
from stepgrade.record.operations import OperationWindow
from stepgrade.record.timeline import (
    BACKWARD,
    COMMUNICATION,
    EVALUATION,
    FIRST_FREE_PHASE,
    FORWARD,
    LAYER_BASE,
    NONE,
    OPTIMIZER,
    PHASE_NAMES,
    StepTimeline,
)
from stepgrade.record.totals import Series, Totals, fold_step

_is_compiling = torch.compiler.is_compiling
# Steps whose device events are not done yet; more than this many in flight does not happen in training.
_MOST_PENDING = 256


class EndedStep(Struct):
    """A step that ended on the host; on a device it may still be running."""

    edges: list[Any]
    tokens: int
    rows: int
    loss: float | Tensor | None
    profiler: profile | None  # with what it saw, when the step ran under it


class Recording:
    """Puts hooks on the loop and adds up its steps; all that runs inside it is here or in `timeline`."""

    def __init__(self, *, warmup: int, ops_every: int | None) -> None:
        self.clock: HostClock | EventClock = HostClock()
        self.sensors: Sensors | None = None
        self.timeline = StepTimeline(self.clock.now)
        self.layers = LayerHooks(self.timeline)
        self.layer_names: list[str] = []
        self._blocks: dict[int, Module] = {}
        self.window = OperationWindow(ops_every, warmup)
        self.warm, self.steady = Totals(), Totals()  # since `move_sums_to` was last called
        self.loss = Series()
        self.ended = self.interrupted = self.profiled = self.lost = self.losses_not_finite = 0
        self.stepped_by_hand = False
        self.saw_model = self.saw_forward = False
        self.autocast: str | None = None
        self._device: torch.device | None = None
        self.ddp: patches.DdpTimers | None = None
        self.on_step: Callable[[int], None] | None = None
        self._warmup = warmup
        self._patches = patches.Patches()
        self._undo: list[Callable[[], None]] = []
        self._phase_codes = {name: code for code, name in PHASE_NAMES.items()}
        self._datasets: list[Dataset[object]] | None = []  # of the watched loaders; None for all
        self._main_optimizer: Optimizer | None = None
        self._batches = BatchCounter()
        self._pending: deque[EndedStep] = deque()

    def start(self) -> None:
        """Wrap what torch has no hooks for and begin the first step."""
        patches.patch_backward(self._patches, self.timeline)
        patches.patch_input(self._patches, self.timeline, self._is_watched, self._batches.add_batch)
        scaler = getattr(
            torch.amp, "GradScaler", torch.cuda.amp.GradScaler
        )  # torch 2.2 has it under cuda only
        self._patches.wrap(scaler, "step", self._scaler_step)
        patches.patch_collectives(self._patches, self.timeline)
        self.timeline.start()

    def stop(self) -> None:
        """Remove all hooks and read the steps that are still on the device."""
        self.layers.detach()
        self._blocks.clear()
        self._patches.undo()
        while self._undo:
            self._undo.pop()()
        if self.ddp is not None:
            self.ddp.close()
        self.pause()

    def pause(self) -> None:
        """Record no more steps and read those that are still on the device; hooks stay and do nothing."""
        self.window.drop()
        self.timeline.stop()
        if self._pending:
            self.clock.finish()
            self._add_done_steps()

    def watch_model(self, model: Module, layers: list[str] | None) -> int:
        """Time the model's calls and those of its blocks; return how many blocks there are.

        The first model decides the clock: that of its device. The steps before it are not kept.
        """
        if not self.saw_model:
            self.saw_model = True
            self._device = device_of(model)
            self.clock = clock_for(self._device)
            self.sensors = sensors_for(self._device)
            self.timeline.now = self.clock.now
            if self.clock.name != "host":
                patches.patch_copies(self._patches, self.timeline)
            self._pending.clear()
            self.timeline.restart_step()
        self.watch_calls(model)
        if self.ddp is None and hasattr(model, "_get_ddp_logging_data"):
            self.ddp = patches.DdpTimers(model, on_host=self.clock.name == "host")
        found = find_blocks(model, layers)
        fresh = [(name, block) for name, block in found if id(block) not in self._blocks]
        self._blocks |= {id(block): block for _, block in fresh}
        self.layers.attach([block for _, block in fresh], first=len(self.layer_names))
        self.layer_names += unique_names([name for name, _ in fresh], self.layer_names, model)
        return len(found)

    def watch_calls(self, module: Module) -> None:
        """Count the module's calls as forward."""
        self._undo += around_calls(module, self._before_forward, self._after_forward)

    def watch_optimizer(self, optimizer: Optimizer) -> None:
        """Time the optimizer; its step also ends a training step unless the user does that."""
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._undo += [
            inner.register_step_pre_hook(self.before_optimizer).remove,
            inner.register_step_post_hook(self.after_optimizer).remove,
        ]
        patches.patch_zero_grad(self._patches, self.timeline, inner)

    def watch_every_optimizer(self) -> None:
        """Time all optimizers, those that do not exist yet too."""
        from torch.optim import optimizer  # noqa: PLC0415  only for scripts

        self._undo += [
            optimizer.register_optimizer_step_pre_hook(self.before_optimizer).remove,
            optimizer.register_optimizer_step_post_hook(self.after_optimizer).remove,
        ]
        patches.patch_zero_grad(self._patches, self.timeline, optimizer.Optimizer)

    def watch_loader(self, loader: object) -> bool:
        """Time the wait for each batch; return whether this kind of loader can be hooked."""
        if not isinstance(loader, DataLoader):
            return False
        if self._datasets is not None:
            self._datasets.append(loader.dataset)
        return True

    def watch_every_loader(self) -> None:
        """Time all DataLoaders."""
        self._datasets = None

    def phase_code(self, name: str) -> int:
        """Return the code of a phase; a new name gets a new one."""
        code = self._phase_codes.get(name)
        if code is None:
            code = FIRST_FREE_PHASE + len(self._phase_codes)
            if code >= LAYER_BASE:
                raise ValueError("there are too many phases: name parts of a step, not single steps")
            self._phase_codes[name] = code
        return code

    def phase_names(self) -> dict[int, str]:
        """Return the names of the phases by code."""
        return {code: name for name, code in self._phase_codes.items()}

    def end_step(self, loss: float | Tensor | None = None) -> None:
        """End the current step and begin the next one."""
        edges = self.timeline.end_step()
        profiler = self.window.close()
        tokens, rows = self._batches.take()
        self._pending.append(
            EndedStep(edges=edges, tokens=tokens, rows=rows, loss=_readable_later(loss), profiler=profiler)
        )
        self.ended += 1
        self._add_done_steps()
        if self.saw_model:
            self.window.open_if_due(self.ended, self._device)
        if profiler is not None or self.window.is_open:
            self.timeline.restart_step()
        if self.on_step is not None:
            self.on_step(self.ended)

    def add_loss(self, loss: float) -> None:
        """Add one loss to the series; JSON has no number for one that is not finite."""
        if math.isfinite(loss):
            self.loss.add(loss)
        else:
            self.losses_not_finite += 1

    def move_sums_to(self, warm: Totals, steady: Totals) -> None:
        """Add what was measured since the last time to the sums of warm-up and of steady steps."""
        warm.add(self.warm)
        steady.add(self.steady)
        self.warm, self.steady = Totals(), Totals()

    def before_optimizer(self, _optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        """Begin the optimizer's phase."""
        if not _is_compiling():
            self.timeline.enter(OPTIMIZER)

    def after_optimizer(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        """End it, and with it the step when it is the optimizer that counts steps."""
        if not _is_compiling():
            self.timeline.leave()
            self._stepped(optimizer)

    def _stepped(self, optimizer: Optimizer) -> None:
        if self.stepped_by_hand or not self.timeline.live:
            return
        if self._main_optimizer is None:
            self._main_optimizer = optimizer
        if optimizer is self._main_optimizer:
            self.end_step()

    def _scaler_step(
        self,
        original: Callable[..., object],
        scaler: object,
        /,
        optimizer: Optimizer,
        *args: object,
        **kwargs: object,
    ) -> object:
        """Count a step that the scaler skips because of infinite gradients: it took time like any other."""
        self.timeline.enter(OPTIMIZER)
        ended = self.ended
        try:
            return original(scaler, optimizer, *args, **kwargs)
        finally:
            self.timeline.leave()
            if self.ended == ended and optimizer is self._main_optimizer:
                self._stepped(optimizer)

    def _is_watched(self, iterator: _BaseDataLoaderIter) -> bool:
        datasets = self._datasets
        return datasets is None or any(iterator._dataset is dataset for dataset in datasets)  # noqa: SLF001

    def _before_forward(self, module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if _is_compiling():
            return
        timeline = self.timeline
        if timeline.direction == NONE and torch.is_grad_enabled():
            self._batches.add_call(module, args, kwargs)
            if not self.saw_forward:
                self.saw_forward = True
                self.autocast = autocast_dtype(self._device)
        inside = timeline.direction in (FORWARD, BACKWARD)
        timeline.enter(FORWARD if inside or torch.is_grad_enabled() else EVALUATION)

    def _after_forward(self, _module: Module, _args: object, _output: object) -> None:
        if not _is_compiling():
            self.layers.release()
            self.timeline.leave()

    def _add_done_steps(self) -> None:
        """Add the steps that the device has finished; drop the oldest when too many are waiting."""
        while self._pending and self.clock.is_done(self._pending[0].edges[-2]):
            self._add(self._pending.popleft())
        while len(self._pending) > _MOST_PENDING:
            self._pending.popleft()
            self.lost += 1

    def _add(self, ended: EndedStep) -> None:
        times_ns = self.clock.times_ns(ended.edges[0::2])
        step = fold_step(times_ns, ended.edges[1::2], self.layers.ends_by)
        if ended.loss is not None:
            self.add_loss(float(ended.loss))
        step.tokens, step.rows = ended.tokens, ended.rows
        if ended.profiler is not None:
            self.profiled += 1
            self._warmup -= 1
            self.window.keep(ended.profiler, step)
        elif EVALUATION in step.phases_ns:
            self.interrupted += 1
        else:
            if self.ddp is not None and BACKWARD in step.phases_ns:
                exposed_ns = min(self.ddp.exposed_ns(), step.phases_ns[BACKWARD])
                step.phases_ns[BACKWARD] -= exposed_ns
                step.phases_ns[COMMUNICATION] += exposed_ns
            self._warmup -= 1
            (self.warm if self._warmup >= 0 else self.steady).add(step)


def _readable_later(loss: float | Tensor | None) -> float | Tensor | None:
    """Return the loss such that it can be read later without waiting for the device."""
    if not isinstance(loss, Tensor):
        return loss
    if loss.device.type == "cpu":
        return float(loss.detach())
    pinned = torch.empty((), dtype=torch.float32, pin_memory=True)
    return pinned.copy_(loss.detach(), non_blocking=True)
