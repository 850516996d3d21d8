"""What makes a run comparable with another: its work, its machine, how it was measured."""

from __future__ import annotations

from stepgrade.model import Fingerprint, Profile, Recorded
from stepgrade.scoring.efficiency import ScoreOptions


def fingerprint_of(profile: Profile, options: ScoreOptions) -> Fingerprint:
    """Return the circumstances of a run, from the profile and from what the user said of it."""
    target, recorded = options.target, profile.recorded or Recorded()
    return Fingerprint(
        device=_device(profile, options),
        devices=target.devices if target.devices > 1 else None,
        model=target.model or recorded.model,
        batch=target.batch or recorded.batch,
        seq=target.seq,
        tokens_per_step=options.tokens_per_step or profile.tokens_per_step,
        precision=target.dtype if target.model else profile.matmul_dtype or recorded.precision,
        world_size=profile.world_size,
        versions=recorded.versions,
        profiler=_profiler(profile),
    )


def _device(profile: Profile, options: ScoreOptions) -> str | None:
    """Return where it ran: the catalogue's name, else the source's own word."""
    if options.target.device is not None:
        return options.target.device.key
    if profile.device is not None:
        return profile.device.name
    return profile.recorded.processor if profile.recorded else None


def _profiler(profile: Profile) -> str | None:
    """Return who measured and what was recorded: shapes and stacks cost time."""
    settings = profile.recorded.settings if profile.recorded else ()
    name = profile.source.producer or profile.source.format
    return f"{name} with {', '.join(settings)}" if settings else name
