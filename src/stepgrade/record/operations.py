"""Sampled steps: one step, or one in N, runs under torch.profiler with shapes and counts nowhere else."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from msgspec import structs
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from stepgrade.files import temporary_folder
from stepgrade.model.profile import Profile
from stepgrade.model.sampled import SampledSteps
from stepgrade.record import kineto
from stepgrade.record.patches import Patches
from stepgrade.record.timeline import BACKWARD, FORWARD, GRADIENTS, LOSS, OPTIMIZER
from stepgrade.record.totals import Totals

# Without two warm-up steps to take one of, a run has to be long enough to spare one.
_WITHOUT_WARM_UP = 5
_MODEL_PHASES = (FORWARD, LOSS, BACKWARD, GRADIENTS, OPTIMIZER)
_OPERATIONS_KEPT = 200
_MOST_TRIES = 5
_STEPS_BETWEEN = 2  # windows: ranges that are not Python's are over by then
# Such a step has some million operations: reading its trace would hold the training up.
_MOST_TRACE_BYTES = 512 * 2**20
_FILES_TO_READ = 8
_STARTS = ("_prepare_profiler", "_enable_profiler")
_ANY_PROFILER = "ProfilerStep"  # counts its steps while there is one
# Where torch calls the Python of an operation that somebody wrote: autograd's functions, and registered ones.
_CALL_PYTHON = tuple(os.path.join("torch", *place) for place in (("autograd", "function.py"), ("_ops.py",)))


class OperationWindow:
    """Profiles the last warm-up step, then one step of every `every` (None: no more; 0: none at all).

    A step's trace is analysed as any other trace, so operations, FLOPs and precision are what `score` would
    say of it. The profiler watches what is dispatched: no forward is run twice and nothing of the model, its
    gradients or the random numbers is touched.

    A range that begins under one profiler and ends under the next makes torch write into memory that it has
    freed, and a profiler that starts or stops inside a backward pass is lost, for torch restores the thread's
    state after it: ranges are ended with their window, no window begins or ends in a backward pass, and none
    ends in an operation that began in it and calls Python, for that one's range is torch's own.
    A profiler of the script's own that warms up is lost under ours: there is no window until it is done.
    """

    def __init__(self, every: int | None, warmup: int) -> None:
        self.sampled: SampledSteps | None = None
        self.is_written = False  # to the journal
        self.on_problem: Callable[[str], None] = lambda _: None
        self._every = every
        self._first = warmup - 1 if warmup > 1 else _WITHOUT_WARM_UP
        self._tries = 0
        self._not_before = 0
        self._thread = 0
        self._operation: FrameType | None = None  # in which this window began
        self._is_starting = False
        self._is_script_profiling = False
        self._has_lapsed = False
        self._ranges: list[record_function] = []  # that began in this window
        self._profiler: profile | None = None
        self._mark: record_function | None = None
        self._patches = Patches()
        self._on_processor = True

    def start(self, patches: Patches) -> None:
        """Begin to see when the script profiles by itself."""
        for name in _STARTS:
            patches.wrap(torch.autograd.profiler, name, self._give_way)
        patches.wrap(torch.autograd.profiler, "_disable_profiler", self._after_profiler)
        if _ANY_PROFILER in torch.autograd.profiler.KinetoStepTracker._step_dict:
            known = (each for each in gc.get_objects() if isinstance(each, profile))
            self._is_script_profiling = any(each.current_action != ProfilerAction.NONE for each in known)

    @property
    def is_open(self) -> bool:
        """Tell whether the current step is being profiled."""
        return self._profiler is not None

    @property
    def has_lapsed(self) -> bool:
        """Tell whether the profiled step ended where the profiler could not."""
        return self._has_lapsed

    def open_if_due(self, step: int, device: torch.device | None) -> None:
        """Start profiling when it is this step's turn, unless the user is profiling it."""
        kineto.end_thread()  # if it could not be ended with the window
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
        # What a device does is recorded only when asked for: its profiler stays loaded afterwards.
        activities = None if self._every and not self._on_processor else [ProfilerActivity.CPU]
        try:
            self._is_starting = True
            with kineto.starting_profiler():
                profiler = profile(activities=activities, record_shapes=True)
                profiler.__enter__()
        finally:
            self._is_starting = False
        self._profiler = profiler
        self._patches.wrap(record_function, "__enter__", self._note_range)
        self._mark = record_function("ProfilerStep#0")
        self._mark.__enter__()

    def close(self) -> profile | None:
        """Stop profiling and return the profiler with what it saw; None when it was not the step's turn.

        Only the thread that began can stop it, and not in a backward pass or an operation that began since:
        until then it is left as it is.
        """
        profiler, mark = self._profiler, self._mark
        if profiler is None or mark is None:
            return None
        operation = innermost_operation()
        began_in_window = operation is not None and operation is not self._operation
        if self._thread != _thread.get_ident() or is_in_backward() or began_in_window:
            self._has_lapsed = True
            return None
        self._operation = None
        is_whole = not self._has_lapsed
        self._profiler, self._has_lapsed = None, False
        self._patches.undo()
        mark.__exit__(None, None, None)
        # To end a range again, as whoever began it will, does nothing.
        with torch._C.DisableTorchFunctionSubclass():  # as torch does
            while self._ranges:
                torch.ops.profiler._record_function_exit._RecordFunction(self._ranges.pop().record)
        profiler.__exit__(None, None, None)
        kineto.after_profiler()
        kineto.end_thread()
        return profiler if is_whole else None

    def keep(self, profiler: profile, step: Totals) -> None:
        """Add what a profiled step did; one that cannot be read is left out."""
        try:
            found = _analyse(profiler)
        except Exception as error:  # noqa: BLE001  whatever is wrong with a trace, the training goes on
            self.on_problem(f"the sampled step cannot be read: {error}")
            self._tries = _MOST_TRIES
            return
        if found is None:
            self.on_problem("the sampled step has too many operations to be looked at")
            return
        if not found.steps:
            return
        model_ns = sum(step.phases_ns.get(code, 0) for code in _MODEL_PHASES)
        # Without a device's own activity, times of operations are the host's: right on a processor only.
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
            # The trace is gone when somebody asks where in it the longest call was.
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
        """Stop profiling a step that did not end; it would count as a whole one."""
        self.close()

    def _note_range(self, original: Callable[..., object], entered: record_function, /) -> object:
        """Remember a range that begins in this window, in the thread that is profiled."""
        given = original(entered)
        if _thread.get_ident() == self._thread:
            self._ranges.append(entered)
        return given

    def _give_way(self, original: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Let a profiler start that the user's code starts, be it inside our window."""
        if not self._is_starting:
            kineto.note_script_profiler()
            self.drop()
            self._is_script_profiling = True
        return original(*args, **kwargs)

    def _after_profiler(self, original: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """See a profiler end."""
        given = original(*args, **kwargs)
        self._is_script_profiling = False
        return given


def _has_files_left() -> bool:
    """Tell whether as many files may still be opened as reading a trace takes; Kineto prints if not."""
    opened: list[int] = []
    try:
        while len(opened) < _FILES_TO_READ:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for file in opened:
            os.close(file)
    return True


def is_in_backward() -> bool:
    """Tell whether this thread is inside a backward pass, at the end of which torch restores its state."""
    return int(torch._C._current_graph_task_id()) != -1  # no public way to ask


def innermost_operation() -> FrameType | None:
    """Return the call of the operation that this thread's Python is called by; None where it is by none."""
    frame: FrameType | None = sys._getframe(1)  # no public way to ask
    while frame is not None and not frame.f_code.co_filename.endswith(_CALL_PYTHON):
        frame = frame.f_back
    return frame


def _analyse(profiler: profile) -> Profile | None:
    """Return the profile of the step's trace; None when the trace is too large to read beside a training."""
    # The readers need numpy, which the first steps of a training need not wait for.
    from stepgrade.readers.kineto.reader import read_traces
    from stepgrade.readers.source import ByteSource
    from stepgrade.trace.profile import profile_of_traces

    with tempfile.TemporaryDirectory(prefix="stepgrade-", dir=temporary_folder()) as directory:
        path = Path(directory, "step.json")
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > _MOST_TRACE_BYTES:
            return None
        with ByteSource(path) as source:
            traces = read_traces(source, processes=1)  # no other processes inside a training
    return profile_of_traces(traces)


def _added(before: SampledSteps, more: SampledSteps) -> SampledSteps:
    """Return two samples as one; the shape of a step, as its activity, is that of the first."""
    totals = {op.name: op for op in before.operations}
    for op in more.operations:
        known = totals.get(op.name)
        totals[op.name] = op
        if known is not None:
            totals[op.name] = structs.replace(
                op,
                ms=_plus(op.ms, known.ms),
                calls=_plus(op.calls, known.calls),
                flops=_plus(op.flops, known.flops),
                bytes=_plus(op.bytes, known.bytes),
            )
    longest = sorted(totals.values(), key=lambda op: -(op.ms or 0.0))[:_OPERATIONS_KEPT]
    shares = [share for share in (before.matmul_known_share, more.matmul_known_share) if share is not None]
    return structs.replace(
        before,
        steps=before.steps + more.steps,
        model_ms=before.model_ms + more.model_ms,
        busy_ms=_plus(before.busy_ms, more.busy_ms),
        tokens=_plus(before.tokens, more.tokens),
        samples=_plus(before.samples, more.samples),
        matmul_flops=_plus(before.matmul_flops, more.matmul_flops),
        matmul_known_share=min(shares, default=None),
        operations=tuple(longest),
    )


def _plus(left: float | None, right: float | None) -> float | None:
    """Return the sum; None when one of them is not known, for it is a sum over all steps."""
    return None if left is None or right is None else left + right
