"""What makes a run comparable with another: its work, its machine, how it was measured."""

from __future__ import annotations

from stepgrade.model import Fingerprint, Profile, Recorded
from stepgrade.scoring.efficiency import Question


def fingerprint_of(profile: Profile, question: Question) -> Fingerprint:
    """Return the circumstances of a run, from the profile and from what the user said of it."""
    against, recorded = question.against, profile.recorded or Recorded()
    return Fingerprint(
        device=_device(profile, question),
        devices=against.devices if against.devices > 1 else None,
        model=against.model or recorded.model,
        batch=against.batch or recorded.batch,
        seq=against.seq,
        tokens_per_step=question.tokens_per_step or profile.tokens_per_step,
        precision=against.dtype if against.model else profile.matmul_dtype or recorded.precision,
        world_size=profile.world_size,
        versions=recorded.versions,
        profiler=_profiler(profile),
    )


def _device(profile: Profile, question: Question) -> str | None:
    """Return where it ran: the catalogue's name, else the source's own word."""
    if question.against.device is not None:
        return question.against.device.key
    if profile.device is not None:
        return profile.device.name
    return profile.recorded.processor if profile.recorded else None


def _profiler(profile: Profile) -> str | None:
    """Return who measured and what was recorded: shapes and stacks cost time."""
    settings = profile.recorded.settings if profile.recorded else ()
    name = profile.source.producer or profile.source.format
    return f"{name} with {', '.join(settings)}" if settings else name
