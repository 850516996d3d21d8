r"""Write the completion of a shell: commands, options, and the values that they take.

  stepgrade completion bash > ~/.local/share/bash-completion/completions/stepgrade
  stepgrade completion zsh > "${fpath[1]}/_stepgrade"
  stepgrade completion fish > ~/.config/fish/completions/stepgrade.fish

It is a text that needs no stepgrade to run when a key is pressed; write it again after an update.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module

from msgspec import Struct

from stepgrade.cli import output
from stepgrade.cli.parser import Parser, add_output_file
from stepgrade.compare.fingerprint import ALL, FIELDS
from stepgrade.errors import EXIT_OK
from stepgrade.hardware.catalogue import all_devices
from stepgrade.hardware.cost.plan import DTYPES
from stepgrade.hardware.setup import CPU_KEY
from stepgrade.model.comparison import METRICS
from stepgrade.readers.registry import BUILT_IN


class _Option(Struct, frozen=True):
    """A flag of a command, and its values: None when it takes none, () for what no list knows."""

    flag: str
    about: str
    values: tuple[str, ...] | None


class _Command(Struct, frozen=True):
    """A command: its options, and the words that may stand beside files."""

    name: str
    about: str
    options: tuple[_Option, ...]
    words: tuple[str, ...]


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add_argument("shell", choices=tuple(_WRITERS), metavar="SHELL", help="bash, zsh or fish")
    add_output_file(parser)


def run(args: Namespace) -> int:
    """Write the completion."""
    output.write("\n".join(_WRITERS[args.shell](tuple(_commands()))) + "\n", args.output)
    return EXIT_OK


def _commands() -> Iterator[_Command]:
    from stepgrade.cli.dispatch import COMMANDS  # which imports this

    devices = (*all_devices(), CPU_KEY)
    known = {
        "--device": devices,
        "--dtype": tuple(DTYPES),
        "--allow-different": (ALL, *FIELDS),
        "--input-format": BUILT_IN,
        "--fail-on": ("warning", "critical", *(f"grade:{grade}" for grade in "ABCDF")),
    }
    beside = {"devices": devices, "history": tuple(METRICS)}
    for name, about in COMMANDS.items():
        command = import_module(f"stepgrade.cli.{name}")
        parser = Parser(prog=name, description=None)
        command.add_options(parser)
        options = {}
        for inner in (parser, *parser.actions.values()):
            for action in inner._actions:  # noqa: SLF001  argparse has no other way to ask
                values = None if action.nargs == 0 else tuple(map(str, action.choices or ()))
                for flag in action.option_strings:
                    options[flag] = _Option(
                        flag, (action.help or "").replace("%%", "%"), known.get(flag, values)
                    )
        shells = tuple(_WRITERS) if name == "completion" else ()
        words = (*parser.actions, *beside.get(name, ()), *shells)
        yield _Command(name, about, tuple(options.values()), words)


def _quoted(text: str) -> str:
    """Return a text as one word of any shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _bash(commands: tuple[_Command, ...]) -> Iterator[str]:
    yield "# stepgrade completion bash"
    yield "_stepgrade() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words="" flags=""'
    yield "  COMPREPLY=()"
    yield "  if [[ $COMP_CWORD -eq 1 ]]; then"
    names = " ".join(command.name for command in commands)
    yield f'    COMPREPLY=($(compgen -W "{names} --help --version" -- "$word")); return'
    yield "  fi"
    yield '  case "${COMP_WORDS[1]} $before" in'
    for command in commands:
        for option in command.options:
            if option.values is not None:
                yield f'    "{command.name} {option.flag}") words="{" ".join(option.values)}"; flags=none;;'
    yield "  esac"
    yield '  if [[ -z $flags ]]; then case "${COMP_WORDS[1]}" in'
    for command in commands:
        flags = " ".join(option.flag for option in command.options)
        yield f'    {command.name}) words="{" ".join(command.words)}"; flags="{flags}";;'
    yield "  esac; fi"
    yield '  if [[ $word == -* && $flags != none ]]; then words="$flags"; fi'
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o bashdefault -o default -F _stepgrade stepgrade"


def _zsh(commands: tuple[_Command, ...]) -> Iterator[str]:
    def described(rows: Iterator[tuple[str, str]]) -> str:
        return " ".join(_quoted(f"{name}:{about}" if about else name) for name, about in rows)

    yield "#compdef stepgrade"
    yield "_stepgrade() {"
    yield "  local -a rows words_of"
    yield "  if (( CURRENT == 2 )); then"
    yield f"    rows=({described((command.name, command.about) for command in commands)})"
    yield "    _describe command rows; return"
    yield "  fi"
    yield '  case "$words[2] $words[CURRENT-1]" in'
    for command in commands:
        for option in command.options:
            if option.values is not None:
                then = f"compadd -- {' '.join(option.values)}" if option.values else "_files"
                yield f"    ('{command.name} {option.flag}') {then}; return;;"
    yield "  esac"
    yield '  case "$words[2]" in'
    for command in commands:
        rows = described((option.flag, option.about) for option in command.options)
        yield f"    ({command.name}) rows=({rows}); words_of=({' '.join(command.words)});;"
    yield "  esac"
    yield "  if [[ $words[CURRENT] == -* ]]; then _describe option rows; return; fi"
    yield "  (( $#words_of )) && compadd -- $words_of"
    yield "  _files"
    yield "}"
    yield 'if [[ $funcstack[1] == _stepgrade ]]; then _stepgrade "$@"; else compdef _stepgrade stepgrade; fi'


def _fish(commands: tuple[_Command, ...]) -> Iterator[str]:
    yield "# stepgrade completion fish"
    names = " ".join(command.name for command in commands)
    none_yet = f"not __fish_seen_subcommand_from {names}"
    for command in commands:
        yield f"complete -c stepgrade -f -n '{none_yet}' -a {command.name} -d {_quoted(command.about)}"
        seen = f"complete -c stepgrade -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            yield f"{seen} -a {_quoted(' '.join(command.words))}"
        for option in command.options:
            flag = f"-l {option.flag[2:]}" if option.flag.startswith("--") else f"-s {option.flag[1:]}"
            takes = ""
            if option.values is not None:
                takes = f" -x -a {_quoted(' '.join(option.values))}" if option.values else " -r"
            yield f"{seen} {flag}{takes} -d {_quoted(option.about)}"


_WRITERS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
