"""The parser of a command line, and the options that several commands share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from stepgrade.cli.streams import send
from stepgrade.errors import BadOption, nearest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# argparse's way to say it, and ours.
_WORDS = {
    "the following arguments are required: ": "needs ",
    "invalid int value: ": "not a whole number: ",
    "invalid float value: ": "not a number: ",
}
_COLUMN_DIGITS = 6
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse's formatter at a width of its own: it would import shutil for every option to ask for one."""

    def __init__(self, prog: str) -> None:
        columns = os.environ.get("COLUMNS", "")[:_COLUMN_DIGITS]
        is_wide = columns.isascii() and columns.isdecimal() and int(columns) > 40
        super().__init__(prog, width=int(columns) - 2 if is_wide else 98)


class Parser(argparse.ArgumentParser):
    """argparse's parser, with our errors: one line, and the way to the help."""

    def __init__(self, *, prog: str, description: str | None, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return what the arguments say; raise BadOption with the flag that was most likely meant."""
        parsed, rest = self.parse_known_args(arguments)
        unknown = next((text for text in rest if text.startswith("-")), None)
        if unknown is not None:
            flag = unknown.partition("=")[0]
            meant = nearest(flag, self.flags())
            self.error(f"there is no {flag}" + (f": did you mean {meant}?" if meant else ""))
        if rest:
            self.error(f"{rest[0]!r} is one argument too many")
        return parsed

    def flags(self) -> list[str]:
        """Return every flag of the command, those of its actions too."""
        inner = [parser for parser in self.actions.values() if isinstance(parser, Parser)]
        own = [flag for action in self._actions for flag in action.option_strings]
        return list(dict.fromkeys([*own, *(flag for parser in inner for flag in parser.flags())]))

    @property
    def actions(self) -> dict[str, argparse.ArgumentParser]:
        """Return the parsers of the command's actions, such as those of history, by name."""
        choices = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        return choices[0] if choices else {}

    def _parse_optional(self, arg_string: str):  # type: ignore[no-untyped-def]  # as argparse does not either
        """Take a command in one argument, such as "-m train 3", for a value: no flag goes on with a blank."""
        return None if arg_string[2:3] == " " else super()._parse_optional(arg_string)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:  # noqa: ARG002
        """Print the help or the version; argparse would not say that the disk is full."""
        send(message)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is not among the choices, with the one that was most likely meant."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        meant = nearest(str(value), names)
        known = f"did you mean {meant}? It takes" if meant else "it takes"
        raise argparse.ArgumentError(action, f"{str(value)!r} is not known: {known} {', '.join(names)}")

    def error(self, message: str) -> NoReturn:
        """Raise BadOption instead of printing the usage and leaving."""
        problem = message.removeprefix("argument ")
        for theirs, ours in _WORDS.items():
            problem = problem.replace(theirs, ours)
        raise BadOption(problem, hint=f"see {self.prog} --help")


def add_input_options(parser: Parser) -> None:
    """Add how sources are read."""
    group = parser.add_argument_group("reading")
    group.add_argument(
        "--input-format", metavar="NAME", help="read as this format instead of finding it by content"
    )
    group.add_argument(
        "--max-bytes",
        type=byte_count,
        default="16GiB",
        metavar="SIZE",
        help="refuse a source larger than this once decompressed (default: 16GiB)",
    )
    group.add_argument(
        "--max-memory",
        type=byte_count,
        metavar="SIZE",
        help="refuse what takes more memory than this once decoded (default: a quarter of the machine's)",
    )


def add_output_options(
    parser: Parser, formats: Sequence[str] = ("terminal", "markdown", "json")
) -> argparse._ArgumentGroup:
    """Add what is written, and where."""
    group = parser.add_argument_group("writing")
    group.add_argument("--format", choices=formats, default="terminal", help="default: terminal")
    add_output_file(group)
    add_color_option(group)
    return group


def add_output_file(group: argparse._ActionsContainer) -> None:
    """Add `-o`."""
    group.add_argument("-o", "--output", metavar="FILE", help="write to this file, whole or not at all")


def add_color_option(group: argparse._ActionsContainer) -> None:
    """Add `--color`."""
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour in a terminal (default: auto, which honours NO_COLOR and FORCE_COLOR)",
    )


def add_contract_option(parser: Parser) -> None:
    """Add the choice between the reference and our corrections of it."""
    parser.add_argument(
        "--contract",
        choices=("v1", "v2"),
        default="v2",
        help="v1 is the reference, bit for bit; v2, the default, corrects it where real profiles need it",
    )


def byte_count(text: str) -> int:
    """Return the number of bytes in a text like 4096, 512MiB, 16G or 2TB (binary units)."""
    match = re.fullmatch(r"(\d{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write it like 512MiB or 16GiB")
    return int(match[1]) * _UNITS[match[2]]
