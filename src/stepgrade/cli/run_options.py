"""The options of a run (sources, figures, hardware, model, history), and the setup they describe."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import msgspec

from stepgrade.cli.parser import Parser, option
from stepgrade.cli.streams import ProgressLine, complain, progress_line
from stepgrade.config import DEFAULT_PATH, Config, load_config
from stepgrade.errors import BadOption
from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION
from stepgrade.hardware.cost.plan import (
    ALLOCATORS,
    ATTENTION,
    CHECKPOINTING,
    DEQUANTISE,
    KERNELS,
    LENGTHS,
    LOSSES,
    METHODS,
    OFFLOAD,
    OPTIMIZERS,
    QUANTISATION,
    WEIGHTS,
    ZERO_STAGE,
    Parallelism,
    Plan,
    find_dtype,
)
from stepgrade.hardware.setup import Setup

if TYPE_CHECKING:
    from stepgrade.model import Profile
    from stepgrade.model.scorecard import Scorecard
    from stepgrade.readers.source import ReadOptions
    from stepgrade.store import Runs

OLD_OUTBOX = ".stepgrade/outbox"  # where older versions kept runs that wait for a server


ALLOW_DIFFERENT = option(
    "--allow-different FIELD ...",
    "compare even if this part of the fingerprint differs (device, versions, …, or all)",
)
CONFIG = option("--config TOML", f"settings file (default: ./{DEFAULT_PATH})")
HISTORY = option(
    "--history LOCATION",
    "file, postgresql://… or https://SERVER/PROJECT (default: STEPGRADE_HISTORY, else .stepgrade/history.db)",
)
ORIGIN = (
    option("--commit SHA", "default: the checkout's, or CI's"),
    option("--branch NAME", "default: the checkout's, or CI's"),
    option("--label NAME=TEXT ...", "may be repeated"),
    option("--date WHEN", "when it was made: a day, a time, or commit for that of the commit (default: now)"),
)
STEPS = option("--steps FIRST-LAST", "only these steps of a trace, such as 3-7")
THROUGHPUT = option(
    "--throughput TOK_S", "measured tokens per second of the whole run", dest="throughput_tok_s"
)
TOKENS_PER_STEP = option("--tokens-per-step N", "tokens in one step, to compute the throughput", type=float)
WORK = option(
    "--work", "what the steps do, if the source does not show it", choices=("training", "inference")
)
# Figures of a measured run that its source may not have.
MEASURED = (
    THROUGHPUT,
    TOKENS_PER_STEP,
    WORK,
    option("--bytes-per-token B", "memory traffic of one token, in bytes"),
    option("--flops-per-token F", "FLOPs of one token"),
)
HARDWARE = (
    option("--device KEY", "accelerator; stepgrade devices lists the keys"),
    option("--device-file TOML", "a description of your own device"),
    option("--peak-bw GB_S", "memory bandwidth", dest="peak_bw_gb_s"),
    option("--peak-tflops TFLOPS", "dense peak of --dtype"),
    option("--link GB_S", "link between devices, one direction", dest="link_gb_s"),
)
RUN = (
    option("--model CONFIG_JSON", "the model's Hugging Face config.json, or its folder"),
    option("--seq N", "tokens per sequence"),
    option("--dtype NAME", "precision of the arithmetic", default="bf16"),
    option("--method", "what is trained", choices=METHODS, default="full"),
    option("--rank R", "rank of the LoRA adapters", default=16),
    option("--lora-targets NAMES", "all, attention, or q,k,v,…", default="all"),
    option("--optimizer", "optimizer", choices=tuple(OPTIMIZERS), default="adamw"),
)
_TRAINING = (
    option("--batch N", "sequences per micro-batch and replica"),
    option("--micro-batches N", "micro-batches per step", default=1),
    option("--packed-seq N", "mean length of the texts packed into a sequence", type=float),
    option("--checkpointing", "activation checkpointing", choices=CHECKPOINTING, default="none"),
    option("--loss", "loss kernel", choices=tuple(LOSSES), default="upcast"),
    option("--dequantise", "QLoRA kernels", choices=DEQUANTISE, default="unfused"),
    option(
        "--convention NAME",
        f"how FLOPs are counted: {', '.join(CONVENTIONS)}",
        choices=tuple(CONVENTIONS),
        default=DEFAULT_CONVENTION,
    ),
)
_PARALLELISM = (
    option("--world-size N", "devices in the run", dest="devices", default=1),
    option("--data-parallel", "sharding", dest="data", choices=tuple(ZERO_STAGE), default="ddp"),
    option("--tensor-parallel N", "devices per matrix", dest="tensor", default=1),
    option("--pipeline-parallel N", "stages", dest="pipeline", default=1),
    option("--expert-parallel N", "devices per set of experts", dest="expert", default=1),
)
_EITHER_WAY = {"action": argparse.BooleanOptionalAction, "default": False}
SHARDING = (
    option("--sequence-parallel", "with tensor parallelism", dest="sequence", **_EITHER_WAY),
    option("--context-parallel N", "devices per sequence", dest="context", default=1),
    option("--virtual-stages N", "interleaved stages per device", dest="virtual", default=1),
    option("--expert-tensor-parallel N", "devices per expert matrix", dest="expert_tensor"),
    option("--separate-embedding", "FSDP gathers the head alone, as torchtitan does", **_EITHER_WAY),
    option("--shard-group N", "devices that share the shards (default: all replicas)"),
)
MEMORY = (
    option("--kernels", "kernel library", choices=KERNELS, default="transformers"),
    option("--weights", "precision of the weights", choices=tuple(WEIGHTS), default="master"),
    option("--attention", "attention kernel", choices=ATTENTION, default="flash"),
    option("--quantisation", "of QLoRA's weights", choices=tuple(QUANTISATION), default="nf4-double"),
    option("--lora-dropout", "the adapters use dropout", **_EITHER_WAY),
    option("--offload", "what is offloaded to the host", choices=OFFLOAD, default="none"),
    option(
        "--allocator",
        "expandable means expandable_segments (default: default)",
        choices=ALLOCATORS,
        default="default",
    ),
    option("--lengths", "variable means padded to the longest sample", choices=LENGTHS, default="fixed"),
    option(
        "--optimizer-in-backward",
        "the optimizer runs in backward, and frees gradients at once",
        **_EITHER_WAY,
    ),
)
_MANY_RANKS = (
    option(
        "--engine NAME",
        "read ranks in this process (here), in a pool of processes (pool, the default for large runs), "
        "or with Dask (dask, dask://HOST:PORT)",
    ),
    option("--workers N", "processes that read (default: as cores and memory allow)"),
    option("--sample-ranks N", "read only N ranks, evenly spread, for a first look"),
    option("--no-cache", "do not read or write the cache", dest="cache", action="store_false"),
    option(
        "--unreadable SHARE",
        "continue while at most this share of the ranks is unreadable (default: 5%%)",
        dest="most_unreadable",
        default=0.05,
    ),
)


def add_sources(parser: Parser, *, may_be_none: bool = False) -> None:
    """Add the sources of one run, and which of its steps to look at."""
    nargs = "*" if may_be_none else "+"
    parser.add_argument("sources", metavar="SOURCE", nargs=nargs, help="files or directories of one run")
    parser.add(STEPS)
    parser.add(*_MANY_RANKS, group="many ranks")


def add_setup_options(parser: Parser) -> None:
    """Add the device, the model, and how it is trained; each option sets the parameter of its `dest`."""
    parser.add(*HARDWARE, group="hardware")
    parser.add(*RUN, *_TRAINING, group="run")
    parser.add(*_PARALLELISM, group="parallelism")


def add_save_options(parser: Parser, when: str = "") -> None:
    """Add `--save`, where the run comes from, and `--history`."""
    parser.add(option("--save", f"save the run in the history{when}"), *ORIGIN, HISTORY, group="history")


def load_run(args: Namespace, *sources: str) -> Profile:
    """Read the run that the command line names (or `sources`), with a progress line when it takes long."""
    from stepgrade.loading import load
    from stepgrade.readers.source import ReadOptions

    with progress_line() as line:
        return load(
            *(sources or args.sources),
            input_format=args.input_format,
            progress=line.show_bytes if line else None,
            rank_progress=line.count_ranks if line else None,
            dialects=config_from(args).dialects,
            **fields_given(args, ReadOptions),
        )


def score_run(args: Namespace, profile: Profile, **more: Any) -> Scorecard:
    """Return the scorecard of a profile with the command line's figures; `more` goes to `score`."""
    from stepgrade.grading import score

    return score(
        profile,
        config=config_from(args),
        throughput_tok_s=args.throughput_tok_s,
        tokens_per_step=args.tokens_per_step,
        work=args.work,
        **more,
    )


