"""The options of a run (sources, figures, hardware, model, history), and the setup they describe."""

from __future__ import annotations

import argparse
import os
import re
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import msgspec

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
    from stepgrade.model import Profile
    from stepgrade.model.scorecard import Scorecard
    from stepgrade.store import Runs

WORK = ("training", "inference")
OLD_OUTBOX = ".stepgrade/outbox"  # where older versions kept runs that wait for a server


def add_sources(parser: Parser) -> None:
    """Add the sources of one run, and which of its steps to look at."""
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="files or directories of one run")
    parser.add_argument(
        "--steps", type=step_range, metavar="FIRST-LAST", help="only these steps of a trace, such as 3-7"
    )
    add = parser.add_argument_group("many ranks").add_argument
    add(
        "--engine",
        metavar="NAME",
        help="read ranks in this process (here), in a pool of processes (pool, the default for large runs), "
        "or with Dask (dask, dask://HOST:PORT)",
    )
    add("--workers", type=int, metavar="N", help="processes that read (default: as cores and memory allow)")
    add("--sample-ranks", type=int, metavar="N", help="read only N ranks, evenly spread, for a first look")
    add("--no-cache", dest="cache", action="store_false", help="do not read or write the cache of ranks")
    add(
        "--unreadable",
        dest="most_unreadable",
        type=share,
        default=0.05,
        metavar="SHARE",
        help="continue while at most this share of the ranks is unreadable (default: 5%%)",
    )


def load_run(args: Namespace, *sources: str) -> Profile:
    """Read the run that the command line names (or `sources`), with a progress line when it takes long."""
    from stepgrade.cli.progress import progress_line
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
            cache=args.cache,
            dialects=config_from(args).dialects,
        )


def add_figure_options(parser: Parser) -> None:
    """Add the figures of a measured run that its source may not have."""
    group = parser.add_argument_group("measured")
    add_throughput_option(group)
    add = group.add_argument
    add("--tokens-per-step", type=float, metavar="N", help="tokens in one step, to compute the throughput")
    add("--work", choices=WORK, help="what the steps do, if the source does not show it")
    add("--bytes-per-token", type=float, metavar="B", help="memory traffic of one token, in bytes")
    add("--flops-per-token", type=float, metavar="F", help="FLOPs of one token")


def add_throughput_option(group: argparse._ActionsContainer) -> None:
    """Add the measured throughput."""
    group.add_argument(
        "--throughput",
        dest="throughput_tok_s",
        type=float,
        metavar="TOK_S",
        help="measured tokens per second of the whole run",
    )


def add_setup_options(parser: Parser) -> None:
    """Add the device, the model, and how it is trained; each option sets the parameter of its `dest`."""
    add_hardware_options(parser)
    add = add_run_options(parser).add_argument
    add("--batch", type=int, metavar="N", help="sequences per micro-batch and replica")
    add("--micro-batches", type=int, default=1, metavar="N", help="micro-batches per step (default: 1)")
    add("--packed-seq", type=float, metavar="N", help="mean length of the texts packed into a sequence")
    add(
        "--checkpointing",
        choices=CHECKPOINTING,
        default="none",
        help="activation checkpointing (default: none)",
    )
    add("--loss", choices=tuple(LOSSES), default="upcast", help="loss kernel (default: upcast)")
    add("--dequantise", choices=DEQUANTISE, default="unfused", help="QLoRA kernels (default: unfused)")
    add(
        "--convention",
        choices=tuple(CONVENTIONS),
        default=DEFAULT_CONVENTION,
        metavar="NAME",
        help=f"how FLOPs are counted: {', '.join(CONVENTIONS)} (default: {DEFAULT_CONVENTION})",
    )
    add = parser.add_argument_group("parallelism").add_argument
    add(
        "--world-size",
        dest="devices",
        type=int,
        default=1,
        metavar="N",
        help="devices in the run (default: 1)",
    )
    add(
        "--data-parallel",
        dest="data",
        choices=tuple(ZERO_STAGE),
        default="ddp",
        help="sharding (default: ddp)",
    )
    add(
        "--tensor-parallel",
        dest="tensor",
        type=int,
        default=1,
        metavar="N",
        help="devices per matrix (default: 1)",
    )
    add("--pipeline-parallel", dest="pipeline", type=int, default=1, metavar="N", help="stages (default: 1)")
    add(
        "--expert-parallel",
        dest="expert",
        type=int,
        default=1,
        metavar="N",
        help="devices per set of experts (default: 1)",
    )


def add_hardware_options(parser: Parser) -> None:
    """Add how the device is named or described."""
    add = parser.add_argument_group("hardware").add_argument
    add("--device", metavar="KEY", help="accelerator; stepgrade devices lists the keys")
    add("--device-file", metavar="TOML", help="a description of your own device")
    add("--peak-bw", dest="peak_bw_gb_s", type=float, metavar="GB_S", help="memory bandwidth")
    add("--peak-tflops", type=float, metavar="TFLOPS", help="dense peak of --dtype")
    add("--link", dest="link_gb_s", type=float, metavar="GB_S", help="link between devices, one direction")


