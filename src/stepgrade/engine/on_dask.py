"""Dask as an engine: a cluster of this machine's processes, or the user's own scheduler.

Outcomes are bytes with a schema, but Dask pickles its own messages: in a process with other Dask clients,
anyone who can write to the scheduler's network can run code. Our command unpickles plain values only.
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
from typing import Any

import msgspec

from stepgrade._version import __version__
from stepgrade.decoding import from_builtins
from stepgrade.engine.base import TRIES, Done, Job, ReportItem, decode_outcome, died, now_and_then, run_item
from stepgrade.errors import BadOption, EngineFailed, MissingExtra

# A Dask task costs some 8 ms, so one reads several files, as long as every worker gets some.
MOST_IN_A_TASK = 16
_TASKS_PER_WORKER = 4
_SECONDS_TO_ANSWER = 10
_SECONDS_WITHOUT_WORKERS = 60


class OnDask:
    """The workers of a Dask scheduler; without an address, of a local cluster that ends with this object."""

    def __init__(self, address: str, workers: int) -> None:
        try:
            from importlib import import_module  # an extra, like the next

            distributed: Any = import_module("distributed")
        except ModuleNotFoundError as error:
            raise MissingExtra("Dask is not installed", hint="pip install 'stepgrade[dask]'") from error
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are reported as ours
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
                raise BadOption(problem, field="engine", hint="check that it runs, and the port") from error
        else:
            # Dask sets OMP_NUM_THREADS and more in the environment, extends sys.path, and leaves a directory
            # behind; `close` undoes all of it.
            self._environment, self._path = dict(os.environ), [*sys.path]
            self._scratch = tempfile.mkdtemp(prefix="stepgrade-dask-")
            with import_module("dask").config.set({"temporary-directory": self._scratch}):
                self._cluster = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    dashboard_address=None,
                    # Its HTTP server always starts; keep it off port 8787 of every address.
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                    local_directory=self._scratch,
                    silence_logs=logging.CRITICAL,
                )
            self._client = distributed.Client(self._cluster)

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield the outcome of each item as it arrives, and report the progress of slow ones."""
        try:
            self._client.wait_for_workers(1, timeout=_SECONDS_WITHOUT_WORKERS)
        except (TimeoutError, self._dask.TimeoutError) as error:
            problem = f"the Dask scheduler has had no worker for {_SECONDS_WITHOUT_WORKERS} s"
            raise EngineFailed(problem, hint="start workers, or wait until the queue does") from error
        # A standard function: one of ours that cannot be unpickled there would never return.
        found = self._client.run(pkgutil.resolve_name, "stepgrade._version:__version__", on_error="return")
        for worker, version in found.items():
            if isinstance(version, ImportError | AttributeError):
                hint = f"install stepgrade {__version__} where the workers run"
                raise EngineFailed(f"the Dask worker at {worker} has no stepgrade", hint=hint)
            if not isinstance(version, Exception) and version != __version__:
                problem = f"the Dask worker at {worker} has stepgrade {version}, this process {__version__}"
                raise EngineFailed(problem, hint="install the same version in both places")
        try:
            yield from self._run(work, report)
        except self._lost as error:
            problem = "lost the connection to the Dask scheduler"
            raise EngineFailed(problem, hint="nothing was written; restart it, and run this again") from error

    def _run(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield outcomes; the items of a worker that died are retried one by one."""
        workers = max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))
        size = max(1, min(MOST_IN_A_TASK, len(work.items) // (workers * _TASKS_PER_WORKER)))
        indices = [*range(len(work.items))]
        batches = [indices[first : first + size] for first in range(0, len(indices), size)]
        # Workers report progress as events of a topic that only they know.
        messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        topic = f"stepgrade-{uuid.uuid4().hex}"
        self._client.subscribe_topic(topic, messages.put)
        for _ in range(TRIES):
            futures = {}
            for batch in batches:
                items = [(index, work.items[index]) for index in batch]
                future = self._client.submit(run_batch, work.function, items, topic, pure=False, retries=0)
                futures[future] = batch
            for future in futures:
                future.add_done_callback(messages.put)
            batches, left = [], len(futures)
            while left:
                message = messages.get()
                if isinstance(message, tuple):  # an event: its time and content
                    with suppress(msgspec.ValidationError):  # anyone on the cluster can send events
                        index, done_bytes = from_builtins(message[1], tuple[int, int])
                        if 0 <= index < len(work.items):
                            report(index, done_bytes)
                    continue
                left -= 1
                batch = futures[message]
                answers = self._answers(message, len(batch))
                if answers is None:
                    batches += [[index] for index in batch]
                    continue
                for index, answer in zip(batch, answers, strict=True):
                    yield Done(index, decode_outcome(answer, "a Dask worker"))
                message.release()
        yield from (Done(index, died("ended")) for (index,) in batches)

    def _answers(self, future: Any, count: int) -> list[Any] | None:
        """Return a worker's answers, None if it died; raise EngineFailed if it returned anything else."""
        try:
            answers = future.result()
        except self._dask.scheduler.KilledWorker:
            return None
        except self._lost:
            raise
        except Exception as error:  # deliberate errors come back as outcomes
            raise EngineFailed(f"a Dask worker failed with {type(error).__name__}") from error
        if not isinstance(answers, list) or len(answers) != count:
            raise EngineFailed("a Dask worker returned an unexpected result")
        return answers

    def close(self) -> None:
        """Cancel what still runs; the user's own scheduler is left alone."""
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
    """A placeholder in a Dask message for an object that could run code; accepts all that pickle does."""

    def take(self, *_: object) -> None:
        """Do nothing."""

    __setstate__ = __setitem__ = append = extend = add = take


class PlainUnpickler(pickle.Unpickler):
    """Unpickles plain values, and errors of Python and Dask; anything else becomes Withheld."""

    _NUMBERS = (bool, int, float, complex, range, slice)
    _PLAIN = (*_NUMBERS, str, bytes, bytearray, dict, list, tuple, set, frozenset)

    def find_class(self, module: str, name: str) -> Any:
        """Return something harmless to call."""
        if module == "tblib.pickling_support" and name == "unpickle_traceback":
            return lambda *_: None  # not needed
        if module == "tblib.pickling_support" and name.startswith("unpickle_exception"):
            # How Dask pickles errors; only the class matters here.
            return lambda kind, *_: kind.__new__(kind) if _is_error(kind) else Withheld()
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        is_known = module == "builtins" or module.partition(".")[0] == "distributed"
        return found if (is_known and _is_error(found)) or found in self._PLAIN else Withheld


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


def unpickle_plain_only() -> None:
    """Make Dask's client unpickle nothing that can run code; this process must have no other client."""
    from importlib import import_module  # parts of an extra

    guarded = ModuleType("pickle")
    vars(guarded).update(vars(pickle))

    def loads(data: Any, *, buffers: Any = ()) -> Any:
        return PlainUnpickler(io.BytesIO(data), buffers=buffers).load()

    vars(guarded)["loads"] = loads
    with suppress(ModuleNotFoundError):
        for name in ("distributed.protocol.pickle", "distributed.client"):
            vars(import_module(name))["pickle"] = guarded


def run_batch(function: str, items: list[tuple[int, bytes]], topic: str) -> list[bytes]:
    """Run on a worker: return the encoded outcome of each item, and report progress under `topic`."""
    from distributed import get_worker  # an extra

    worker: Any = get_worker()
    answers = []
    for index, item in items:

        def report(done_bytes: int, index: int = index) -> None:
            worker.log_event(topic, (index, done_bytes))

        answers.append(msgspec.msgpack.encode(run_item(function, item, now_and_then(report))))
    return answers
