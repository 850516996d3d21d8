"""Where many files are read: in this process, in a pool of processes, or on Dask.

An engine maps one of our functions over items and gives the results as they come. Functions and items are
named in bytes, and so are results: no engine pickles our classes, and what comes from an install of another
version is refused.
"""

from stepgrade.engine.base import Done, Engine, Job, Outcome, cores, open_engine

__all__ = ["Done", "Engine", "Job", "Outcome", "cores", "open_engine"]
