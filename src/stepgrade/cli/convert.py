"""Any profile as step profile JSON."""

from __future__ import annotations

import click

from stepgrade import api
from stepgrade.cli import output as out
from stepgrade.cli.options import input_options


@click.command(name="convert")
@click.argument("source")
@click.option(
    "--format", "to", type=click.Choice(["json"]), default="json", help="Output format: step profile JSON."
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file, whole or not at all.")
@input_options
def command(source: str, *, to: str, output: str | None, input_format: str | None, max_bytes: int) -> None:  # noqa: ARG001
    r"""Write SOURCE as step_profiler_v2 JSON, which contract v1 and other tools of its family read.

    \b
      stepgrade convert train.log -o profile.json
      stepgrade convert profile.json | stepgrade score - --contract v1 --throughput 194 --device gb10
    """
    out.write(api.convert(api.load(source, input_format=input_format, max_bytes=max_bytes)), output)
