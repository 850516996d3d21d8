"""The commands of `stepgrade`, and the parser of each."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from stepgrade.cli.parser import Parser

COMMANDS = {
    "score": "grade a run: a trace, a log, a recording, …",
    "record": "run a training script, record its steps and grade it",
    "watch": "follow a growing log or recording",
    "what-if": "predict the step time after a change",
    "parity": "compare two runtimes, operation by operation",
    "gate": "pass or fail the build: compare with earlier runs",
    "history": "runs over time: add, list, show, trend, prune, export",
    "inspect": "what is in a file, and can it be graded",
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
