"""What a run reached of its ceilings: throughput, efficiency, grade, or why there is none."""

from __future__ import annotations

import math

from msgspec import Struct

from stepgrade.contract import Grade
from stepgrade.errors import BadOption
from stepgrade.hardware.ceilings import lowest, why_above_one
from stepgrade.hardware.setup import Target, check_above_zero
from stepgrade.model import Note, Profile
from stepgrade.model.ceiling import Ceiling
from stepgrade.model.profile import WorkKind
from stepgrade.model.scorecard import UNGRADED, Arithmetic, Throughput
from stepgrade.scoring.step_times import RunTimes
from stepgrade.scoring.target import LEAST_KNOWN_SHARE, is_well_known
from stepgrade.units import show_rate, show_share


class ScoreOptions(Struct, frozen=True, kw_only=True):
    """What the user adds to a profile: the rate it ran at, and what to compare it with."""

    throughput_tok_s: float | None = None
    tokens_per_step: float | None = None
    work: WorkKind | None = None  # where the user knows better than the source what the steps hold
    target: Target = Target()

    def __post_init__(self) -> None:
        check_above_zero(throughput_tok_s=self.throughput_tok_s, tokens_per_step=self.tokens_per_step)
        if self.throughput_tok_s is not None and self.tokens_per_step is not None:
            raise BadOption(
                "throughput and tokens per step say the same thing twice",
                supply="{throughput_tok_s} or {tokens_per_step}",
            )


class Efficiency(Struct, frozen=True, kw_only=True):
    """The share of the lowest ceiling that a run reached, with its grade."""

    throughput: Throughput | None
    ceilings: tuple[Ceiling, ...]
    roof: Ceiling | None  # the lowest ceiling, the one that counts
    share: float | None
    mfu: float | None
    hfu: float | None
    grade: str
    ungraded_because: tuple[Note, ...]
    notes: tuple[Note, ...]
    arithmetic: Arithmetic | None = None


def efficiency_of(profile: Profile, times: RunTimes, options: ScoreOptions) -> Efficiency:
    """Compare the run's throughput with the lowest ceiling."""
    throughput, target = throughput_of(profile, times, options), options.target
    rate = throughput.tok_s / target.devices if throughput else None
    is_given = options.throughput_tok_s is not None or options.tokens_per_step is not None
    if throughput and throughput.tokens_per_step and not is_given:
        rate = throughput.tok_s  # tokens that a profile counted are already those of one device
    ceilings = target.ceilings
    roof = lowest(ceilings)
    if roof is not None and not (math.isfinite(roof.tok_s) and roof.tok_s > 0.0):
        raise BadOption(
            f"the figures given make a ceiling of {roof.tok_s:g} tok/s, which no run can be compared with",
            hint="check them",
        )
    share = rate / roof.tok_s if rate is not None and roof is not None else None
    arithmetic = arithmetic_of(profile, times, target)
    if share is None and arithmetic is not None and is_well_known(profile):
        share = arithmetic.share
    reasons = () if share is not None and share <= 1.0 else _why_ungraded(rate, roof, share, target)
    if share is None and arithmetic is not None and arithmetic.share is not None:
        text = (
            f"the recorded shapes cover {show_share(arithmetic.known_share or 0.0, 0)} of the time in matrix "
            f"products and attention; from {show_share(LEAST_KNOWN_SHARE, 0)} on the run is graded by its "
            "arithmetic alone"
        )
        reasons = (*reasons, Note("few_shapes", text))
    notes = [*target.notes]
    if target.uses_reference_traffic:
        text = (
            "the ceiling rests on the reference's 158 MB per token, worked back from one QLoRA run; bytes "
            "per token depend on model, batch, sequence and method"
        )
        notes.append(Note("reference_traffic", text, supply="{model}, or {bytes_per_token}"))
    palm = target.share_of_peak(rate, target.palm_flops)
    if palm is not None:
        text = f"MFU counts FLOPs by {target.convention}; by PaLM's count it would be {show_share(palm)}"
        notes.append(Note("mfu_palm", text))
    return Efficiency(
        throughput=throughput,
        ceilings=ceilings,
        roof=roof,
        share=share,
        mfu=target.share_of_peak(rate, target.model_flops),
        hfu=target.share_of_peak(rate, target.costs.flops),
        grade=UNGRADED if reasons or share is None else str(Grade.from_efficiency(share)),
        ungraded_because=reasons,
        arithmetic=arithmetic,
        notes=tuple(notes),
    )


