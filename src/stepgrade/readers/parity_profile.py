"""ParityProfile JSON: one runtime's throughput, launches and milliseconds per operation."""

from __future__ import annotations

from stepgrade.contract import ParityProfile
from stepgrade.model import Operation, Profile, Source
from stepgrade.model.notes import Note
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

_KEYS = {"runtime", "throughput_tok_s", "kernel_launches_per_step", "ops"}


def recognises(source: ByteSource) -> bool:
    """Tell whether the source is one JSON object with a ParityProfile's keys."""
    return (source.json_keys or frozenset()) >= _KEYS


def read(source: ByteSource) -> Part:
    """Return the runtime's profile; its figures are averages of one step."""
    parity = ParityProfile.from_json(source.document())
    profile = Profile(
        source=Source(format=READER.name, files=(source.name,)),
        work="training",
        steps=1,
        mean_step_ms=parity.step_time_ms or None,
        operations=tuple(Operation(name=op, ms=ms) for op, ms in sorted(parity.ops.items())),
        runtime=parity.runtime,
        throughput_tok_s=parity.throughput_tok_s or None,
        launches_per_step=float(parity.kernel_launches_per_step),
        notes=(
            Note(
                "averages", "figures are averages of one step; how many steps they come from is not recorded"
            ),
        ),
    )
    return Part(profile=profile)


READER = Reader(
    name="parity_profile",
    summary="ParityProfile JSON: runtime, throughput, launches and time per operation",
    recognises=recognises,
    read=read,
)
