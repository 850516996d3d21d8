"""What the rules look at: the profile and what was worked out from it."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.analysis.bottleneck import Verdict
from stepgrade.analysis.efficiency import Efficiency
from stepgrade.analysis.layers import SlowLayer
from stepgrade.analysis.phases import PhasesOfStep
from stepgrade.model import Profile


class Facts(Struct, frozen=True, kw_only=True):
    """Everything known of a run before it is judged."""

    profile: Profile
    phases: PhasesOfStep
    efficiency: Efficiency
    verdict: Verdict
    ratio: float | None
    slow_layers: tuple[SlowLayer, ...]

    def share_of_step(self, total_ms: float) -> float | None:
        """Return a total over all steps as a share of one step, or None when steps are not known."""
        profile = self.profile
        return total_ms / profile.steps / profile.step_ms if profile.steps and profile.step_ms else None