def arithmetic_of(profile: Profile, times: RunTimes, target: Target) -> Arithmetic | None:
    """Return the FLOP/s of a typical step and their share of the stated peak; None without shapes."""
    if not (profile.matmul_flops and profile.steps and times.typical_ms):
        return None
    achieved = profile.matmul_flops / profile.steps / (times.typical_ms / 1000.0)
    rates = target.figures.compute(target.dtype) if profile.matmul_dtype is not None else ()
    stated = [rate.per_s for rate in rates if rate.basis != "measured"]
    return Arithmetic(
        achieved_flops_s=achieved,
        peak_flops_s=stated[0] if stated else None,
        share=achieved / stated[0] if stated else None,
        dtype=profile.matmul_dtype,
        known_share=profile.matmul_known_share,
    )


def throughput_of(profile: Profile, times: RunTimes, options: ScoreOptions) -> Throughput | None:
    """Return the user's throughput, else tokens per step over the typical step, else the profile's own.

    The slow end of the step's interval is the low end of the rate's.
    """
    if options.throughput_tok_s is not None:
        return Throughput(tok_s=options.throughput_tok_s, basis="given")
    tokens = options.tokens_per_step or profile.tokens_per_step
    if tokens and profile.mean_step_ms and times.typical_ms:
        origin, steady = "given" if options.tokens_per_step else "from the profile", times.steady
        return Throughput(
            tok_s=tokens / times.typical_ms * 1000.0,
            low=tokens / steady.high_ms * 1000.0 if steady and steady.high_ms else None,
            high=tokens / steady.low_ms * 1000.0 if steady and steady.low_ms else None,
            tokens_per_step=tokens,
            basis=f"tokens per step ({origin}) over the step time",
        )
    if profile.throughput_tok_s is not None:
        return Throughput(tok_s=profile.throughput_tok_s, basis="from the profile")
    return None


def _why_ungraded(
    rate: float | None, roof: Ceiling | None, share: float | None, target: Target
) -> tuple[Note, ...]:
    reasons = []
    if rate is None:
        supply = "{throughput_tok_s} or {tokens_per_step}"
        reasons.append(Note("no_throughput", "the throughput is not known", supply=supply))
    if roof is None and not target.figures.bandwidth() and not target.figures.compute(target.dtype):
        supply = "{device}, or {peak_bw_gb_s}"
        reasons.append(Note("no_device", "the hardware is not known", supply=supply))
    elif roof is None:
        supply = "{model} with {batch} and {seq}, or {bytes_per_token}"
        reasons.append(Note("no_token_cost", "what one token costs is not known", supply=supply))
    if share is not None and share > 1.0 and rate is not None and roof is not None:
        text = (
            f"{show_rate(rate)} is {show_share(share, 0)} of the {roof.kind} ceiling, "
            f"{show_rate(roof.tok_s)}; nothing runs faster than its hardware (contract v1 would call it "
            "100 %, grade A)"
        )
        reasons.append(Note("above_ceiling", text))
        causes = why_above_one(share, roof.kind, seq=target.seq, devices=target.devices)
        if target.model_flops is None:
            causes = (
                "the bytes per token: they depend on model, batch and method; a model says them better",
                *causes,
            )
        reasons += [Note("above_ceiling_why", f"perhaps {cause}") for cause in causes]
    return tuple(reasons)
