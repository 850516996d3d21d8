"""Defaults for the options of a run: STEPGRADE_RUN_… in the environment, [run] in stepgrade.toml."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from stepgrade.cli.parser import Parser, long_flag, our_words
from stepgrade.config import DEFAULT_PATH, check_names, load_config
from stepgrade.errors import BadConfig, StepgradeError

VARIABLE = "STEPGRADE_RUN_"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_PATHS = ("model", "device_file")  # relative to the file that names them


def parse(parser: Parser, arguments: Sequence[str]) -> tuple[Namespace, dict[str, str]]:
    """Return the parsed arguments, and where each parameter that no flag gives was found.

    A flag wins over a variable of the environment, that over the file, and that over what is detected. Raise
    BadConfig for a name or a value that is not known.
    """
    args = parser.parse(arguments)
    chosen = parser.actions.get(vars(args).get("action", ""), parser)
    assert isinstance(chosen, Parser)  # noqa: S101  for the type checker
    own = {key_of(action): action.dest for action in chosen.options()}
    if "device" not in own:  # not about a run
        return args, {}
    given: dict[str, tuple[object, str]] = {}
    path = vars(args).get("config")
    if path is not None or os.path.isfile(DEFAULT_PATH):
        config = load_config(path)
        for key, value in config.run.items():
            if key in _PATHS and isinstance(value, str):
                value = os.path.join(os.path.dirname(config.where), value)  # noqa: PLW2901  as above
            given[key] = value, f"{config.where}: run.{key}"
    for name in sorted(name for name in os.environ if name.startswith(VARIABLE)):
        given[name[len(VARIABLE) :].lower()] = os.environ[name], name
    if not given:
        return args, {}
    known = run_keys()
    values, origins = {}, {}
    for key, (value, where) in given.items():
        check_names([key], tuple(known), where.removesuffix(f".{key}"))
        dest = known[key].dest
        if own.get(key) == dest:
            values[dest], origins[dest] = _converted(known[key], value, where), where
    chosen.set_defaults(**values)
    return parser.parse(arguments), origins


def naming_origin(run: Callable[[Namespace], int], options: Namespace, origins: dict[str, str]) -> int:
    """Run a command; an error about a parameter that no flag gave names its origin instead of the flag."""
    try:
        return run(options)
    except StepgradeError as error:
        if error.field not in origins:
            raise
        where, error.field = origins[error.field], None
        raise error.at(where) from error


def run_keys() -> dict[str, argparse.Action]:
    """Return the options that describe a run, by their key in `[run]`: the flag with _ for -."""
    from stepgrade.cli import run_options

    parser = Parser(prog="run", description=None)
    own = set(parser.flags())
    run_options.add_setup_options(parser)
    parser.add(*run_options.SHARDING, *run_options.MEMORY, *run_options.MEASURED)
    measured = "--throughput"  # of one measurement, not of the run
    options = (each for each in parser.options() if not {*own, measured} & {*each.option_strings})
    return {key_of(each): each for each in options}


def key_of(action: argparse.Action) -> str:
    """Return the name of an option in stepgrade.toml."""
    return long_flag(action)[2:].replace("-", "_")


def _converted(action: argparse.Action, value: object, where: str) -> Any:
    """Return a value as the option's flag would give it; raise BadConfig where it cannot be."""
    text = str(value).lower() if isinstance(value, bool) else value
    if action.nargs == 0:
        if str(text).lower() not in (*_YES, *_NO):
            raise BadConfig(f"must be true or false, not {value!r}", where=where)
        return str(text).lower() in _YES
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadConfig(f"not a value of {long_flag(action)}: {value!r}", where=where)
    parser = Parser(prog="run", description=None)
    try:
        converted = parser._get_value(action, str(value))  # noqa: SLF001  as for flags
        parser._check_value(action, converted)  # noqa: SLF001  as above
    except argparse.ArgumentError as error:
        raise BadConfig(our_words(error.message), where=where) from error
    return converted
