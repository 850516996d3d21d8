"""What a run is compared with: hardware, costs and memory, from the user and from the profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from stepgrade.errors import BadInput, BadOption, UnknownDevice
from stepgrade.hardware.catalogue import identify, keys_meant
from stepgrade.hardware.ceilings import Costs
from stepgrade.hardware.cost.plan import short_dtype
from stepgrade.hardware.measured import measured_for
from stepgrade.hardware.memory.static import capacity_bytes
from stepgrade.hardware.setup import CPU_KEY, DEFAULT_DTYPE, Setup, Target, check_above_zero, target_of
from stepgrade.model import Note, Profile, Recorded
from stepgrade.model.memory import Memory
from stepgrade.model.profile import WorkKind
from stepgrade.model.scorecard import Fingerprint
from stepgrade.statistics import median
from stepgrade.units import show_si

if TYPE_CHECKING:
    from stepgrade.scoring.logged import TokenCost

# Below this share of the matmuls' time, their FLOPs are too incomplete to stand for the run.
LEAST_KNOWN_SHARE = 0.80


class ScoreOptions(Struct, frozen=True, kw_only=True):
    """What the user adds to a profile: the rate it ran at, and what to compare it with."""

    throughput_tok_s: float | None = None
    tokens_per_step: float | None = None
    work: WorkKind | None = None  # where the user knows better than the source what the steps hold
    target: Target = Target()

    def __post_init__(self) -> None:
        check_above_zero(throughput_tok_s=self.throughput_tok_s, tokens_per_step=self.tokens_per_step)
        if self.throughput_tok_s is not None and self.tokens_per_step is not None:
            raise BadOption(
                "throughput and tokens per step exclude each other",
                supply="{throughput_tok_s} or {tokens_per_step}",
            )


def target_for(profile: Profile, setup: Setup) -> Target:
    """Return hardware and costs: the user's word first, then the device, precision and FLOPs recorded."""
    device, notes = _device_seen(profile, setup)
    basis = "named by the profile" if device is not None else None
    if device is None and _is_measured_here(profile, setup):
        device, basis = CPU_KEY, None
    if device is not None:
        setup = structs.replace(setup, device=device)
    if setup.model is None and setup.dtype == DEFAULT_DTYPE and profile.matmul_dtype is not None:
        setup = structs.replace(setup, dtype=profile.matmul_dtype)
    target = target_of(setup)
    if target.device is not None and target.device.key == CPU_KEY and profile.recorded is not None:
        # Ranks on one processor share it.
        figures = target.figures.shared_by(profile.recorded.processor_ranks)
        target = structs.replace(target, figures=figures)
    logged = None
    if profile.facts is not None:
        from stepgrade.scoring.logged import printed_note, rate_note, token_cost  # only for logs

        logged = token_cost(profile.facts)
        if logged is not None and setup.model is None and setup.flops_per_token is None:
            target = structs.replace(target, model_flops=logged.model, convention=logged.convention)
        peak, fp8, rate = target.figures.peak("bf16"), target.figures.peak("fp8"), None
        if profile.tokens_per_step and profile.samples_ms:
            rate = profile.tokens_per_step / profile.counted_ranks / median(profile.samples_ms) * 1e3
        notes = (
            *notes,
            *rate_note(profile.facts, rate and rate * profile.counted_ranks),
            *printed_note(
                profile.facts, logged, rate, *(each.per_s if each else None for each in (peak, fp8))
            ),
        )
    return structs.replace(
        target,
        costs=_costs_seen(profile, setup, target.costs, logged),
        device_basis=basis,
        notes=(*target.notes, *notes),
    )


def needs_measuring(profile: Profile, setup: Setup) -> bool:
    """Return whether all that a grade lacks is what the run's processor can do."""
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
    """Return whether the run's processor was measured here, if the user names no hardware."""
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


def _costs_seen(profile: Profile, setup: Setup, costs: Costs, logged: TokenCost | None) -> Costs:
    """Return the costs with the recorded FLOPs of one token, when nothing better says what it costs."""
    if costs.flops is not None or costs.bytes is not None or setup.model is not None:
        return costs
    if logged is not None:
        count = f"{show_si(logged.hardware, 'FLOP')} per token ({logged.convention}, from the log)"
        return structs.replace(costs, flops=logged.hardware, flops_count=count)
    flops, tokens = profile.matmul_flops, profile.tokens_per_step
    if not (flops and tokens and profile.steps and is_well_known(profile)):
        return costs
    per_token = flops / tokens * profile.counted_ranks
    count = f"{show_si(per_token, 'FLOP')} per token (matrix products as recorded)"
    return structs.replace(costs, flops=per_token, flops_count=count)


def is_well_known(profile: Profile) -> bool:
    """Return whether the recorded FLOPs cover enough of the matmuls to stand for them."""
    return (profile.matmul_known_share or 0.0) >= LEAST_KNOWN_SHARE


def capacity_of(profile: Profile, target: Target) -> float | None:
    """Return the memory of the device as its driver reports it: what the source says, else the catalogue."""
    seen, failed = profile.device, profile.memory.out_of_memory if profile.memory else None
    if failed is not None and failed.capacity_bytes:
        return failed.capacity_bytes
    if seen is not None and seen.memory_bytes:
        return float(seen.memory_bytes)
    return capacity_bytes(target.device)


def memory_of_run(profile: Profile, target: Target) -> Memory | None:
    """Return the memory with capacity and headroom; of a source with only a peak, that one."""
    memory = profile.memory
    if memory is None:
        if not profile.peak_memory_bytes:
            return None
        memory = Memory(peak_bytes=profile.peak_memory_bytes)
    capacity, peak = capacity_of(profile, target), memory.peak_bytes
    headroom = capacity - peak if capacity is not None and peak is not None else None
    return structs.replace(memory, capacity_bytes=capacity, headroom_bytes=headroom)


def fingerprint_of(profile: Profile, options: ScoreOptions) -> Fingerprint:
    """Return the circumstances of a run, from the profile and the options."""
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
