"""From a profile to its scorecard: every part worked out once, then put together."""

from __future__ import annotations

from collections.abc import Sequence

from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.compare.regression import compared
from stepgrade.config.limits import Limits
from stepgrade.contract import Grade
from stepgrade.diagnosis.advice import advice_for
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules import findings
from stepgrade.diagnosis.settings import DEFAULT_SETTINGS, Settings
from stepgrade.errors import NotMeasured
from stepgrade.hardware import Target
from stepgrade.hardware.setup import Setup
from stepgrade.model import Baseline, Note, Profile, RankTime
from stepgrade.model.finding import Finding
from stepgrade.model.scorecard import UNGRADED, DeviceUse, RankRow, Scorecard, StepStats
from stepgrade.scoring.bottleneck import name_bottleneck
from stepgrade.scoring.causes import bottleneck_of_ledger, rank_causes, shares_of
from stepgrade.scoring.efficiency import ScoreOptions, efficiency_of
from stepgrade.scoring.fingerprint import fingerprint_of
from stepgrade.scoring.layers import backward_forward_ratio, layer_summaries, layers_of_step, slow_layers
from stepgrade.scoring.operations import hotspots, operations_of_step
from stepgrade.scoring.phases import phases_of_step
from stepgrade.scoring.reference import bottleneck_note
from stepgrade.scoring.roofline import roofs_of
from stepgrade.scoring.runtime import Runtime, runtime_of
from stepgrade.scoring.step_times import StepTimes, kept, step_ms_of, step_times
from stepgrade.scoring.target import target_for
from stepgrade.units import show_count, show_ms

# An info is worth a line of advice from this share of the step on.
WORTH_A_LINE = 0.05
_GOOD_GRADES = {str(grade) for grade in Grade if grade > Grade.C}


def score(
    profile: Profile,
    *,
    device: str | None = None,
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    peak_bw_gb_s: float | None = None,
    bytes_per_token: float | None = None,
    baseline: Baseline | Profile | Scorecard | None = None,
    setup: Setup | None = None,
    allow_different: Sequence[str] = (),
    settings: Settings | None = None,
) -> Scorecard:
    """Return the scorecard of a run (contract v2), compared with `baseline` when there is one.

    `setup` says more of hardware and model than the three figures beside it, which then count no more;
    `settings` holds limits and ignored rules, as `load_settings` reads them.
    """
    named = Setup(device=device, peak_bw_gb_s=peak_bw_gb_s, bytes_per_token=bytes_per_token)
    options = ScoreOptions(
        throughput_tok_s=throughput_tok_s,
        tokens_per_step=tokens_per_step,
        target=target_for(profile, setup or named),
    )
    card = score_profile(profile, options, settings or DEFAULT_SETTINGS)
    if baseline is not None:
        card = compared(card, as_baseline(baseline, options, setup or named), allowed_fields(allow_different))
    return card


def as_baseline(baseline: Baseline | Profile | Scorecard, options: ScoreOptions, setup: Setup) -> Baseline:
    """Return the earlier run's figures; a profile's rate is known only from its tokens per step."""
    if isinstance(baseline, Profile):
        target = target_for(baseline, setup)
        asked = ScoreOptions(tokens_per_step=options.tokens_per_step, target=target)
        baseline = score_profile(baseline, asked)
    return Baseline.of(baseline) if isinstance(baseline, Scorecard) else baseline


def score_profile(
    profile: Profile,
    options: ScoreOptions,
    settings: Settings = DEFAULT_SETTINGS,
) -> Scorecard:
    """Return the scorecard; raise NotMeasured for a profile that holds no measurement at all."""
    if profile.is_empty:
        where = ", ".join(profile.source.files)
        raise NotMeasured("nothing was measured: no step time, phases, layers or operations", where=where)
    context, ratio_notes = _facts(profile, options, settings.limits)
    found = findings(context, settings.limits, settings.ignored_rules)
    return _card(context, options, found, ratio_notes)


def _facts(profile: Profile, options: ScoreOptions, limits: Limits) -> tuple[RuleContext, tuple[Note, ...]]:
    phases = phases_of_step(profile, limits)
    efficiency = efficiency_of(profile, options)
    ratio, notes = backward_forward_ratio(profile, phases)
    ledger = shares_of(profile.ledger) or phases.ledger
    operations = operations_of_step(profile, options.target.figures, options.target.dtype)
    causes = rank_causes(profile, ledger, operations)
    context = RuleContext(
        profile=profile,
        phases=phases,
        efficiency=efficiency,
        verdict=bottleneck_of_ledger(profile, causes, operations, limits)
        or name_bottleneck(profile, phases, efficiency, limits),
        ratio=ratio,
        slow_layers=slow_layers(profile, limits),
        ledger=ledger,
        target=options.target,
        operations=operations,
        causes=causes,
        runtime=runtime_of(profile),
        limits=limits,
    )
    return context, notes


