"""What recorder tests share: a tiny GPT, a loop, and no recorder left behind."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

os.environ.setdefault("OMP_NUM_THREADS", "1")
HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py", "integrations/test_frameworks.py"]


def load_example(name: str):
    """Import a script of examples/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _one_thread_and_nobody_recording() -> Iterator[None]:
    if not HAS_TORCH:
        yield
        return
    import torch

    from stepgrade.record import Recorder

    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    left = Recorder._active
    if left is not None:
        left.close()
    assert left is None, "a test left its recorder running"
