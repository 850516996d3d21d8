"""Which jumps between lines of the package an input takes: what the fuzzer is led by.

coverage's own tracer, in C, without its files: some microseconds for an input instead of milliseconds.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from coverage.tracer import CFileDisposition, CTracer

import stepgrade

_PACKAGE = str(Path(stepgrade.__file__).parent) + os.sep


def _disposition(name: str, _: FrameType) -> Any:
    found = CFileDisposition()
    found.original_filename = found.canonical_filename = found.source_filename = name
    found.trace = name.startswith(_PACKAGE)
    found.reason, found.file_tracer, found.has_dynamic_filename = "", None, False
    return found


class Arcs:
    """Collects the jumps that are taken within `watched`, in every thread that begins there."""

    def __init__(self) -> None:
        self._data: dict[str, set[int]] = {}
        self._seen_files: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._tracers: list[Any] = []

    def _start(self) -> Any:
        tracer = CTracer()
        tracer.data, tracer.trace_arcs = self._data, True
        tracer.should_trace, tracer.should_trace_cache = _disposition, self._seen_files
        tracer.should_start_context = tracer.switch_context = tracer.concur_id_func = None
        tracer.file_tracers, tracer.disable_plugin = {}, None
        tracer.lock_data, tracer.unlock_data = self._lock.acquire, self._lock.release
        tracer.warn, tracer.check_include = print, None
        self._tracers.append(tracer)
        return tracer.start()

    def _start_in_thread(self, frame: FrameType, event: str, arg: Any) -> Any:
        sys.settrace(None)
        begun = self._start()
        return begun(frame, event, arg) if begun else None

    @contextmanager
    def watched(self) -> Iterator[set[tuple[str, int]]]:
        """Yield a set that holds the jumps when the block is left: a file of the package, and coverage's number."""
        found: set[tuple[str, int]] = set()
        self._data.clear()
        self._tracers = []
        threading.settrace(self._start_in_thread)
        self._start()
        try:
            yield found
        finally:
            self._tracers[0].stop()
            threading.settrace(None)  # type: ignore[arg-type]
            with self._lock:
                for name, numbers in self._data.items():
                    found |= {(name.removeprefix(_PACKAGE), number) for number in numbers}
