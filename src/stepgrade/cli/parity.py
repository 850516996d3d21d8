"""Two runtimes, operation by operation."""

from __future__ import annotations

import click

from stepgrade import api
from stepgrade.cli import output as out
from stepgrade.cli.options import contract_option, input_options, output_options
from stepgrade.contract import format_parity_markdown
from stepgrade.errors import EXIT_NOT_MEASURED, EXIT_OK


@click.command(name="parity")
@click.argument("ours")
@click.argument("theirs")
@contract_option
@input_options
@output_options
def command(
    ours: str,
    theirs: str,
    *,
    contract: str,
    input_format: str | None,
    max_bytes: int,
    to: str,
    output: str | None,
    color: str,
) -> int:
    r"""Compare OURS with THEIRS: which operations are slower, and how much of the time they explain.

    Both may be ParityProfile JSON or any profile with operations. Exit code 3 means that too little
    of the time is in operations that both have.

    \b
      stepgrade parity ours.json pytorch.json
      stepgrade parity ours.json pytorch.json --contract v1 --format markdown
    """
    if contract == "v1":
        comparison = api.parity_v1(ours, theirs, max_bytes=max_bytes)
        text = comparison.to_json() + "\n" if to == "json" else format_parity_markdown(comparison)
        out.write_raw(text, output)
        return EXIT_OK
    profiles = [api.load(source, input_format=input_format, max_bytes=max_bytes) for source in (ours, theirs)]
    report = api.parity(*profiles)
    page = out.page(color, output)
    out.write(api.render(report, to=to, width=page.width, color=page.color), output)
    return EXIT_OK if report.parity_achieved is not None else EXIT_NOT_MEASURED
