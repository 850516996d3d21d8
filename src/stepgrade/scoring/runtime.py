"""Which runtime a profile comes from, so that advice is in its words."""

from __future__ import annotations

from enum import StrEnum

from stepgrade.model import Profile
from stepgrade.model.profile import APR_PROFILER_V1, STEP_PROFILER_V2


class Runtime(StrEnum):
    """Whose advice fits."""

    PYTORCH = "pytorch"
    JAX = "jax"
    REFERENCE = "reference"
    GENERAL = "general"


_WORDS = {Runtime.PYTORCH: ("torch", "kineto"), Runtime.JAX: ("jax", "xplane", "xla", "xprof")}


def runtime_of(profile: Profile) -> Runtime:
    """Return the runtime by the names of the producer, the profile's runtime and the format."""
    source = profile.source
    if source.producer in (STEP_PROFILER_V2, APR_PROFILER_V1):  # which contract v1's advice is for
        return Runtime.REFERENCE
    names = " ".join((source.producer or "", profile.runtime or "", source.format)).casefold()
    return next(
        (runtime for runtime, words in _WORDS.items() if any(word in names for word in words)),
        Runtime.GENERAL,
    )
