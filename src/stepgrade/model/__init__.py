"""What a run is: profiles and their parts. No files are read here and nothing is judged."""

from stepgrade.model.profile import LayerTime, OpTime, PhaseTime, Profile, Source

__all__ = ["LayerTime", "OpTime", "PhaseTime", "Profile", "Source"]
