"""From a profile to its scorecard: every part worked out once, then put together."""

from __future__ import annotations

from collections.abc import Sequence

from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.compare.regression import baseline_of, compared
from stepgrade.config.limits import Limits
from stepgrade.contract import Grade
from stepgrade.diagnosis.advice import advice_for
from stepgrade.diagnosis.context import Facts
from stepgrade.diagnosis.rules import findings
from stepgrade.diagnosis.settings import DEFAULT_SETTINGS, Settings
from stepgrade.errors import NotMeasured
from stepgrade.hardware import Expectation
from stepgrade.hardware.setup import Setup
from stepgrade.model import Baseline, Profile, RankTime
from stepgrade.model.finding import Finding
from stepgrade.model.scorecard import UNGRADED, DeviceUse, RankRow, Scorecard, StepStats
from stepgrade.scoring.bottleneck import name_bottleneck
from stepgrade.scoring.causes import bottleneck_of_ledger, rank_causes, shares_of
from stepgrade.scoring.efficiency import Question, efficiency_of
from stepgrade.scoring.fingerprint import fingerprint_of
from stepgrade.scoring.layers import backward_forward_ratio, layer_summaries, layers_of_step, slow_layers
from stepgrade.scoring.operations import hotspots, operations_of_step
from stepgrade.scoring.phases import phases_of_step
from stepgrade.scoring.reference import bottleneck_note
from stepgrade.scoring.roofline import roofs_of
from stepgrade.scoring.runtime import Runtime, runtime_of
from stepgrade.scoring.samples import Pace, kept, pace_of, step_ms_of
from stepgrade.scoring.target import expectation_for
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
    question = Question(
        throughput_tok_s=throughput_tok_s,
        tokens_per_step=tokens_per_step,
        against=expectation_for(profile, setup or named),
    )
    card = score_profile(profile, question, settings or DEFAULT_SETTINGS)
    if baseline is not None:
        card = compared(
            card, as_baseline(baseline, question, setup or named), allowed_fields(allow_different)
        )
    return card


def as_baseline(baseline: Baseline | Profile | Scorecard, question: Question, setup: Setup) -> Baseline:
    """Return the earlier run's figures; a profile's rate is known only from its tokens per step."""
    if isinstance(baseline, Profile):
        against = expectation_for(baseline, setup)
        asked = Question(tokens_per_step=question.tokens_per_step, against=against)
        baseline = score_profile(baseline, asked)
    return baseline_of(baseline) if isinstance(baseline, Scorecard) else baseline


def score_profile(
    profile: Profile,
    question: Question,
    settings: Settings = DEFAULT_SETTINGS,
) -> Scorecard:
    """Return the scorecard; raise NotMeasured for a profile that holds no measurement at all."""
    if profile.is_empty:
        where = ", ".join(profile.source.files)
        raise NotMeasured("nothing was measured: no step time, phases, layers or operations", where=where)
    facts, ratio_notes = _facts(profile, question, settings.limits)
    found = findings(facts, settings.limits, settings.ignored_rules)
    return _card(facts, question, found, ratio_notes)


def _facts(profile: Profile, question: Question, limits: Limits) -> tuple[Facts, tuple[str, ...]]:
    phases = phases_of_step(profile, limits)
    efficiency = efficiency_of(profile, question)
    ratio, notes = backward_forward_ratio(profile, phases)
    ledger = shares_of(profile.ledger) or phases.ledger
    operations = operations_of_step(profile, question.against.figures, question.against.dtype)
    causes = rank_causes(profile, ledger, operations)
    facts = Facts(
        profile=profile,
        phases=phases,
        efficiency=efficiency,
        verdict=bottleneck_of_ledger(profile, causes, operations, limits)
        or name_bottleneck(profile, phases, efficiency, limits),
        ratio=ratio,
        slow_layers=slow_layers(profile, limits),
        ledger=ledger,
        against=question.against,
        operations=operations,
        causes=causes,
        runtime=runtime_of(profile),
        limits=limits,
    )
    return facts, notes


