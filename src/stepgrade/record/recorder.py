"""The public recorder: a `with` block, or one line before the training loop."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from stepgrade.errors import MissingExtra, NotMeasured
from stepgrade.files import absolute_path
from stepgrade.model.notes import Note, has_code
from stepgrade.record import environment
from stepgrade.record.blocks import unwrap
from stepgrade.record.journal import (
    Journal,
    RunDescription,
    encode,
    journal_head,
    journal_line,
    rank_path,
    recording_notes,
    step_profile,
)
from stepgrade.record.totals import Totals

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from stepgrade.config import Config
    from stepgrade.hardware.setup import Setup
    from stepgrade.model import Profile
    from stepgrade.model.scorecard import Baseline, Scorecard
    from stepgrade.record.recording import Recording

_log = logging.getLogger("stepgrade.record")
T = TypeVar("T")
_LINES_SECONDS = 1.0  # between Python lines in the journal, which are slower to sum up than steps
_FLUSHING_SHARE = 0.002  # share of the time for the journal; the cheaper a flush, the more often it happens


class Recorder:
    """Times the steps of a training loop, their phases and layers, and writes a step profile.

    Use it as a context manager and call `step()` at the end of each step; `start_recording` starts one that
    counts the optimizer's steps. What goes wrong with recording is logged, and never ends the training.
    """

    _active: ClassVar[Recorder | None] = None

    def __init__(
        self,
        model: Module | None = None,
        *,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        dataloader: object = None,
        path: str | os.PathLike[str] = "stepgrade.json",
        tokens_per_step: float | None = None,
        layers: Sequence[str] | None = None,
        ops_every: int | None = None,
        warmup: int = 3,
        max_steps: int | None = None,
        flush_seconds: float = 1.0,
        config: dict[str, Any] | None = None,
        readable_by: str = "owner",
    ) -> None:
        self.path = self._base = Path(absolute_path(path))  # the script may change the working directory
        self.notes: list[Note] = []
        self.rank = 0
        self.on_step: Callable[[int], None] | None = None
        self._parts = (model, optimizer, dataloader)
        self._tokens_per_step = tokens_per_step
        self._layers = None if layers is None else list(layers)
        self._ops_every, self._warmup = ops_every, warmup
        self._max_steps = max_steps
        self._flush_seconds = flush_seconds
        self._config = config or {}
        self._counts_optimizer_steps = False
        # Under `stepgrade record` the command prints, and only processes that take a step have a file.
        self._in_session = False
        self._recording: Recording | None = None
        self._run = RunDescription()
        self._readable_by = readable_by
        self._journal = Journal(self.path, readable_by)
        self._flushed_at = self._until_flush = self._lines_at = 0.0
        self._head: dict[str, object] = {}  # of the journal
        self._warm, self._steady = Totals(), Totals()
        self._steps = 0
        self._json: bytes | None = None  # the step profile, once closed
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start recording; if another recorder is running, log that and record nothing."""
        if Recorder._active is self:
            return self
        if Recorder._active is not None and not Recorder._active._gives_way():
            self._warn("second_recorder", "another recorder is running; this one records nothing")
            return self
        recording = self._recording = _new_recording(self._warmup, self._ops_every)
        Recorder._active, self._pid = self, os.getpid()
        atexit.register(self.close)
        _leave_forks_alone()
        (model, optimizer, loader), self._parts = self._parts, (None, None, None)  # do not keep them alive
        self._run = RunDescription(
            device=environment.describe_device(None),
            versions=environment.versions(),
            config={**environment.describe_loop(optimizer, loader), **self._config},
        )
        if not self._in_session:
            self._name_file()
            try:
                self._journal.check()
            except OSError as error:
                self._warn_of_file(error, "recording continues in memory")
        recording.start()
        recording.on_step, recording.on_failure = self._after_step, self._after_failure
        recording.window.on_problem = partial(self._warn, "sampled_step_unread")
        recording.stepped_by_hand = not self._counts_optimizer_steps
        self._flushed_at, self._until_flush = time.monotonic(), 0.0
        if model is not None:
            self.watch_model(model)
        optimizers = optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
        for each in optimizers:
            if each is not None:
                recording.watch_optimizer(each)
        if loader is not None and not recording.watch_loader(loader):
            text = (
                "only a torch DataLoader is timed automatically; others need `for x in rec.batches(loader)`"
            )
            self._warn("loader_not_timed", text)
        return self

    def watch_model(self, model: Module) -> None:
        """Time another model."""
        if self._recording is None:
            return
        self._run.device = environment.describe_device(environment.device_of(model))
        self._run.config = {**environment.describe_model(model), **self._run.config}
        if not self._recording.watch_model(model, self._layers):
            name = type(unwrap(model)).__name__
            wanted = f"has no module called {self._layers}" if self._layers else "has no repeated blocks"
            if has_code(self.notes, "no_layers"):
                return
            text = f"{name} {wanted}: its phases are recorded, its layers are not"
            self._warn("no_layers", text, supply="" if self._layers else "{layers} to time modules by name")

    def watch_calls(self, module: Module) -> None:
        """Count the calls of a module as forward; its blocks are already watched with the model."""
        if self._recording is not None:
            self._recording.watch_calls(module)

    def add_loss(self, loss: float) -> None:
        """Add a loss that is only known later, or averaged over steps."""
        if self._recording is not None:
            self._recording.add_loss(loss)

    def step(self, loss: float | Tensor | None = None) -> None:
        """End a training step; the loss may be a number or a tensor, which is read later."""
        recording = self._recording
        if recording is not None and recording.timeline.live:
            recording.step_by_hand(loss)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the step under this name; phases that hooks find inside count to it."""
        recording = self._recording
        if recording is None:
            yield
            return
        recording.timeline.enter_user_phase(recording.phase_code(name))
        try:
            yield
        finally:
            recording.timeline.leave_user_phase()

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the loader's batches, and count the wait for them as input."""
        source = iter(loader)
        while True:
            with self.phase("input"):
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch

    def flush(self) -> None:
        """Append the measurements since the last call to the journal."""
        self._flushed_at = time.monotonic()
        recording = self._recording
        if recording is None or self._pid != os.getpid():
            return
        if not recording.warm.steps + recording.steady.steps:
            return
        if recording.sensors is not None:
            recording.sensors.read()
        self._add_autocast(recording)
        window = recording.window
        head = journal_head(recording, self._run, self._tokens_per_step, self._flush_seconds)
        try:
            is_whole = self._journal.is_due_to_be_whole or head != self._head
            with_lines = recording.lines.is_running and (
                is_whole or self._flushed_at - self._lines_at >= _LINES_SECONDS
            )
            if is_whole:
                window.is_written = False
                recording.move_sums_to(self._warm, self._steady)
                line = journal_line(recording, self._warm, self._steady, with_lines=with_lines)
                self._journal.write(head, line)
                self._head = head
            else:
                line = journal_line(recording, recording.warm, recording.steady, with_lines=with_lines)
                self._journal.append(line)
                recording.move_sums_to(self._warm, self._steady)
            window.is_written = window.sampled is not None
            self._lines_at = self._flushed_at if with_lines else self._lines_at
        except OSError as error:
            if not has_code(self.notes, "flush_failed"):
                self._warn_of_file(error, "stepgrade will try again", code="flush_failed")

    def close(self) -> None:
        """Remove all hooks and write the profile; later calls do nothing."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        Recorder._active = None
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            recording.detach()  # a forked process must not write its parent's profile
            return
        recording.stop()
        if self._json is None:
            self._write(recording)

    def _write(self, recording: Recording) -> None:
        """Write the profile of all steps so far."""
        recording.move_sums_to(self._warm, self._steady)
        totals = self._steady if self._steady.steps else self._warm
        if not totals.steps:
            text = (
                "no step was recorded: call `step()` at the end of each step, or give `watch` the optimizer"
            )
            self._warn("no_steps", text)
            return
        self._steps = recording.ended
        self._add_autocast(recording)
        notes = [*self.notes, *recording_notes(recording, totals, is_warm=totals is self._warm)]
        self._json = encode(step_profile(totals, recording, self._run, self._tokens_per_step, notes))
        try:
            self.path = self._journal.finish(self._json)
        except OSError as error:
            self._warn_of_file(error, "`profile()` returns what was measured")
            return
        if self.path != self._journal.path:
            text = f"{self._journal.path} cannot be written; the profile is in {self.path}"
            self._warn("written_elsewhere", text)

    @property
    def steps(self) -> int:
        """Return the number of ended steps, including warm-up."""
        return self._steps if self._recording is None else self._recording.ended

    @property
    def has_profile(self) -> bool:
        """Return whether the recording has ended with at least one step."""
        return self._json is not None

    def profile(self) -> Profile:
        """Return the profile of a closed recording; raise NotMeasured if it has no steps."""
        from stepgrade.readers.step_profile import profile_from_json  # not every run asks

        if self._json is None:
            hint = "close the recorder first" if self._recording else "no step was recorded"
            raise NotMeasured("no profile yet", hint=hint)
        return profile_from_json(self._json, str(self.path))

    def score(
        self,
        *,
        setup: Setup | None = None,
        device: str | None = None,
        throughput_tok_s: float | None = None,
        peak_bw_gb_s: float | None = None,
        bytes_per_token: float | None = None,
        baseline: Baseline | Profile | Scorecard | None = None,
        allow_different: Sequence[str] = (),
        config: Config | None = None,
    ) -> Scorecard:
        """Return the scorecard: `stepgrade.score(recorder.profile(), …)`."""
        from stepgrade.grading import score  # not every run asks

        return score(
            self.profile(),
            setup=setup,
            device=device,
            throughput_tok_s=throughput_tok_s,
            peak_bw_gb_s=peak_bw_gb_s,
            bytes_per_token=bytes_per_token,
            baseline=baseline,
            allow_different=allow_different,
            config=config,
        )

    def _gives_way(self) -> bool:
        """Return whether this recorder has stopped in favour of another one that starts."""
        return False

    def _leave_to_parent(self) -> None:
        """Stop in a forked process: the recording belongs to its parent."""
        recording, self._recording = self._recording, None
        Recorder._active = None
        atexit.unregister(self.close)
        if recording is not None:
            recording.detach()

    def _name_file(self) -> None:
        """Name the file for the rank, which may only be known once training has started."""
        self.rank, world_size = environment.rank_and_world()
        self._run.rank, self._run.world_size = self.rank, world_size
        self.path = rank_path(self._base, self.rank, world_size)
        self._journal = Journal(self.path, self._readable_by)

    def _after_step(self, step: int) -> None:
        if step == 1:
            self._name_file()
        if self.on_step is not None:
            self.on_step(step)
        recording, now = self._recording, time.monotonic()
        if recording is not None and self._max_steps is not None and step >= self._max_steps:
            recording.pause()  # hooks are removed at the end: torch may be iterating over them now
            self._write(recording)
        elif now - self._flushed_at >= self._until_flush:
            self.flush()
            self._until_flush = min(self._flush_seconds, (time.monotonic() - now) / _FLUSHING_SHARE)

    def _after_failure(self, error: Exception) -> None:
        text = f"recording ended after {self.steps} steps because of an error: {error!r}; please report it"
        self._warn("recorder_failed", text)

    def _add_autocast(self, recording: Recording) -> None:
        """Add autocast's precision, which is only known once the model has been called."""
        if recording.autocast is not None:
            self._run.config["autocast"] = recording.autocast

    def _warn_of_file(self, error: OSError, what_now: str, code: str = "not_written") -> None:
        self._warn(code, f"{self.path} cannot be written ({error.strerror or error}); {what_now}")

    def _warn(self, code: str, text: str, supply: str = "") -> None:
        """Log a problem once, and add it to the profile's notes."""
        note = Note(code, text, supply=supply)
        if note not in self.notes:
            self.notes.append(note)
            if not self._in_session:
                with suppress(ValueError, OSError):  # the script may have closed its streams
                    _log.warning("stepgrade: %s", note)


