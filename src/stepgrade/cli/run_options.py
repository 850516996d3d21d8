"""The options of a run (sources, figures, hardware, model, history), and what is made of them."""

from __future__ import annotations

import argparse
import os
import re
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from stepgrade.cli.parser import Parser
from stepgrade.cli.streams import complain
from stepgrade.config import DEFAULT_PATH, Config, load_config
from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION
from stepgrade.hardware.cost.plan import (
    CHECKPOINTING,
    DEQUANTISE,
    LOSSES,
    METHODS,
    OPTIMIZERS,
    ZERO_STAGE,
    Parallelism,
    Plan,
    find_dtype,
)
from stepgrade.hardware.setup import Setup

if TYPE_CHECKING:
    from stepgrade.diagnosis.settings import Settings
    from stepgrade.model import Profile
    from stepgrade.model.scorecard import Scorecard
    from stepgrade.store import History

WORK = ("training", "inference")
OLD_OUTBOX = ".stepgrade/outbox"  # where versions before 2.1 kept what waits for a server
# Options that only estimate and plan have, and the fields of Parallelism and Plan that they set.
_SHARDING = {
    "sequence_parallel": "sequence",
    "context_parallel": "context",
    "virtual_stages": "virtual",
    "expert_tensor_parallel": "expert_tensor",
    "separate_embedding": "separate_embedding",
    "shard_group": "shard_group",
}
_MEMORY = {
    name: name
    for name in (
        "kernels",
        "weights",
        "attention",
        "quantisation",
        "lora_dropout",
        "offload",
        "allocator",
        "lengths",
        "optimizer_in_backward",
    )
}


def add_sources(parser: Parser) -> None:
    """Add the sources of one run, and which of its steps to look at."""
    parser.add_argument("sources", metavar="SOURCE", nargs="+")
    parser.add_argument(
        "--steps", type=step_range, metavar="FIRST-LAST", help="only these steps of a trace, such as 3-7"
    )
    add = parser.add_argument_group("many ranks").add_argument
    add(
        "--engine",
        metavar="NAME",
        help="where ranks are read: here, pool (of processes; the default where it pays), dask (on this "
        "machine), or dask://HOST:PORT",
    )
    add("--workers", type=int, metavar="N", help="processes that read (default: as cores and memory allow)")
    add("--sample-ranks", type=int, metavar="N", help="look at N ranks only, spread over all: a first look")
    add(
        "--no-cache", action="store_true", help="neither keep what is made of each rank, nor use what is kept"
    )
    add(
        "--unreadable",
        dest="most_unreadable",
        type=share,
        default=0.05,
        metavar="SHARE",
        help="go on while at most this share of the ranks cannot be read (default: 5%%)",
    )


def load_run(args: Namespace, *sources: str) -> Profile:
    """Read the run that the command line names (or `sources`), with a progress line when it takes long."""
    from stepgrade.cli.progress import progress_line  # an estimate reads no run
    from stepgrade.loading import load

    with progress_line() as line:
        return load(
            *(sources or args.sources),
            input_format=args.input_format,
            steps=args.steps,
            max_bytes=args.max_bytes,
            max_memory=args.max_memory,
            progress=line.show_bytes if line else None,
            rank_progress=line.count_ranks if line else None,
            engine=args.engine,
            workers=args.workers,
            most_unreadable=args.most_unreadable,
            sample_ranks=args.sample_ranks,
            cache=not args.no_cache,
            dialects=config_from(args)[0].dialects if "config" in args else load_config().dialects,
        )


def add_figure_options(parser: Parser) -> None:
    """Add the figures of a measured run that its source may not have."""
    add = parser.add_argument
    add_throughput_option(parser)
    add("--tokens-per-step", type=float, metavar="N", help="tokens in one step, to work the throughput out")
    add("--work", choices=WORK, help="what the steps hold, where the source does not show it")
    add("--bytes-per-token", type=float, metavar="B", help="bytes of memory traffic that one token costs")
    add("--flops-per-token", type=float, metavar="F", help="FLOPs that one token costs")


def add_throughput_option(parser: Parser) -> None:
    """Add the throughput that was measured."""
    parser.add_argument(
        "--throughput",
        dest="throughput_tok_s",
        type=float,
        metavar="TOK_S",
        help="tokens per second of the whole run",
    )