def _card(
    facts: Facts, question: Question, found: tuple[Finding, ...], ratio_notes: tuple[str, ...]
) -> Scorecard:
    profile, phases, efficiency, verdict = facts.profile, facts.phases, facts.efficiency, facts.verdict
    return Scorecard(
        grade=UNGRADED if profile.unfit else efficiency.grade,
        efficiency=efficiency.share,
        bottleneck=verdict.bottleneck.value,
        throughput_tok_s=efficiency.throughput.tok_s if efficiency.throughput else None,
        step_time_ms=step_ms_of(profile),
        forward_backward_ratio=facts.ratio,
        wall_coverage=profile.wall_coverage,
        per_layer_summary=layer_summaries(profile),
        hotspot_ops=hotspots(profile),
        recommendations=_recommendations(facts, found),
        bottleneck_evidence=verdict.evidence,
        causes=facts.causes,
        notes=(
            *profile.notes,
            *efficiency.notes,
            *phases.notes,
            *_bottleneck_notes(facts),
            *ratio_notes,
            *_operation_notes(profile),
            *_sample_notes(profile),
        ),
        fitness=(*profile.fitness, *phases.fitness),
        ungraded_because=(*profile.unfit, *efficiency.ungraded_because),
        source=profile.source,
        device=_device(question.against),
        steps=_steps(profile),
        throughput=efficiency.throughput,
        ledger=facts.ledger,
        phases=phases.shares,
        launches_per_step=profile.launches_per_step,
        ceilings=efficiency.ceilings,
        mfu=efficiency.mfu,
        hfu=efficiency.hfu,
        flops_per_token=question.against.model_flops,
        flops_convention=question.against.convention,
        bytes_per_token=question.against.traffic_bytes,
        operations=facts.operations,
        layers=layers_of_step(profile, facts.slow_layers),
        ranks=tuple(_rank(rank) for rank in profile.ranks),
        arithmetic=efficiency.arithmetic,
        findings=found,
        peak_memory_bytes=profile.peak_memory_bytes,
        roofs=roofs_of(question.against),
        typical_step=profile.typical_step,
        fingerprint=fingerprint_of(profile, question),
    )


def _recommendations(facts: Facts, found: tuple[Finding, ...]) -> tuple[str, ...]:
    """Return what to do: what the findings say, and about the bottleneck where none of them does."""
    worth = [one for one in found if one.severity != "info" or one.gain_high >= WORTH_A_LINE]
    told = any(one.severity != "info" for one in worth)
    general = facts.efficiency.grade not in _GOOD_GRADES and (facts.runtime is Runtime.REFERENCE or not told)
    advice = [advice_for(facts)] if general else []
    advice += [finding.remedy for finding in worth]
    return tuple(dict.fromkeys(advice))


def _bottleneck_notes(facts: Facts) -> tuple[str, ...]:
    note = bottleneck_note(facts.profile, facts.verdict.bottleneck, facts.efficiency.share)
    return (note,) if note else ()


def _operation_notes(profile: Profile) -> tuple[str, ...]:
    if not profile.operations or profile.source.producer != "step_profiler_v2":
        return ()
    return ("hotspots include the operations listed for the whole model; contract v1 does not read those",)


def _device(against: Expectation) -> DeviceUse | None:
    device = against.device
    if device is not None:
        basis = against.device_basis or ("given with --device-file" if device.is_by_hand else "given")
        return DeviceUse(key=device.key, name=device.name, count=_count(against), basis=basis)
    if against.figures.bandwidth() or against.figures.compute(against.dtype):
        basis = "described by --peak-bw" if against.figures.bandwidth() else "described by --peak-tflops"
        return DeviceUse(key=None, name=None, count=_count(against), basis=basis)
    return None


def _count(against: Expectation) -> int | None:
    return against.devices if against.devices > 1 else None


def _steps(profile: Profile) -> StepStats | None:
    if profile.steps is None and profile.step_ms is None:
        return None
    pace = pace_of(profile.samples_ms)
    if pace is None:
        return StepStats(
            count=profile.recorded_steps or profile.steps,
            steady=profile.steps if profile.recorded_steps else None,
        )
    return StepStats(
        count=profile.recorded_steps or profile.steps or len(profile.samples_ms),
        steady=pace.steady,
        warm_up=pace.warm_up,
        outliers=pace.outliers,
        median_ms=pace.median_ms,
        low_ms=pace.low_ms,
        high_ms=pace.high_ms,
        p95_ms=pace.p95_ms,
        least_ms=pace.least_ms,
        most_ms=pace.most_ms,
        samples_ms=kept(profile.samples_ms),
    )


def _sample_notes(profile: Profile) -> tuple[str, ...]:
    """Say what was left out of the median, and when there is nothing that an interval could rest on."""
    pace = pace_of(profile.samples_ms)
    if pace is None:
        return (
            ("the source has only the average of its steps: there is no interval",) if profile.step_ms else ()
        )
    return (*_left_out(profile, pace), *_thinned(profile))


def _thinned(profile: Profile) -> tuple[str, ...]:
    count, all_of_them = len(kept(profile.samples_ms)), len(profile.samples_ms)
    if count == all_of_them:
        return ()
    return (f"the median is that of {show_count(all_of_them)} steps; {show_count(count)} of them are kept",)


def _left_out(profile: Profile, pace: Pace) -> tuple[str, ...]:
    left_out = [f"{pace.warm_up} as warm-up"] if pace.warm_up else []
    left_out += [f"{pace.outliers} as outliers"] if pace.outliers else []
    if not left_out:
        return ()
    of_all = f"{pace.warm_up + pace.outliers} of {len(profile.samples_ms)} steps"
    mean = show_ms(sum(profile.samples_ms) / len(profile.samples_ms))
    which = f"{of_all} are not steady and left out of the median ({', '.join(left_out)})"
    return (f"{which}; the mean of all is {mean}",)


def _rank(rank: RankTime) -> RankRow:
    return RankRow(rank=rank.rank, ledger=shares_of(rank.ledger), step_ms=rank.step_ms, wait_ms=rank.wait_ms)
