"""What holds a run back, named from what was measured, or `unknown`."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from stepgrade.config.limits import Limits
from stepgrade.contract import Bottleneck as BottleneckV1
from stepgrade.model import Profile
from stepgrade.model.scorecard import UNKNOWN
from stepgrade.scoring.efficiency import Efficiency
from stepgrade.scoring.phases import PhaseKind, PhasesOfStep
from stepgrade.units import show_share


class Bottleneck(StrEnum):
    """Contract v1's four classes and those it does not know."""

    TRANSFER = "transfer"
    LAUNCH = "launch"
    COMPUTE = "compute"
    MEMORY_BW = "memory_bw"
    INPUT = "input"
    COMMUNICATION = "communication"
    HOST = "host"
    UNKNOWN = UNKNOWN


class Verdict(Struct, frozen=True, kw_only=True):
    """A bottleneck and the evidence for it."""

    bottleneck: Bottleneck
    evidence: tuple[str, ...]


_WAITS = {
    PhaseKind.INPUT: (Bottleneck.INPUT, "waiting for input"),
    PhaseKind.COMMUNICATION: (Bottleneck.COMMUNICATION, "in communication"),
    PhaseKind.HOST: (Bottleneck.HOST, "in host work"),
}
_ROOFS = {"memory": Bottleneck.MEMORY_BW, "compute": Bottleneck.COMPUTE, "link": Bottleneck.COMMUNICATION}


def name_bottleneck(
    profile: Profile, phases: PhasesOfStep, efficiency: Efficiency, limits: Limits
) -> Verdict:
    """Name the bottleneck: what the device waits for, else the roof it is near, else the producer's word."""
    return (
        _transfer(phases, limits)
        or _launch(phases, limits)
        or _waiting(phases, limits)
        or _near_roof(efficiency, limits)
        or _claimed(profile)
        or _unknown(phases, limits)
    )


def _transfer(phases: PhasesOfStep, limits: Limits) -> Verdict | None:
    share = phases.by_kind.get(PhaseKind.TRANSFER, 0.0)
    if not share > limits.transfer_share:
        return None
    evidence = f"{show_share(share)} of the step goes to host-device transfers"
    return Verdict(bottleneck=Bottleneck.TRANSFER, evidence=(evidence,))


def _launch(phases: PhasesOfStep, limits: Limits) -> Verdict | None:
    share = phases.uncovered_share
    if share is None or not share > limits.launch_share:
        return None
    evidence = f"{show_share(share)} of the step is in no phase: launches and host work between them"
    return Verdict(bottleneck=Bottleneck.LAUNCH, evidence=(evidence,))


def _waiting(phases: PhasesOfStep, limits: Limits) -> Verdict | None:
    share, kind = max((phases.by_kind.get(kind, 0.0), kind) for kind in _WAITS)
    if not share > limits.waiting_share:
        return None
    bottleneck, words = _WAITS[kind]
    return Verdict(bottleneck=bottleneck, evidence=(f"{show_share(share)} of the step is spent {words}",))


def _near_roof(efficiency: Efficiency, limits: Limits) -> Verdict | None:
    roof, share = efficiency.roof, efficiency.share
    if roof is None or share is None or not limits.near_ceiling < share <= 1.0:
        return None
    evidence = f"the run reaches {show_share(share)} of its {roof.kind} ceiling, the lowest one known"
    return Verdict(bottleneck=_ROOFS[roof.kind], evidence=(evidence,))


def _claimed(profile: Profile) -> Verdict | None:
    """Take over the class that the profile's own producer names, when it is one of contract v1's."""
    claim = profile.claimed_bottleneck
    if claim not in {known.value for known in BottleneckV1}:
        return None
    evidence = f"{profile.source.producer or 'the producer'} says so; the profile alone can not confirm it"
    return Verdict(bottleneck=Bottleneck(claim), evidence=(evidence,))


def _unknown(phases: PhasesOfStep, limits: Limits) -> Verdict:
    covered = phases.covered_share
    if covered is None:
        evidence = "the profile does not say where a step's time goes"
    else:
        evidence = (
            f"{show_share(min(covered, 1.0))} of the step is in phases, and no wait takes more than "
            f"{show_share(limits.waiting_share, 0)} of it; telling compute from memory limits needs "
            "operations with shapes"
        )
    return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))
