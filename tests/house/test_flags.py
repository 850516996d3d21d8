"""Flags are words of the command line alone: no text of any other room holds one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from stepgrade.cli.commands import FLAGS
from tests.conftest import ROOT

SRC = ROOT / "src" / "stepgrade"
# Flags of other programs.
FOREIGN = {
    "_version.py": {"--version"},
    "store/git.py": {
        "--short",
        "--no-patch",
        "--no-show-signature",
        "--format",
        "--show-toplevel",
        "--show-prefix",
        "--no-filters",
        "--stdin",
        "--cacheinfo",
        "--verify",
        "--quiet",
        "--end-of-options",
        "--shared",
        "--no-checkout",
        "--detach",
        "--no-optional-locks",
        "--git-dir",
        "--work-tree",
        "--porcelain",
        "--untracked-files",
    },
    "store/database.py": {"--upgrade"},
    "readers/nsys/__init__.py": {"--type", "--include-json"},
    "readers/rocprof/tables.py": {
        "--kernel-trace",
        "--hip-trace",
        "--memory-copy-trace",
        "--marker-trace",
    },
    "readers/nsys/reader.py": {"--type", "--include-json", "--trace"},
}

TRAINERS_FLAGS = "hardware/trainers.py"  # writes nothing but flags of the programs that train


def test_no_text_outside_the_command_line_holds_a_flag() -> None:
    found = []
    for path in SRC.rglob("*.py"):
        place = path.relative_to(SRC)
        if place.parts[0] == "cli" or place.as_posix() == TRAINERS_FLAGS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                flags = set(re.findall(r"--[a-z][a-z-]*", node.value))
                found += [(place, flag) for flag in flags - FOREIGN.get(place.as_posix(), set())]
    assert not found


def test_every_parameter_that_a_hint_names_has_a_flag() -> None:
    """A hint such as "give {device}" is shown with flags on the command line: one without a flag is a riddle there."""
    named = {
        name
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "supply"
        for text in ast.walk(node.value)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
        for name in re.findall(r"\{(\w+)\}", text.value)
    }
    assert len(named) > 20
    assert {name for name in named if not FLAGS.get(name, "").startswith(("--", "`stepgrade"))} == set()


@pytest.mark.parametrize(
    ("parameter", "flag"),
    [
        ("device", "--device KEY"),
        ("devices", "--world-size N"),
        ("plan_devices", "--devices N"),
        ("work", "--work training"),
        ("cache", "--no-cache"),
        ("sequence", "--sequence-parallel"),
        ("config", "--config TOML"),
        ("optimizer", "--optimizer NAME"),
        ("measure_here", "`stepgrade devices --measure`"),
    ],
)
def test_a_flag_is_derived_from_the_command_that_has_it(parameter: str, flag: str) -> None:
    assert FLAGS[parameter] == flag


def test_what_no_command_takes_has_no_flag() -> None:
    assert FLAGS.get("wombats") is None
    assert {*FLAGS} >= {"device", "seq", "days", "measure_here"}


def test_the_running_command_is_asked_first() -> None:
    """Naming a flag of the command that runs imports no other one."""
    code = (
        "import sys; from stepgrade.cli import main; main(['estimate', '--batch', '-1', '--model', 'x', '--seq', '1']);"
        "print([name for name in sys.modules if name in ('stepgrade.cli.score', 'stepgrade.cli.gate')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--batch: " in ran.stderr
    assert ran.stdout.strip() == "[]"
