"""The parser of a command line: help that fits a screen, errors of one line, options that commands share."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from stepgrade.cli.streams import columns_of, send
from stepgrade.errors import BadOption, nearest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# argparse's wording, and ours.
_WORDS = {
    "the following arguments are required: ": "needs ",
    "invalid int value: ": "not a whole number: ",
    "invalid float value: ": "not a number: ",
}
_NARROWEST, _WIDEST = 40, 100
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Option(NamedTuple):
    """An option of a command line, as argparse takes it."""

    flags: list[str]
    settings: dict[str, Any]


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse's formatter at our width; its own import of shutil is slow."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=help_width())

    def _split_lines(self, text: str, width: int) -> list[str]:
        from textwrap import wrap

        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


def help_width() -> int:
    """Return the columns that help may take: 40 to 100."""
    return max(_NARROWEST, min(_WIDEST, columns_of(sys.stdout))) - 2


class _Help(argparse.Action):
    """Print the help: the common options, or with `const` all of them."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)  # noqa: S101  for the type checker: every parser of ours is one
        send(parser.format_help(everything=bool(self.const)))
        parser.exit()


class Parser(argparse.ArgumentParser):
    """argparse's parser with errors of one line, and a short and a full help.

    `description` is a module's docstring: the text before its examples is in both helps, the text after them
    in the full one only, and the examples come last.
    """

    def __init__(self, *, prog: str, description: str | None, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog, epilog=epilog, formatter_class=_Formatter, allow_abbrev=False, add_help=False
        )
        self._before: list[str] = []
        self._examples: list[str] = []
        self._after: list[str] = []
        for part in (description or "").strip().split("\n\n"):
            is_example = part.lstrip().startswith("stepgrade ")
            (self._examples if is_example else self._after if self._examples else self._before).append(part)
        self._common: tuple[str, ...] = ()
        self._positionals.title = "arguments"
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help and exit")
        self.add_argument("--help-all", action=_Help, nargs=0, const=True, help=argparse.SUPPRESS)

    def add(self, *options: Option, group: str | None = None) -> None:
        """Add options, under a heading of their own if they have one."""
        target = self.add_argument_group(group) if group else self
        for each in options:
            target.add_argument(*each.flags, **each.settings)

    def show_first(self, flags: str) -> None:
        """Show only these options in `--help`, in this order; the others need `--help-all`."""
        self._common = tuple(flags.split())

    def format_help(self, *, everything: bool = False) -> str:
        """Return the help: all options by group, or the common ones alone."""
        formatter = self._get_formatter()
        options = [each for each in self._actions if each.option_strings]
        positionals = [each for each in self._actions if not each.option_strings]
        needed = [f"{long_flag(each)} {each.metavar}" for each in options if each.required]
        arguments = [
            f"[{each.metavar}]"
            if each.nargs == "?"
            else f"{each.metavar}{'...' if each.nargs == '+' else ''}"
            for each in positionals
        ]
        formatter.add_usage(" ".join([self.prog, *needed, "[options]", *arguments]), [], [])
        is_short = not everything and bool(self._common or self._after)
        for text in self._before if is_short else [*self._before, *self._after]:
            formatter.add_text(_filled(text))
        by_flag = {flag: each for each in options for flag in each.option_strings}
        groups: list[tuple[str | None, list[argparse.Action]]]
        if self._common and not everything:
            groups = [("options", [*positionals, *(by_flag[flag] for flag in self._common)])]
        else:
            groups = [(group.title, group._group_actions) for group in self._action_groups]  # noqa: SLF001  no other way
        for title, actions in groups:
            formatter.start_section(title)
            formatter.add_arguments([_with_choices(each) for each in actions if each.help or each.choices])
            formatter.end_section()
        lines = [line for part in self._examples for line in part.splitlines()]
        examples = "\n".join(["examples:", *(f"  {line.removeprefix('  ')}" for line in lines)])
        formatter.add_text(examples if lines else self.epilog)
        if is_short:
            table = ", or [run] in stepgrade.toml" if "--dtype" in by_flag else ""
            formatter.add_text(f"more: {self.prog} --help-all{table}")
        return formatter.format_help()

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments; raise BadOption with the nearest flag for one that is unknown."""
        parsed, rest = self.parse_known_args(arguments)
        unknown = next((text for text in rest if text.startswith("-")), None)
        if unknown is not None:
            flag = unknown.partition("=")[0]
            meant = nearest(flag, self.flags())
            self.error(f"unknown option {flag}" + (f": did you mean {meant}?" if meant else ""))
        if rest:
            self.error(f"{rest[0]!r} is one argument too many")
        return parsed

    def flags(self) -> list[str]:
        """Return every flag of the command and of its actions."""
        return list(dict.fromkeys(flag for action in self.options() for flag in action.option_strings))

    def options(self) -> Iterator[argparse.Action]:
        """Yield every option of the command and of its actions."""
        for parser in (self, *self.actions.values()):
            yield from (action for action in parser._actions if action.option_strings)  # noqa: SLF001  as above

    @property
    def actions(self) -> dict[str, argparse.ArgumentParser]:
        """Return the parsers of the command's actions, such as those of history, by name."""
        choices = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        return choices[0] if choices else {}

    def _parse_optional(self, arg_string: str):  # type: ignore[no-untyped-def]  # as argparse does not either
        """Treat a command in one argument, such as "-m train 3", as a value: no flag contains a blank."""
        return None if arg_string[2:3] == " " else super()._parse_optional(arg_string)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:  # noqa: ARG002
        """Print the version; unlike argparse, report a full disk."""
        send(message)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse an unknown choice, with the nearest known one."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        meant = nearest(str(value), names)
        known = f"did you mean {meant}? It takes" if meant else "it takes"
        raise argparse.ArgumentError(action, f"{str(value)!r} is not known: {known} {', '.join(names)}")

    def error(self, message: str) -> NoReturn:
        """Raise BadOption instead of printing the usage and exiting."""
        raise BadOption(our_words(message.removeprefix("argument ")), hint=f"see {self.prog} --help")


