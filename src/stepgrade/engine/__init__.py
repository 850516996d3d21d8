"""Where many files are read: in this process, in a pool of processes, or on Dask.

An engine maps one of our functions over items and yields results as they arrive. Items and results are bytes:
no engine pickles our classes, and results of another version are refused.
"""

from stepgrade.engine.base import Done, Engine, Here, Job, Outcome, cores
from stepgrade.errors import BadOption, did_you_mean

__all__ = ["Done", "Engine", "Job", "Outcome", "cores", "open_engine"]
ENGINES = ("here", "pool", "dask")


def open_engine(name: str, workers: int) -> Engine:
    """Return the engine of that name: here, pool, dask, or dask://HOST:PORT; raise BadOption."""
    if name == "here":
        return Here()
    if name == "pool":
        from stepgrade.engine.pool import ProcessPool

        return ProcessPool(workers)
    if name == "dask" or name.startswith("dask://"):
        from stepgrade.engine.on_dask import OnDask

        return OnDask(name.removeprefix("dask").removeprefix("://"), workers)
    hint = f"{did_you_mean(name, ENGINES)}; your own scheduler is dask://HOST:PORT"
    raise BadOption(f"{name!r} is not an engine", field="engine", hint=hint)
