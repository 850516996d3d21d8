"""What contract v1 concludes from the same figures, for the notes on where v2 differs from it."""

from __future__ import annotations

from stepgrade.contract import Bottleneck
from stepgrade.contract.scorecard import add_up
from stepgrade.model import RECORDER, Note, Profile
from stepgrade.model.profile import APR_PROFILER_V1, STEP_PROFILER_V2

_BECAUSE = {
    Bottleneck.TRANSFER: "it goes by the percentages that the producer wrote",
    Bottleneck.LAUNCH: "it takes a step without phases for launch overhead",
    Bottleneck.COMPUTE: "it takes any run above half of its memory ceiling for that",
    Bottleneck.MEMORY_BW: "it says so wherever it finds nothing else",
}


def is_read_by_v1(profile: Profile) -> bool:
    """Tell whether contract v1 was made for such profiles; it says nothing about others.

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
