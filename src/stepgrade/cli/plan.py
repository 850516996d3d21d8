r"""Find the fastest way to run a model on many devices that fits in memory.

Tensor, pipeline, context and expert parallelism, sharding, checkpointing and micro-batch are tried
together. Plans that fit come first, ranked by the throughput to expect, each with where its step goes and
the flags that start it; plans too close to call follow. Several devices are planned side by side.

  stepgrade plan --model config.json --device h100-sxm5-80gb --devices 64 \
                 --global-batch 512 --seq 8192
  stepgrade plan --model config.json --device h100-sxm5-80gb,b200 \
                 --devices 64,512 --global-batch 512 --seq 8192 \
                 --tokens 15T --price 2.5,4
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import TypeVar

from stepgrade.cli import output
from stepgrade.cli.parser import Parser, add_output_options, option
from stepgrade.cli.run_options import CONFIG, HARDWARE, RUN, fields_given
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.hardware.cluster import DEFAULT_NETWORK_GB_S, DEFAULT_PER_NODE, Cluster
from stepgrade.hardware.cost.plan import Plan, find_dtype
from stepgrade.hardware.planner import PlanRequest, plan, plan_each
from stepgrade.hardware.setup import Setup
from stepgrade.hardware.trainers import TRAINERS

T = TypeVar("T", int, float)
_COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def token_count(text: str) -> float:
    """Return a number of tokens: 15T, 300B or 300000000000."""
    unit = text[-1:].lower()
    try:
        return float(text[:-1]) * _COUNTS[unit] if unit in _COUNTS else float(text)
    except ValueError:
        raise ArgumentTypeError(f"not a number of tokens, such as 15T: {text!r}") from None


def several(number: Callable[[str], T], example: str) -> Callable[[str], tuple[T, ...]]:
    """Return what reads one number, or several with commas between them."""

    def read(text: str) -> tuple[T, ...]:
        try:
            return tuple(number(each) for each in text.split(","))
        except ValueError:
            raise ArgumentTypeError(f"not a number, or several such as {example}: {text!r}") from None

    return read


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add(*HARDWARE, group="hardware")
    parser.add(*RUN, group="run")
    network = (
        f"bandwidth between nodes, per device (default: {DEFAULT_NETWORK_GB_S:g}, or usual for the device)"
    )
    only = "only this trainer; may be repeated"
    parser.add(
        option(
            "--devices N",
            "number of devices, or several: 8,64,512",
            dest="plan_devices",
            required=True,
            type=several(int, "8,64"),
        ),
        option("--global-batch N", "sequences per step", required=True),
        option(
            "--per-node N", f"devices that share fast links (default: {DEFAULT_PER_NODE}, or the device's)"
        ),
        option("--network GB_S", network, dest="network_gb_s"),
        option("--trainer", only, dest="trainers", action="append", choices=tuple(TRAINERS)),
        option("--top N", "plans to show", dest="most", default=10),
        option("--tokens N", "tokens of the whole training, such as 15T", type=token_count),
        option(
            "--price MONEY",
            "of one device and hour, or of each --device: 2.5,4",
            type=several(float, "2.5,4"),
        ),
        option("--weak", "--global-batch is that of the first number of --devices, and grows with it"),
        group="cluster",
    )
    parser.add(CONFIG)
    add_output_options(parser)
    parser.show_first(
        "--model --device --devices --global-batch --seq --per-node --tokens --price --format --output"
    )


def run(args: Namespace) -> int:
    """Print the plans."""
    if args.model is None or args.seq is None:
        raise BadOption("a plan needs the model", supply="{model} with {seq}")
    dtype = find_dtype(args.dtype)
    chosen = Plan(**fields_given(args, Plan) | {"batch": 1, "dtype": dtype})
    names = (args.device or "").split(",")
    if len(names) > 1 and (args.device_file or args.peak_tflops or args.peak_bw_gb_s or args.link_gb_s):
        raise BadOption("several devices cannot share the figures of one", field="device")
    each_price = args.price or (None,)
    if len(each_price) not in (1, len(names)):
        raise BadOption(f"{len(each_price)} for {len(names)} devices: give one, or as many", field="price")
    cases = [
        (
            Setup(**fields_given(args, Setup) | {"device": name or None, "plan": chosen, "dtype": dtype}),
            PlanRequest(
                cluster=Cluster(devices=count, per_node=args.per_node, network_gb_s=args.network_gb_s),
                global_batch=args.global_batch * count // args.plan_devices[0]
                if args.weak
                else args.global_batch,
                trainers=tuple(args.trainers) if args.trainers else tuple(TRAINERS),
                most=args.most,
                tokens=args.tokens,
                price=price,
            ),
        )
        for name, price in zip(names, each_price * (len(names) // len(each_price)), strict=True)
        for count in args.plan_devices
    ]
    found = plan(*cases[0]) if len(cases) == 1 else plan_each(cases)
    output.write_result(found, args.format, args.output, args.color)
    return EXIT_OK
