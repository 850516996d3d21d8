"""Public names are functions and types, whatever else was imported before, and pleasant to call."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stepgrade as sg

IMPORT_ALL = """
import pkgutil, types
from importlib import import_module
import stepgrade as sg
for module in pkgutil.walk_packages(sg.__path__, "stepgrade."):
    if not module.name.endswith("__main__"):
        try:
            import_module(module.name)
        except ImportError:
            pass  # an extra that is not installed
from stepgrade.cli import main
modules = [name for name in sg.__all__ if isinstance(getattr(sg, name), types.ModuleType)]
print(modules, callable(main))
"""


def test_no_module_hides_a_public_name() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[] True"


def test_devices_are_found_by_words() -> None:
    assert "h100-sxm5-80gb" in [device.key for device in sg.devices("h100").devices]
    assert len(sg.devices().devices) == sg.devices().total
    with pytest.raises(sg.StepgradeError, match="words: no device matches"):
        sg.devices("voodoo")


def test_a_run_is_estimated_from_its_setup() -> None:
    plan = sg.Plan(batch=1, seq=8192)
    setup = sg.Setup(device="h100-sxm5-80gb", model="examples/models/llama-3-8b.json", plan=plan)
    found = sg.estimate(setup, throughput_tok_s=5762)
    assert found.utilisation is not None
    assert found.utilisation.mfu == pytest.approx(0.30, abs=0.001)


def test_a_history_is_opened_by_its_path(tmp_path: object) -> None:
    with sg.history(f"{tmp_path}/history.db") as history:
        assert history.runs() == []
