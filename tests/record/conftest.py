"""What recorder tests share: a tiny GPT, a loop, and no recorder left behind."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from stepgrade.hardware.detect import processor
from stepgrade.hardware.measured import Measurement, Rate, keep_measured
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


@pytest.fixture(scope="session")
def measured_processor(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return where this machine's processor was measured, so that no test has to do it."""
    rate = Rate(best=0.1, median=0.1, spread_share=0.0, runs=5)
    here = processor()
    measurement = Measurement(
        key="cpu", name=here.name, date="2026-01-02T03:04:05Z", method="by hand", cores=here.cores,
        tflops={"fp32": rate, "bf16": rate, "fp64": rate},
    )  # fmt: skip
    return keep_measured(measurement, str(tmp_path_factory.mktemp("state") / "measured.json"))


@pytest.fixture(autouse=True)
def _processor_is_measured(monkeypatch: pytest.MonkeyPatch, measured_processor: str) -> None:
    monkeypatch.setenv("STEPGRADE_STATE", measured_processor)


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
