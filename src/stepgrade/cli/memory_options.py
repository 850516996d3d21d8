"""The options that decide how much memory a run takes: kernels, precisions, sharding, and a measured peak."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace

from msgspec import structs

from stepgrade.cli.parser import Parser
from stepgrade.hardware.cost.plan import (
    ALLOCATORS,
    ATTENTION,
    KERNELS,
    LENGTHS,
    OFFLOAD,
    QUANTISATION,
    WEIGHTS,
)
from stepgrade.hardware.memory.fit import Anchor


def add_memory_options(parser: Parser) -> None:
    """Add kernels, precisions and what is offloaded."""
    add = parser.add_argument_group("memory").add_argument
    add("--kernels", choices=KERNELS, default="transformers", help="kernel library (default: transformers)")
    add(
        "--weights",
        choices=tuple(WEIGHTS),
        default="master",
        help="precision of the weights (default: master)",
    )
    add("--attention", choices=ATTENTION, default="flash", help="attention kernel (default: flash)")
    add(
        "--quantisation",
        choices=tuple(QUANTISATION),
        default="nf4-double",
        help="of QLoRA's weights (default: nf4-double)",
    )
    add("--lora-dropout", action=BooleanOptionalAction, default=False, help="the adapters use dropout")
    add("--offload", choices=OFFLOAD, default="none", help="what is offloaded to the host (default: none)")
    add(
        "--allocator",
        choices=ALLOCATORS,
        default="default",
        help="expandable means expandable_segments (default: default)",
    )
    add(
        "--lengths",
        choices=LENGTHS,
        default="fixed",
        help="variable means padded to the longest sample (default: fixed)",
    )
    add(
        "--optimizer-in-backward",
        action=BooleanOptionalAction,
        default=False,
        help="the optimizer runs in backward, and frees gradients at once",
    )


def add_sharding_options(parser: Parser) -> None:
    """Add how the devices shard the run; each option sets the parameter of its `dest`."""
    add = parser.add_argument_group("sharding").add_argument
    switch = BooleanOptionalAction
    add("--sequence-parallel", dest="sequence", action=switch, default=False, help="with tensor parallelism")
    add("--context-parallel", dest="context", type=int, default=1, metavar="N", help="devices per sequence")
    add(
        "--virtual-stages",
        dest="virtual",
        type=int,
        default=1,
        metavar="N",
        help="interleaved stages per device",
    )
    add(
        "--expert-tensor-parallel",
        dest="expert_tensor",
        type=int,
        metavar="N",
        help="devices per expert matrix",
    )
    add(
        "--separate-embedding",
        action=switch,
        default=False,
        help="FSDP gathers the head alone, as torchtitan does",
    )
    add("--shard-group", type=int, metavar="N", help="devices that share the shards (default: all replicas)")


def add_anchor_options(parser: Parser) -> None:
    """Add a measured run to predict the memory from."""
    add = parser.add_argument_group("a measured run").add_argument
    add("--anchor", metavar="FILE", help="predict memory from the peak in this JSON or log")
    add("--anchor-batch", type=int, metavar="N", help="its sequences per micro-batch (default: --batch)")
    add("--anchor-seq", type=int, metavar="N", help="its tokens per sequence (default: --seq)")


def anchor_from(args: Namespace) -> Anchor | None:
    """Return the measured run of the command line, or None."""
    if args.anchor is None:
        return None
    from stepgrade.hardware.memory.anchor_file import read_anchor  # only with a measured run

    anchor = read_anchor(args.anchor)
    return structs.replace(anchor, batch=args.anchor_batch or anchor.batch, seq=args.anchor_seq or anchor.seq)
