"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from stepgrade.readers.content import DEFAULT_MAX_BYTES
from stepgrade.report import FORMATS

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class ByteCount(click.ParamType[int]):
    """A number of bytes, also written like 512MiB, 16G or 2TB (binary units)."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
        if not match:
            self.fail(f"{value!r} is not a size; write it like 512MiB or 16GiB", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


input_options = _all(
    click.option(
        "--input-format", metavar="NAME", help="Read as this format instead of finding it by content."
    ),
    click.option(
        "--max-bytes",
        type=ByteCount(),
        default=DEFAULT_MAX_BYTES,
        show_default="16GiB",
        help="Refuse a source that is larger than this once decompressed.",
    ),
)

output_options = _all(
    click.option(
        "--format",
        "to",
        type=click.Choice(FORMATS),
        default="terminal",
        show_default=True,
        help="Output format.",
    ),
    click.option("-o", "--output", metavar="FILE", help="Write to this file, whole or not at all."),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Colour in the terminal; NO_COLOR and FORCE_COLOR are honoured.",
    ),
)

contract_option = click.option(
    "--contract",
    type=click.Choice(["v1", "v2"]),
    default="v2",
    show_default=True,
    help="v1 is the reference, bit for bit; v2 mends it where real profiles show it wrong.",
)