def add_setup_options(parser: Parser) -> None:
    """Add how the device is named or described, the model, and how it is trained."""
    add_hardware_options(parser)
    add = add_run_options(parser).add_argument
    add("--batch", type=int, metavar="N", help="sequences per micro-batch on one replica")
    add("--micro-batches", type=int, default=1, metavar="N", help="micro-batches per step (default: 1)")
    add("--packed-seq", type=float, metavar="N", help="length of the texts packed into a sequence")
    add("--checkpointing", choices=CHECKPOINTING, default="none", help="what is recomputed (default: none)")
    add("--loss", choices=tuple(LOSSES), default="upcast", help="how logits become a loss (default: upcast)")
    add("--dequantise", choices=DEQUANTISE, default="unfused", help="QLoRA kernels (default: unfused)")
    add(
        "--convention",
        choices=tuple(CONVENTIONS),
        default=DEFAULT_CONVENTION,
        metavar="NAME",
        help=f"how FLOPs are counted: {', '.join(CONVENTIONS)} (default: {DEFAULT_CONVENTION})",
    )
    add = parser.add_argument_group("parallelism").add_argument
    add("--world-size", type=int, default=1, metavar="N", help="devices that share the run (default: 1)")
    add("--data-parallel", choices=tuple(ZERO_STAGE), default="ddp", help="default: ddp")
    add("--tensor-parallel", type=int, default=1, metavar="N", help="devices that share each matrix")
    add("--pipeline-parallel", type=int, default=1, metavar="N", help="stages that share the layers")
    add("--expert-parallel", type=int, default=1, metavar="N", help="devices that share the experts")


def add_hardware_options(parser: Parser) -> None:
    """Add how the device is named or described."""
    add = parser.add_argument_group("hardware").add_argument
    add("--device", metavar="KEY", help="the accelerator, such as h100-sxm5-80gb; see stepgrade devices")
    add("--device-file", metavar="TOML", help="a description of your own device")
    add("--peak-bw", dest="peak_bw_gb_s", type=float, metavar="GB_S", help="memory bandwidth")
    add("--peak-tflops", type=float, metavar="TFLOPS", help="dense peak of --dtype")
    add("--link", dest="link_gb_s", type=float, metavar="GB_S", help="link between devices, one direction")