def our_words(message: str) -> str:
    """Return an error of argparse in plain words."""
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message


def long_flag(action: argparse.Action) -> str:
    """Return the first flag of an option that is a word, else its letter."""
    return next((flag for flag in action.option_strings if flag.startswith("--")), action.option_strings[0])


def _with_choices(action: argparse.Action) -> argparse.Action:
    """Return the option with its choices in the help text, where lines can be broken."""
    if not action.option_strings or not action.choices or action.metavar or not action.help:
        return action
    from copy import copy  # only for help

    shown = copy(action)
    text, mark, default = action.help.partition(" (default")
    shown.metavar, shown.help = "NAME", f"{text}: {', '.join(map(str, action.choices))}{mark}{default}"
    return shown


def _filled(text: str) -> str:
    """Return a paragraph filled to the help's width; indented rows continue at their second column."""
    from textwrap import fill

    width, lines = help_width(), text.splitlines()
    prose = " ".join(line for line in lines if not line.startswith("  "))
    filled = [fill(prose, width)] if prose else []
    for row in lines:
        if row.startswith("  "):
            hang = len(row) - len(re.split(r"\S {2,}", row, maxsplit=1)[-1])
            filled.append(fill(row, width, subsequent_indent=" " * hang))
    return "\n".join(filled)


def byte_count(text: str) -> int:
    """Return the number of bytes in a text like 4096, 512MiB, 16G or 2TB (binary units)."""
    match = re.fullmatch(r"(\d{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write it like 512MiB or 16GiB")
    return int(match[1]) * _UNITS[match[2]]


def duration(text: str) -> float:
    """Return the seconds in a text like 90s, 10m, 1.5h or, without a unit, 10 minutes."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*(s|m|min|h)?", text.strip().lower())
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write it like 90s, 10m or 1h")
    return float(match[1]) * {"s": 1.0, "h": 3600.0}.get(match[2], 60.0)


def label(text: str) -> tuple[str, str]:
    """Return name and value of a text like machine=dgx-3."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not a label; write it like machine=dgx-3")
    return name, value


def share(text: str) -> float:
    """Return the share in a text like 5%, 5 % or 0.05."""
    bare = text.strip().removesuffix("%")
    try:
        value = float(bare) / (100.0 if text.strip() != bare else 1.0)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write it like 5% or 0.05")
    return value


def step_range(text: str) -> tuple[int, int]:
    """Return the first and the last step of a text like 3-7 or 5."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of steps; write it like 3-7")
    return int(match[1]), int(match[2] or match[1])


# Types by metavar; other metavars are text.
_TYPES: dict[str, Callable[[str], Any]] = {
    "N": int,
    "R": int,
    "SIZE": byte_count,
    "TIME": duration,
    "SHARE": share,
    "PCT": share,
    "FIRST-LAST": step_range,
    "NAME=TEXT": label,
    **dict.fromkeys(("GB_S", "TOK_S", "TFLOPS", "B", "F", "S", "RATIO"), float),
}


def option(spec: str, text: str, **more: Any) -> Option:
    """Return an option, given as its flags with a metavar, and its help.

    The metavar implies the type, and `...` after it that the option may be repeated; an option with neither
    metavar nor choices is a switch. A default is appended to the help that does not mention it.
    """
    flags = [word for word in spec.split() if word.startswith("-")]
    metavar, *repeated = spec.split()[len(flags) :] or [""]
    implied: dict[str, Any] = {}
    if metavar:
        implied = {"metavar": metavar, "type": _TYPES.get(metavar)}
    elif "choices" not in more:
        implied = {"action": "store_true"}
    if repeated:
        implied |= {"action": "append", "default": []}
    if more.get("default") and "default" not in text:
        text += f" (default: {more['default']})"
    return Option(flags, {"help": text} | implied | more)


OUTPUT = option("-o --output FILE", "write to this file")
COLOR = option(
    "--color WHEN",
    "auto, always or never; auto, the default, honours NO_COLOR and FORCE_COLOR",
    choices=("auto", "always", "never"),
    default="auto",
)
CONTRACT = option(
    "--contract NAME",
    "v1 is the reference, bit for bit; v2 (the default) corrects it for real profiles",
    choices=("v1", "v2"),
    default="v2",
)
READING = (
    option("--input-format NAME", "read as this format instead of detecting it"),
    option("--max-bytes SIZE", "refuse sources larger than this, decompressed", default="16GiB"),
    option("--max-memory SIZE", "refuse to use more memory than this (default: a quarter of the machine's)"),
)


def add_output_options(
    parser: Parser, formats: Sequence[str] = ("terminal", "markdown", "json", "html"), *more: Option
) -> None:
    """Add the output format, file and colour."""
    shown = f"{', '.join(formats[:-1])} or {formats[-1]}"
    settings = {"choices": formats, "default": "terminal", "metavar": "NAME", "help": shown}
    parser.add(Option(["--format"], settings), OUTPUT, COLOR, *more, group="writing")
