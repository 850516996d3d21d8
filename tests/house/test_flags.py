"""Flags are words of the command line alone: no text of any other room holds one."""

from __future__ import annotations

import ast
import re
from importlib import import_module

from stepgrade.cli.dispatch import COMMANDS
from stepgrade.cli.flags import FLAGS
from stepgrade.cli.parser import Parser
from tests.conftest import ROOT

SRC = ROOT / "src" / "stepgrade"
# Flags of other programs.
FOREIGN = {
    "_version.py": {"--version"},
    "store/git.py": {"--short"},
    "store/migrations.py": {"--upgrade"},
    "readers/nsys/__init__.py": {"--type", "--include-json"},
    "readers/rocprof/facts.py": {
        "--kernel-trace",
        "--hip-trace",
        "--memory-copy-trace",
        "--marker-trace",
    },
    "readers/nsys/facts.py": {"--type", "--include-json", "--trace"},
}

TRAINERS_FLAGS = "hardware/launch_flags.py"  # writes nothing but flags of the programs that train


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


def test_every_flag_of_the_table_is_one_that_a_command_takes() -> None:
    taken = set()
    for name in COMMANDS:
        command = import_module(f"stepgrade.cli.{name}")
        parser = Parser(prog=name, description="")
        command.add_options(parser)
        taken |= set(re.findall(r"--[a-z][a-z-]*", parser.format_help()))
        for action in parser._actions:
            for inner in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
                taken |= set(re.findall(r"--[a-z][a-z-]*", inner.format_help()))
    assert set(re.findall(r"--[a-z][a-z-]*", " ".join(FLAGS.values()))) <= taken
