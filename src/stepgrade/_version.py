"""The version, alone in a file so that `stepgrade --version` imports nothing else."""

__version__ = "0.2.0"
