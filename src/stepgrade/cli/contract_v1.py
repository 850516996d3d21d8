"""Contract v1 from files to text, exactly as the reference has it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TypeVar

from stepgrade.contract import (
    HardwareSpec,
    ParityComparison,
    ParityProfile,
    StepProfilerInput,
    TrainingScorecard,
    compute_parity_comparison,
    compute_training_scorecard,
    format_parity_markdown,
    format_training_scorecard_markdown,
)
from stepgrade.errors import BadOption, StepgradeError
from stepgrade.hardware.setup import Setup, target_of
from stepgrade.loading import read_json_text
from stepgrade.report.names import printable

T = TypeVar("T")


def score_v1(args: Namespace) -> TrainingScorecard:
    """Return contract v1's scorecard of a step profile, exactly as the reference computes it."""
    if args.save:
        raise BadOption("history keeps scorecards of contract v2", hint="omit --contract v1")
    if args.input_format is not None:
        raise BadOption("contract v1 reads step profiles only", hint="omit --input-format")
    if len(args.sources) != 1:
        raise BadOption(
            "contract v1 scores one step profile", hint="`stepgrade convert` makes one from traces"
        )
    step_profile = _decoded(args.sources[0], StepProfilerInput.from_json, args)
    throughput_tok_s = args.throughput_tok_s
    if throughput_tok_s is None:
        if args.tokens_per_step is None or not step_profile.avg_step_ms > 0.0:
            raise BadOption("contract v1 needs a throughput", hint="give --throughput TOK_S")
        throughput_tok_s = args.tokens_per_step / step_profile.avg_step_ms * 1000.0
    target = target_of(
        Setup(device=args.device, peak_bw_gb_s=args.peak_bw_gb_s, bytes_per_token=args.bytes_per_token)
    )
    bandwidth, traffic = target.figures.bandwidth_gb_s, target.all_costs.bytes
    if bandwidth is None:
        raise BadOption("contract v1 needs the hardware", hint="give --device KEY, or --peak-bw GB_S")
    if traffic is None:
        raise BadOption("contract v1 needs the bytes per token", hint="give --bytes-per-token B")
    hardware = HardwareSpec(peak_bw_gb_s=bandwidth, bytes_per_token=traffic)
    before = None
    if args.baseline is not None:
        before = _decoded(args.baseline, TrainingScorecard.from_json, args)
    return compute_training_scorecard(step_profile, throughput_tok_s, hardware, before)


def parity_v1(args: Namespace) -> ParityComparison:
    """Return contract v1's comparison of two ParityProfile files."""
    if len(args.theirs) != 1 or args.required is not None:
        raise BadOption("contract v1 compares two files, without --require")
    ours, theirs = (_decoded(name, ParityProfile.from_json, args) for name in (args.ours, *args.theirs))
    return compute_parity_comparison(ours, theirs)


def render_v1(result: TrainingScorecard | ParityComparison, *, to: str = "markdown") -> str:
    """Return a result of contract v1 as the reference writes it: JSON, else its Markdown.

    On a terminal, what it would obey is escaped in names.
    """
    if to == "html":
        raise BadOption("contract v1 has no HTML page", hint="omit --contract v1, or use --format markdown")
    if to == "json":
        return result.to_json() + "\n"
    text = (
        format_training_scorecard_markdown(result)
        if isinstance(result, TrainingScorecard)
        else format_parity_markdown(result)
    )
    return text if to == "markdown" else "\n".join(map(printable, text.split("\n")))


def _decoded(source: str, from_json: Callable[[bytes], T], args: Namespace) -> T:
    text = read_json_text(source, max_bytes=args.max_bytes, max_memory=args.max_memory)
    try:
        return from_json(text)
    except StepgradeError as error:
        raise error.at(source) from error
