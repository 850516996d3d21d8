"""What a run reached against its ceilings: throughput, efficiency, grade, or why there is none."""

from __future__ import annotations

import math

from msgspec import Struct

from stepgrade.contract import Grade
from stepgrade.errors import BadOption
from stepgrade.hardware import Ceiling, Target, lowest
from stepgrade.hardware.efficiency import why_above_one
from stepgrade.model import Note, Profile
from stepgrade.model.scorecard import UNGRADED, Arithmetic, Throughput
from stepgrade.scoring.step_times import step_times
from stepgrade.scoring.target import LEAST_KNOWN_SHARE, is_well_known
from stepgrade.units import show_rate, show_share


class ScoreOptions(Struct, frozen=True, kw_only=True):
    """What the user adds to a profile: the rate it ran at, and what to compare it with."""

    throughput_tok_s: float | None = None
    tokens_per_step: float | None = None
    target: Target = Target()

    def __post_init__(self) -> None:
        given = {
            "--throughput": self.throughput_tok_s,
            "--tokens-per-step": self.tokens_per_step,
        }
        for option, value in given.items():
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise BadOption(f"{option} must be a finite number above 0, not {value:g}")
        if self.throughput_tok_s is not None and self.tokens_per_step is not None:
            raise BadOption(
                "--throughput and --tokens-per-step say the same thing twice", hint="give one of them"
            )


class Efficiency(Struct, frozen=True, kw_only=True):
    """The share of the lowest ceiling that a run reached, with its grade."""

    throughput: Throughput | None
    ceilings: tuple[Ceiling, ...]
    share: float | None
    mfu: float | None
    hfu: float | None
    grade: str
    ungraded_because: tuple[Note, ...]
    notes: tuple[Note, ...]
    arithmetic: Arithmetic | None = None

    @property
    def roof(self) -> Ceiling | None:
        """Return the lowest ceiling, the one that counts."""
        return lowest(self.ceilings)


def efficiency_of(profile: Profile, options: ScoreOptions) -> Efficiency:
    """Hold the run's throughput against the lowest ceiling."""
    throughput, target = throughput_of(profile, options), options.target
    roof, rate = target.roof, _per_device(throughput, options)
    if roof is not None and not (math.isfinite(roof.tok_s) and roof.tok_s > 0.0):
        raise BadOption(f"the ceiling is {roof.tok_s:g} tok/s, which is none", hint="check the figures given")
    share = rate / roof.tok_s if rate is not None and roof is not None else None
    arithmetic = arithmetic_of(profile, target)
    if share is None and arithmetic is not None and is_well_known(profile):
        share = arithmetic.share
    reasons = () if share is not None and share <= 1.0 else _why_ungraded(rate, roof, share, target)
    if share is None and arithmetic is not None and arithmetic.share is not None:
        reasons = (*reasons, _too_few_shapes(arithmetic))
    return Efficiency(
        throughput=throughput,
        ceilings=target.ceilings,
        share=share,
        mfu=None if rate is None else target.mfu(rate),
        hfu=None if rate is None else target.hfu(rate),
        grade=UNGRADED if reasons or share is None else str(Grade.from_efficiency(share)),
        ungraded_because=reasons,
        arithmetic=arithmetic,
        notes=(*target.notes, *_notes(target, rate)),
    )


def arithmetic_of(profile: Profile, target: Target) -> Arithmetic | None:
    """Return the recorded FLOP/s and their share of the stated peak; None without recorded shapes."""
    if not (profile.matmul_flops and profile.steps and profile.mean_step_ms):
        return None
    achieved = profile.matmul_flops / profile.steps / (profile.mean_step_ms / 1000.0)
    rates = target.figures.compute(target.dtype) if profile.matmul_dtype is not None else ()
    stated = [rate.per_s for rate in rates if rate.basis != "measured"]
    return Arithmetic(
        achieved_flops_s=achieved,
        peak_flops_s=stated[0] if stated else None,
        share=achieved / stated[0] if stated else None,
        dtype=profile.matmul_dtype,
        known_share=profile.matmul_known_share,
    )


