"""The file that sets limits and silences rules: `--config FILE`, else ./stepgrade.toml."""

from __future__ import annotations

import os
from argparse import Namespace

from stepgrade import api
from stepgrade.analysis.limits_file import FILE_NAME, Settings
from stepgrade.cli.parser import Parser


def add_config_option(parser: Parser) -> None:
    """Add `--config`."""
    parser.add_argument(
        "--config", metavar="TOML", help=f"limits and ignored rules (default: ./{FILE_NAME} if there is one)"
    )


def settings_from(args: Namespace) -> Settings | None:
    """Return what the file says; None when there is none."""
    if args.config is not None:
        return api.load_settings(args.config)
    return api.load_settings(FILE_NAME) if os.path.isfile(FILE_NAME) else None  # noqa: PTH113
