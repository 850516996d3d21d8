"""Sampled steps: one step, or one in N, runs under torch.profiler with shapes, excluded from step times."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType

import torch
from msgspec import structs
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from stepgrade.files import temporary_folder
from stepgrade.model.operations import Operation
from stepgrade.model.profile import Profile
from stepgrade.model.sampled import SampledSteps
from stepgrade.record import kineto
from stepgrade.record.environment import Waits
from stepgrade.record.patches import Patches
from stepgrade.record.timeline import BACKWARD, FORWARD, GRADIENTS, LOSS, OPTIMIZER
from stepgrade.record.totals import Totals
from stepgrade.statistics import median

# Without two warm-up steps, only profile in runs that are long enough.
_WITHOUT_WARM_UP = 5
_MODEL_PHASES = (FORWARD, LOSS, BACKWARD, GRADIENTS, OPTIMIZER)
_OPERATIONS_KEPT = 200
_MOST_TRIES = 5
# A step that waited less for a core shows its operations as they are; longer ones are looked at again, as
# often as this, while reading them takes no more than this part of the time.
_QUIET_SHARE, _STEPS_WANTED, _READING_SHARE = 0.02, 5, 0.1
_STEPS_KEPT = 16  # of those that `every` adds: the ones that waited least
_STEPS_BETWEEN = 2  # windows: ranges from C++ have ended by then
# A larger trace has millions of operations: reading it would delay the training.
_MOST_TRACE_BYTES = 512 * 2**20
_FILES_TO_READ = 8
_STARTS = ("_prepare_profiler", "_enable_profiler")
_ANY_PROFILER = "ProfilerStep"  # counts its steps while one is active
# Where torch calls custom operations in Python: autograd functions, and registered ones.
_CALL_PYTHON = tuple(os.path.join("torch", *path) for path in (("autograd", "function.py"), ("_ops.py",)))


class OperationWindow:
    """Profiles the last warm-up step, then one step of every `every` (None: no more; 0: none at all).

    Where other programs kept the first one from its cores, a few more are profiled: an operation takes its
    median time over them, for a wait of milliseconds in one call would make it the longest of all.

    A step's trace is analysed like any other trace. Nothing is run twice, and the model, its gradients and
    the random numbers are not touched.

    torch writes into freed memory if a range begins under one profiler and ends under the next, and loses a
    profiler that starts or stops inside a backward pass. So ranges end with their window, no window begins or
    ends in a backward pass, and none ends inside an operation that began in it and calls Python, whose range
    is torch's own. While a profiler of the script warms up there is no window: ours would end it.
    """

    def __init__(self, every: int | None, warmup: int) -> None:
        self.sampled: SampledSteps | None = None
        self.is_written = False  # in the journal
        self.on_problem: Callable[[str], None] = lambda _: None
        self._every = every
        self._first = warmup - 1 if warmup > 1 else _WITHOUT_WARM_UP
        self._tries = 0
        self._kept: list[SampledSteps] = []
        self._waits: Waits | None = None  # of the step that is being profiled
        self._waited_share: float | None = None
        self._began, self._reading_s = time.monotonic(), 0.0
        self._not_before = 0
        self._thread = 0
        self._operation: FrameType | None = None  # in which this window started
        self._is_starting = False
        self._is_script_profiling = False
        self.has_lapsed = False  # the profiled step ended where the profiler could not
        self._ranges: list[record_function] = []  # started in this window
        self._profiler: profile | None = None
        self._mark: record_function | None = None
        self._patches = Patches()
        self._on_processor = True

    def start(self, patches: Patches) -> None:
        """Start watching for the script's own profilers."""
        for name in _STARTS:
            patches.wrap(torch.autograd.profiler, name, self._give_way)
        patches.wrap(torch.autograd.profiler, "_disable_profiler", self._after_profiler)
        if _ANY_PROFILER in torch.autograd.profiler.KinetoStepTracker._step_dict:
            known = (each for each in gc.get_objects() if issubclass(type(each), profile))
            self._is_script_profiling = any(each.current_action != ProfilerAction.NONE for each in known)

    @property
    def is_open(self) -> bool:
        """Return whether the current step is being profiled."""
        return self._profiler is not None

    def open_if_due(self, step: int, device: torch.device | None) -> None:
        """Start profiling if this step is due, unless the user is profiling it."""
        kineto.end_thread()  # in case it could not be ended with the window
        if self._is_script_profiling or torch.autograd.profiler._is_profiler_enabled:
            self._not_before = step + _STEPS_BETWEEN  # torch allows one profiler at a time
        wants_first = (
            self._every != 0 and step >= self._first and self._wants_more() and self._tries < _MOST_TRIES
        )
        is_nth = bool(self._every) and step > 0 and step % (self._every or 1) == 0
        if step < self._not_before or not (wants_first or is_nth) or is_in_backward():
            return
        if not kineto.can_start() or not _has_files_left():
            return
        self._tries += 1
        self._not_before = step + 1 + _STEPS_BETWEEN
        self._thread, self._operation = _thread.get_ident(), innermost_operation()
        self._on_processor = device is None or device.type == "cpu"
        # Record device activity only on request: its profiler stays loaded afterwards.
        activities = None if self._every and not self._on_processor else [ProfilerActivity.CPU]
        try:
            self._is_starting = True
            with kineto.starting_profiler():
                profiler = profile(activities=activities, record_shapes=True)
                profiler.__enter__()
        except RuntimeError as error:  # such as no more threads
            self.on_problem(f"no step can be sampled: {error}")
            self._tries = _MOST_TRIES
            torch.autograd.profiler.KinetoStepTracker.erase_step_count(_ANY_PROFILER)
            return
        finally:
            self._is_starting = False
        self._profiler, self._waits = profiler, Waits()
        self._patches.wrap(record_function, "__enter__", self._note_range)
        self._mark = record_function("ProfilerStep#0")
        self._mark.__enter__()

    def close(self) -> profile | None:
        """Stop profiling and return the profiler; None if this step was not profiled.

        Nothing happens in another thread, a backward pass or an operation that began since.
        """
        profiler, mark = self._profiler, self._mark
        if profiler is None or mark is None:
            return None
        operation = innermost_operation()
        began_in_window = operation is not None and operation is not self._operation
        if self._thread != _thread.get_ident() or is_in_backward() or began_in_window:
            self.has_lapsed = True
            return None
        self._operation = None
        self._waited_share = self._waits.share() if self._waits is not None else None
        is_whole = not self.has_lapsed
        self._profiler, self.has_lapsed = None, False
        self._patches.undo()
        mark.__exit__(None, None, None)
        # Ending a range twice is harmless.
        with torch._C.DisableTorchFunctionSubclass():  # as torch does
            while self._ranges:
                torch.ops.profiler._record_function_exit._RecordFunction(self._ranges.pop().record)
        profiler.__exit__(None, None, None)
        kineto.after_profiler()
        kineto.end_thread()
        return profiler if is_whole else None

    def _wants_more(self) -> bool:
        """Return whether no profiled step ran undisturbed so far, and another one costs little."""
        if not self._kept:
            return True
        least = min(one.waited_for_core_share or 0.0 for one in self._kept)
        is_cheap = self._reading_s < _READING_SHARE * (time.monotonic() - self._began)
        return least > _QUIET_SHARE and len(self._kept) < _STEPS_WANTED and is_cheap

    def keep(self, profiler: profile, step: Totals) -> None:
        """Add a profiled step; one that cannot be read is skipped."""
        began = time.monotonic()
        try:
            found = _analyse(profiler)
        except Exception as error:  # noqa: BLE001  the training must go on
            self.on_problem(f"the sampled step cannot be read: {error}")
            self._tries = _MOST_TRIES
            return
        if found is None:
            self.on_problem("the sampled step has too many operations to be looked at")
            return
        if not found.steps:
            return
        model_ns = sum(step.phases_ns.get(code, 0) for code in _MODEL_PHASES)
        # Without device activity, times of operations are the host's: only right on a CPU.
        is_timed = self._on_processor or found.device is not None
        sampled = SampledSteps(
            steps=1,
            model_ms=model_ns / 1e6,
            busy_ms=(found.ledger.compute or 0) / 1e6 if found.ledger and self._on_processor else None,
            tokens=step.tokens or None,
            samples=step.rows or None,
            matmul_flops=found.matmul_flops,
            matmul_known_share=found.matmul_known_share,
            matmul_dtype=found.matmul_dtype,
            # The trace is deleted, so the index of the longest call is useless.
            operations=tuple(
                structs.replace(op, longest=None, samples_ms=())
                for op in sorted(found.operations, key=lambda op: -(op.ms or 0.0))[:_OPERATIONS_KEPT]
            )
            if is_timed
            else (),
            activity=found.activity if is_timed else None,
            waited_for_core_share=self._waited_share,
        )
        self._kept.append(sampled)
        if len(self._kept) > _STEPS_KEPT:
            self._kept.remove(max(self._kept, key=_waited))
        self.sampled = _together(self._kept)
        self.is_written = False
        self._reading_s += time.monotonic() - began

    def drop(self) -> None:
        """Stop profiling a step that did not end."""
        self.close()

    def _note_range(self, original: Callable[..., object], entered: record_function, /) -> object:
        """Remember a range that starts in this window, in the profiled thread."""
        given = original(entered)
        if _thread.get_ident() == self._thread:
            self._ranges.append(entered)
        return given

    def _give_way(self, original: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Let the user's profiler start, even inside our window."""
        if not self._is_starting:
            kineto.note_script_profiler()
            self.drop()
            self._is_script_profiling = True
        return original(*args, **kwargs)

    def _after_profiler(self, original: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Note the end of the user's profiler."""
        given = original(*args, **kwargs)
        self._is_script_profiling = False
        return given


def _has_files_left() -> bool:
    """Return whether enough files can be opened to read a trace; Kineto would print an error."""
    with suppress(OSError), ExitStack() as opened:
        for _ in range(_FILES_TO_READ):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        return True
    return False


def is_in_backward() -> bool:
    """Return whether this thread is inside a backward pass, at whose end torch restores its state."""
    return int(torch._C._current_graph_task_id()) != -1  # no public API


def innermost_operation() -> FrameType | None:
    """Return the frame of the custom operation that called this code, if any."""
    frame: FrameType | None = sys._getframe(1)  # no public API
    while frame is not None and not frame.f_code.co_filename.endswith(_CALL_PYTHON):
        frame = frame.f_back
    return frame


def _analyse(profiler: profile) -> Profile | None:
    """Return the profile of the step's trace; None if it is too large to read during training."""
    # The readers import numpy, which must not delay the first steps.
    from stepgrade.readers.kineto.reader import read_traces
    from stepgrade.readers.source import ByteSource
    from stepgrade.trace.profile import profile_of_traces

    with tempfile.TemporaryDirectory(prefix="stepgrade-", dir=temporary_folder()) as directory:
        path = Path(directory, "step.json")
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > _MOST_TRACE_BYTES:
            return None
        with ByteSource(path) as source:
            traces = read_traces(source, processes=1)  # start no processes during training
    return profile_of_traces(traces)


def _waited(step: SampledSteps) -> float:
    return step.waited_for_core_share or 0.0


def _together(steps: list[SampledSteps]) -> SampledSteps:
    """Merge steps that were profiled one by one: median times, mean counts, the quietest one's activity."""
    quietest = min(steps, key=_waited)
    if len(steps) == 1:
        return quietest
    names = dict.fromkeys(op.name for step in steps for op in step.operations)
    found = [_operation_of(name, steps) for name in names]
    longest = sorted((op for op in found if op is not None), key=lambda op: -(op.ms or 0.0))
    shares = [step.matmul_known_share for step in steps if step.matmul_known_share is not None]
    return structs.replace(
        quietest,
        **{name: _sum(steps, name) for name in ("steps", "tokens", "samples", "matmul_flops")},
        **{
            name: None if None in times else median(times) * len(times)
            for name in ("model_ms", "busy_ms")
            for times in [[getattr(step, name) for step in steps]]
        },
        matmul_known_share=min(shares, default=None),
        operations=tuple(longest[:_OPERATIONS_KEPT]),
    )


def _operation_of(name: str, steps: list[SampledSteps]) -> Operation | None:
    """Return an operation of several steps with the rows of the step in which it took its median time."""
    calls = [op for step in steps for op in step.operations if op.name == name]
    if 2 * len(calls) <= len(steps):
        return None  # in most steps it was too short to be kept, or not there
    usual = sorted(calls, key=lambda op: op.ms or 0.0)[(len(calls) - 1) // 2]
    sums = {part: _sum(calls, part) for part in ("calls", "flops", "bytes")}
    return structs.replace(usual.per_step(1.0 / len(steps)), **sums)


def _sum(rows: list[SampledSteps] | list[Operation], name: str) -> float | None:
    """Return the sum of a field; None if one of them does not know it."""
    values = [getattr(row, name) for row in rows]
    return None if None in values else sum(values)
