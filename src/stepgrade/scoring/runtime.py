"""Which runtime a profile comes from, so that advice is in its words."""

from __future__ import annotations

from enum import StrEnum

from stepgrade.model import Profile


class Runtime(StrEnum):
    """Whose advice fits."""

    PYTORCH = "pytorch"
    JAX = "jax"
    REFERENCE = "reference"
    GENERAL = "general"


# The producers whose runtime the reference's sentences (its NF4_* switches) were written for.
REFERENCE_PRODUCERS = ("step_profiler_v2", "apr_training_profiler_v1")
_WORDS = {Runtime.PYTORCH: ("torch", "kineto"), Runtime.JAX: ("jax", "xplane", "xla", "xprof")}


def runtime_of(profile: Profile) -> Runtime:
    """Return the runtime, told from the producer, the profile's own word and the format."""
    source = profile.source
    if source.producer in REFERENCE_PRODUCERS:
        return Runtime.REFERENCE
    told = " ".join((source.producer or "", profile.runtime or "", source.format)).casefold()
    return next((one for one, words in _WORDS.items() if any(w in told for w in words)), Runtime.GENERAL)
