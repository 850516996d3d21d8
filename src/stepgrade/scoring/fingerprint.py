"""What makes a run comparable with another: its work, its machine, how it was measured."""

from __future__ import annotations

from stepgrade.hardware.cost.plan import short_dtype
from stepgrade.hardware.setup import CPU_KEY
from stepgrade.model import Fingerprint, Profile, Recorded
from stepgrade.scoring.efficiency import ScoreOptions


def fingerprint_of(profile: Profile, options: ScoreOptions) -> Fingerprint:
    """Return the circumstances of a run, from the profile and from what the user said of it."""
    target, recorded = options.target, profile.recorded or Recorded()
    # Where it ran: the catalogue's name, else the source's own word.
    device = profile.device.name if profile.device else recorded.processor
    if target.device is not None and target.device.key != CPU_KEY:
        device = target.device.key  # "cpu" would be any processor
    profiler = profile.source.producer or profile.source.format
    if recorded.settings:  # shapes and stacks cost time
        profiler = f"{profiler} with {', '.join(recorded.settings)}"
    tokens = options.tokens_per_step or profile.tokens_per_step
    precision = target.dtype if target.model else profile.matmul_dtype or recorded.precision
    return Fingerprint(
        device=device,
        devices=target.devices if target.devices > 1 else None,
        model=target.model or recorded.model,
        batch=target.batch or recorded.batch,
        seq=target.seq,
        tokens_per_step=tokens,
        samples_per_step=profile.samples_per_step if tokens is None else None,
        precision=short_dtype(precision) if precision else None,
        world_size=profile.world_size,
        versions=recorded.versions,
        profiler=profiler,
    )
