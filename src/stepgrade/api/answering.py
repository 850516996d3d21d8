"""What needs no scorecard: what a file holds, what a device could do, a profile in another format."""

from __future__ import annotations

from stepgrade.analysis.inspection import Inspection, inspect_profile
from stepgrade.hardware.answers import DeviceTable, estimate_run, list_devices
from stepgrade.hardware.estimate import Estimate
from stepgrade.hardware.setup import Setup
from stepgrade.model import Profile
from stepgrade.report.step_profile import render_step_profile


def estimate(setup: Setup, *, throughput_tok_s: float | None = None) -> Estimate:
    """Return what a run could reach on its device; with its throughput also its MFU and HFU."""
    return estimate_run(setup, throughput_tok_s)


def devices(words: str | None = None) -> DeviceTable:
    """Return the devices of the catalogue that hold every word."""
    return list_devices(words)


def inspect(profile: Profile) -> Inspection:
    """Tell what a profile holds and what can be known from it."""
    return inspect_profile(profile)


def convert(profile: Profile) -> str:
    """Return any profile as step_profiler_v2 JSON."""
    return render_step_profile(profile)
