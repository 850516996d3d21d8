"""Every example in the documentation runs: console blocks give what they show, Python blocks pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[Path, str]]:
    return [
        (page, text)
        for page in PAGES
        for found, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if found == language
    ]


def run_shell(command: str) -> str:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }
    ran = subprocess.run(
        command,
        shell=True,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ran.stdout + ran.stderr


def replayed(text: str) -> str:
    """Return a console block with each command's real output under it."""
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    return "".join(f"$ {command}\n{run_shell(command)}" for command in commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_console_blocks_show_real_output(page: Path, pytestconfig: pytest.Config) -> None:
    text = page.read_text(encoding="utf-8")
    real = BLOCK.sub(
        lambda block: f"```console\n{replayed(block[2])}```" if block[1] == "console" else block[0], text
    )
    if pytestconfig.getoption("--update-golden"):
        page.write_text(real, encoding="utf-8")
    assert text == real


@pytest.mark.parametrize(("page", "code"), blocks("python"), ids=lambda value: getattr(value, "stem", None))
def test_python_blocks_run(page: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "record.md":
        pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(ROOT)
    exec(compile(code, str(page), "exec"), {})  # noqa: S102  our own examples


def test_there_are_examples_to_run() -> None:
    assert len(blocks("console")) >= 3
    assert len(blocks("python")) >= 3


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