def add_run_options(parser: Parser) -> argparse._ArgumentGroup:
    """Add the model, and how it is trained."""
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--model", metavar="CONFIG_JSON", help="the model's Hugging Face config.json, or the folder with it")
    add("--seq", type=int, metavar="N", help="tokens per sequence")
    add("--dtype", default="bf16", metavar="NAME", help="precision of the arithmetic (default: bf16)")
    add("--method", choices=METHODS, default="full", help="what is trained (default: full)")
    add("--rank", type=int, default=16, metavar="R", help="rank of LoRA's adapters (default: 16)")
    add("--lora-targets", default="all", metavar="NAMES", help="all, attention, or q,k,v,… (default: all)")
    add("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="default: adamw")
    return group


def setup_from(args: Namespace, profile: Profile | None = None) -> Setup:
    """Return what the command line says of hardware and run; raise BadOption where it makes no sense.

    What a log says of its run completes it: batch, sequence, devices.
    """
    dtype, plan = find_dtype(args.dtype), None
    batch, seq, world_size = args.batch, args.seq, args.world_size
    if profile is not None and profile.log is not None and profile.recorded is not None:
        seq = seq or profile.recorded.seq
        batch = batch or profile.recorded.batch
        if world_size == 1:
            world_size = profile.world_size or 1
    parallel = Parallelism(
        devices=world_size,
        data=args.data_parallel,
        tensor=args.tensor_parallel,
        pipeline=args.pipeline_parallel,
        expert=args.expert_parallel,
        **_given(args, _SHARDING),
    )
    if args.model is not None and batch is not None and seq is not None:
        plan = Plan(
            batch=batch,
            seq=seq,
            micro_batches=args.micro_batches,
            dtype=dtype,
            method=args.method,
            rank=args.rank,
            lora_targets=args.lora_targets,
            optimizer=args.optimizer,
            checkpointing=args.checkpointing,
            loss=args.loss,
            dequantise=args.dequantise,
            packed_seq=args.packed_seq,
            parallel=parallel,
            **_given(args, _MEMORY),
        )
    return Setup(
        device=args.device,
        device_file=args.device_file,
        peak_bw_gb_s=args.peak_bw_gb_s,
        peak_tflops=args.peak_tflops,
        link_gb_s=args.link_gb_s,
        # A command without these options has no figures of a measured run.
        bytes_per_token=getattr(args, "bytes_per_token", None),
        flops_per_token=getattr(args, "flops_per_token", None),
        model=args.model,
        plan=plan,
        convention=args.convention,
        dtype=dtype,
        devices=parallel.devices,
    )


def _given(args: Namespace, fields: dict[str, str]) -> dict[str, Any]:
    """Return what the options say that only some commands have, by the field that each sets."""
    said = vars(args)
    return {field: said[option] for option, field in fields.items() if option in said}


def add_allow_different_option(parser: Parser) -> None:
    """Add which differences between runs do not keep them from being compared."""
    parser.add_argument(
        "--allow-different",
        action="append",
        default=[],
        metavar="FIELD",
        help="compare although this part of the fingerprint differs (device, versions, …, or all)",
    )


def add_config_option(parser: Parser, *names: str) -> None:
    """Add `--config`, and other names that a command has for it."""
    parser.add_argument(
        *names,
        "--config",
        dest="config",
        metavar="TOML",
        help=f"limits, ignored rules, budgets and waivers (default: ./{DEFAULT_PATH} if there is one)",
    )


def config_from(args: Namespace) -> tuple[Config, Settings | None]:
    """Return what `--config` or ./stepgrade.toml says, and its limits and ignored rules (None: no file)."""
    if args.config is None and not os.path.isfile(DEFAULT_PATH):
        return Config(), None
    from stepgrade.diagnosis.settings import settings_from  # only with a file

    config = load_config(args.config)
    return config, settings_from(config, args.config or DEFAULT_PATH)


def add_history_option(parser: Parser) -> None:
    """Add `--history`."""
    parser.add_argument(
        "--history",
        metavar="PLACE",
        help="a file, postgresql://… or https://SERVER/PROJECT with a token in STEPGRADE_TOKEN "
        "(default: STEPGRADE_HISTORY, else .stepgrade/history.db)",
    )


def add_save_options(parser: Parser, when: str) -> None:
    """Add `--save` and what goes with it."""
    group = parser.add_argument_group("keeping")
    group.add_argument("--save", action="store_true", help=f"keep the run in the history, {when}")
    add_origin_options(group)


def add_origin_options(group: argparse._ActionsContainer) -> None:
    """Add where a run comes from."""
    group.add_argument("--commit", metavar="SHA", help="default: the checkout's, or what CI says")
    group.add_argument("--branch", metavar="NAME", help="default: the checkout's, or what CI says")
    group.add_argument(
        "--label", action="append", default=[], type=label, metavar="NAME=TEXT", help="may be repeated"
    )


def save_run(card: Scorecard, args: Namespace) -> None:
    """Add a run to the history, and say so on standard error."""
    from stepgrade.store import NewRun, open_history  # only when something is kept
    from stepgrade.store.git import branch_here, commit_here

    run = NewRun(
        card=card,
        commit=args.commit or commit_here(),
        branch=args.branch or branch_here(),
        labels=dict(args.label),
    )
    with open_history(args.history, readable_by=config_from(args)[0].files.readable_by) as history:
        number = history.add(run)
        if number:
            complain(f"kept as run {number} in {history.name}")
        complain_of_outbox(history)


def complain_of_outbox(history: History) -> None:
    """Say what waits and why, and that runs in the checkout's own outbox are not sent unless asked for."""
    remarks = getattr(history, "remarks", None)
    if remarks is None:  # not on a server
        return
    for remark in remarks:
        complain(remark)
    if os.path.isdir(OLD_OUTBOX) and any(name[:4] == "run-" for name in os.listdir(OLD_OUTBOX)):
        complain(
            f"the runs in {OLD_OUTBOX} are not sent, they came with the checkout or from an older version: "
            f"list them with stepgrade history outbox --outbox {OLD_OUTBOX}, send them with "
            f"stepgrade history push --to {history.name} --outbox {OLD_OUTBOX}"
        )


def label(text: str) -> tuple[str, str]:
    """Return name and value of a text like machine=dgx-3."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not a label; write it like machine=dgx-3")
    return name, value


def share(text: str) -> float:
    """Return the share of a text like 5% or 0.05."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?)\s*(%?)", text.strip())
    found = float(match[1]) / (100 if match[2] else 1) if match else 2.0
    if found > 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write it like 5% or 0.05")
    return found


def step_range(text: str) -> tuple[int, int]:
    """Return the first and the last step of a text like 3-7 or 5."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of steps; write it like 3-7")
    return int(match[1]), int(match[2] or match[1])
