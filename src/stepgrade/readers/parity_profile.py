"""ParityProfile JSON: one runtime's throughput, launches and milliseconds per operation."""

from __future__ import annotations

from stepgrade.contract import ParityProfile
from stepgrade.model import OpTime, Profile, Source
from stepgrade.model.notes import Note
from stepgrade.readers.content import Content

NAME = "parity_profile"
SUMMARY = "ParityProfile JSON: runtime, throughput, launches and time per operation"

_KEYS = {"runtime", "throughput_tok_s", "kernel_launches_per_step", "ops"}


def recognises(content: Content) -> bool:
    """Tell whether the source is one JSON object with a ParityProfile's keys."""
    return (content.json_keys or frozenset()) >= _KEYS


def read(content: Content) -> Profile:
    """Return the runtime's profile; its figures are averages of one step."""
    parity = ParityProfile.from_json(content.document())
    return Profile(
        source=Source(format=NAME, files=(content.name,)),
        steps=1,
        mean_step_ms=parity.step_time_ms or None,
        operations=tuple(OpTime(name=op, total_ms=ms) for op, ms in sorted(parity.ops.items())),
        runtime=parity.runtime,
        throughput_tok_s=parity.throughput_tok_s or None,
        launches_per_step=float(parity.kernel_launches_per_step),
        notes=(
            Note(
                "averages", "figures are averages of one step; how many steps they come from is not recorded"
            ),
        ),
    )
