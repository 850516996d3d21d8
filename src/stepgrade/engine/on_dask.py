"""Job on Dask: a cluster of this machine's processes, or the scheduler that the user has.

Outcomes are bytes with a schema, but Dask's own messages are pickled: in a process with other clients of it,
whoever can write to the scheduler's network can run code. The command unpickles plain values only.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import pkgutil
import queue
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from stepgrade._version import __version__
from stepgrade.decoding import from_builtins
from stepgrade.engine.base import TRIES, Done, Job, ReportItem, decode_outcome, died, now_and_then, run_item
from stepgrade.errors import BadOption, EngineFailed, MissingExtra

# A task of Dask costs some 8 ms: several files make one, yet every worker gets some.
MOST_IN_A_TASK = 16
_TASKS_PER_WORKER = 4
_SECONDS_TO_ANSWER = 10
_SECONDS_WITHOUT_WORKERS = 60


class OnDask:
    """The workers of a Dask scheduler; without an address, those of a cluster that ends with this."""

    def __init__(self, address: str, workers: int) -> None:
        try:
            from importlib import import_module  # as the next, an extra

            distributed: Any = import_module("distributed")
        except ModuleNotFoundError as error:
            raise MissingExtra("Dask is not installed", hint="pip install 'stepgrade[dask]'") from error
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it logs what is said here in words
        self._dask = distributed
        self._cluster: Any = None
        self._lost = (
            distributed.CancelledError,
            distributed.client.FutureCancelledError,
            distributed.comm.core.CommClosedError,
            OSError,
        )
        if address:
            try:
                self._client = distributed.Client(f"tcp://{address}", timeout=_SECONDS_TO_ANSWER)
            except (OSError, ValueError) as error:
                problem = f"no Dask scheduler answers at {address}"
                raise BadOption(problem, field="engine", hint="is it running, and the port right?") from error
        else:
            # Dask sets OMP_NUM_THREADS and more in the environment, adds to sys.path, and leaves a directory
            # behind: all of it ends with this.
            self._environment, self._path = dict(os.environ), [*sys.path]
            self._scratch = tempfile.mkdtemp(prefix="stepgrade-dask-")
            with import_module("dask").config.set({"temporary-directory": self._scratch}):
                self._cluster = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    dashboard_address=None,
                    # Its HTTP server starts in any case: not on port 8787 of every address.
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                    local_directory=self._scratch,
                    silence_logs=logging.CRITICAL,
                )
            self._client = distributed.Client(self._cluster)

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield what becomes of each item, as it comes; report how far those are that take long."""
        self._wait_for_workers()
        self._check_versions()
        workers = max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))
        size = max(1, min(MOST_IN_A_TASK, len(work.items) // (workers * _TASKS_PER_WORKER)))
        places = [*range(len(work.items))]
        batches = [places[first : first + size] for first in range(0, len(places), size)]
        # Workers tell how far they are by events of a topic that nobody else has.
        came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        topic = f"stepgrade-{uuid.uuid4().hex}"
        try:
            self._client.subscribe_topic(topic, came.put)
            for one in self._run(_Batches(work, topic, batches), came, TRIES):
                if isinstance(one, Done):
                    yield one
                else:
                    report(*one)
        except self._lost as error:
            problem = "the Dask scheduler, or the way to it, is gone"
            raise EngineFailed(problem, hint="nothing was written; start it, and run this again") from error

    def _run(
        self, work: _Batches, came: queue.SimpleQueue[Any], tries: int
    ) -> Iterator[Done | tuple[int, int]]:
        """Yield outcomes, and how far items are; those of a worker that died are tried again one by one."""
        futures = {}
        for batch in work.places:
            items = [(place, work.job.items[place]) for place in batch]
            future = self._client.submit(
                run_batch, work.job.function, items, work.topic, pure=False, retries=0
            )
            futures[future] = batch
        for future in futures:
            future.add_done_callback(came.put)
        again: list[list[int]] = []
        left = len(futures)
        while left:
            one = came.get()
            if isinstance(one, tuple):  # an event: when, and what
                with suppress(msgspec.ValidationError):  # anybody on the cluster can write some
                    place, done_bytes = from_builtins(one[1], tuple[int, int])
                    if 0 <= place < len(work.job.items):
                        yield place, done_bytes
                continue
            left -= 1
            batch = futures[one]
            answers = self._answers(one, len(batch))
            if answers is None:
                again += [[place] for place in batch]
                continue
            for place, answer in zip(batch, answers, strict=True):
                yield Done(place, decode_outcome(answer, "a Dask worker"))
            one.release()
        if again and tries > 1:
            yield from self._run(work._replace(places=again), came, tries - 1)
        else:
            yield from (Done(place, died("ended")) for batch in again for place in batch)

    def _answers(self, future: Any, count: int) -> list[Any] | None:
        """Return a worker's answers, None where it died; raise EngineFailed where it gave something else."""
        try:
            answers = future.result()
        except self._dask.scheduler.KilledWorker:
            return None
        except self._lost:
            raise
        except Exception as error:  # what is raised on purpose comes back as an outcome
            raise EngineFailed(f"a Dask worker failed with {type(error).__name__}") from error
        if not isinstance(answers, list) or len(answers) != count:
            raise EngineFailed("a Dask worker answered with something else than was asked for")
        return answers

    def _wait_for_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=_SECONDS_WITHOUT_WORKERS)
        except (TimeoutError, self._dask.TimeoutError) as error:
            problem = f"the Dask scheduler has had no worker for {_SECONDS_WITHOUT_WORKERS} s"
            raise EngineFailed(problem, hint="start some, or wait until the queue lets them in") from error

    def _check_versions(self) -> None:
        """Raise EngineFailed where a worker lacks this package, or has another version of it."""
        # What runs there is Python's own: a task of ours that cannot be unpacked there would never end.
        found = self._client.run(pkgutil.resolve_name, "stepgrade._version:__version__", on_error="return")
        for worker, version in found.items():
            if isinstance(version, ImportError | AttributeError):
                hint = f"install stepgrade {__version__} where the workers run"
                raise EngineFailed(f"the Dask worker at {worker} has no stepgrade", hint=hint)
            if not isinstance(version, Exception) and version != __version__:
                problem = f"the Dask worker at {worker} has stepgrade {version}, this process {__version__}"
                raise EngineFailed(problem, hint="install the same version in both places")

    def close(self) -> None:
        """Cancel what still runs; a scheduler of the user's own stays as it was."""
        with suppress(*self._lost, RuntimeError, TimeoutError):
            self._client.close(timeout=_SECONDS_TO_ANSWER)
        if self._cluster is not None:
            with suppress(*self._lost, RuntimeError, TimeoutError):
                self._cluster.close(timeout=_SECONDS_TO_ANSWER)
            shutil.rmtree(self._scratch, ignore_errors=True)
            sys.path[:] = self._path
            for name in os.environ.keys() - self._environment.keys():
                del os.environ[name]
            os.environ.update(self._environment)


class Withheld(Exception):
    """What stands in a Dask message for a thing that could run code; it takes all that pickle does to one."""

    def take(self, *_: object) -> None:
        """Do nothing."""

    __setstate__ = __setitem__ = append = extend = add = take


class PlainUnpickler(pickle.Unpickler):
    """Unpickles plain values, and errors of Python and Dask; for anything else it gives Withheld."""

    _PLAIN = (
        bool,
        bytearray,
        bytes,
        complex,
        dict,
        float,
        frozenset,
        int,
        list,
        range,
        set,
        slice,
        str,
        tuple,
    )

    def find_class(self, module: str, name: str) -> Any:
        """Return what does nothing when it is called."""
        if module == "tblib.pickling_support" and name == "unpickle_traceback":
            return lambda *_: None  # Dask does without
        if module == "tblib.pickling_support" and name.startswith("unpickle_exception"):
            return _error_of  # how Dask pickles errors: of what class it is matters here, nothing else
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        is_known = module == "builtins" or module.partition(".")[0] == "distributed"
        is_error = is_known and isinstance(found, type) and issubclass(found, Exception)
        return found if is_error or found in self._PLAIN else Withheld


def _error_of(kind: object, *_: object) -> Exception:
    return kind.__new__(kind) if isinstance(kind, type) and issubclass(kind, Exception) else Withheld()


def unpickle_plain_only() -> None:
    """Let Dask's client in this process unpickle nothing that can run code; there must be no other client."""
    from importlib import import_module  # an extra, as its parts

    guarded = ModuleType("pickle")
    vars(guarded).update(vars(pickle))

    def loads(data: Any, *, buffers: Any = ()) -> Any:
        return PlainUnpickler(io.BytesIO(data), buffers=buffers).load()

    vars(guarded)["loads"] = loads
    with suppress(ModuleNotFoundError):
        for name in ("distributed.protocol.pickle", "distributed.client"):
            vars(import_module(name))["pickle"] = guarded


class _Batches(NamedTuple):
    """What a task each is made of."""

    job: Job
    topic: str  # that workers tell under how far they are
    places: list[list[int]]  # of the items of each


def run_batch(function: str, items: list[tuple[int, bytes]], topic: str) -> list[bytes]:
    """Run on a worker: return the outcome of each item in bytes; tell how far those are that take long."""
    from distributed import get_worker  # an extra

    worker: Any = get_worker()
    answers = []
    for place, item in items:

        def report(done_bytes: int, place: int = place) -> None:
            worker.log_event(topic, (place, done_bytes))

        answers.append(msgspec.msgpack.encode(run_item(function, item, now_and_then(report))))
    return answers
