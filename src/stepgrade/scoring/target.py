"""What a run is compared with: what the user said, completed by what the profile itself tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stepgrade.errors import BadInput, UnknownDevice
from stepgrade.hardware.catalogue import keys_meant
from stepgrade.hardware.ceilings import Costs
from stepgrade.hardware.identify import identify
from stepgrade.hardware.measured import measured_for
from stepgrade.hardware.setup import CPU_KEY, DEFAULT_DTYPE, Setup, Target, target_of
from stepgrade.model import Note, Profile
from stepgrade.statistics import median
from stepgrade.units import show_si

if TYPE_CHECKING:
    from stepgrade.scoring.logged import TokenCost

# Below this share of the matmuls' time, their FLOPs are too incomplete to stand for the run.
LEAST_KNOWN_SHARE = 0.80


def target_for(profile: Profile, setup: Setup) -> Target:
    """Return hardware and costs: the user's word first, then the device, precision and FLOPs recorded."""
    device, notes = _device_seen(profile, setup)
    basis = "named by the profile" if device is not None else None
    if device is None and _is_measured_here(profile, setup):
        device, basis = CPU_KEY, None
    if device is not None:
        setup = msgspec.structs.replace(setup, device=device)
    if setup.model is None and setup.dtype == DEFAULT_DTYPE and profile.matmul_dtype is not None:
        setup = msgspec.structs.replace(setup, dtype=profile.matmul_dtype)
    target = target_of(setup)
    if target.device is not None and target.device.key == CPU_KEY and profile.recorded is not None:
        # Ranks on one processor share it.
        figures = target.figures.shared_by(profile.recorded.processor_ranks)
        target = msgspec.structs.replace(target, figures=figures)
    said = None
    if profile.facts is not None:
        from stepgrade.scoring.logged import printed_note, token_cost  # only for logs

        said = token_cost(profile.facts)
        if said is not None and setup.model is None and setup.flops_per_token is None:
            target = msgspec.structs.replace(target, model_flops=said.model, convention=said.convention)
        peak, fp8, rate = target.figures.peak("bf16"), target.figures.peak("fp8"), None
        if profile.tokens_per_step and profile.samples_ms:
            rate = profile.tokens_per_step / profile.counted_ranks / median(profile.samples_ms) * 1e3
        notes = (
            *notes,
            *printed_note(profile.facts, said, rate, *(each.per_s if each else None for each in (peak, fp8))),
        )
    return msgspec.structs.replace(
        target,
        costs=_costs_seen(profile, setup, target.costs, said),
        device_basis=basis,
        notes=(*target.notes, *notes),
    )


def needs_measuring(profile: Profile, setup: Setup) -> bool:
    """Tell whether all that a grade lacks is what the run's processor can do."""
    is_on_processor = profile.recorded is not None and profile.recorded.processor is not None
    return (
        is_on_processor
        and not _is_named(setup)
        and not _is_measured_here(profile, setup)
        and is_well_known(profile)
    )


def _is_named(setup: Setup) -> bool:
    named = (setup.device, setup.device_file, setup.peak_bw_gb_s, setup.peak_tflops)
    return any(word is not None for word in named)


def _is_measured_here(profile: Profile, setup: Setup) -> bool:
    """Tell whether the run was recorded on a processor that was measured, when the user names no hardware."""
    recorded = profile.recorded
    if recorded is None or recorded.processor is None or _is_named(setup):
        return False
    try:
        measured = measured_for(CPU_KEY, setup.state)
    except BadInput:  # the run is then shown as one of a processor that was not measured
        return False
    if measured is None or measured.name != recorded.processor:
        return False
    return None in (measured.cores, recorded.processor_cores) or measured.cores == recorded.processor_cores


def _device_seen(profile: Profile, setup: Setup) -> tuple[str | None, tuple[Note, ...]]:
    """Return the key of the device that the profile names, or a note when the catalogue does not have it.

    A device that the user names is taken instead, unless it is the name of several.
    """
    seen = profile.device
    if seen is None or seen.name is None:
        return None, ()
    meant = keys_meant(setup.device) if setup.device is not None else ()
    described = (setup.device_file, setup.peak_bw_gb_s, setup.peak_tflops)
    if len(meant) < 2 and (setup.device is not None or any(word is not None for word in described)):
        return None, ()
    try:
        key = identify(seen).key
    except UnknownDevice as error:
        if setup.device is not None:
            return None, ()
        text = f"{error.problem} ({error.hint})" if error.hint else error.problem
        return None, (Note("device_unknown", text, supply=error.supply or ""),)
    # `h100` is the name of several devices: the profile says which of them is meant.
    return (key if not meant or key in meant else None), ()


def _costs_seen(profile: Profile, setup: Setup, costs: Costs, said: TokenCost | None) -> Costs:
    """Return the costs with the recorded FLOPs of one token, when nothing better says what it costs."""
    if costs.flops is not None or costs.bytes is not None or setup.model is not None:
        return costs
    if said is not None:
        count = f"{show_si(said.hardware, 'FLOP')} per token ({said.convention}, from the log)"
        return msgspec.structs.replace(costs, flops=said.hardware, flops_count=count)
    flops, tokens = profile.matmul_flops, profile.tokens_per_step
    if not (flops and tokens and profile.steps and is_well_known(profile)):
        return costs
    per_token = flops / tokens * profile.counted_ranks
    count = f"{show_si(per_token, 'FLOP')} per token (matrix products as recorded)"
    return msgspec.structs.replace(costs, flops=per_token, flops_count=count)


def is_well_known(profile: Profile) -> bool:
    """Tell whether the recorded FLOPs cover enough of the matmuls to stand for them."""
    return (profile.matmul_known_share or 0.0) >= LEAST_KNOWN_SHARE