def add_run_options(parser: Parser) -> argparse._ArgumentGroup:
    """Add the model, and how it is trained."""
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--model", metavar="CONFIG_JSON", help="the model's Hugging Face config.json, or its folder")
    add("--seq", type=int, metavar="N", help="tokens per sequence")
    add("--dtype", default="bf16", metavar="NAME", help="precision of the arithmetic (default: bf16)")
    add("--method", choices=METHODS, default="full", help="what is trained (default: full)")
    add("--rank", type=int, default=16, metavar="R", help="rank of the LoRA adapters (default: 16)")
    add("--lora-targets", default="all", metavar="NAMES", help="all, attention, or q,k,v,… (default: all)")
    add("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="optimizer (default: adamw)")
    return group


def setup_from(args: Namespace, profile: Profile | None = None) -> Setup:
    """Return the setup that the options describe; raise BadOption where they make no sense.

    A log's own batch, sequence length and device count fill in what is not given.
    """
    given = vars(args)
    dtype, plan = find_dtype(args.dtype), None
    batch, seq, devices = args.batch, args.seq, args.devices
    if profile is not None and profile.log is not None and profile.recorded is not None:
        seq = seq or profile.recorded.seq
        batch = batch or profile.recorded.batch
        if devices == 1:
            devices = profile.world_size or 1

    def of(kind: type[msgspec.Struct]) -> dict[str, Any]:
        return {name: given[name] for name in kind.__struct_fields__ if name in given}

    parallel = Parallelism(**of(Parallelism) | {"devices": devices})
    if args.model is not None and batch is not None and seq is not None:
        chosen = {"batch": batch, "seq": seq, "dtype": dtype, "parallel": parallel}
        plan = Plan(**of(Plan) | chosen)
    return Setup(**of(Setup) | {"plan": plan, "dtype": dtype, "devices": devices})


def add_allow_different_option(parser: Parser) -> None:
    """Add which differences between runs do not keep them from being compared."""
    parser.add_argument(
        "--allow-different",
        action="append",
        default=[],
        metavar="FIELD",
        help="compare even if this part of the fingerprint differs (device, versions, …, or all)",
    )


def add_config_option(parser: Parser, *names: str) -> None:
    """Add `--config`, and other names that a command has for it."""
    parser.add_argument("--config", *names, metavar="TOML", help=f"settings file (default: ./{DEFAULT_PATH})")


def config_from(args: Namespace) -> Config:
    """Return the settings of `--config` or ./stepgrade.toml, checked in full; defaults without a file."""
    config = load_config(vars(args).get("config"))
    if config.limits or config.rules:
        from stepgrade.diagnosis.settings import settings_from

        settings_from(config)
    return config


def add_history_option(parser: argparse._ActionsContainer) -> None:
    """Add `--history`."""
    parser.add_argument(
        "--history",
        metavar="PLACE",
        help="file, postgresql://… or https://SERVER/PROJECT (default: "
        "STEPGRADE_HISTORY, else .stepgrade/history.db)",
    )


def add_save_options(parser: Parser, when: str = "") -> None:
    """Add `--save`, where the run comes from, and `--history`."""
    group = parser.add_argument_group("history")
    group.add_argument("--save", action="store_true", help=f"save the run in the history{when}")
    add_origin_options(group)
    add_history_option(group)


def add_origin_options(group: argparse._ActionsContainer) -> None:
    """Add where a run comes from."""
    group.add_argument("--commit", metavar="SHA", help="default: the checkout's, or CI's")
    group.add_argument("--branch", metavar="NAME", help="default: the checkout's, or CI's")
    group.add_argument(
        "--label", action="append", default=[], type=label, metavar="NAME=TEXT", help="may be repeated"
    )


def save_run(card: Scorecard, args: Namespace) -> None:
    """Add a run to the history, and report its number on standard error."""
    from stepgrade.store import NewRun, open_history
    from stepgrade.store.git import branch_here, commit_here

    run = NewRun(
        card=card,
        commit=args.commit or commit_here(),
        branch=args.branch or branch_here(),
        labels=dict(args.label),
    )
    with open_history(args.history, readable_by=config_from(args).files.readable_by) as history:
        number = history.add(run)
        if number:
            complain(f"saved as run {number} in {history.name}")
        report_outbox(history)


def report_outbox(history: Runs) -> None:
    """Report the runs that wait and why; those in the checkout's own outbox are sent only on request."""
    if not history.is_remote:
        return
    for remark in history.remarks:
        complain(remark)
    if os.path.isdir(OLD_OUTBOX) and any(name[:4] == "run-" for name in os.listdir(OLD_OUTBOX)):
        complain(
            f"the runs in {OLD_OUTBOX} are not sent: they came with the checkout or from an older version; "
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
