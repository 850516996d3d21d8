"""The commands of `stepgrade`, their parsers, and the flag of each parameter.

Errors and notes name parameters, the command line shows their flags instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType

from stepgrade.cli.parser import Parser, long_flag

COMMANDS = {
    "score": "grade a run: a trace, a log, a recording, …",
    "record": "run a training script, record its steps and grade it",
    "watch": "follow a growing log or recording",
    "what-if": "predict the step time after a change",
    "fix": "try what the findings suggest, and prove it",
    "parity": "compare two runtimes, operation by operation",
    "gate": "pass or fail the build: compare with earlier runs",
    "history": "runs over time: add, list, show, trend, prune, export",
    "inspect": "what a file contains, and whether it can be graded",
    "open": "open a trace in Perfetto, from this machine",
    "convert": "write any profile as step profile JSON",
    "estimate": "what a run could reach on a device, and whether it fits",
    "plan": "find the fastest parallel layout that fits many devices",
    "devices": "the catalogue of accelerators; what this machine has",
    "serve": "the team's server: pages, uploads from CI, alerts",
    "admin": "tokens, projects and backups of a server's store",
    "mcp": "answer assistants over the Model Context Protocol",
    "completion": "shell completion for bash, zsh or fish",
}
SYNONYMS = {"whatif": "what-if"}


def module_of(name: str) -> str:
    """Return the name of a command's module."""
    return f"stepgrade.cli.{name.replace('-', '_')}"


def load_command(name: str) -> tuple[ModuleType, Parser]:
    """Import one command, and return it with its parser."""
    module = import_module(module_of(name))
    parser = Parser(prog=f"stepgrade {name}", description=module.__doc__)
    module.add_options(parser)
    return module, parser


# Parameters whose option has another name, and values that are clearer than the metavar.
_OPTIONS = {"to": "format", "changes": "faster"}
_EXAMPLES = {"work": "training", "cannot_tell": "fail", "probably_slower": "fail"}
_ELSEWHERE = {"measure_here": "`stepgrade devices --measure`"}


class _Flags(Mapping[str, str]):
    """Parameter in Python -> flag with its value, from the commands' parsers, which are built on demand."""

    def __getitem__(self, name: str) -> str:
        if name in _ELSEWHERE:
            return _ELSEWHERE[name]
        # Commands that are already imported come first: the one that runs is among them.
        for command in sorted(COMMANDS, key=lambda name: module_of(name) not in sys.modules):
            if (flag := _flags_of(command).get(_OPTIONS.get(name, name))) is not None:
                return flag
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter({name: None for command in COMMANDS for name in _flags_of(command)} | _ELSEWHERE)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _flags_of(command: str) -> dict[str, str]:
    """Return the flags of a command by the parameters that they set."""
    found: dict[str, str] = {}
    for action in load_command(command)[1].options():
        takes = "" if action.nargs == 0 else _EXAMPLES.get(action.dest) or action.metavar or "NAME"
        found.setdefault(action.dest, f"{long_flag(action)} {takes}".rstrip())
    return found


FLAGS: Mapping[str, str] = _Flags()
