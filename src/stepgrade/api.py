"""The door that the command line, notebooks and scripts all go through: plain functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from stepgrade import analysis, report
from stepgrade.analysis.against import expectation_for
from stepgrade.analysis.inspection import Inspection, inspect_profile
from stepgrade.analysis.limits_file import Settings
from stepgrade.compare import parity as comparison
from stepgrade.compare.fingerprint import allowed_fields, fingerprint_of
from stepgrade.compare.matrix import ParityMatrix, compare_all
from stepgrade.compare.regression import baseline_of, compared
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
from stepgrade.errors import BadOption, MissingExtra, StepgradeError
from stepgrade.hardware import Expectation
from stepgrade.hardware.setup import Setup, expect
from stepgrade.model import Baseline, Profile
from stepgrade.readers import registry
from stepgrade.readers.content import DEFAULT_MAX_BYTES
from stepgrade.readers.registry import Reading
from stepgrade.report.step_profile import render_step_profile
from stepgrade.report.types import Page, Renderable

if TYPE_CHECKING:
    import datetime as dt

    from stepgrade.compare.budgets import GateReport
    from stepgrade.config import Config
    from stepgrade.hardware.answers import DeviceTable
    from stepgrade.hardware.estimate import Estimate

PathLike: TypeAlias = str | os.PathLike[str]
T = TypeVar("T")


class Scorecard(analysis.Scorecard, frozen=True, kw_only=True):
    """A scorecard that shows itself in a notebook."""

    def _repr_markdown_(self) -> str:
        return render(self, to="markdown")

    def _repr_html_(self) -> str | None:
        return _notebook_card(self)


class ParityReport(comparison.ParityReport, frozen=True, kw_only=True):
    """A comparison that shows itself in a notebook."""

    def _repr_markdown_(self) -> str:
        return render(self, to="markdown")

    def _repr_html_(self) -> str | None:
        return _notebook_card(self)


def load(
    *sources: PathLike,
    input_format: str | None = None,
    steps: tuple[int, int] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Read a run from a path, or from standard input for `-`; the format is found by content.

    Several PyTorch traces, or a directory of them, are the ranks of one run. `steps` keeps only the
    steps from the first to the last number; `progress` is told the bytes read and the bytes to read.
    """
    how = Reading(input_format=input_format, steps=steps, max_bytes=max_bytes, progress=progress)
    found = registry.read_run(sources, how)
    if isinstance(found, Profile):
        return found
    from stepgrade.analysis.trace.summary import profile_of_traces  # noqa: PLC0415  needs numpy

    return profile_of_traces(found)