def start_recording(
    model: Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    dataloader: object = None,
    **options: Any,
) -> Recorder:
    """Start a recorder without changes to the loop; it writes at exit or on `close()`."""
    recorder = Recorder(model, optimizer=optimizer, dataloader=dataloader, **options)
    recorder._counts_optimizer_steps = optimizer is not None
    return recorder.start()


@cache
def _leave_forks_alone() -> None:
    from stepgrade.record import kineto  # needs torch

    def leave() -> None:
        kineto.after_fork_in_child()
        if Recorder._active is not None:
            with suppress(Exception):  # Python would print it
                Recorder._active._leave_to_parent()

    def stop_looking() -> None:
        kineto.before_fork()
        if Recorder._active is not None and Recorder._active._recording is not None:
            Recorder._active._recording.lines.pause()

    def look_again() -> None:
        if Recorder._active is not None and Recorder._active._recording is not None:
            Recorder._active._recording.lines.resume()

    if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        os.register_at_fork(before=stop_looking, after_in_parent=look_again, after_in_child=leave)


def _new_recording(warmup: int, ops_every: int | None) -> Recording:
    try:
        import torch  # noqa: F401  an extra
    except ImportError as error:
        raise MissingExtra("recording needs torch", hint="pip install 'stepgrade[torch]'") from error
    from stepgrade.record.recording import Recording

    return Recording(warmup=warmup, ops_every=ops_every)
