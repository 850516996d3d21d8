"""Contract v1 from files to text, exactly as the reference has it."""

from __future__ import annotations

import os
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
from stepgrade.hardware import Target
from stepgrade.hardware.setup import Setup, target_of
from stepgrade.readers.load import read_json_text
from stepgrade.readers.source import DEFAULT_MAX_BYTES, PathLike

T = TypeVar("T")


def score_v1(
    source: PathLike,
    *,
    device: str | None = None,
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    peak_bw_gb_s: float | None = None,
    bytes_per_token: float | None = None,
    baseline: PathLike | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> TrainingScorecard:
    """Return contract v1's scorecard of a step profile, exactly as the reference computes it."""
    step_profile = _decoded(source, StepProfilerInput.from_json, max_bytes)
    if throughput_tok_s is None:
        if tokens_per_step is None or not step_profile.avg_step_ms > 0.0:
            raise BadOption("contract v1 needs a throughput", hint="give --throughput TOK_S")
        throughput_tok_s = tokens_per_step / step_profile.avg_step_ms * 1000.0
    named = Setup(device=device, peak_bw_gb_s=peak_bw_gb_s, bytes_per_token=bytes_per_token)
    hardware = _hardware_v1(target_of(named))
    before = _decoded(baseline, TrainingScorecard.from_json, max_bytes) if baseline is not None else None
    return compute_training_scorecard(step_profile, throughput_tok_s, hardware, before)


def parity_v1(ours: PathLike, theirs: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES) -> ParityComparison:
    """Return contract v1's comparison of two ParityProfile files."""
    return compute_parity_comparison(
        _decoded(ours, ParityProfile.from_json, max_bytes),
        _decoded(theirs, ParityProfile.from_json, max_bytes),
    )


def render_v1(result: TrainingScorecard | ParityComparison, *, to: str = "markdown") -> str:
    """Return a result of contract v1 as the reference writes it: JSON, else its Markdown."""
    if to == "html":
        raise BadOption(
            "contract v1 has no HTML page", hint="leave --contract v1 out, or use --format markdown"
        )
    if to == "json":
        return result.to_json() + "\n"
    if isinstance(result, TrainingScorecard):
        return format_training_scorecard_markdown(result)
    return format_parity_markdown(result)


def _decoded(source: PathLike, from_json: Callable[[bytes], T], max_bytes: int) -> T:
    text = read_json_text(source, max_bytes=max_bytes)
    try:
        return from_json(text)
    except StepgradeError as error:
        raise error.at(os.fspath(source)) from error


def _hardware_v1(target: Target) -> HardwareSpec:
    bandwidth, traffic = target.figures.bandwidth_gb_s, target.traffic_bytes
    if bandwidth is None:
        raise BadOption("contract v1 needs the hardware", hint="give --device KEY, or --peak-bw GB_S")
    if traffic is None:
        raise BadOption("contract v1 needs the bytes per token", hint="give --bytes-per-token B")
    return HardwareSpec(peak_bw_gb_s=bandwidth, bytes_per_token=traffic)
