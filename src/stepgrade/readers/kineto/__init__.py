"""Read the traces that PyTorch's profiler (Kineto) writes, of every era, in bounded memory."""

from __future__ import annotations

from stepgrade.readers.kineto.ranks import read_traces
from stepgrade.readers.kineto.reader import read_trace
from stepgrade.readers.kineto.sniff import looks_like_kineto

__all__ = ["looks_like_kineto", "read_trace", "read_traces"]
