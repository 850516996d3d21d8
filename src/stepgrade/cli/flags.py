"""The flag of each parameter: errors and notes name parameters, the command line shows flags instead."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache

from stepgrade.cli.commands import COMMANDS, load_command, module_of
from stepgrade.cli.parser import long_flag

# Parameters whose option is called something else, and values that say more than a metavar.
_OPTIONS = {"to": "format", "changes": "faster"}
_EXAMPLES = {"work": "training", "cannot_tell": "fail"}
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
