"""The live recorder for PyTorch: from a training loop to a step profile."""

from __future__ import annotations

from stepgrade.record.recorder import Recorder, start_recording

__all__ = ["Recorder", "start_recording"]
