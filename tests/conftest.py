"""What tests share: where real samples are, and how the command is run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from stepgrade.cli import main

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

# What takes long is left to `make check`; these are files and folders, or parts of a test's name.
SLOW = (
    "tests/cli/test_trace_fuzz.py",
    "tests/cli/test_traces.py::test_every_real_trace",
    "tests/diagnosis/test_wild_faults.py",
    "tests/gating/test_rates.py",
    "tests/house/test_public_names.py::test_no_module_hides",
    "tests/readers/kineto/test_kineto_fuzz.py",
    "tests/readers/kineto/test_kineto_samples.py",
    "tests/record/integrations",
    "tests/record/test_processes.py",
    "tests/report/html/test_browser.py",
    "tests/store/test_history.py::test_eight_writers",
    "tests/torch_runs",
    "tests/trace/test_invariants.py::test_real_traces",
)

# Of Chromium, so that it asks nobody anything.
CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# A shell lets what it runs in the background ignore Ctrl-C, and all that this starts; tests interrupt commands.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "house", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # What was measured on the developer's machine must not show up in golden text.
    state = tmp_path_factory.getbasetemp() / "state" / "measured.json"
    monkeypatch.setenv("STEPGRADE_STATE", str(state))
    # What waits for a server is each test's own.
    monkeypatch.setenv("STEPGRADE_OUTBOX", str(tmp_path_factory.mktemp("outbox", numbered=True)))
    # What another test, or the developer, has read before must not be taken for reading.
    monkeypatch.setenv("STEPGRADE_CACHE", str(tmp_path_factory.mktemp("cache", numbered=True)))


@pytest.fixture
def samples() -> Path:
    """Return the folder of real step profiles that is not part of this repository."""
    folder = SHARED / "samples" / "step_profiles"
    if not folder.is_dir():
        pytest.skip("the real step profiles are not beside this clone")
    return folder


class Ran:
    """What a command line gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def stepgrade(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command in this process and return its exit code and output."""

    def run(*arguments: object) -> Ran:
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that rewrites golden text."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden text of the renderers")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start the system's Chromium once: a process can have one driver. Without Chromium its tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = (
        os.environ.get("STEPGRADE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("there is no Chromium: install it, or name it in STEPGRADE_CHROMIUM")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium, args=list(CHROMIUM_FLAGS))
        yield running
        running.close()
