"""What a run reached against its ceilings: throughput, efficiency, grade, or why there is none."""

from __future__ import annotations

import math

from msgspec import Struct

from stepgrade.analysis.scorecard import UNGRADED, Throughput
from stepgrade.contract import Grade
from stepgrade.errors import BadOption
from stepgrade.hardware import Ceiling, MemoryFigures, memory_ceiling
from stepgrade.model import Profile
from stepgrade.units import show_rate, show_share


class Question(Struct, frozen=True, kw_only=True):
    """What the user adds to a profile: the rate it ran at, and what to hold it against."""

    throughput_tok_s: float | None = None
    tokens_per_step: float | None = None
    figures: MemoryFigures = MemoryFigures()

    def __post_init__(self) -> None:
        given = {
            "--throughput": self.throughput_tok_s,
            "--tokens-per-step": self.tokens_per_step,
            "--peak-bw": self.figures.peak_bw_gb_s,
            "--bytes-per-token": self.figures.bytes_per_token,
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
    grade: str
    ungraded_because: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def roof(self) -> Ceiling | None:
        """Return the lowest ceiling, the one that counts."""
        return min(self.ceilings, key=lambda ceiling: ceiling.tok_s, default=None)


def efficiency_of(profile: Profile, question: Question) -> Efficiency:
    """Hold the run's throughput against the lowest ceiling."""
    throughput = throughput_of(profile, question)
    ceiling = memory_ceiling(question.figures)
    share = throughput.tok_s / ceiling.tok_s if throughput and ceiling else None
    reasons = _why_ungraded(throughput, ceiling, share, question.figures)
    return Efficiency(
        throughput=throughput,
        ceilings=(ceiling,) if ceiling else (),
        share=share,
        grade=UNGRADED if reasons or share is None else str(Grade.from_efficiency(share)),
        ungraded_because=reasons,
        notes=_notes(question.figures),
    )


def throughput_of(profile: Profile, question: Question) -> Throughput | None:
    """Return the user's throughput, else tokens per step over step time, else the profile's own."""
    if question.throughput_tok_s is not None:
        return Throughput(tok_s=question.throughput_tok_s, basis="given")
    tokens = question.tokens_per_step or profile.tokens_per_step
    if tokens and profile.step_ms:
        origin = "given" if question.tokens_per_step else "from the profile"
        basis = f"tokens per step ({origin}) over the step time"
        return Throughput(tok_s=tokens / profile.step_ms * 1000.0, tokens_per_step=tokens, basis=basis)
    if profile.throughput_tok_s is not None:
        return Throughput(tok_s=profile.throughput_tok_s, basis="from the profile")
    return None


def _why_ungraded(
    throughput: Throughput | None, ceiling: Ceiling | None, share: float | None, figures: MemoryFigures
) -> tuple[str, ...]:
    reasons = []
    if throughput is None:
        reasons.append("the throughput is not known: give --throughput TOK_S or --tokens-per-step N")
    if ceiling is None:
        reasons.append(_missing_ceiling(figures))
    if share is not None and share > 1.0 and throughput and ceiling:
        reasons.append(
            f"{show_rate(throughput.tok_s)} is {show_share(share, 0)} of the ceiling of "
            f"{show_rate(ceiling.tok_s)}; nothing runs faster than its hardware: the bytes per token, the "
            "device or the token count is wrong (contract v1 would call it 100 %, grade A)"
        )
    return tuple(reasons)


def _missing_ceiling(figures: MemoryFigures) -> str:
    if figures.bandwidth_gb_s is None:
        return "the hardware is not known: name it with --device KEY, or give --peak-bw GB_S"
    return "the bytes that one token moves are not known: give --bytes-per-token B"


def _notes(figures: MemoryFigures) -> tuple[str, ...]:
    if not figures.uses_reference_traffic:
        return ()
    constant = (
        "the ceiling rests on the reference's 158 MB per token, worked back from one QLoRA run; bytes per "
        "token depend on model, batch, sequence and method: give yours with --bytes-per-token"
    )
    return (constant,)
