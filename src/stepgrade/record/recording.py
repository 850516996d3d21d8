"""A running recording: the hooks, the current step, and the sums over steps."""

from __future__ import annotations

import math
import signal
import sys
import time
import traceback
import weakref
from _thread import get_ident
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import profile
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stepgrade.record import patches
from stepgrade.record.batches import BatchCounter
from stepgrade.record.blocks import Models, unwrap
from stepgrade.record.calls import Around, ModuleCalls
from stepgrade.record.clock import EventClock, HostClock, clock_for
from stepgrade.record.counts import StepCounts
from stepgrade.record.environment import Contention, Sensors, autocast_dtype, device_of, sensors_for
from stepgrade.record.layers import LayerHooks
from stepgrade.record.lines import LineSampler
from stepgrade.record.operations import OperationWindow, is_in_backward
from stepgrade.record.own_updates import OwnUpdates
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
    ROLLOUT,
    UPDATED,
    StepTimeline,
    fold_step,
)
from stepgrade.record.totals import Series, StepSizes, Totals

_is_compiling = torch.compiler.is_compiling
# Steps whose device events are not done yet; training never has more in flight.
_MOST_PENDING = 256
# After this many steps in another thread, and none in the old one, that thread is the training thread.
_STEPS_ELSEWHERE = 3
# An agent acts more often than this between two steps, where it does not act in every one.
_LEAST_ACTS = 8


class EndedStep(Struct):
    """A step that ended on the host; the device may still be running it."""

    edges: list[Any]
    tokens: int
    rows: int
    loss: float | Tensor | None
    profiler: profile | None  # set if the step was profiled
    processor_ns: int  # that the process used for it, on all its threads


