"""The options that decide what a run holds in memory: kernels, precisions, sharding, and a measured peak."""

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
    """Add what decides how much of a run is in memory."""
    add = parser.add_argument_group("memory").add_argument
    add(
        "--kernels", choices=KERNELS, default="transformers", help="whose modules run (default: transformers)"
    )
    add("--weights", choices=tuple(WEIGHTS), default="master", help="how weights are kept (default: master)")
    add("--attention", choices=ATTENTION, default="flash", help="default: flash")
    add("--quantisation", choices=tuple(QUANTISATION), default="nf4-double", help="of QLoRA's weights")
    add("--lora-dropout", action="store_true", help="the adapters have a dropout")
    add("--offload", choices=OFFLOAD, default="none", help="what is kept in host memory (default: none)")
    add("--allocator", choices=ALLOCATORS, default="default", help="expandable: expandable_segments:True")
    add(
        "--lengths", choices=LENGTHS, default="fixed", help="variable: batches padded to their longest sample"
    )
    add("--optimizer-in-backward", action="store_true", help="gradients are freed as they are made")


def add_sharding_options(parser: Parser) -> None:
    """Add how the devices share what a run holds."""
    add = parser.add_argument_group("sharding").add_argument
    add("--sequence-parallel", action=BooleanOptionalAction, default=False, help="with tensor parallelism")
    add("--context-parallel", type=int, default=1, metavar="N", help="devices that share each sequence")
    add("--virtual-stages", type=int, default=1, metavar="N", help="interleaved parts of a pipeline stage")
    add("--expert-tensor-parallel", type=int, metavar="N", help="devices that share each expert's matrices")
    add("--separate-embedding", action="store_true", help="FSDP gathers the head alone, as torchtitan does")
    add("--shard-group", type=int, metavar="N", help="devices that share the shards (default: all replicas)")


def add_anchor_options(parser: Parser) -> None:
    """Add the measured run that memory is predicted from."""
    add = parser.add_argument_group("a measured run").add_argument
    add("--anchor", metavar="FILE", help="its JSON or log: predict the memory from its peak")
    add("--anchor-batch", type=int, metavar="N", help="its sequences per micro-batch (default: as --batch)")
    add("--anchor-seq", type=int, metavar="N", help="its tokens per sequence (default: as --seq)")


def anchor_from(args: Namespace) -> Anchor | None:
    """Return the measured run of the command line; None when there is none."""
    if args.anchor is None:
        return None
    from stepgrade.hardware.memory.anchor_file import read_anchor  # only with a measured run

    anchor = read_anchor(args.anchor)
    return structs.replace(anchor, batch=args.anchor_batch or anchor.batch, seq=args.anchor_seq or anchor.seq)
