"""What a run is: profiles and their parts. No files are read here and nothing is judged."""

from stepgrade.model.profile import Baseline, LayerTime, OpTime, PhaseTime, Profile, Source

__all__ = ["Baseline", "LayerTime", "OpTime", "PhaseTime", "Profile", "Source"]
