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
from stepgrade.cli.parser import Parser, add_output_options
from stepgrade.cli.run_options import add_config_option, add_hardware_options, add_run_options
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.hardware.cost.plan import Plan, find_dtype
from stepgrade.hardware.plan_table import (
    DEFAULT_NETWORK_GB_S,
    DEFAULT_PER_NODE,
    TRAINERS,
    Cluster,
    PlanRequest,
)
from stepgrade.hardware.planner import plan
from stepgrade.hardware.setup import Setup


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    add_hardware_options(parser)
    add_run_options(parser)
    add = parser.add_argument_group("cluster").add_argument
    add("--devices", dest="plan_devices", type=int, required=True, metavar="N", help="number of devices")
    add("--global-batch", type=int, required=True, metavar="N", help="sequences per step")
    add(
        "--per-node",
        type=int,
        default=DEFAULT_PER_NODE,
        metavar="N",
        help=f"devices per node (default: {DEFAULT_PER_NODE})",
    )
    network = f"bandwidth between nodes, per device (default: {DEFAULT_NETWORK_GB_S:g})"
    add(
        "--network",
        dest="network_gb_s",
        type=float,
        default=DEFAULT_NETWORK_GB_S,
        metavar="GB_S",
        help=network,
    )
    add(
        "--trainer",
        dest="trainers",
        action="append",
        choices=tuple(TRAINERS),
        help="only this trainer; may be repeated",
    )
    add("--top", dest="most", type=int, default=10, metavar="N", help="plans to show (default: 10)")
    add_config_option(parser)
    add_output_options(parser)
    parser.show_first(
        "--model --device --devices --global-batch --seq --per-node --network --trainer --top "
        "--format --output"
    )


def run(args: Namespace) -> int:
    """Print the plans."""
    if args.model is None or args.seq is None:
        raise BadOption("a plan needs the model", supply="{model} with {seq}")
    chosen = Plan(
        batch=1,
        seq=args.seq,
        dtype=find_dtype(args.dtype),
        method=args.method,
        rank=args.rank,
        lora_targets=args.lora_targets,
        optimizer=args.optimizer,
    )
    setup = Setup(
        device=args.device,
        device_file=args.device_file,
        peak_bw_gb_s=args.peak_bw_gb_s,
        peak_tflops=args.peak_tflops,
        link_gb_s=args.link_gb_s,
        model=args.model,
        plan=chosen,
        dtype=chosen.dtype,
    )
    cluster = Cluster(devices=args.plan_devices, per_node=args.per_node, network_gb_s=args.network_gb_s)
    trainers = tuple(args.trainers) if args.trainers else tuple(TRAINERS)
    request = PlanRequest(cluster=cluster, global_batch=args.global_batch, trainers=trainers, most=args.most)
    output.write_result(plan(setup, request), args.format, args.output, args.color)
    return EXIT_OK
