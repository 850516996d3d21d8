"""Phases of a step: what each is, how long it takes, and where contract v1 sees them differently."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from stepgrade.config.limits import Limits
from stepgrade.contract import Bottleneck
from stepgrade.contract.scorecard import add_up
from stepgrade.model import RECORDER, Ledger, Note, PhaseShare, Profile
from stepgrade.model.profile import APR_PROFILER_V1, STEP_PROFILER_V2
from stepgrade.scoring.step_times import RunTimes, kept_of_part
from stepgrade.units import show_share

_BECAUSE = {
    Bottleneck.TRANSFER: "it goes by the percentages that the producer wrote",
    Bottleneck.LAUNCH: "it takes a step without phases for launch overhead",
    Bottleneck.COMPUTE: "it takes any run above half of its memory ceiling for that",
    Bottleneck.MEMORY_BW: "it says so wherever it finds nothing else",
}


def is_read_by_v1(profile: Profile) -> bool:
    """Return whether contract v1 was made for such profiles; it says nothing about others.

    Our recorder's are in a format that v1 takes, but whoever recorded one never met v1.
    """
    return (
        profile.source.format in (STEP_PROFILER_V2, APR_PROFILER_V1) and profile.source.producer != RECORDER
    )


def launch_overhead_v1(profile: Profile) -> float:
    """Return the share of one step that the phases' totals over all steps leave: v1's quirk."""
    if profile.mean_step_ms is None:
        return 0.0
    totals = add_up(profile.total(phase.ms or 0.0) for phase in profile.phases)
    return max(0.0, 1.0 - totals / profile.mean_step_ms)


def bottleneck_note(profile: Profile, bottleneck: str, efficiency: float | None) -> Note | None:
    """Return what v1 calls the bottleneck and why, or None where it agrees or does not read the format."""
    if not is_read_by_v1(profile):
        return None
    transfers = add_up(
        phase.share or 0.0 for phase in profile.phases if "h2d" in phase.name or "d2h" in phase.name
    )
    named = Bottleneck.classify(transfers, launch_overhead_v1(profile), efficiency or 0.0)
    if named.value == bottleneck:
        return None
    return Note("v1_bottleneck", f"contract v1 calls the bottleneck `{named}`: {_BECAUSE[named]}")


class PhaseKind(StrEnum):
    """What the device does, or waits for, in a phase."""

    TRANSFER = "transfer"
    INPUT = "input"
    COMMUNICATION = "communication"
    HOST = "host"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    FORWARD = "forward"
    OTHER = "other"


# The first kind with a word of the phase's name wins: `grad_h2d` is a transfer, `fwd_encode` host work.
_WORDS: dict[PhaseKind, frozenset[str]] = {
    PhaseKind.TRANSFER: frozenset({"h2d", "d2h", "d2d", "copy", "transfer"}),
    PhaseKind.INPUT: frozenset({"data", "dataloader", "dataloading", "input", "loader", "prep", "tokenize"}),
    PhaseKind.COMMUNICATION: frozenset({"allreduce", "allgather", "comm", "communication", "nccl", "reduce"}),
    PhaseKind.HOST: frozenset({"alloc", "encode", "host", "launch", "overhead", "submit", "sync", "write"}),
    PhaseKind.BACKWARD: frozenset({"backward", "bwd", "grad"}),
    PhaseKind.OPTIMIZER: frozenset({"adam", "gradients", "opt", "optim", "optimizer", "sgd", "update"}),
    PhaseKind.FORWARD: frozenset({"ce", "embed", "forward", "fwd", "head", "lm", "loss", "norm"}),
}
_COMPUTE = (PhaseKind.FORWARD, PhaseKind.BACKWARD, PhaseKind.OPTIMIZER)


class PhasesOfStep(Struct, frozen=True, kw_only=True):
    """The phases of one step, by falling time, and the share of the step in none of them."""

    shares: dict[str, PhaseShare]
    by_kind_ms: dict[PhaseKind, float]
    by_kind: dict[PhaseKind, float] = {}
    covered_share: float | None = None
    uncovered_share: float | None = None
    ledger: Ledger | None = None
    notes: tuple[Note, ...] = ()
    fitness: tuple[Note, ...] = ()


def kind_of(name: str) -> PhaseKind:
    """Return what a phase is, by the words in its name; `OTHER` when they say nothing."""
    folded = name.casefold()
    if "h2d" in folded or "d2h" in folded:  # as contract v1: anywhere in the name
        return PhaseKind.TRANSFER
    words = set("".join(c if c.isalnum() else " " for c in folded).split())
    return next((kind for kind, known in _WORDS.items() if words & known), PhaseKind.OTHER)


def phases_of_step(profile: Profile, times: RunTimes, limits: Limits) -> PhasesOfStep:
    """Return the phases of the typical step; beside a ledger of the device they judge nothing themselves."""
    shares = {phase.name: _share(phase, times) for phase in profile.phases}
    by_kind = _by_kind({name: share.share for name, share in shares.items()})
    by_kind_ms = _by_kind({name: share.ms for name, share in shares.items()})
    shares = dict(sorted(shares.items(), key=lambda item: -(item[1].ms or 0.0)))
    if profile.ledger is not None:
        # Our recorder's phases lie on the same thread as the ledger made from them, and say why it waits.
        is_recorded = profile.source.producer == RECORDER
        return PhasesOfStep(shares=shares, by_kind_ms=by_kind_ms, by_kind=by_kind if is_recorded else {})
    if profile.log is not None:
        # The parts that a log times may run on several groups of devices: they say nothing about one.
        return PhasesOfStep(shares=shares, by_kind_ms={})
    # The share of the step that phases cover, else what the producer says of it.
    known = [share.share for share in shares.values() if share.share is not None]
    covered = profile.wall_coverage if not shares else None
    if shares and profile.mean_step_ms is not None and len(known) == len(shares):
        covered = add_up(known)
    overlapping = covered is not None and covered > 1.0 + limits.overlap_tolerance
    ledger = None
    if covered is not None and shares and not overlapping:
        # Shares add up to 1; a rounding excess is spread over all of them.
        part = {kind: by_kind.get(kind, 0.0) / max(1.0, covered) for kind in PhaseKind}
        attributed = add_up(part[kind] for kind in PhaseKind if kind is not PhaseKind.OTHER)
        ledger = Ledger(
            compute=add_up(part[kind] for kind in _COMPUTE),
            exposed_communication=part[PhaseKind.COMMUNICATION],
            exposed_copy=part[PhaseKind.TRANSFER],
            idle_input=part[PhaseKind.INPUT],
            idle_host=part[PhaseKind.HOST],
            unattributed=max(0.0, 1.0 - attributed),
        )
    return PhasesOfStep(
        shares=shares,
        by_kind=by_kind,
        by_kind_ms=by_kind_ms,
        covered_share=covered,
        uncovered_share=None if covered is None else max(0.0, 1.0 - covered),
        ledger=ledger,
        notes=_notes(profile, covered),
        fitness=_fitness(profile, covered if overlapping else None, limits),
    )


def _share(phase: PhaseShare, times: RunTimes) -> PhaseShare:
    """Return a phase's share of all steps, and that share of the typical one: so phases add up to it."""
    mean_ms = phase.ms if times.steps else phase.average_ms
    if mean_ms is not None and times.mean_ms and times.typical_ms:
        share = mean_ms / times.mean_ms
        samples_ms = kept_of_part(phase.samples_ms, share, 0)
        return PhaseShare(ms=share * times.typical_ms, share=share, samples_ms=samples_ms)
    return PhaseShare(ms=mean_ms, share=phase.share)


