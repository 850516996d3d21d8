"""What tests share: where real samples are, and how the command is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from stepgrade.cli import main

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

settings.register_profile(
    "house", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # What was measured on the developer's machine must not show up in golden text.
    monkeypatch.setenv("STEPGRADE_STATE", str(ROOT / "no" / "measured.json"))


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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that rewrites golden text."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden text of the renderers")
