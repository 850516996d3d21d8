"""The group of commands, and the one place where errors turn into a line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from stepgrade._version import __version__
from stepgrade.errors import EXIT_BAD_INPUT, EXIT_BUG, EXIT_OK, StepgradeError

_INTERRUPTED = 130
_MESSAGE_CELLS = 1000

COMMANDS = {
    "score": "the scorecard of a run",
    "parity": "two runtimes, operation by operation",
    "convert": "any profile as step profile JSON",
    "inspect": "what is in a file, and is it fit to be graded",
}


class _Commands(click.Group):
    """Imports a command's module only when that command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"stepgrade.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Try: stepgrade score profile.json --throughput 194 --device rtx-4060-laptop",
)
@click.version_option(__version__, message="stepgrade %(version)s")
def cli() -> None:
    """Grade a training run from its profile.

    How fast is it against what the hardware allows, what holds it back, what to do next, did it
    get slower, and how does it compare with another runtime.

    Exit codes: 0 fine, 1 the gate says no, 2 usage or bad input, 3 could not be measured,
    70 a bug in stepgrade.
    """


def run(arguments: list[str]) -> int:  # noqa: PLR0911  one return per kind of end
    """Run one command line; every error of ours is one line on standard error."""
    try:
        code = cli.main(args=arguments, prog_name="stepgrade", standalone_mode=False)
        sys.stdout.flush()
    except StepgradeError as error:
        return _complain(str(error), error.exit_code)
    except click.exceptions.Exit as request:
        return request.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        return _leave_pipe()
    except MemoryError:
        return _complain("not enough memory for this input", EXIT_BAD_INPUT)
    except Exception:  # noqa: BLE001  anything else is a bug, and says so with its traceback
        return _report_bug()
    return code if isinstance(code, int) else EXIT_OK


def _complain(message: str, code: int) -> int:
    from stepgrade.report.names import shortened  # noqa: PLC0415

    click.echo(f"stepgrade: {shortened(message, _MESSAGE_CELLS)}", err=True)
    return code


def _leave_pipe() -> int:
    """Let the reader of our output go, and keep Python from complaining about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK


def _report_bug() -> int:
    import traceback  # noqa: PLC0415

    traceback.print_exc()
    click.echo(
        f"stepgrade: this is a bug in stepgrade {__version__}; please report it with the lines above",
        err=True,
    )
    return EXIT_BUG