def _by_kind(figures: dict[str, float | None]) -> dict[PhaseKind, float]:
    totals: dict[PhaseKind, float] = {}
    for name, figure in figures.items():
        if figure is not None:
            kind = kind_of(name)
            totals[kind] = totals.get(kind, 0.0) + figure
    return totals


def _notes(profile: Profile, covered: float | None) -> tuple[Note, ...]:
    """Say where contract v1, which reads the same file, comes to another launch overhead."""
    if profile.mean_step_ms is None or not is_read_by_v1(profile):
        return ()
    if not profile.phases and covered is None:
        text = "the profile has no phases, so launch overhead is not known (contract v1 says 100 %)"
    elif not profile.phases:
        text = "without phases, launch overhead is what the wall coverage leaves (contract v1 says 100 %)"
    else:
        v1_overhead = launch_overhead_v1(profile)
        if covered is None or not profile.steps or abs(v1_overhead - max(0.0, 1.0 - covered)) < 0.005:
            return ()
        text = (
            f"launch overhead is {show_share(max(0.0, 1.0 - covered))}, per step; contract v1 compares the "
            f"totals of all {profile.steps} steps with one step and says {show_share(v1_overhead)}"
        )
    return (Note("v1_launch_overhead", text),)


def _fitness(profile: Profile, overlapping: float | None, limits: Limits) -> tuple[Note, ...]:
    found = []
    if overlapping is not None:
        text = (
            f"phases add up to {show_share(overlapping)} of the step: they overlap, or the step's average "
            "leaves something out; there is no ledger"
            if profile.phases
            else f"a wall coverage of {show_share(overlapping)} is more than there is: is it a percentage?"
        )
        found.append(Note("phases_overlap" if profile.phases else "wall_coverage_above_one", text))
    averages = [phase for phase in profile.phases if phase.ms and phase.average_ms]
    by_total = add_up(phase.ms or 0.0 for phase in averages)
    by_average = add_up(phase.average_ms or 0.0 for phase in averages)
    if profile.steps and abs(by_total - by_average) > limits.average_tolerance * by_average:
        text = (
            f"phase totals over {profile.steps} steps and their averages disagree: "
            f"{by_total:.1f} and {by_average:.1f} ms per step; the totals are used"
        )
        found.append(Note("phase_averages_disagree", text))
    return tuple(found)
