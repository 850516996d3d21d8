"""Where what the user says and what the profile says cannot both be true."""

from __future__ import annotations

from collections.abc import Iterator

from stepgrade.errors import UnknownDevice
from stepgrade.hardware.identify import identify
from stepgrade.hardware.setup import CPU_KEY
from stepgrade.model import Note, Profile
from stepgrade.scoring.efficiency import ScoreOptions, throughput_of
from stepgrade.scoring.step_times import RunTimes
from stepgrade.units import show_count, show_rate

# Padding, packing and what counts as a token explain a factor of two; beyond, a figure is of something else.
WORTH_A_WORD = 2.0
# From this factor on it is a slip of the unit or of the run, and a grade would be of nothing.
TOO_FAR = 5.0


def contradictions(profile: Profile, times: RunTimes, options: ScoreOptions) -> tuple[Note, ...]:
    """Return a note for each contradiction; a fatal one forbids a grade."""
    return (*_of_device(profile, options), *_of_rate(profile, times, options))


def _of_device(profile: Profile, options: ScoreOptions) -> Iterator[Note]:
    """Yield where the device that the user names is not the one of the profile."""
    device = options.target.device
    if device is None or device.key == CPU_KEY or device.is_by_hand:
        return
    recorded = profile.recorded.processor if profile.recorded else None
    if recorded is not None:
        text = f"{device.key} is given, and the run was recorded on a processor ({recorded}), named {CPU_KEY}"
        yield Note("processor_not_device", text, fatal=True)
    elif profile.activity is not None and profile.activity.driver == "host":
        text = (
            f"{device.key} is given, and the profile holds work of the processor only: either the run was on "
            "the CPU, or its trace was recorded without ProfilerActivity.CUDA"
        )
        yield Note("processor_not_device", text, fatal=True)
    elif profile.device is not None and profile.device.name:
        try:
            seen = identify(profile.device).key
        except UnknownDevice:
            return
        if seen != device.key:
            text = f"graded against {device.key}, as given; the profile says that it ran on {seen}"
            yield Note("other_device", text)


def _of_rate(profile: Profile, times: RunTimes, options: ScoreOptions) -> Iterator[Note]:
    """Yield where the rate that the user gives is not the one of the profile, of one device or of all."""
    if options.throughput_tok_s is None and options.tokens_per_step is None:
        return
    given = throughput_of(profile, times, options)
    own = throughput_of(profile, times, ScoreOptions(target=options.target))
    if given is None or own is None:
        return
    most = own.tok_s * max(options.target.devices, profile.world_size or 1)
    is_more = given.tok_s > most
    factor = given.tok_s / most if is_more else own.tok_s / given.tok_s
    if factor > WORTH_A_WORD:
        counted = f" ({show_count(own.tokens_per_step)} tokens per step)" if own.tokens_per_step else ""
        compared = f"{factor:.1f} times {'as much as' if is_more else 'less than'} the profile's own"
        text = (
            f"{show_rate(given.tok_s)} as given is {compared} {show_rate(own.tok_s)}{counted}: one of them "
            "is of another run, or in another unit"
        )
        yield Note("other_rate", text, fatal=factor >= TOO_FAR)