def read_options(args: Namespace, line: ProgressLine | None) -> ReadOptions:
    """Return how to read the traces of the command line, with progress on `line`."""
    from stepgrade.readers.source import ReadOptions

    return ReadOptions(**fields_given(args, ReadOptions), progress=line.show_bytes if line else None)


def setup_from(args: Namespace, profile: Profile | None = None) -> Setup:
    """Return the setup that the options describe; raise BadOption where they make no sense.

    A log's own batch, sequence length and device count fill in what is not given.
    """
    dtype, plan = find_dtype(args.dtype), None
    batch, seq, devices = args.batch, args.seq, args.devices
    if profile is not None and profile.log is not None and profile.recorded is not None:
        seq = seq or profile.recorded.seq
        batch = batch or profile.recorded.batch
        if devices == 1:
            devices = profile.world_size or 1
    parallel = Parallelism(**fields_given(args, Parallelism) | {"devices": devices})
    if args.model is not None and batch is not None and seq is not None:
        chosen = {"batch": batch, "seq": seq, "dtype": dtype, "parallel": parallel}
        plan = Plan(**fields_given(args, Plan) | chosen)
    return Setup(**fields_given(args, Setup) | {"plan": plan, "dtype": dtype, "devices": devices})


def fields_given(args: Namespace, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a Struct that options set under the same name."""
    return {name: value for name, value in vars(args).items() if name in kind.__struct_fields__}


def config_from(args: Namespace) -> Config:
    """Return the settings of `--config` or ./stepgrade.toml, checked in full; defaults without a file."""
    config = load_config(vars(args).get("config"))
    if config.limits or config.rules:
        from stepgrade.diagnosis.rules import settings_from

        settings_from(config)
    return config


def save_run(card: Scorecard, args: Namespace) -> None:
    """Add a run to the history, and report its number on standard error."""
    from stepgrade.store import NewRun, open_history
    from stepgrade.store.git import branch_here, commit_here, date_of

    commit, made_at = args.commit or commit_here(), args.date
    if made_at == "commit":
        made_at = date_of(commit) if commit else None
        if made_at is None:
            raise BadOption("the date of the commit is not known here", field="date", hint="give a day")
    run = NewRun(
        card=card,
        commit=commit,
        added_at=made_at,
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