def load_baseline(source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Baseline | Profile:
    """Read what to compare with: a scorecard's JSON or any profile."""
    return registry.read_baseline(source, max_bytes=max_bytes) or load(source, max_bytes=max_bytes)


def load_settings(source: PathLike) -> Settings:
    """Read limits and ignored rules from a stepgrade.toml; raise BadConfig at the key that is wrong."""
    from stepgrade.config import load_config  # noqa: PLC0415  as little as a command needs

    name = os.fspath(source)
    return settings_from(load_config(name), name)


def settings_from(config: Config, name: str) -> Settings:
    """Return the limits and ignored rules of a configuration that was read from the file `name`."""
    from stepgrade.analysis.limits_file import settings_of  # noqa: PLC0415  as little as a command needs
    from stepgrade.analysis.rules import RULE_NAMES  # noqa: PLC0415  as above

    return settings_of(config, RULE_NAMES, name)


def score(
    profile: Profile,
    *,
    device: str | None = None,
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    peak_bw_gb_s: float | None = None,
    bytes_per_token: float | None = None,
    baseline: Baseline | Profile | analysis.Scorecard | None = None,
    setup: Setup | None = None,
    allow_different: Sequence[str] = (),
    settings: Settings | None = None,
) -> Scorecard:
    """Return the scorecard of a run (contract v2), compared with `baseline` when there is one.

    `setup` says more of hardware and model than the three figures beside it, which then count no more;
    `settings` holds limits and ignored rules, as `load_settings` reads them.
    """
    named = Setup(device=device, peak_bw_gb_s=peak_bw_gb_s, bytes_per_token=bytes_per_token)
    question = analysis.Question(
        throughput_tok_s=throughput_tok_s,
        tokens_per_step=tokens_per_step,
        against=expectation_for(profile, setup or named),
    )
    card = _card(profile, question, settings or Settings())
    if baseline is not None:
        card = compared(card, _baseline(baseline, question, setup or named), allowed_fields(allow_different))
    return Scorecard(**_fields(card))


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
    hardware = _hardware_v1(expect(named))
    before = _decoded(baseline, TrainingScorecard.from_json, max_bytes) if baseline is not None else None
    return compute_training_scorecard(step_profile, throughput_tok_s, hardware, before)


def gate(
    runs: Sequence[Profile],
    *,
    baselines: Sequence[Baseline | Profile] = (),
    against: str | None = None,
    history: str | None = None,
    config: Config | None = None,
    fail_on: Sequence[str] = (),
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    setup: Setup | None = None,
    settings: Settings | None = None,
    today: dt.date | None = None,
) -> GateReport:
    """Hold one or more runs of the same code against earlier ones: files, or `history:BRANCH`."""
    from stepgrade.gating import Circumstances, gate_runs  # noqa: PLC0415  statistics take time to import

    setup = setup or Setup()
    cards = [
        score(
            profile,
            setup=setup,
            settings=settings,
            throughput_tok_s=throughput_tok_s,
            tokens_per_step=tokens_per_step,
        )
        for profile in runs
    ]
    asked = analysis.Question(tokens_per_step=tokens_per_step)
    earlier = [_baseline(baseline, asked, setup) for baseline in baselines]
    around = Circumstances(against=against, history=history, config=config, fail_on=fail_on, today=today)
    return gate_runs(cards, earlier, around)


def parity_v1(ours: PathLike, theirs: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES) -> ParityComparison:
    """Return contract v1's comparison of two ParityProfile files."""
    return compute_parity_comparison(
        _decoded(ours, ParityProfile.from_json, max_bytes),
        _decoded(theirs, ParityProfile.from_json, max_bytes),
    )


def parity(ours: Profile, theirs: Profile) -> ParityReport:
    """Compare two runtimes operation by operation."""
    return ParityReport(**_fields(comparison.compare_profiles(ours, theirs)))


def parity_matrix(*profiles: Profile) -> ParityMatrix:
    """Compare several runtimes, each with each."""
    return compare_all(profiles)


def estimate(setup: Setup, *, throughput_tok_s: float | None = None) -> Estimate:
    """Return what a run could reach on its device; with its throughput also its MFU and HFU."""
    from stepgrade.hardware.answers import estimate_run  # noqa: PLC0415  not needed to score

    return estimate_run(setup, throughput_tok_s)


def devices(words: str | None = None) -> DeviceTable:
    """Return the devices of the catalogue that hold every word."""
    from stepgrade.hardware.answers import list_devices  # noqa: PLC0415  not needed to score

    return list_devices(words)


def inspect(profile: Profile) -> Inspection:
    """Tell what a profile holds and what can be known from it."""
    return inspect_profile(profile)


def convert(profile: Profile) -> str:
    """Return any profile as step_profiler_v2 JSON."""
    return render_step_profile(profile)


def render(
    result: Renderable,
    *,
    to: str = "terminal",
    width: int = 80,
    color: bool = False,
) -> str:
    """Return a result as text: `terminal`, `markdown`, `json`, or `html` for scorecards and comparisons."""
    return report.render(result, to, Page(width=width, color=color))


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


def _notebook_card(result: Scorecard | ParityReport) -> str | None:
    """Return the compact card; None without Jinja2, and a notebook then shows the Markdown."""
    from stepgrade.report.html import render_card  # noqa: PLC0415  notebooks only

    try:
        return render_card(result)
    except MissingExtra:
        return None


def _decoded(source: PathLike, from_json: Callable[[bytes], T], max_bytes: int) -> T:
    text = registry.read_json_text(source, max_bytes=max_bytes)
    try:
        return from_json(text)
    except StepgradeError as error:
        raise error.at(os.fspath(source)) from error


def _hardware_v1(against: Expectation) -> HardwareSpec:
    bandwidth, traffic = against.figures.bandwidth_gb_s, against.traffic_bytes
    if bandwidth is None:
        raise BadOption("contract v1 needs the hardware", hint="give --device KEY, or --peak-bw GB_S")
    if traffic is None:
        raise BadOption("contract v1 needs the bytes per token", hint="give --bytes-per-token B")
    return HardwareSpec(peak_bw_gb_s=bandwidth, bytes_per_token=traffic)


def _baseline(
    baseline: Baseline | Profile | analysis.Scorecard, question: analysis.Question, setup: Setup
) -> Baseline:
    """Return the earlier run's figures; a profile's rate is known only from its tokens per step."""
    if isinstance(baseline, Profile):
        against = expectation_for(baseline, setup)
        asked = analysis.Question(tokens_per_step=question.tokens_per_step, against=against)
        baseline = _card(baseline, asked, Settings())
    return baseline_of(baseline) if isinstance(baseline, analysis.Scorecard) else baseline


def _card(profile: Profile, question: analysis.Question, settings: Settings) -> analysis.Scorecard:
    card = analysis.score_profile(profile, question, settings)
    return msgspec.structs.replace(card, fingerprint=fingerprint_of(profile, question))


def _fields(result: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__struct_fields__}
