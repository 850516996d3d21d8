r"""Show which ways of running it on many devices fit, and which is fastest.

Tensor, pipeline, context and expert parallelism, sharding, checkpointing and micro-batch are tried together.
Plans that fit come first, ranked by the throughput that they allow, each with what keeps it from more and
with the flags that start it; plans too close to call follow.

  stepgrade plan --model config.json --device h100-sxm5-80gb --devices 64 --global-batch 512 --seq 8192
  stepgrade plan --model config.json --device mi300x --devices 8 --global-batch 64 --seq 4096 \\
                 --trainer torchtitan --format json
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.parser import Parser, add_output_options
from stepgrade.cli.run_options import add_hardware_options, add_run_options
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
    add_hardware_options(parser)
    add_run_options(parser)
    add = parser.add_argument_group("cluster").add_argument
    add("--devices", dest="plan_devices", type=int, required=True, metavar="N", help="devices in all")
    add("--global-batch", type=int, required=True, metavar="N", help="sequences in one step, on all devices")
    add("--per-node", type=int, default=DEFAULT_PER_NODE, metavar="N", help=f"default: {DEFAULT_PER_NODE}")
    network = f"between nodes, for each device (default: {DEFAULT_NETWORK_GB_S:g})"
    add("--network", type=float, default=DEFAULT_NETWORK_GB_S, metavar="GB_S", help=network)
    add("--trainer", action="append", choices=tuple(TRAINERS), help="only this one; may be repeated")
    add("--top", type=int, default=10, metavar="N", help="how many plans are shown (default: 10)")
    add_output_options(parser)


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
    cluster = Cluster(devices=args.plan_devices, per_node=args.per_node, network_gb_s=args.network)
    trainers = tuple(args.trainer) if args.trainer else tuple(TRAINERS)
    request = PlanRequest(cluster=cluster, global_batch=args.global_batch, trainers=trainers, most=args.top)
    output.write_result(plan(setup, request), args.format, args.output, args.color)
    return EXIT_OK
