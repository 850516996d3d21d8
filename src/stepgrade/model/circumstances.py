"""What our recorder says of a run, as far as it makes the run comparable with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrade.model.profile import Recorded


def circumstances(
    versions: Mapping[str, str], device: Mapping[str, Any], config: Mapping[str, Any]
) -> Recorded | None:
    """Return versions, processor, model, batch and precision; None when nothing was said."""
    batch = config.get("batch_size")
    found = Recorded(
        # Which stepgrade recorded it does not change the run.
        versions={name: version for name, version in versions.items() if name != "stepgrade"},
        processor=_text(device.get("name")) if device.get("kind") == "cpu" else None,
        model=_text(config.get("model")),
        batch=batch if type(batch) is int else None,
        precision=_text(config.get("autocast")) or _text(config.get("parameter_dtype")),
    )
    return found if found != Recorded() else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
