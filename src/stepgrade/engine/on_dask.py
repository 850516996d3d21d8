"""Job on Dask: a cluster of this machine's processes, or the scheduler that the user has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from stepgrade.engine.base import TRIES, Done, Job, ReportItem, decode_outcome, died, run_item
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
            from importlib import import_module  # noqa: PLC0415  as the next, an extra

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
            self._cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )
            self._client = distributed.Client(self._cluster)

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:  # noqa: ARG002  workers report nothing
        """Yield what becomes of each item, as it comes."""
        self._wait_for_workers()
        workers = max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))
        size = max(1, min(MOST_IN_A_TASK, len(work.items) // (workers * _TASKS_PER_WORKER)))
        places = [*range(len(work.items))]
        batches = [places[first : first + size] for first in range(0, len(places), size)]
        try:
            yield from self._run(work, batches, TRIES)
        except self._lost as error:
            problem = "the Dask scheduler, or the way to it, is gone"
            raise EngineFailed(problem, hint="nothing was written; start it, and run this again") from error

    def _run(self, work: Job, batches: list[list[int]], tries: int) -> Iterator[Done]:
        """Yield the outcomes of batches; those of a worker that died are tried again one by one."""
        futures = {
            self._client.submit(
                run_batch, work.function, [work.items[place] for place in batch], pure=False, retries=0
            ): batch
            for batch in batches
        }
        again: list[list[int]] = []
        waiting = self._dask.as_completed(futures, raise_errors=False)
        for future in waiting:
            batch = futures[future]
            try:
                answers = future.result()
            except self._dask.scheduler.KilledWorker:
                again += [[place] for place in batch]
                continue
            for place, answer in zip(batch, answers, strict=True):
                yield Done(place, decode_outcome(answer, "a Dask worker"))
            future.release()
        if again and tries > 1:
            yield from self._run(work, again, tries - 1)
        else:
            yield from (Done(place, died("ended")) for batch in again for place in batch)

    def _wait_for_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=_SECONDS_WITHOUT_WORKERS)
        except (TimeoutError, self._dask.TimeoutError) as error:
            problem = f"the Dask scheduler has had no worker for {_SECONDS_WITHOUT_WORKERS} s"
            raise EngineFailed(problem, hint="start some, or wait until the queue lets them in") from error

    def close(self) -> None:
        """Cancel what still runs; a scheduler of the user's own stays as it was."""
        with suppress(*self._lost, RuntimeError, TimeoutError):
            self._client.close(timeout=_SECONDS_TO_ANSWER)
        if self._cluster is not None:
            with suppress(*self._lost, RuntimeError, TimeoutError):
                self._cluster.close(timeout=_SECONDS_TO_ANSWER)


def run_batch(function: str, items: list[bytes]) -> list[bytes]:
    """Run on a worker: return the outcome of each item in bytes."""
    return [msgspec.msgpack.encode(run_item(function, item, lambda _: None)) for item in items]