def _card(
    context: RuleContext, options: ScoreOptions, found: tuple[Finding, ...], ratio_notes: tuple[Note, ...]
) -> Scorecard:
    profile, phases, efficiency, verdict = (
        context.profile,
        context.phases,
        context.efficiency,
        context.verdict,
    )
    return Scorecard(
        grade=UNGRADED if profile.unfit else efficiency.grade,
        efficiency=efficiency.share,
        bottleneck=verdict.bottleneck.value,
        throughput_tok_s=efficiency.throughput.tok_s if efficiency.throughput else None,
        step_time_ms=step_ms_of(profile),
        forward_backward_ratio=context.ratio,
        wall_coverage=profile.wall_coverage,
        per_layer_summary=layer_summaries(profile),
        hotspot_ops=hotspots(profile),
        recommendations=_recommendations(context, found),
        bottleneck_evidence=verdict.evidence,
        causes=context.causes,
        notes=(
            *profile.notes,
            *efficiency.notes,
            *phases.notes,
            *_bottleneck_notes(context),
            *ratio_notes,
            *_operation_notes(profile),
            *_sample_notes(profile),
        ),
        fitness=(*(note for note in profile.warnings if not note.fatal), *phases.fitness),
        ungraded_because=(*profile.unfit, *efficiency.ungraded_because),
        source=profile.source,
        device=_device(options.target),
        steps=_steps(profile),
        throughput=efficiency.throughput,
        ledger=context.ledger,
        phases=phases.shares,
        launches_per_step=profile.launches_per_step,
        ceilings=efficiency.ceilings,
        mfu=efficiency.mfu,
        hfu=efficiency.hfu,
        flops_per_token=options.target.model_flops,
        flops_convention=options.target.convention,
        bytes_per_token=options.target.traffic_bytes,
        operations=context.operations,
        layers=layers_of_step(profile, context.slow_layers),
        ranks=tuple(_rank(rank) for rank in profile.ranks),
        arithmetic=efficiency.arithmetic,
        findings=found,
        peak_memory_bytes=profile.peak_memory_bytes,
        roofs=roofs_of(options.target),
        typical_step=profile.typical_step,
        fingerprint=fingerprint_of(profile, options),
    )


def _recommendations(context: RuleContext, found: tuple[Finding, ...]) -> tuple[str, ...]:
    """Return what to do: what the findings say, and about the bottleneck where none of them does."""
    worth = [one for one in found if one.severity != "info" or one.gain_high >= WORTH_A_LINE]
    told = any(one.severity != "info" for one in worth)
    general = context.efficiency.grade not in _GOOD_GRADES and (
        context.runtime is Runtime.REFERENCE or not told
    )
    advice = [advice_for(context)] if general else []
    advice += [finding.remedy for finding in worth]
    return tuple(dict.fromkeys(advice))


def _bottleneck_notes(context: RuleContext) -> tuple[Note, ...]:
    note = bottleneck_note(context.profile, context.verdict.bottleneck, context.efficiency.share)
    return (note,) if note else ()


def _operation_notes(profile: Profile) -> tuple[Note, ...]:
    if not profile.operations or profile.source.producer != "step_profiler_v2":
        return ()
    text = "hotspots include the operations listed for the whole model; contract v1 does not read those"
    return (Note("v1_hotspots", text),)


def _device(target: Target) -> DeviceUse | None:
    device = target.device
    if device is not None:
        basis = target.device_basis or ("given with --device-file" if device.is_by_hand else "given")
        return DeviceUse(key=device.key, name=device.name, count=_count(target), basis=basis)
    if target.figures.bandwidth() or target.figures.compute(target.dtype):
        basis = "described by --peak-bw" if target.figures.bandwidth() else "described by --peak-tflops"
        return DeviceUse(key=None, name=None, count=_count(target), basis=basis)
    return None


def _count(target: Target) -> int | None:
    return target.devices if target.devices > 1 else None


def _steps(profile: Profile) -> StepStats | None:
    if profile.steps is None and profile.mean_step_ms is None:
        return None
    times = step_times(profile.samples_ms)
    if times is None:
        return StepStats(
            count=profile.recorded_steps or profile.steps,
            steady=profile.steps if profile.recorded_steps else None,
        )
    return StepStats(
        count=profile.recorded_steps or profile.steps or len(profile.samples_ms),
        steady=times.steady,
        warm_up=times.warm_up,
        outliers=times.outliers,
        median_ms=times.median_ms,
        low_ms=times.low_ms,
        high_ms=times.high_ms,
        p95_ms=times.p95_ms,
        least_ms=times.least_ms,
        most_ms=times.most_ms,
        samples_ms=kept(profile.samples_ms),
    )


def _sample_notes(profile: Profile) -> tuple[Note, ...]:
    """Say what was left out of the median, and when there is nothing that an interval could rest on."""
    times = step_times(profile.samples_ms)
    if times is None:
        text = "the source has only the average of its steps: there is no interval"
        return (Note("averages", text),) if profile.mean_step_ms else ()
    return (*_left_out(profile, times), *_thinned(profile))


def _thinned(profile: Profile) -> tuple[Note, ...]:
    count, all_of_them = len(kept(profile.samples_ms)), len(profile.samples_ms)
    if count == all_of_them:
        return ()
    text = f"the median is that of {show_count(all_of_them)} steps; {show_count(count)} of them are kept"
    return (Note("samples_thinned", text),)


def _left_out(profile: Profile, times: StepTimes) -> tuple[Note, ...]:
    left_out = [f"{times.warm_up} as warm-up"] if times.warm_up else []
    left_out += [f"{times.outliers} as outliers"] if times.outliers else []
    if not left_out:
        return ()
    of_all = f"{times.warm_up + times.outliers} of {len(profile.samples_ms)} steps"
    mean = show_ms(sum(profile.samples_ms) / len(profile.samples_ms))
    which = f"{of_all} are not steady and left out of the median ({', '.join(left_out)})"
    return (Note("steps_left_out", f"{which}; the mean of all is {mean}"),)


def _rank(rank: RankTime) -> RankRow:
    return RankRow(
        rank=rank.rank, ledger=shares_of(rank.ledger), step_ms=rank.mean_step_ms, wait_ms=rank.wait_ms
    )
