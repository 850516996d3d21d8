r"""Write shell completion: commands, options, and the values that they take.

The script does not run stepgrade when a key is pressed; write it again after an update.

  stepgrade completion bash > ~/.bash_completion.d/stepgrade
  stepgrade completion zsh > "${fpath[1]}/_stepgrade"
  stepgrade completion fish > ~/.config/fish/completions/stepgrade.fish
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from msgspec import Struct

from stepgrade.cli import output
from stepgrade.cli.commands import COMMANDS, load_command
from stepgrade.cli.parser import OUTPUT, Parser
from stepgrade.compare.fingerprint import ALL, FIELDS
from stepgrade.errors import EXIT_OK, MissingExtra
from stepgrade.hardware.catalogue import all_devices
from stepgrade.hardware.cost.plan import DTYPES
from stepgrade.hardware.setup import CPU_KEY
from stepgrade.model.comparison import METRICS
from stepgrade.readers.registry import BUILT_IN

SHELLS = ("bash", "zsh", "fish")


class _Command(Struct, frozen=True):
    """A command: the help of each flag, the values of those that take one, and words that may follow."""

    name: str
    about: str
    flags: dict[str, str]
    values: dict[str, str]  # blank where any file or text may follow
    words: str


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    parser.add(OUTPUT)


def run(args: Namespace) -> int:
    """Write the completion; raise MissingExtra where a command cannot be imported."""
    devices = (*all_devices(), CPU_KEY)
    known = {
        "--device": devices,
        "--dtype": tuple(DTYPES),
        "--allow-different": (ALL, *FIELDS),
        "--input-format": BUILT_IN,
        "--fail-on": ("warning", "critical", *(f"grade:{grade}" for grade in "ABCDF")),
    }
    words = {
        "devices": devices,
        "history": tuple(name for name, metric in METRICS.items() if metric.on_card),
        "completion": SHELLS,
    }
    commands = []
    for name, about in COMMANDS.items():
        try:
            _, parser = load_command(name)
        except ImportError as error:
            raise MissingExtra(f"cannot be imported: {error}", where=f"stepgrade {name}") from error
        flags, values = {}, {}
        for action in parser.options():
            for flag in action.option_strings:
                flags[flag] = (
                    (action.help or "").replace("%%", "%").replace("==SUPPRESS==", "show all options")
                )
                if action.nargs != 0:
                    values[flag] = " ".join(map(str, known.get(flag) or action.choices or ()))
        following = " ".join((*parser.actions, *words.get(name, ())))
        commands.append(_Command(name, about, flags, values, following))
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]
    output.write("\n".join(write(commands)) + "\n", args.output)
    return EXIT_OK


def _quoted(text: str) -> str:
    """Return a text as one word of any shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _bash(commands: list[_Command]) -> Iterator[str]:
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
        for flag, values in command.values.items():
            yield f'    "{command.name} {flag}") words="{values}"; flags=none;;'
    yield "  esac"
    yield '  if [[ -z $flags ]]; then case "${COMP_WORDS[1]}" in'
    for command in commands:
        yield f'    {command.name}) words="{command.words}"; flags="{" ".join(command.flags)}";;'
    yield "  esac; fi"
    yield '  if [[ $word == -* && $flags != none ]]; then words="$flags"; fi'
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o bashdefault -o default -F _stepgrade stepgrade"


def _zsh(commands: list[_Command]) -> Iterator[str]:
    def described(rows: dict[str, str]) -> str:
        return " ".join(_quoted(f"{name}:{about}" if about else name) for name, about in rows.items())

    yield "#compdef stepgrade"
    yield "_stepgrade() {"
    yield "  local -a rows words_of"
    yield "  if (( CURRENT == 2 )); then"
    yield f"    rows=({described(COMMANDS)})"
    yield "    _describe command rows; return"
    yield "  fi"
    yield '  case "$words[2] $words[CURRENT-1]" in'
    for command in commands:
        for flag, values in command.values.items():
            yield f"    ('{command.name} {flag}') {f'compadd -- {values}' if values else '_files'}; return;;"
    yield "  esac"
    yield '  case "$words[2]" in'
    for command in commands:
        yield f"    ({command.name}) rows=({described(command.flags)}); words_of=({command.words});;"
    yield "  esac"
    yield "  if [[ $words[CURRENT] == -* ]]; then _describe option rows; return; fi"
    yield "  (( $#words_of )) && compadd -- $words_of"
    yield "  _files"
    yield "}"
    yield 'if [[ $funcstack[1] == _stepgrade ]]; then _stepgrade "$@"; else compdef _stepgrade stepgrade; fi'


def _fish(commands: list[_Command]) -> Iterator[str]:
    yield "# stepgrade completion fish"
    none_yet = f"not __fish_seen_subcommand_from {' '.join(COMMANDS)}"
    for command in commands:
        yield f"complete -c stepgrade -f -n '{none_yet}' -a {command.name} -d {_quoted(command.about)}"
        seen = f"complete -c stepgrade -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            yield f"{seen} -a {_quoted(command.words)}"
        for flag, about in command.flags.items():
            takes = ""
            if flag in command.values:
                takes = f" -x -a {_quoted(command.values[flag])}" if command.values[flag] else " -r"
            option = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            yield f"{seen} {option}{takes} -d {_quoted(about)}"
