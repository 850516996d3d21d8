"""The options that describe hardware and a run, for every command that needs ceilings."""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli.parser import Parser
from stepgrade.errors import BadOption
from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION
from stepgrade.hardware.cost.plan import (
    CHECKPOINTING,
    LOSSES,
    METHODS,
    OPTIMIZERS,
    Parallelism,
    Plan,
    find_dtype,
)
from stepgrade.hardware.setup import Setup


def add_hardware_options(parser: Parser) -> None:
    """Add how the device is named or described."""
    group = parser.add_argument_group("hardware")
    add = group.add_argument
    add("--device", metavar="KEY", help="the accelerator, such as h100-sxm5-80gb; see stepgrade devices")
    add("--device-file", metavar="TOML", help="a description of your own device")
    add(
        "--peak-bw",
        dest="peak_bw_gb_s",
        type=float,
        metavar="GB_S",
        help="memory bandwidth",
    )
    add("--peak-tflops", type=float, metavar="TFLOPS", help="dense peak of --dtype")
    add(
        "--link",
        dest="link_gb_s",
        type=float,
        metavar="GB_S",
        help="link between devices, one direction",
    )


def add_run_options(parser: Parser) -> None:
    """Add the model and how it is trained."""
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--model", metavar="CONFIG_JSON", help="the model's Hugging Face config.json, or the folder with it")
    add("--batch", type=int, metavar="N", help="sequences per micro-batch on one replica")
    add("--seq", type=int, metavar="N", help="tokens per sequence")
    add(
        "--micro-batches",
        type=int,
        default=1,
        metavar="N",
        help="micro-batches per step (default: 1)",
    )
    add(
        "--packed-seq",
        type=float,
        metavar="N",
        help="length of the texts packed into a sequence",
    )
    add("--dtype", default="bf16", metavar="NAME", help="precision of the arithmetic (default: bf16)")
    add("--method", choices=METHODS, default="full", help="what is trained (default: full)")
    add("--rank", type=int, default=16, metavar="R", help="rank of LoRA's adapters (default: 16)")
    add(
        "--lora-targets",
        choices=("all", "attention"),
        default="all",
        help="default: all linear layers",
    )
    add("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="default: adamw")
    add("--checkpointing", choices=CHECKPOINTING, default="none", help="what is recomputed (default: none)")
    add("--loss", choices=tuple(LOSSES), default="upcast", help="how logits become a loss (default: upcast)")
    add(
        "--dequantise",
        choices=("fused", "unfused"),
        default="unfused",
        help="QLoRA kernels (default: unfused)",
    )
    add(
        "--convention",
        choices=tuple(CONVENTIONS),
        default=DEFAULT_CONVENTION,
        metavar="NAME",
        help=f"how FLOPs are counted: {', '.join(CONVENTIONS)} (default: {DEFAULT_CONVENTION})",
    )
    _add_parallel_options(parser)


def _add_parallel_options(parser: Parser) -> None:
    group = parser.add_argument_group("parallelism")
    add = group.add_argument
    add("--world-size", type=int, default=1, metavar="N", help="devices that share the run (default: 1)")
    add("--data-parallel", choices=("ddp", "fsdp"), default="ddp", help="default: ddp")
    add("--tensor-parallel", type=int, default=1, metavar="N", help="devices that share each matrix")
    add("--pipeline-parallel", type=int, default=1, metavar="N", help="stages that share the layers")
    add("--expert-parallel", type=int, default=1, metavar="N", help="devices that share the experts")


def setup_from(args: Namespace) -> Setup:
    """Return what the command line says of hardware and run; raise BadOption where it makes no sense."""
    return Setup(
        device=args.device,
        device_file=args.device_file,
        peak_bw_gb_s=args.peak_bw_gb_s,
        peak_tflops=args.peak_tflops,
        link_gb_s=args.link_gb_s,
        bytes_per_token=getattr(args, "bytes_per_token", None),
        flops_per_token=getattr(args, "flops_per_token", None),
        model=args.model,
        plan=_plan_from(args) if args.model is not None else None,
        convention=args.convention,
        dtype=find_dtype(args.dtype),
        devices=_parallelism_from(args).devices,
    )


def _plan_from(args: Namespace) -> Plan:
    if args.batch is None or args.seq is None:
        raise BadOption("--model needs the run's shape", hint="give --batch N and --seq N")
    return Plan(
        batch=args.batch,
        seq=args.seq,
        micro_batches=args.micro_batches,
        dtype=find_dtype(args.dtype),
        method=args.method,
        rank=args.rank,
        lora_targets=args.lora_targets,
        optimizer=args.optimizer,
        checkpointing=args.checkpointing,
        loss=args.loss,
        dequantise=args.dequantise,
        packed_seq=args.packed_seq,
        parallel=_parallelism_from(args),
    )


def _parallelism_from(args: Namespace) -> Parallelism:
    return Parallelism(
        devices=args.world_size,
        data=args.data_parallel,
        tensor=args.tensor_parallel,
        pipeline=args.pipeline_parallel,
        expert=args.expert_parallel,
    )
