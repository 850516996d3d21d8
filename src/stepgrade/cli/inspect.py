"""What is in a file, and is it fit to be graded."""

from __future__ import annotations

import click

from stepgrade import api
from stepgrade.cli import output as out
from stepgrade.cli.options import input_options, output_options
from stepgrade.errors import EXIT_NOT_MEASURED, EXIT_OK


@click.command(name="inspect")
@click.argument("source")
@input_options
@output_options
def command(
    source: str, *, input_format: str | None, max_bytes: int, to: str, output: str | None, color: str
) -> int:
    r"""Show what SOURCE holds, what can not be known from it and how to supply that.

    \b
    Formats, found by content:
      step_profile    step_profiler_v2 or apr_training_profiler_v1 JSON
      parity_profile  ParityProfile JSON: runtime, throughput, launches, time per operation
      log             a training log that holds a step profile among its other lines
    Each may be gzipped. Exit code 3 means that the file holds no measurement.
    """
    inspection = api.inspect(api.load(source, input_format=input_format, max_bytes=max_bytes))
    page = out.page(color, output)
    out.write(api.render(inspection, to=to, width=page.width, color=page.color), output)
    return EXIT_OK if inspection.fit else EXIT_NOT_MEASURED
