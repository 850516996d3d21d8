"""Grade a training run: how fast it is against what the hardware allows, and what holds it back."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from stepgrade._version import __version__
from stepgrade.cli.commands import COMMANDS, FLAGS, SYNONYMS, load_command
from stepgrade.cli.parser import Parser
from stepgrade.cli.streams import complain, send, show_crash
from stepgrade.errors import EXIT_BAD_INPUT, EXIT_BUG, EXIT_OK, BadOption, StepgradeError, nearest, refusal_of
from stepgrade.memory import default_limit, limit_process

_INTERRUPTED = 130

_EPILOG = """\
commands:
{commands}

exit codes: 0 ok, 1 the gate fails, 2 bad input, 3 not measurable, 70 a bug

examples:
  stepgrade record train.py --lr 3e-4
  stepgrade score trace.json.gz
  stepgrade score --help               (each command has one)
"""


def run(arguments: list[str], *, limits_memory: bool = False) -> int:
    """Run one command line; every error of ours is one line on standard error."""
    code, problem = EXIT_OK, None
    try:
        code = _run_command(arguments, limits_memory=limits_memory)
    except StepgradeError as error:
        code, problem = error.exit_code, error.text(FLAGS)
    except KeyboardInterrupt:
        code, problem = _INTERRUPTED, "interrupted"
    except MemoryError:
        code = EXIT_BAD_INPUT
        problem = "not enough memory for this input (give a larger --max-memory SIZE if the machine has it)"
    except Exception as error:  # noqa: BLE001  anything else is a bug, reported with its traceback
        code, problem = EXIT_BAD_INPUT, refusal_of(error)
        if problem is None:
            show_crash()
            report = f"this is a bug in stepgrade {__version__}; please report it with the lines above"
            code, problem = EXIT_BUG, report
    if problem is not None:
        complain(problem)
    return code


def _run_command(arguments: list[str], *, limits_memory: bool) -> int:
    """Import and run one command; no other one is imported."""
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    top = Parser(prog="stepgrade", description=__doc__, epilog=_EPILOG.format(commands=commands))
    top.add_argument(
        "--version", action="version", version=f"stepgrade {__version__}", help="show the version"
    )
    top.add_argument("command", nargs="?", metavar="COMMAND", help=None)
    try:
        args, rest = top.parse_known_args(arguments[:1])
        if rest or args.command is None:
            top.parse(arguments)
            send(top.format_help())
            return EXIT_OK
        name = SYNONYMS.get(args.command, args.command)
        if name not in COMMANDS:
            meant = nearest(name, COMMANDS)
            problem = f"unknown command {name!r}; choose from {', '.join(COMMANDS)}"
            if os.path.exists(name):
                doing = "record" if name.endswith(".py") else "score"
                problem = f"{name!r} is a file, not a command: did you mean stepgrade {doing} {name}?"
            elif meant is not None:
                problem = f"unknown command {name!r}: did you mean {meant}?"
            top.error(problem)
        from stepgrade.cli import run_defaults  # help needs neither it nor msgspec

        command, parser = load_command(name)
        options, origins = run_defaults.parse(parser, arguments[1:])
        _spare_inputs(vars(options))
        if limits_memory:
            limit_process(vars(options).get("max_memory") or default_limit())
            if str(vars(options).get("engine")).startswith("dask://"):
                from stepgrade.engine.on_dask import unpickle_plain_only  # an extra

                unpickle_plain_only()
        code: int = run_defaults.naming_origin(command.run, options, origins)
    except SystemExit as request:
        send("")  # argparse answers --help and --version itself, into the buffer of standard output
        code = EXIT_OK if request.code is None else int(request.code)
    return code


def _spare_inputs(options: dict[str, Any]) -> None:
    """Raise BadOption where the result would replace a file that the command reads."""
    written = [options.get("output"), options.get("html"), *(path for _, path in options.get("also") or ())]
    read = [value for name, value in options.items() if name not in ("output", "html", "also", "shell")]
    paths = [path for value in read for path in (value if isinstance(value, list | tuple) else [value])]
    for target in written:
        for path in paths if isinstance(target, str) and os.path.isfile(target) else ():
            is_read = False
            with suppress(OSError, ValueError):  # not every word is a path
                is_read = isinstance(path, str) and os.path.samefile(path, target)
            if is_read:
                raise BadOption(
                    "is an input, and would be overwritten", where=target, hint="name another file"
                )
