"""`devices` and `estimate` answer at once: they import what they need and nothing of the grading."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

MODEL = str(ROOT / "examples" / "models" / "llama-3-8b.json")
HEAVY = {
    "dataclasses",
    "importlib.metadata",
    "inspect",
    "numpy",
    "pathlib",
    "shutil",
    "statistics",
    "stepgrade.scoring",
    "stepgrade.grading",
    "stepgrade.compare",
    "stepgrade.contract",
    "stepgrade.readers",
    "subprocess",
    "tomllib",
    "urllib.parse",
}


def imported(code: str) -> set[str]:
    show = "; import sys; print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code + show], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["devices"],
        ["devices", "h100-sxm5-80gb"],
        ["devices", "--filter", "rtx", "--json"],
        ["estimate", "--model", MODEL, "--device", "rtx-4090", "--batch", "4", "--seq", "512"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_light_imports(arguments: list[str]) -> None:
    # What msgspec itself imports depends on what else is installed.
    extra = imported(f"from stepgrade.cli import main; main({arguments!r})") - imported("import msgspec")
    assert not extra & HEAVY
