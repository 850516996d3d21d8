r"""Show what a run could reach on a device, whether it fits in memory, and why.

The ceilings of arithmetic, memory and link, the peak memory of one device, the largest micro-batch that
fits, and the cheapest change that makes it fit. --throughput adds the MFU and HFU of a measured run;
--anchor predicts memory from a measured peak.

  stepgrade estimate --model config.json --device rtx-4090 --batch 4 --seq 512
  stepgrade estimate --model config.json --device h100-sxm5-80gb --batch 2 \
                     --seq 8192 --world-size 8 --data-parallel fsdp
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.memory_options import (
    add_anchor_options,
    add_memory_options,
    add_sharding_options,
    anchor_from,
)
from stepgrade.cli.parser import Parser, add_output_options
from stepgrade.cli.run_options import (
    add_config_option,
    add_setup_options,
    add_throughput_option,
    setup_from,
)
from stepgrade.errors import EXIT_OK
from stepgrade.hardware.estimate import estimate


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    add_throughput_option(parser)
    add_setup_options(parser)
    add_sharding_options(parser)
    add_memory_options(parser)
    add_anchor_options(parser)
    add_config_option(parser)
    add_output_options(parser)
    parser.show_first(
        "--model --device --batch --seq --dtype --method --world-size --data-parallel --throughput "
        "--format --output"
    )


def run(args: Namespace) -> int:
    """Print the estimate."""
    found = estimate(setup_from(args), throughput_tok_s=args.throughput_tok_s, anchor=anchor_from(args))
    output.write_result(found, args.format, args.output, args.color)
    return EXIT_OK
