"""From a profile to its scorecard: every part worked out once, then put together."""

from __future__ import annotations

from stepgrade.analysis.advice import advice_for
from stepgrade.analysis.bottleneck import name_bottleneck
from stepgrade.analysis.efficiency import Question, efficiency_of
from stepgrade.analysis.facts import Facts
from stepgrade.analysis.finding import Finding
from stepgrade.analysis.layers import backward_forward_ratio, layer_summaries, layers_of_step, slow_layers
from stepgrade.analysis.limits import DEFAULT_LIMITS, Limits
from stepgrade.analysis.operations import hotspots, operations_of_step
from stepgrade.analysis.phases import phases_of_step
from stepgrade.analysis.rules import findings
from stepgrade.analysis.scorecard import DeviceUse, Scorecard, StepStats
from stepgrade.contract import Grade
from stepgrade.errors import NotMeasured
from stepgrade.hardware import MemoryFigures
from stepgrade.model import Profile

_GOOD_GRADES = {str(grade) for grade in Grade if grade > Grade.C}


def score_profile(profile: Profile, question: Question, limits: Limits = DEFAULT_LIMITS) -> Scorecard:
    """Return the scorecard; raise NotMeasured for a profile that holds no measurement at all."""
    if profile.is_empty:
        where = ", ".join(profile.source.files)
        raise NotMeasured("nothing was measured: no step time, phases, layers or operations", where=where)
    facts, ratio_notes = _facts(profile, question, limits)
    found = findings(facts, limits)
    return _card(facts, question, found, ratio_notes)


def _facts(profile: Profile, question: Question, limits: Limits) -> tuple[Facts, tuple[str, ...]]:
    phases = phases_of_step(profile, limits)
    efficiency = efficiency_of(profile, question)
    ratio, notes = backward_forward_ratio(profile, phases)
    facts = Facts(
        profile=profile,
        phases=phases,
        efficiency=efficiency,
        verdict=name_bottleneck(profile, phases, efficiency, limits),
        ratio=ratio,
        slow_layers=slow_layers(profile, limits),
    )
    return facts, notes


def _card(
    facts: Facts, question: Question, found: tuple[Finding, ...], ratio_notes: tuple[str, ...]
) -> Scorecard:
    profile, phases, efficiency, verdict = facts.profile, facts.phases, facts.efficiency, facts.verdict
    return Scorecard(
        grade=efficiency.grade,
        efficiency=efficiency.share,
        bottleneck=verdict.bottleneck.value,
        throughput_tok_s=efficiency.throughput.tok_s if efficiency.throughput else None,
        step_time_ms=profile.step_ms,
        forward_backward_ratio=facts.ratio,
        wall_coverage=profile.wall_coverage,
        per_layer_summary=layer_summaries(profile),
        hotspot_ops=hotspots(profile),
        recommendations=_recommendations(facts, found),
        bottleneck_evidence=verdict.evidence,
        notes=(
            *profile.notes,
            *efficiency.notes,
            *phases.notes,
            *verdict.notes,
            *ratio_notes,
            *_operation_notes(profile),
        ),
        fitness=phases.fitness,
        ungraded_because=efficiency.ungraded_because,
        source=profile.source,
        device=_device(question.figures),
        steps=_steps(profile),
        throughput=efficiency.throughput,
        ledger=phases.ledger,
        phases=phases.shares,
        launches_per_step=profile.launches_per_step,
        ceilings=efficiency.ceilings,
        bytes_per_token=question.figures.traffic_bytes,
        operations=operations_of_step(profile),
        layers=layers_of_step(profile),
        findings=found,
    )


def _recommendations(facts: Facts, found: tuple[Finding, ...]) -> tuple[str, ...]:
    """Return what to do: about the bottleneck unless the grade is good, then what the findings say."""
    advice = []
    if facts.efficiency.grade not in _GOOD_GRADES:
        advice.append(advice_for(facts.verdict.bottleneck, facts.profile.source.producer))
    advice += [finding.remedy for finding in found]
    return tuple(dict.fromkeys(advice))


def _operation_notes(profile: Profile) -> tuple[str, ...]:
    if not profile.operations or profile.source.format == "parity_profile":
        return ()
    return ("hotspots include the operations listed for the whole model; contract v1 does not read those",)


def _device(figures: MemoryFigures) -> DeviceUse | None:
    if figures.device is not None:
        return DeviceUse(key=figures.device.key, name=figures.device.name, count=None, basis="given")
    if figures.peak_bw_gb_s is not None:
        return DeviceUse(key=None, name=None, count=None, basis="described by --peak-bw")
    return None


def _steps(profile: Profile) -> StepStats | None:
    if profile.steps is None and profile.step_ms is None:
        return None
    return StepStats(count=profile.steps, samples_ms=profile.samples_ms)
