"""What a device's memory held: of a recording of allocations alone, and of the events in a trace."""

from __future__ import annotations

import numpy as np

from stepgrade.model.allocations import IN_FORWARD, MemoryRecording
from stepgrade.model.memory import Memory, PeakPlace
from stepgrade.model.notes import Note
from stepgrade.model.profile import Profile, Source
from stepgrade.trace.allocations import (
    categories_at,
    curve_between,
    growth_of,
    holders_of,
    live_at,
    replay,
)


def profile_of_memory(recording: MemoryRecording) -> Profile:
    """Return the profile of a recording that holds memory and no times of steps."""
    memory, phase = _memory_of_recording(recording), recording.events.phase
    is_training = recording.has_phases and bool((phase != IN_FORWARD).any())
    return Profile(
        source=Source(format=recording.format, files=(recording.file,), producer=recording.producer),
        work="training" if is_training else "unknown",
        memory=memory,
        peak_memory_bytes=memory.peak_bytes,
        contents=recording.contents,
        notes=recording.notes,
        warnings=(
            Note(
                "no_step_times",
                "A recording of memory holds allocations, not the times of steps: a trace of the same run "
                "can be graded.",
                fatal=True,
            ),
        ),
    )


def _memory_of_recording(recording: MemoryRecording) -> Memory:
    events = recording.events
    known = Memory(
        peak_bytes=float(recording.held_bytes),
        reserved_bytes=float(recording.reserved_bytes),
        largest_free_bytes=float(recording.largest_free_bytes),
        out_of_memory=recording.failed,
    )
    if not len(events.delta):  # only what is held at the end is known
        return known
    found = replay(events)
    peak_bytes, reserved = float(found.total[found.peak]), float(events.reserved[found.peak])
    maker = events.makers[int(events.tag[found.peak])]
    return Memory(
        peak_bytes=peak_bytes,
        reserved_bytes=max(float(events.reserved.max()), peak_bytes),
        categories=categories_at(found, found.peak) if recording.has_phases else {},
        peak_at=PeakPlace(op=maker.op, where=maker.where),
        fragmentation=max(0.0, 1.0 - peak_bytes / reserved) if reserved > 0 else None,
        largest_free_bytes=known.largest_free_bytes,
        from_before_bytes=float(found.events.base_bytes),
        retries=recording.retries,
        holders=holders_of(found, live_at(found, found.peak)),
        growth=growth_of(found, np.array(recording.step_ends, np.int64)),
        out_of_memory=recording.failed,
        curve=(
            curve_between(found, 0, len(found.total), int(events.time_ns[0]))
            if recording.has_phases
            else None
        ),
    )
