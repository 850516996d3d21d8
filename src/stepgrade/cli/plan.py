r"""Find the fastest way to run a model on many devices that fits in memory.

Tensor, pipeline, context and expert parallelism, sharding, checkpointing and micro-batch are tried
together. Plans that fit come first, ranked by throughput, each with what limits it and the flags that start
it; plans too close to call follow.

  stepgrade plan --model config.json --device h100-sxm5-80gb --devices 64 \
                 --global-batch 512 --seq 8192
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.parser import Parser, add_output_options, option
from stepgrade.cli.run_options import CONFIG, HARDWARE, RUN, fields_given
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.hardware.cost.plan import Plan, find_dtype
from stepgrade.hardware.planner import (
    DEFAULT_NETWORK_GB_S,
    DEFAULT_PER_NODE,
    TRAINERS,
    Cluster,
    PlanRequest,
    plan,
)
from stepgrade.hardware.setup import Setup


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add(*HARDWARE, group="hardware")
    parser.add(*RUN, group="run")
    network = f"bandwidth between nodes, per device (default: {DEFAULT_NETWORK_GB_S:g})"
    only = "only this trainer; may be repeated"
    parser.add(
        option("--devices N", "number of devices", dest="plan_devices", required=True),
        option("--global-batch N", "sequences per step", required=True),
        option("--per-node N", "devices per node", default=DEFAULT_PER_NODE),
        option("--network GB_S", network, dest="network_gb_s", default=DEFAULT_NETWORK_GB_S),
        option("--trainer", only, dest="trainers", action="append", choices=tuple(TRAINERS)),
        option("--top N", "plans to show", dest="most", default=10),
        group="cluster",
    )
    parser.add(CONFIG)
    add_output_options(parser)
    parser.show_first(
        "--model --device --devices --global-batch --seq --per-node --network --trainer --top "
        "--format --output"
    )


def run(args: Namespace) -> int:
    """Print the plans."""
    if args.model is None or args.seq is None:
        raise BadOption("a plan needs the model", supply="{model} with {seq}")
    dtype = find_dtype(args.dtype)
    chosen = Plan(**fields_given(args, Plan) | {"batch": 1, "dtype": dtype})
    setup = Setup(**fields_given(args, Setup) | {"plan": chosen, "dtype": dtype})
    cluster = Cluster(devices=args.plan_devices, per_node=args.per_node, network_gb_s=args.network_gb_s)
    trainers = tuple(args.trainers) if args.trainers else tuple(TRAINERS)
    request = PlanRequest(cluster=cluster, global_batch=args.global_batch, trainers=trainers, most=args.most)
    output.write_result(plan(setup, request), args.format, args.output, args.color)
    return EXIT_OK
