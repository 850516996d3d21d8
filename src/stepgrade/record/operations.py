"""Sampled steps: one step, or one in N, runs under torch.profiler with shapes, excluded from step times."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from msgspec import Struct, structs
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from stepgrade.files import temporary_folder
from stepgrade.model.profile import Profile
from stepgrade.model.sampled import SampledSteps
from stepgrade.record import kineto
from stepgrade.record.patches import Patches
from stepgrade.record.timeline import BACKWARD, FORWARD, GRADIENTS, LOSS, OPTIMIZER
from stepgrade.record.totals import Totals

# Without two warm-up steps, only profile in runs that are long enough.
_WITHOUT_WARM_UP = 5
_MODEL_PHASES = (FORWARD, LOSS, BACKWARD, GRADIENTS, OPTIMIZER)
_OPERATIONS_KEPT = 200
_MOST_TRIES = 5
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
            self._every != 0 and step >= self._first and self.sampled is None and self._tries < _MOST_TRIES
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
        self._profiler = profiler
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

    def keep(self, profiler: profile, step: Totals) -> None:
        """Add a profiled step; one that cannot be read is skipped."""
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
        )
        self.sampled = sampled if self.sampled is None else _added(self.sampled, sampled)
        self.is_written = False

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


def _added(before: SampledSteps, more: SampledSteps) -> SampledSteps:
    """Merge two samples; the activity is that of the first."""
    totals = {op.name: op for op in before.operations}
    for op in more.operations:
        known = totals.get(op.name)
        sums = {} if known is None else _sums(op, known, "ms", "calls", "flops", "bytes")
        totals[op.name] = structs.replace(op, **sums)
    longest = sorted(totals.values(), key=lambda op: -(op.ms or 0.0))[:_OPERATIONS_KEPT]
    shares = [share for share in (before.matmul_known_share, more.matmul_known_share) if share is not None]
    return structs.replace(
        before,
        **_sums(before, more, "steps", "model_ms", "busy_ms", "tokens", "samples", "matmul_flops"),
        matmul_known_share=min(shares, default=None),
        operations=tuple(longest),
    )


def _sums(left: Struct, right: Struct, *names: str) -> dict[str, Any]:
    """Return the sum of each of these fields; None if it is unknown on one side."""
    pairs = {name: (getattr(left, name), getattr(right, name)) for name in names}
    return {name: None if None in pair else sum(pair) for name, pair in pairs.items()}