def throughput_of(profile: Profile, options: ScoreOptions) -> Throughput | None:
    """Return the user's throughput, else tokens per step over step time, else the profile's own."""
    if options.throughput_tok_s is not None:
        return Throughput(tok_s=options.throughput_tok_s, basis="given")
    tokens = options.tokens_per_step or profile.tokens_per_step
    if tokens and profile.mean_step_ms:
        origin = "given" if options.tokens_per_step else "from the profile"
        return _rate(tokens, profile, f"tokens per step ({origin}) over the step time")
    if profile.throughput_tok_s is not None:
        return Throughput(tok_s=profile.throughput_tok_s, basis="from the profile")
    return None


def _rate(tokens: float, profile: Profile, basis: str) -> Throughput:
    """Return the rate at the median steady step; the slow end of the step's interval is the low one's."""
    times = step_times(profile.samples_ms)
    step_ms = times.median_ms if times and times.median_ms > 0.0 else profile.mean_step_ms or math.inf
    return Throughput(
        tok_s=tokens / step_ms * 1000.0,
        low=tokens / times.high_ms * 1000.0 if times and times.high_ms else None,
        high=tokens / times.low_ms * 1000.0 if times and times.low_ms else None,
        tokens_per_step=tokens,
        basis=basis,
    )


def _per_device(throughput: Throughput | None, options: ScoreOptions) -> float | None:
    """Return the tok/s of one device; tokens that a profile counted are already those of one."""
    if throughput is None:
        return None
    is_of_one = options.throughput_tok_s is None and options.tokens_per_step is None
    return (
        throughput.tok_s
        if is_of_one and throughput.tokens_per_step
        else throughput.tok_s / options.target.devices
    )


def _why_ungraded(
    rate: float | None, roof: Ceiling | None, share: float | None, target: Target
) -> tuple[Note, ...]:
    reasons = []
    if rate is None:
        text = "the throughput is not known: give --throughput TOK_S or --tokens-per-step N"
        reasons.append(Note("no_throughput", text))
    if roof is None:
        reasons.append(_missing_ceiling(target))
    if share is not None and share > 1.0 and rate is not None and roof is not None:
        text = (
            f"{show_rate(rate)} is {show_share(share, 0)} of the {roof.kind} ceiling, "
            f"{show_rate(roof.tok_s)}; nothing runs faster than its hardware (contract v1 would call it "
            "100 %, grade A)"
        )
        reasons.append(Note("above_ceiling", text))
        reasons += [Note("above_ceiling_why", f"perhaps {cause}") for cause in _causes(share, target, roof)]
    return tuple(reasons)


def _too_few_shapes(arithmetic: Arithmetic) -> Note:
    known = show_share(arithmetic.known_share or 0.0, 0)
    text = (
        f"the recorded shapes cover {known} of the time in matrix products and attention; from "
        f"{show_share(LEAST_KNOWN_SHARE, 0)} on the run is graded by its arithmetic alone"
    )
    return Note("few_shapes", text)


def _causes(share: float, target: Target, roof: Ceiling) -> tuple[str, ...]:
    known = why_above_one(share, roof.kind, seq=target.seq, devices=target.devices)
    if target.model_flops is not None:
        return known
    return ("the bytes per token: they depend on model, batch and method; --model works them out", *known)


def _missing_ceiling(target: Target) -> Note:
    if not target.figures.bandwidth() and not target.figures.compute(target.dtype):
        text = "the hardware is not known: name it with --device KEY, or give --peak-bw GB_S"
        return Note("no_device", text)
    flags = "--model CONFIG_JSON with --batch and --seq, or --bytes-per-token B"
    return Note("no_token_cost", f"what one token costs is not known: give {flags}")


def _notes(target: Target, rate: float | None) -> tuple[Note, ...]:
    notes = []
    if target.uses_reference_traffic:
        text = (
            "the ceiling rests on the reference's 158 MB per token, worked back from one QLoRA run; bytes "
            "per token depend on model, batch, sequence and method: give --model, or --bytes-per-token"
        )
        notes.append(Note("reference_traffic", text))
    palm = None if rate is None else target.mfu_palm(rate)
    if palm is not None:
        text = f"MFU counts FLOPs by {target.convention}; by PaLM's count it would be {show_share(palm)}"
        notes.append(Note("mfu_palm", text))
    return tuple(notes)
