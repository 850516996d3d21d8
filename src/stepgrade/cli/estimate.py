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

from msgspec import structs

from stepgrade.cli import output, run_options
from stepgrade.cli.parser import Parser, add_output_options, option
from stepgrade.errors import EXIT_OK
from stepgrade.hardware.estimate import estimate


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add(run_options.THROUGHPUT)
    run_options.add_setup_options(parser)
    parser.add(*run_options.SHARDING, group="sharding")
    parser.add(*run_options.MEMORY, group="memory")
    parser.add(
        option("--anchor FILE", "predict memory from the peak in this JSON or log"),
        option("--anchor-batch N", "its sequences per micro-batch (default: --batch)"),
        option("--anchor-seq N", "its tokens per sequence (default: --seq)"),
        group="a measured run",
    )
    parser.add(run_options.CONFIG)
    add_output_options(parser)
    parser.show_first(
        "--model --device --batch --seq --dtype --method --world-size --data-parallel --throughput "
        "--format --output"
    )


def run(args: Namespace) -> int:
    """Print the estimate."""
    anchor = None
    if args.anchor is not None:
        from stepgrade.hardware.memory.anchor_file import read_anchor  # only with a measured run

        anchor = read_anchor(args.anchor)
        own = {"batch": args.anchor_batch or anchor.batch, "seq": args.anchor_seq or anchor.seq}
        anchor = structs.replace(anchor, **own)
    setup = run_options.setup_from(args)
    found = estimate(setup, throughput_tok_s=args.throughput_tok_s, anchor=anchor)
    output.write_result(found, args.format, args.output, args.color)
    return EXIT_OK
