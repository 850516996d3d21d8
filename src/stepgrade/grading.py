"""From a profile to its scorecard: every part worked out once, then put together."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.config import Config
from stepgrade.config.limits import Limits
from stepgrade.contract import Grade, LayerSummary
from stepgrade.diagnosis.advice import advice_for
from stepgrade.diagnosis.context import NOTHING_DONE, RuleContext, Runtime, runtime_of
from stepgrade.diagnosis.rules import DEFAULT_SETTINGS, Settings, findings, settings_from, work_gains_more
from stepgrade.errors import BadOption, NotMeasured
from stepgrade.hardware.setup import CPU_KEY, Setup, Target
from stepgrade.loading import baseline_given, profile_given
from stepgrade.model import Ledger, Note, Profile
from stepgrade.model.notes import has_code
from stepgrade.model.profile import STEP_PROFILER_V2, WORK_UNKNOWN, RankRow, WorkKind
from stepgrade.model.scorecard import UNGRADED, Baseline, DeviceUse, Finding, Scorecard, StepStats
from stepgrade.model.step_log import StepLog
from stepgrade.readers.source import PathLike
from stepgrade.replay.promises import Promises
from stepgrade.scoring.causes import (
    Verdict,
    bottleneck_of_ledger,
    bottleneck_of_phases,
    prefer_work,
    rank_causes,
    work_of,
)
from stepgrade.scoring.efficiency import (
    busy_machine_note,
    contradictions,
    efficiency_of,
    why_ungraded,
)
from stepgrade.scoring.goodput import WallLedger, wall_ledger
from stepgrade.scoring.layers import (
    backward_forward_ratio,
    layer_summaries,
    layers_of_step,
    modules_of_step,
    slow_layers,
)
from stepgrade.scoring.links import collective_fits, collective_rows, copy_rows
from stepgrade.scoring.operations import (
    counted_share,
    drop_impossible_counts,
    hotspots,
    operations_of_step,
    roofs_over,
)
from stepgrade.scoring.phases import bottleneck_note, phases_of_step
from stepgrade.scoring.step_times import RunTimes, StepTimes, kept, times_of
from stepgrade.scoring.target import ScoreOptions, fingerprint_of, memory_of_run, target_for
from stepgrade.statistics import mean, median
from stepgrade.units import show_count, show_ms

# An info is worth a line of advice from this share of the step on.
WORTH_A_LINE = 0.05
# The level of a long run's steps is looked at in so many stretches; smaller changes are of no interest.
_MOST_LEVELS = 512
_LEAST_LEVEL_CHANGE = 0.03
_GOOD_GRADES = {str(grade) for grade in Grade if grade > Grade.C}

# What a card has as the profile and the efficiency have it.
_OF_PROFILE = (
    *("source", "wall_coverage", "launches_per_step", "many_ranks", "kernel_use", "peak_memory_bytes"),
    *("hang", "machine", "views", "typical_step"),
)
_OF_EFFICIENCY = ("throughput", "samples_s", "ceilings", "mfu", "hfu", "arithmetic")
_OF_STEPS = frozenset(StepStats.__struct_fields__)
MOST_RANK_ROWS = 512  # with as many, the JSON and the page stay as small as they are


def score(
    profile: Profile | PathLike,
    *,
    device: str | None = None,
    throughput_tok_s: float | None = None,
    tokens_per_step: float | None = None,
    work: WorkKind | None = None,
    peak_bw_gb_s: float | None = None,
    bytes_per_token: float | None = None,
    baseline: Baseline | Profile | Scorecard | PathLike | None = None,
    setup: Setup | None = None,
    allow_different: Sequence[str] = (),
    config: Config | None = None,
) -> Scorecard:
    """Return the scorecard of a run (contract v2), compared with `baseline` if given.

    Both may be paths, read by `load` and `load_baseline`. `work="training"` grades a run that shows only a
    forward pass. `setup` describes hardware and model; `device`, `peak_bw_gb_s` and `bytes_per_token` are
    shortcuts and exclude it. `config` has limits and ignored rules (`load_config`). Raise NotMeasured for a
    profile without any measurement.
    """
    figures = {"device": device, "peak_bw_gb_s": peak_bw_gb_s, "bytes_per_token": bytes_per_token}
    given = [name for name, value in figures.items() if value is not None]
    if setup is not None and given:
        raise BadOption("conflicts with setup", field=given[0], hint="put it into the Setup")
    allowed = allowed_fields(allow_different)
    setup = setup or Setup(device=device, peak_bw_gb_s=peak_bw_gb_s, bytes_per_token=bytes_per_token)
    profile = profile_given(profile)
    if profile.is_empty:
        where = ", ".join(profile.source.files)
        raise NotMeasured("nothing was measured: no step time, phases, layers or operations", where=where)
    target = target_for(profile, setup)
    possible = drop_impossible_counts(profile, target)
    if possible is not profile:
        profile, target = possible, target_for(possible, setup)
    options = ScoreOptions(
        throughput_tok_s=throughput_tok_s, tokens_per_step=tokens_per_step, work=work, target=target
    )
    times = times_of(profile)
    contradicted = contradictions(profile, times, options)
    if contradicted:
        profile = structs.replace(profile, warnings=(*profile.warnings, *contradicted))
    card = _card(profile, times, options, settings_from(config) if config else DEFAULT_SETTINGS)
    if baseline is None:
        return card
    from stepgrade.compare.runs import compare_with_baseline  # only with a baseline

    earlier = as_baseline(baseline, setup, tokens_per_step)
    return compare_with_baseline(card, earlier, allowed)


def as_baseline(
    baseline: Baseline | Profile | Scorecard | PathLike, setup: Setup, tokens_per_step: float | None = None
) -> Baseline:
    """Return the earlier run's figures; a profile's rate is known only from its tokens per step."""
    if isinstance(baseline, Scorecard):
        return Baseline.of(baseline)
    earlier = baseline_given(baseline)
    if isinstance(earlier, Profile):
        return Baseline.of(score(earlier, setup=setup, tokens_per_step=tokens_per_step))
    return earlier


def _examine(
    profile: Profile,
    times: RunTimes,
    options: ScoreOptions,
    summaries: tuple[LayerSummary, ...],
    limits: Limits,
) -> tuple[RuleContext, Note | None]:
    """Return everything that the rules look at, and a note on the ratio of backward to forward."""
    target, phases = options.target, phases_of_step(profile, times, limits)
    efficiency = efficiency_of(profile, times, options)
    operations = operations_of_step(profile, times, target.figures, target.dtype)
    ratio, ratio_note = backward_forward_ratio(profile, phases, summaries)
    device_work, device_ledger = work_of(profile, operations, limits), Ledger.of(profile.ledger)
    ledger = device_ledger or phases.ledger
    promises = Promises(profile, ledger, times.typical_ms, limits.unexplained_share)
    causes = rank_causes(profile, times, ledger, device_work, promises)
    if device_ledger:
        verdict = bottleneck_of_ledger(profile, device_ledger, causes, device_work, limits)
    else:
        verdict = bottleneck_of_phases(profile, phases, efficiency, limits)
    work = options.work or profile.work
    # Steps that may be of something else have no goodput.
    is_other = work == "inference" or (work == "unknown" and has_code(profile.notes, WORK_UNKNOWN))
    context = RuleContext(
        profile=profile,
        times=times,
        phases=phases,
        efficiency=efficiency,
        verdict=verdict,
        promises=promises,
        ratio=ratio,
        slow_layers=slow_layers(profile, limits),
        ledger=ledger,
        target=target,
        operations=operations,
        causes=causes,
        device_work=device_work,
        runtime=runtime_of(profile),
        work=work,
        activity=profile.activity.scaled(times.scale) if profile.activity else NOTHING_DONE,
        limits=limits,
        wall=None if is_other else _whole_run(profile.log),
        memory=memory_of_run(profile, target),
        held_up=busy_machine_note(profile, times, limits),
    )
    return context, ratio_note


def _card(profile: Profile, times: RunTimes, options: ScoreOptions, settings: Settings) -> Scorecard:
    target, limits, summaries = options.target, settings.limits, layer_summaries(profile)
    context, ratio_note = _examine(profile, times, options, summaries, limits)
    efficiency, operations, verdict = context.efficiency, context.operations, context.verdict
    found, together = findings(context, settings.ignored_rules)
    reasons, bound = why_ungraded(profile, times, options, efficiency, context.ledger, context.held_up)
    if profile.ledger and context.ledger and context.device_work and work_gains_more(found):
        verdict = prefer_work(verdict, profile, context.ledger, context.device_work, limits)
    return Scorecard(
        grade=UNGRADED if reasons else efficiency.grade,
        grade_at_most=bound.grade if bound else None,
        cost_known_share=profile.matmul_known_share,
        counted_share=counted_share(operations),
        work=context.work,
        efficiency=efficiency.share,
        bottleneck=verdict.bottleneck.value,
        throughput_tok_s=efficiency.throughput.tok_s if efficiency.throughput else None,
        step_time_ms=times.typical_ms,
        forward_backward_ratio=context.ratio,
        per_layer_summary=summaries,
        hotspot_ops=hotspots(profile),
        recommendations=_recommendations(context, found),
        bottleneck_evidence=verdict.evidence_with_line(profile, context.causes),
        causes=context.causes,
        notes=_notes(context, verdict, ratio_note),
        fitness=(*(note for note in profile.warnings if not note.fatal), *context.phases.fitness),
        ungraded_because=reasons,
        device=_device(target, efficiency.devices),
        steps=_steps(profile, times),
        ledger=context.ledger,
        phases=context.phases.shares,
        flops_per_token=target.model_flops,
        flops_convention=target.convention,
        bytes_per_token=target.all_costs.bytes,
        operations=operations,
        layers=layers_of_step(profile, times, context.slow_layers),
        modules=modules_of_step(profile, times),
        ranks=_rank_rows(profile),
        compile=profile.compilation,
        copies=copy_rows(profile.activity),
        collectives=collective_rows(profile.links, target.figures),
        collective_fits=collective_fits(profile.links),
        pipeline=profile.links.pipeline if profile.links else None,
        experts=profile.links.experts if profile.links else (),
        findings=found,
        together=together,
        memory=context.memory,
        roofs=roofs_over(profile, target),
        fingerprint=fingerprint_of(profile, options),
        goodput=context.wall.goodput if context.wall is not None else None,
        printed=profile.facts.printed if profile.facts is not None else None,
        **{name: getattr(profile, name) for name in _OF_PROFILE},
        **{name: getattr(efficiency, name) for name in _OF_EFFICIENCY},
    )


def _whole_run(log: StepLog | None) -> WallLedger | None:
    """Return where the wall time of a logged run went, and from which steps on steps take another time."""
    ledger = wall_ledger(log) if log is not None else None
    if log is None or ledger is None:
        return None
    from stepgrade.compare.change_points import change_points  # needs numpy

    size = max(8, -(-len(log.step_s) // _MOST_LEVELS))
    starts = range(0, len(log.step_s) - size // 2, size)
    levels = [median(log.step_s[start : start + size]) for start in starts]
    found = change_points(levels, least_change=_LEAST_LEVEL_CHANGE)
    changes = tuple(log.step[min(change.index * size, len(log.step) - 1)] for change in found)
    return structs.replace(ledger, level_changes=changes)


def _recommendations(context: RuleContext, found: tuple[Finding, ...]) -> tuple[str, ...]:
    """Return what to do: what the findings say, and about the bottleneck where none of them does."""
    # Without steps there is no share of one that a remedy could be worth.
    of_another_kind = (context.profile.compilation, context.profile.memory)
    untimed = any(of_another_kind) and context.profile.mean_step_ms is None
    worth = [
        finding
        for finding in found
        if untimed or finding.severity != "info" or finding.gain_high >= WORTH_A_LINE
    ]
    are_severe = any(finding.severity != "info" for finding in worth)
    general = (
        context.profile.hang is None
        and not untimed
        and context.efficiency.grade not in _GOOD_GRADES
        and (context.runtime is Runtime.REFERENCE or not are_severe)
    )
    advice = [advice_for(context)] if general else []
    advice += [finding.remedy for finding in worth]
    return tuple(dict.fromkeys(advice))


def _rank_rows(profile: Profile) -> tuple[RankRow, ...]:
    """Return a row for each rank; of very many those at both ends, and others spread between them."""
    ranks = sorted(profile.ranks, key=lambda rank: (rank.wait_ms or 0.0, rank.rank))
    if len(ranks) > MOST_RANK_ROWS:
        last = len(ranks) - 1
        chosen = {round(index * last / (MOST_RANK_ROWS - 1)) for index in range(MOST_RANK_ROWS)}
        ranks = [ranks[index] for index in chosen]
    return tuple(
        structs.replace(rank, ledger=Ledger.of(rank.ledger))
        for rank in sorted(ranks, key=lambda rank: rank.rank)
    )


def _device(target: Target, devices: int) -> DeviceUse | None:
    device, count = target.device, devices if devices > 1 else None
    if device is not None:
        basis = target.device_basis or ("given as a file" if device.is_by_hand else "given")
        if device.key == CPU_KEY:
            basis = "against what this CPU measured"
        return DeviceUse(key=device.key, name=device.name, count=count, basis=basis)
    if target.figures.bandwidth() or target.figures.compute(target.dtype):
        rate = "bandwidth" if target.figures.bandwidth() else "arithmetic"
        return DeviceUse(key=None, name=None, count=count, basis=f"described by its {rate}")
    return None


def _steps(profile: Profile, times: RunTimes) -> StepStats | None:
    if profile.steps is None and profile.mean_step_ms is None:
        return None
    count, steady = profile.recorded_steps or profile.steps, times.steady
    if steady is None:
        return StepStats(count=count, steady=profile.steps if profile.recorded_steps else None)
    known = {name: getattr(steady, name) for name in StepTimes.__struct_fields__ if name in _OF_STEPS}
    if has_code(profile.notes, "warm_up_only"):
        known |= {"steady": 0, "warm_up": steady.steady + steady.warm_up}
    return StepStats(count=count or len(profile.samples_ms), samples_ms=kept(profile.samples_ms), **known)


def _notes(context: RuleContext, verdict: Verdict, ratio_note: Note | None) -> tuple[Note, ...]:
    """Return all notes; the last say what operations and steps include, and what the median leaves out."""
    profile = context.profile
    of_profile = [note for note in profile.notes if note.code != WORK_UNKNOWN]  # says why there is no grade
    notes = [*of_profile, *context.efficiency.notes, *context.phases.notes]
    v1_note = bottleneck_note(profile, verdict.bottleneck, context.efficiency.share)
    busy = context.held_up if context.held_up is not None and not context.held_up.fatal else None
    notes += [note for note in (busy, v1_note, ratio_note) if note is not None]
    steady, count = context.times.steady, len(profile.samples_ms)
    if profile.operations and profile.source.producer == STEP_PROFILER_V2:
        text = "hotspots include the operations listed for the whole model; contract v1 does not read those"
        notes.append(Note("v1_hotspots", text))
    if steady is None and profile.mean_step_ms:
        text = "the source has only the average of its steps, so there is no interval"
        notes.append(Note("averages", text))
    if steady is not None and steady.steady < count:
        unsteady = count - steady.steady
        left_out = [f"{steady.warm_up} warm-up"] if steady.warm_up else []
        left_out += [f"{steady.outliers} outlying"] if steady.outliers else []
        text = (
            f"{unsteady} of {count} steps {'is' if unsteady == 1 else 'are'} not steady and excluded from "
            f"the median ({', '.join(left_out)}); the mean of all is {show_ms(mean(profile.samples_ms))}"
        )
        notes.append(Note("steps_left_out", text))
    number_kept = len(kept(profile.samples_ms))
    if number_kept < count:
        text = f"the median is that of {show_count(count)} steps; {show_count(number_kept)} of them are kept"
        notes.append(Note("samples_thinned", text))
    return tuple(notes)