class Recording:
    """Hooks the training loop and adds up its steps; code that runs in the loop is here or in `timeline`."""

    def __init__(self, *, warmup: int, ops_every: int | None) -> None:
        self.clock: HostClock | EventClock = HostClock()
        self.sensors: Sensors | None = None
        self.contention: Contention | None = None
        self.timeline = StepTimeline(self.clock.now)
        self.calls = ModuleCalls(self.timeline, self._fail)
        self.layers = LayerHooks(self.timeline)
        self.models = Models()
        self.lines = LineSampler(self.timeline)
        self.window = OperationWindow(ops_every, warmup)
        self.warm, self.steady = Totals(), Totals()  # since `move_sums_to` was last called
        self.sizes = StepSizes()
        self.loss = Series()
        self.ended = 0
        self.counts: Counter[str] = Counter()  # of steps that a note reports, by its code
        self._balance = 0  # steps with an evaluation minus steps without
        self.stepped_by_hand = False
        self.saw_model = self.saw_forward = self._saw_loader = False
        self.autocast: str | None = None
        self._device: torch.device | None = None
        self.counted = StepCounts()
        self.on_step: Callable[[int], None] | None = None
        self.on_failure: Callable[[Exception], None] | None = None
        self.on_model: Callable[[Module], None] | None = None  # called for each detected model
        self._warmup = warmup
        self._processor_ns = time.process_time_ns()  # when the current step began
        self._patches = patches.Patches()
        self._patches_without_optimizer = patches.Patches()
        self._undo: list[Callable[[], None]] = []
        self._phase_codes = {name: code for code, name in PHASE_NAMES.items()}
        self._datasets: list[Dataset[object]] | None = []  # of watched loaders; None for all
        self._optimizers: list[weakref.ref[Optimizer]] | None = []  # watched optimizers; None for all
        self._main_optimizer: weakref.ref[Optimizer] | None = None
        self._other_optimizers: dict[int, tuple[int, int]] = {}  # edges and parts at the time of their step
        self._since_here = 0  # steps in other threads since the last one in the training thread
        self._ends_after_backward = False
        self.own_updates = OwnUpdates()
        self.own_steps = 0  # ended by a weight update, not by an optimizer
        self._batches = BatchCounter()
        self._pending: deque[EndedStep] = deque()

    def start(self) -> None:
        """Wrap what torch has no hooks for and start the first step."""
        self.calls.start(self._patches)
        self.window.start(self._patches)
        patches.patch_backward(self._patches, "backward", self.timeline, self._after_backward)
        patches.patch_input(
            self._patches,
            self.timeline,
            self._is_watched,
            before=self._end_own_step,
            on_batch=self._see_batch,
        )
        scaler = getattr(
            torch.amp, "GradScaler", torch.cuda.amp.GradScaler
        )  # torch 2.2 has it under cuda only
        self._patches.wrap(scaler, "step", self._scaler_step)
        self.counted.watch_calls(self._patches, self.timeline)
        self._patches.wrap(Optimizer, "zero_grad", self._zero_grad)
        self._undo += [
            register_optimizer_step_pre_hook(self.before_optimizer).remove,
            register_optimizer_step_post_hook(self.after_optimizer).remove,
        ]
        self.timeline.start()

    def stop(self) -> None:
        """Remove all hooks and read the steps that are still on the device."""
        if self.own_updates.passes and self.own_updates.is_possible and self.own_steps and self.timeline.live:
            # The last step has no detectable end.
            self.ended += 1
            if self.on_step is not None:
                self.on_step(self.ended)
        self.detach()
        self.pause()

    def detach(self) -> None:
        """Remove all hooks without reading steps that are still on the device."""
        self.calls.stop()
        self.layers.release()
        self._patches_without_optimizer.undo()
        self._patches.undo()
        while self._undo:
            self._undo.pop()()
        self.counted.close()
        self.window.drop()
        self.timeline.stop()

    def pause(self) -> None:
        """Stop recording and read the steps that are still on the device; hooks stay but do nothing."""
        self.lines.pause()
        self.window.drop()
        self.timeline.stop()
        if self._pending:
            self.clock.finish()
            self._add_done_steps()

    def watch_model(self, model: Module, layers: list[str] | None) -> int:
        """Time the calls of a model and its blocks; return the number of blocks.

        The first model's device decides the clock. Steps before it are dropped.
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
        self.counted.watch_model(model, on_host=self.clock.name == "host")
        count, fresh, first = self.models.add(model, layers, self.ended)
        self.layers.attach(self.calls, fresh, first)
        return count

    def watch_calls(self, module: Module) -> None:
        """Count the module's calls as forward."""
        self.calls.watch(module, Around(self._before_forward, self._after_forward))

    def watch_every_model(self) -> None:
        """Detect models: the outermost modules that are called with gradients."""
        self.calls.on_unknown = self._meet

    def watch_optimizer(self, optimizer: Optimizer) -> None:
        """Time the optimizer; its step ends a training step unless the user calls `step`."""
        if self._optimizers is not None:
            inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
            self._optimizers.append(weakref.ref(inner))
            if not self.stepped_by_hand:
                self.own_updates.leave_to(inner)

    def watch_every_optimizer(self) -> None:
        """Time all optimizers, including future ones; without any, detect steps from weight updates."""
        self._optimizers = None
        self.own_updates.is_possible = True
        patches.patch_until_optimizer(
            self._patches_without_optimizer, self.timeline, self._leave_to_optimizer, self._after_backward
        )

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
        """Return the code of a phase, a new one for a new name."""
        code = self._phase_codes.get(name)
        if code is None:
            code = FIRST_FREE_PHASE + len(self._phase_codes)
            if code >= LAYER_BASE:
                raise ValueError("too many phases: name parts of a step, not single steps")
            self._phase_codes[name] = code
        return code

    def phase_names(self) -> dict[int, str]:
        """Return the names of the phases by code."""
        return {code: name for name, code in self._phase_codes.items()}

    def step_by_hand(self, loss: float | Tensor | None) -> None:
        """End a step at the user's request."""
        self.stepped_by_hand = True
        try:
            if self._is_training_thread():
                self.timeline.drop_open_phases()
                self.end_step(loss)
        except Exception as error:  # noqa: BLE001  the training must go on
            self._fail(error)

    def end_step(self, loss: float | Tensor | None = None) -> None:
        """End the current step and start the next."""
        edges = self.timeline.end_step()
        self._end(edges, self._batches.take(), self.window.close(), loss)

    def _end(
        self,
        edges: list[Any],
        counted: tuple[int, int],
        profiler: profile | None,
        loss: float | Tensor | None = None,
    ) -> None:
        tokens, rows = counted
        now_ns = time.process_time_ns()
        self._pending.append(
            EndedStep(
                edges=edges,
                tokens=tokens,
                rows=rows,
                loss=_readable_later(loss),
                profiler=profiler,
                processor_ns=now_ns - self._processor_ns,
            )
        )
        self._processor_ns = now_ns
        self.ended += 1
        self._add_done_steps()
        is_first = self._warmup <= 0 and self.contention is None and self.timeline.live
        if is_first:
            self.lines.start(self.ended)
            self.counted.start(self.ended)
            self.contention = Contention()
        if self.saw_model or (self.own_steps and not torch.cuda.is_initialized()):
            self.window.open_if_due(self.ended, self._device)
        if is_first or profiler is not None or self.window.is_open:
            self.timeline.restart_step()
            self._processor_ns = time.process_time_ns()
        if self.on_step is not None:
            self.on_step(self.ended)

    def add_loss(self, loss: float) -> None:
        """Add a loss to the series; losses that are not finite are only counted."""
        if math.isfinite(loss):
            self.loss.add(loss)
        else:
            self.counts["loss_not_finite"] += 1

    def move_sums_to(self, warm: Totals, steady: Totals) -> None:
        """Move the sums since the last call to those of warm-up and steady steps."""
        warm.add(self.warm)
        steady.add(self.steady)
        self.warm, self.steady = Totals(), Totals()

    def before_optimizer(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        """Start the optimizer phase; from now on the optimizer ends steps, not weight updates."""
        if _is_compiling():
            return
        if self.own_updates.is_possible:  # it was created before the recording started
            self._patches_without_optimizer.undo()
        self.own_updates.see_step()
        if self._is_watched_optimizer(optimizer):
            self.timeline.enter(OPTIMIZER)

    def after_optimizer(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        """End the optimizer phase, and the step if this optimizer ends steps."""
        if _is_compiling():
            return
        if self._is_watched_optimizer(optimizer):
            self.timeline.leave()
        try:
            if self.timeline.live and self._is_training_thread():
                self.counted.after_optimizer(optimizer)
                self._stepped(optimizer)
        except Exception as error:  # noqa: BLE001  the training must go on
            self._fail(error)

    def _zero_grad(
        self, original: Callable[..., object], optimizer: Optimizer, /, *args: object, **kwargs: object
    ) -> object:
        """Time dropping the gradients, which is the optimizer's, and look at them before."""
        is_watched = self._is_watched_optimizer(optimizer)
        if is_watched:
            self.timeline.enter(OPTIMIZER)
        try:
            if self.timeline.live and not self.timeline.is_elsewhere:
                self.counted.before_zero_grad(optimizer)
        except Exception as error:  # noqa: BLE001  the training must go on
            self._fail(error)
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            if is_watched:
                self.timeline.leave()

    def _stepped(self, optimizer: Optimizer) -> None:
        """End a step when the main optimizer steps: the first one, until training switches to another.

        Training has switched when another one steps twice since the main one did; its first step ended a
        training step too.
        """
        if self.stepped_by_hand or not self.timeline.live:
            return
        main = self._main_optimizer() if self._main_optimizer is not None else None
        is_watched = self._is_watched_optimizer(optimizer)
        if main is not optimizer:
            earlier = self._other_optimizers.get(id(optimizer))
            if earlier is None and main is not None:
                self._other_optimizers[id(optimizer)] = (len(self.timeline.edges), self._batches.mark())
                return
            if earlier is not None and is_watched:
                position, parts = earlier
                self.window.drop()  # it contains two steps
                self._end(self.timeline.split_step(position), self._batches.take(parts), None)
        if not is_watched:
            self.counts["unwatched_steps"] += main is not None
            return
        self._main_optimizer = weakref.ref(optimizer)
        # An optimizer that steps as soon as its gradient is ready does so within the step.
        in_midst = is_in_backward() and self.timeline.direction == BACKWARD
        if not in_midst or self._ends_after_backward:
            self._end_by_optimizer()
        self._ends_after_backward = in_midst

    def _end_by_optimizer(self) -> None:
        self._other_optimizers.clear()
        if self.timeline.direction != BACKWARD:
            self.timeline.drop_open_phases()  # left open by an interrupt
        self.end_step()

    def _is_training_thread(self) -> bool:
        """Return whether this is the training thread: the first one, until only others step."""
        here, before = get_ident(), self.timeline.thread
        if before in (0, here):
            self.timeline.thread, self._since_here = here, 0
            return True
        self._since_here += 1
        self.counts["steps_elsewhere"] += 1
        if self._since_here >= _STEPS_ELSEWHERE or before not in sys._current_frames():
            self.window.drop()
            self.timeline.thread, self._since_here = here, 0
            self.lines.follow(here)
            self.timeline.drop_open_phases()
            self.timeline.restart_step()
        return False

    def _leave_to_optimizer(self, optimizer: Optimizer) -> None:
        """Detect steps by the optimizer from now on."""
        self.own_updates.leave_to(optimizer)
        self._patches_without_optimizer.undo()

    def _after_backward(self) -> None:
        """End a step that could not end inside backward; without an optimizer, remember the weights."""
        if is_in_backward() or self.timeline.is_elsewhere:
            return
        try:
            if self._ends_after_backward and self.timeline.live:
                self._ends_after_backward = False
                self._end_by_optimizer()
            elif not self.timeline.live or self.window.has_lapsed:
                self.window.drop()
            self.counted.after_backward()
            self.own_updates.look(self.models.alive())
            if not self.saw_model:  # nothing else marks the end of a step
                self._end_own_step()
        except Exception as error:  # noqa: BLE001  the training must go on
            self._fail(error)

    def _end_own_step(self) -> None:
        """End a step of a loop without an optimizer: the next batch or forward after a weight update."""
        own, timeline = self.own_updates, self.timeline
        if not own.passes or not own.is_possible or self.stepped_by_hand:
            return
        try:
            if (
                timeline.direction == NONE
                and timeline.live
                and own.is_step_over()
                and self._is_training_thread()
            ):
                own.begin_step()
                self.own_steps += 1
                timeline.mark(UPDATED)
                self.end_step()
        except Exception as error:  # noqa: BLE001  as above
            self._fail(error)

    def _is_watched_optimizer(self, optimizer: Optimizer) -> bool:
        watched = self._optimizers
        return watched is None or any(found() is optimizer for found in watched)

    def _scaler_step(
        self,
        original: Callable[..., object],
        scaler: object,
        /,
        optimizer: Optimizer,
        *args: object,
        **kwargs: object,
    ) -> object:
        """Count a step that the scaler skips because of infinite gradients; it took time as well."""
        self.timeline.enter(OPTIMIZER)
        ended = self.ended
        try:
            return original(scaler, optimizer, *args, **kwargs)
        finally:
            self.timeline.leave()
            main = self._main_optimizer
            if self.ended == ended and main is not None and main() is optimizer:
                self._stepped(optimizer)

    def _see_batch(self, batch: object) -> None:
        self._saw_loader = True
        self._batches.add_batch(batch)

    def _is_watched(self, iterator: _BaseDataLoaderIter) -> bool:
        datasets = self._datasets
        return datasets is None or any(iterator._dataset is dataset for dataset in datasets)

    def _meet(self, module: Module) -> Around | None:
        """Return what to run around the call of an outermost module that is not watched yet.

        A module that is trained is a model. Calls of a teacher, a frozen encoder or a part of a model count
        as forward; those of a copy of a model without gradients, as evaluation.
        """
        first = next(module.parameters(), None)
        if first is None or first.is_meta:  # a dry run, such as for counting FLOPs
            return None
        if (
            self.on_model is not None
            and not self.models.has_part(module)
            and torch.is_grad_enabled()
            and any(parameter.requires_grad for parameter in module.parameters())
            and not any(is_lazy(parameter) for parameter in module.parameters())  # wait for its next call
        ):
            self.on_model(module)
            return (
                Around(self._before_forward, self._after_forward) if id(module) in self.models.known else None
            )
        return Around(self._before_other, self._after_forward)

    def _before_other(self, module: Module, _args: object, _kwargs: object) -> None:
        self._end_own_step()
        kind = type(unwrap(module))
        evaluated = not torch.is_grad_enabled() and any(
            kind is model.kind for model in self.models.known.values()
        )
        self.timeline.enter(EVALUATION if evaluated else FORWARD)

    def _before_forward(self, module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        timeline = self.timeline
        self._end_own_step()
        called = self.models.known.get(id(module))
        if called is not None:
            called.called_in_step = self.ended
        if timeline.direction == NONE and torch.is_grad_enabled():
            self._batches.add_call(module, args, kwargs)
            if not self.saw_forward:
                self.saw_forward = True
                self.autocast = autocast_dtype(self._device)
        if timeline.direction in (FORWARD, BACKWARD) or torch.is_grad_enabled():
            timeline.enter(FORWARD)
        else:
            timeline.enter(ROLLOUT if module.training and not self._saw_loader else EVALUATION)

    def _after_forward(self, _module: Module, _args: object, _output: object) -> None:
        self.layers.release()
        self.timeline.leave()

    def _fail(self, error: Exception) -> None:
        """Stop recording after an internal error; earlier measurements are kept.

        Raise what the script's own signal handler raised while our code was running.
        """
        handlers = {getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()}
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise error
        self.detach()
        if self.on_failure is not None:
            self.on_failure(error)

    def _is_interrupted(self, step: Totals, codes: list[int]) -> bool:
        """Return whether a step contains an evaluation, as a few forwards are one, unless most steps do."""
        has_evaluation = EVALUATION in step.phases_ns or 0 < codes.count(ROLLOUT) < _LEAST_ACTS
        self._balance += 1 if has_evaluation else -1
        return has_evaluation and self._balance < 0

    def _add_done_steps(self) -> None:
        """Add the steps that the device has finished; drop the oldest if too many are pending."""
        while self._pending and self.clock.is_done(self._pending[0].edges[-2]):
            self._add(self._pending.popleft())
        while len(self._pending) > _MOST_PENDING:
            self._pending.popleft()
            self.counts["lost_steps"] += 1

    def _add(self, ended: EndedStep) -> None:
        times_ns, codes = self.clock.times_ns(ended.edges[0::2]), ended.edges[1::2]
        exposed_ns = self.counted.take_exposed_ns() if BACKWARD in codes else 0
        step = fold_step(times_ns, codes, self.layers.ends_by, exposed_ns)
        if ended.loss is not None:
            self.add_loss(float(ended.loss))
        step.tokens, step.rows = ended.tokens, ended.rows
        step.processor.add(ended.processor_ns)
        if ended.profiler is not None:
            self.counts["profiled_steps"] += 1
            self._warmup -= 1
            if not self._is_interrupted(step, codes):
                self.window.keep(ended.profiler, step)
        elif self._is_interrupted(step, codes):
            self.counts["evaluation_steps"] += 1
            self.counts["evaluation_ns"] += step.wall_ns
        else:
            if exposed_ns:
                exposed_ns = min(exposed_ns, step.phases_ns[BACKWARD])
                step.phases_ns[BACKWARD] -= exposed_ns
                step.phases_ns[COMMUNICATION] += exposed_ns
            self._warmup -= 1
            self.sizes.add(step.tokens or step.rows, step.wall_ns)
            (self.warm if self._warmup >= 0 else self.steady).add(step)


def _readable_later(loss: float | Tensor | None) -> float | Tensor | None:
    """Return the loss in a form that can be read later without waiting for the device."""
    if not isinstance(loss, Tensor):
        return loss
    if loss.device.type == "cpu":
        return float(loss.detach())
    pinned = torch.empty((), dtype=torch.float32, pin_memory=True)
    return pinned.copy_(loss.detach(), non_blocking=True)
