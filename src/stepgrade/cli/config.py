"""The file that says what a project allows: `--config FILE`, else ./stepgrade.toml, read once."""

from __future__ import annotations

import os
from argparse import Namespace

from stepgrade.cli.parser import Parser
from stepgrade.config import DEFAULT_PATH, Config, load_config
from stepgrade.diagnosis import settings
from stepgrade.diagnosis.settings import Settings


def add_config_option(parser: Parser, *names: str) -> None:
    """Add `--config`, and other names that a command has for it."""
    parser.add_argument(
        *names,
        "--config",
        dest="config",
        metavar="TOML",
        help=f"limits, ignored rules, budgets and waivers (default: ./{DEFAULT_PATH} if there is one)",
    )


def config_from(args: Namespace) -> Config | None:
    """Return what the file says; None when there is none."""
    if args.config is None and not os.path.isfile(DEFAULT_PATH):  # noqa: PTH113  pathlib is slow to import
        return None
    return load_config(args.config)


def settings_from(args: Namespace) -> Settings | None:
    """Return the file's limits and ignored rules; None when there is none."""
    config = config_from(args)
    return None if config is None else settings.settings_from(config, args.config or DEFAULT_PATH)
