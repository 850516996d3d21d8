"""The recorder that users meet: one `with`, or one line beside the training loop."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from stepgrade.errors import MissingExtra, NotMeasured
from stepgrade.record.journal import Journal, rank_path

if TYPE_CHECKING:
    from stepgrade.model import Profile
    from stepgrade.model.scorecard import Scorecard
    from stepgrade.record.recording import Recording
    from stepgrade.record.totals import Totals

_log = logging.getLogger("stepgrade.record")
T = TypeVar("T")
_FIRST_FLUSH_SECONDS = 1.0


class Recorder:
    """Times the steps of a training loop, their phases and layers, and writes a step profile.

    Use it as a context manager and call `step()` at the end of each step; `watch` starts one that counts
    the optimizer's steps. What goes wrong with recording is logged, and never ends the training.
    """

    _active: ClassVar[Recorder | None] = None

    def __init__(
        self,
        model: Any = None,
        *,
        optimizer: Any = None,
        dataloader: Any = None,
        path: str | os.PathLike[str] = "stepgrade.json",
        tokens_per_step: float | None = None,
        layers: Sequence[str] | None = None,
        ops_every: int | None = None,
        warmup: int = 3,
        flush_seconds: float = 5.0,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self.rank = 0
        self.on_step: Callable[[int], None] | None = None
        self._parts = (model, optimizer, dataloader)
        self._tokens_per_step = tokens_per_step
        self._layers = None if layers is None else list(layers)
        self._ops_every, self._warmup = ops_every, warmup
        self._flush_seconds = flush_seconds
        self._config = config or {}
        self._counts_optimizer_steps = False
        self._recording: Recording | None = None
        self._document: dict[str, Any] | None = None
        self._head: dict[str, Any] = {}
        self._journal = Journal(self.path)
        self._flushed_at = 0.0
        self._totals: tuple[Totals, Totals] | None = None
        self._told: set[str] = set()
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Begin to record; when another recorder runs already, say so and record nothing."""
        if Recorder._active is not None:
            self._tell("another recorder is running; this one records nothing")
            return self
        self._recording = _new_recording(self._warmup, self._ops_every)
        Recorder._active = self
        atexit.register(self.close)
        self._describe()
        self._check_place()
        model, optimizer, loader = self._parts
        self._recording.start()
        self._recording.on_step = self._after_step
        self._recording.stepped_by_hand = not self._counts_optimizer_steps
        # The first flush comes early: a run that is killed in its first seconds leaves something too.
        self._flushed_at = time.monotonic() - max(0.0, self._flush_seconds - _FIRST_FLUSH_SECONDS)
        if model is not None:
            self.watch_model(model)
        for each in _listed(optimizer):
            self._recording.watch_optimizer(each)
        if loader is not None and not self._recording.watch_loader(loader):
            self._tell(
                "only a torch DataLoader is timed by itself; for others: `for x in rec.batches(loader)`"
            )
        return self

    def watch_model(self, model: Any) -> None:
        """Time a model, or one more."""
        from stepgrade.record.blocks import bare  # noqa: PLC0415  only with torch

        if self._recording is None:
            return
        self._describe_model(model)
        if not self._recording.watch_model(model, self._layers):
            name = type(bare(model)).__name__
            wanted = f"has no module called {self._layers}" if self._layers else "has no repeated blocks"
            told = f"{name} {wanted}: its phases are recorded, its layers are not"
            self._tell(told if self._layers else f"{told} unless you name modules to time", once=told)

    def watch_calls(self, module: Any) -> None:
        """Count the calls of a module as forward; its blocks are those of the model already."""
        if self._recording is not None:
            self._recording.watch_calls(module)

    def add_loss(self, loss: float) -> None:
        """Note a loss that is known only later, or averaged over steps."""
        if self._recording is not None:
            self._recording.loss.add(loss)

    def step(self, loss: Any = None) -> None:
        """End a training step; the loss may be a number or a tensor, which is read later."""
        recording = self._recording
        if recording is not None:
            recording.stepped_by_hand = True
            recording.timeline.forget_open()
            recording.end_step(loss)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the step under this name; phases that hooks find inside count to it."""
        recording = self._recording
        if recording is None:
            yield
            return
        recording.timeline.enter_by_hand(recording.phase_code(name))
        try:
            yield
        finally:
            recording.timeline.leave_by_hand()

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield what the loader yields, and count the wait for it as input."""
        source = iter(loader)
        while True:
            with self.phase("input"):
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch

    def close(self) -> None:
        """Take all hooks off and write the profile; a second call does nothing."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        Recorder._active = None
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return  # a forked worker must not write its parent's profile
        recording.stop()
        self._merge(recording)
        self._write(recording)

    @property
    def steps(self) -> int:
        """Return how many steps have ended, warm-up included."""
        if self._recording is not None:
            return self._recording.ended
        return int(self._document["stepgrade"]["recorded_steps"]) if self._document else 0

    @property
    def has_profile(self) -> bool:
        """Tell whether the recording has ended with at least one step."""
        return self._document is not None

    def profile(self) -> Profile:
        """Return what was recorded, once closed; raise NotMeasured when no step was."""
        from stepgrade.record.result import profile_of  # noqa: PLC0415  needs torch

        if self._document is None:
            hint = "close the recorder first" if self._recording else "no step was recorded"
            raise NotMeasured("there is no profile", hint=hint)
        return profile_of(self._document, str(self.path))

    def score(self, **setup: Any) -> Scorecard:
        """Return the scorecard of what was recorded; options are those of `hardware.setup.Setup`."""
        from stepgrade.record.result import score_profile  # noqa: PLC0415  needs torch

        return score_profile(self.profile(), setup)

    def _describe(self) -> None:
        from stepgrade.record import about  # noqa: PLC0415  needs torch

        _, optimizer, loader = self._parts
        self.rank, world_size = about.rank_and_world()
        self.path = rank_path(self.path, self.rank, world_size)
        self._journal = Journal(self.path)
        self._head = {
            "device": about.describe_device(None),
            "rank": self.rank,
            "world_size": world_size,
            "versions": about.versions(),
            "config": {**about.describe_run(optimizer, loader), **self._config},
        }

    def _describe_model(self, model: Any) -> None:
        from stepgrade.record import about  # noqa: PLC0415  needs torch

        self._head["device"] = about.describe_device(about.device_of(model))
        self._head["config"] = {**about.describe_model(model), **self._head["config"]}

    def _check_place(self) -> None:
        try:
            self._journal.check()
        except OSError as error:
            self._tell(f"{self.path} cannot be written ({_reason(error)}); recording goes on in memory")

    def _after_step(self, step: int) -> None:
        if self.on_step is not None:
            self.on_step(step)
        if time.monotonic() - self._flushed_at >= self._flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Append what was measured since the last time to the journal on disk."""
        from stepgrade.record.result import journal_head, totals_line  # noqa: PLC0415  needs torch

        self._flushed_at = time.monotonic()
        recording = self._recording
        if recording is None or not recording.warm.steps + recording.steady.steps:
            return
        recording.read_sensors()
        line = {
            "warmup": totals_line(recording.warm, recording) if recording.warm.steps else None,
            "steady": totals_line(recording.steady, recording) if recording.steady.steps else None,
            "recorded_steps": recording.ended,
            "loss": recording.loss.summary() or None,
        }
        try:
            self._journal.append(journal_head(recording, self._head, self._tokens_per_step), line)
        except OSError as error:
            self._tell(f"{self.path} cannot be written ({_reason(error)}); it is tried again", once="flush")
            return
        self._merge(recording)

    def _merge(self, recording: Recording) -> None:
        """Add what is fresh to the sums of the whole run."""
        self._totals = recording.take_fresh(self._totals)

    def _write(self, recording: Recording) -> None:
        from stepgrade.record.result import document_of, notes_of  # noqa: PLC0415  needs torch

        warm, steady = self._totals or recording.take_fresh(None)
        totals = steady if steady.steps else warm
        if not totals.steps:
            self._tell("no step was recorded: call `step()` at the end of each, or `watch` the optimizer")
            return
        notes = [*self.notes, *notes_of(recording, totals, is_warm=totals is warm)]
        self._document = document_of(totals, recording, self._head | {"notes": notes}, self._tokens_per_step)
        try:
            self.path = self._journal.finish(self._document)
        except OSError as error:
            self._tell(f"{self.path} cannot be written ({_reason(error)}); `profile()` has what was measured")
            return
        if self.path != self._journal.path:
            self._tell(f"{self._journal.path} cannot be written; the profile is in {self.path}")

    def _tell(self, problem: str, once: str | None = None) -> None:
        """Log a problem in plain words, and keep it for the profile's notes."""
        if once is None or once not in self._told:
            self._told.add(once or problem)
            self.notes.append(problem)
            _log.warning("stepgrade: %s", problem)


def watch(model: Any, optimizer: Any = None, dataloader: Any = None, **options: Any) -> Recorder:
    """Start a recorder that needs nothing else in the loop; it writes at exit, or on `close()`."""
    recorder = Recorder(model, optimizer=optimizer, dataloader=dataloader, **options)
    recorder._counts_optimizer_steps = optimizer is not None  # noqa: SLF001  ours
    return recorder.start()


def _new_recording(warmup: int, ops_every: int | None) -> Recording:
    try:
        import torch  # noqa: F401, PLC0415  an extra
    except ImportError as error:
        raise MissingExtra("recording needs torch", hint="pip install 'stepgrade[torch]'") from error
    from stepgrade.record.operations import OperationWindow  # noqa: PLC0415  as above
    from stepgrade.record.recording import Recording  # noqa: PLC0415

    window = OperationWindow(ops_every) if ops_every else None
    return Recording(warmup=warmup, window=window)


def _listed(optimizer: Any) -> Sequence[Any]:
    if optimizer is None:
        return ()
    return optimizer if isinstance(optimizer, list | tuple) else (optimizer,)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
