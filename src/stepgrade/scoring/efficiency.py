"""What a run reached of its ceilings: throughput, efficiency and grade, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

from stepgrade.config.limits import Limits
from stepgrade.contract import Grade
from stepgrade.errors import BadOption, UnknownDevice
from stepgrade.hardware.catalogue import identify
from stepgrade.hardware.ceilings import lowest, why_above_one
from stepgrade.hardware.setup import CPU_KEY, Target
from stepgrade.model import Ledger, Machine, Note, Profile
from stepgrade.model.ceiling import Ceiling
from stepgrade.model.profile import LOG, WORK_UNKNOWN
from stepgrade.model.scorecard import AT_MOST, UNGRADED, Arithmetic, Throughput
from stepgrade.scoring.step_times import RunTimes
from stepgrade.scoring.target import LEAST_KNOWN_SHARE, ScoreOptions, is_well_known
from stepgrade.units import show_count, show_ms, show_rate, show_share, show_si


class Efficiency(Struct, frozen=True, kw_only=True):
    """The share of the lowest ceiling that a run reached, with its grade."""

    throughput: Throughput | None
    devices: int  # that share it
    ceilings: tuple[Ceiling, ...]
    roof: Ceiling | None  # the lowest ceiling, the one that counts
    share: float | None
    mfu: float | None
    hfu: float | None
    samples_s: float | None
    grade: str
    ungraded_because: tuple[Note, ...]
    notes: tuple[Note, ...]
    arithmetic: Arithmetic | None = None


def efficiency_of(profile: Profile, times: RunTimes, options: ScoreOptions) -> Efficiency:
    """Compare the run's throughput with the lowest ceiling."""
    throughput, target = throughput_of(profile, times, options), options.target
    devices = devices_of(profile, throughput, options) if throughput else target.devices
    rate = throughput.tok_s / devices if throughput else None
    ceilings = target.ceilings
    roof = lowest(ceilings)
    if roof is not None and not (math.isfinite(roof.tok_s) and roof.tok_s > 0.0):
        raise BadOption(
            f"the given figures make a ceiling of {roof.tok_s:g} tok/s, which no run can be compared with",
            hint="check them",
        )
    share = rate / roof.tok_s if rate is not None and roof is not None else None
    arithmetic = arithmetic_of(profile, times, target)
    by_arithmetic = share is None and is_well_known(profile)
    if by_arithmetic and arithmetic is not None:
        share = arithmetic.share
    reasons: tuple[Note, ...] = ()
    if share is None:
        reasons = _what_is_missing(profile, rate, roof, target)
    elif share > 1.0:
        reasons = _why_above(share, rate, roof, arithmetic, target)
    if share is None and arithmetic is not None and arithmetic.share is not None:
        text = (
            f"the recorded shapes cover {show_share(arithmetic.known_share or 0.0, 0)} of the time in matrix "
            f"products and attention; from {show_share(LEAST_KNOWN_SHARE, 0)} on the run is graded by its "
            "arithmetic alone"
        )
        reasons = (*reasons, Note("few_shapes", text))
    if share is None or not reasons:
        reasons = (*reasons, *_doubts(profile, by_arithmetic=by_arithmetic and profile.work == "training"))
    notes = [*target.notes]
    if _is_one_of_several(profile) and profile.counted_ranks == 1:
        text = f"this is rank {profile.rank} of {profile.world_size}: the throughput is its own alone"
        notes.append(Note("one_rank", text, supply="the files of all ranks"))
    if target.all_costs is not target.costs:
        text = (
            "the ceiling rests on the reference's 158 MB per token, worked back from one QLoRA run; bytes "
            "per token depend on model, batch, sequence and method"
        )
        notes.append(Note("reference_traffic", text, supply="{model}, or {bytes_per_token}"))
    palm = target.share_of_peak(rate, target.palm_flops)
    if palm is not None:
        text = f"MFU counts FLOPs by {target.convention}; by PaLM's count it would be {show_share(palm)}"
        notes.append(Note("mfu_palm", text))
    samples = profile.samples_per_step
    return Efficiency(
        throughput=throughput,
        devices=devices,
        samples_s=samples / times.typical_ms * 1000.0 if samples and times.typical_ms else None,
        ceilings=ceilings,
        roof=roof,
        share=share,
        mfu=target.share_of_peak(rate, target.model_flops),
        hfu=target.share_of_peak(rate, target.costs.flops),
        grade=UNGRADED if reasons or share is None else str(Grade.from_efficiency(share)),
        ungraded_because=reasons,
        arithmetic=arithmetic,
        notes=tuple(notes),
    )


def _doubts(profile: Profile, *, by_arithmetic: bool) -> Iterator[Note]:
    """Yield why the steps are no measure of the run, though a share of their ceiling is known."""
    activity, ledger = profile.activity, Ledger.of(profile.ledger)
    computing = [op for op in profile.operations if op.kind != "communication" and op.ms]
    if by_arithmetic and len(computing) == 1:
        yield Note("one_operation", "the steps hold a single operation: it was replayed, nothing was trained")
    elif by_arithmetic and _moves_memory(profile):
        text = "most of the work moves memory, and counted arithmetic says nothing of how well it runs"
        yield Note("moves_memory", text)
    is_starting = activity is not None and activity.loader == MULTIPROCESSING_LOADER and profile.steps == 1
    if is_starting and ledger is not None and (ledger.idle_input or 0.0) > STARTING_SHARE:
        text = (
            f"the only step waits {show_share(ledger.idle_input or 0.0, 0)} of its time for input, which may "
            "be the start of the loader's workers: record several steps"
        )
        yield Note("loader_start", text)


def _moves_memory(profile: Profile) -> bool:
    """Return whether products have less than half of the time of operations whose kind is known.

    Not on a processor, where the time of small operations is that of calls and of other programs.
    """
    if profile.recorded is not None and profile.recorded.processor is not None:
        return False
    known = [op for op in profile.operations if op.kind not in ("communication", "other", None)]
    known_ms = sum(op.ms or 0.0 for op in known)
    return sum(op.ms or 0.0 for op in known if op.kind in PRODUCTS) < 0.5 * known_ms


def devices_of(profile: Profile, throughput: Throughput, options: ScoreOptions) -> int:
    """Return how many devices share the throughput: those that were counted, else those that are given."""
    devices = options.target.devices
    if options.throughput_tok_s is not None or options.tokens_per_step is not None:
        return devices
    if profile.source.format == LOG:  # a log prints what all of them do, and not always how many they are
        return max(profile.counted_ranks, devices)
    # Tokens that a profile counted are those of the ranks that it holds.
    return profile.counted_ranks if profile.tokens_per_step and throughput.tokens_per_step else devices


def arithmetic_of(profile: Profile, times: RunTimes, target: Target) -> Arithmetic | None:
    """Return the FLOP/s of a typical step and their share of the peak; None without shapes."""
    if not (profile.matmul_flops and profile.steps and times.typical_ms):
        return None
    achieved = profile.matmul_flops / (times.typical_ms / 1000.0)
    peak = target.figures.peak(target.dtype) if profile.matmul_dtype is not None else None
    return Arithmetic(
        achieved_flops_s=achieved,
        peak_flops_s=peak.per_s if peak else None,
        share=achieved / peak.per_s if peak else None,
        dtype=profile.matmul_dtype,
        known_share=profile.matmul_known_share,
    )


def throughput_of(profile: Profile, times: RunTimes, options: ScoreOptions) -> Throughput | None:
    """Return the user's throughput, else tokens per step over the typical step, else the profile's own.

    The slow end of the step's interval is the low end of the rate's.
    """
    if options.throughput_tok_s is not None:
        return Throughput(tok_s=options.throughput_tok_s, basis="given")
    tokens, origin = options.tokens_per_step or profile.tokens_per_step, "from the profile"
    if options.tokens_per_step:
        origin = "given"
    elif not tokens and profile.throughput_tok_s is None and options.target.tokens_per_step:
        tokens, origin = options.target.tokens_per_step, "batch x sequence, as given"
    if tokens and profile.mean_step_ms and times.typical_ms:
        steady, whose = times.steady, ""
        if profile.counted_ranks > 1:
            whose = f", all {profile.counted_ranks} ranks together"
        elif _is_one_of_several(profile):
            whose = f", of rank {profile.rank} of {profile.world_size} alone"
        elif len(profile.ranks) > 1:
            # Ranks that share a model work on the same tokens: those of all cannot be added up.
            whose = f", of one of {len(profile.ranks)} ranks"
        return Throughput(
            tok_s=tokens / times.typical_ms * 1000.0,
            low=tokens / steady.high_ms * 1000.0 if steady and steady.high_ms else None,
            high=tokens / steady.low_ms * 1000.0 if steady and steady.low_ms else None,
            tokens_per_step=tokens,
            basis=f"tokens per step ({origin}) over the step time{whose}",
        )
    if profile.throughput_tok_s is not None:
        return Throughput(tok_s=profile.throughput_tok_s, basis="from the profile")
    return None


def _is_one_of_several(profile: Profile) -> bool:
    return profile.rank is not None and (profile.world_size or 1) > 1


def _what_is_missing(
    profile: Profile, rate: float | None, roof: Ceiling | None, target: Target
) -> tuple[Note, ...]:
    """Say what a grade would need: the rate of a run whose FLOPs are not known, its hardware, its costs."""
    reasons = []
    marks = profile.activity.marks if profile.activity is not None else {}
    if rate is None and roof is None and marks.get("conv") and not is_well_known(profile):
        text = "images have no tokens, and the FLOPs of the convolutions are not known"
        has_shapes = profile.recorded is not None and "shapes" in profile.recorded.settings
        return (Note("no_sample_cost", text, supply="" if has_shapes else "a trace with shapes"),)
    # Samples have a cost where their operations were recorded, which no log does.
    has_samples = profile.samples_per_step is not None and profile.source.format != LOG
    if rate is None and not has_samples and not is_well_known(profile):
        supply = "{throughput_tok_s} or {tokens_per_step}"
        reasons.append(Note("no_throughput", "the throughput is not known", supply=supply))
    if roof is not None:
        return tuple(reasons)
    if target.figures.bandwidth() or target.figures.compute(target.dtype):
        if is_well_known(profile):
            text = f"what the hardware reaches in {target.dtype} is not known"
            reasons.append(Note("no_peak", text, supply="{peak_tflops}"))
        else:
            supply = "{model} with {batch} and {seq}, or {bytes_per_token}"
            reasons.append(Note("no_token_cost", "what one token costs is not known", supply=supply))
    elif profile.recorded is not None and profile.recorded.processor is not None:
        text = "what this processor can do has not been measured"
        reasons.append(Note("not_measured", text, supply="the result of {measure_here}, or {peak_tflops}"))
    else:
        supply = "{device}, or {peak_bw_gb_s}"
        reasons.append(Note("no_device", "the hardware is not known", supply=supply))
    return tuple(reasons)


def _why_above(
    share: float, rate: float | None, roof: Ceiling | None, arithmetic: Arithmetic | None, target: Target
) -> tuple[Note, ...]:
    """Say that a run is above its ceiling, and why: where it was measured, perhaps too low."""
    peak = target.figures.peak(target.dtype)
    limit = roof or peak
    kind = limit.kind if limit is not None else "compute"
    if rate is not None and roof is not None:
        text = f"{show_rate(rate)} is {show_share(share, 0)} of the {kind} ceiling, {show_rate(roof.tok_s)}"
    else:
        done = show_si(arithmetic.achieved_flops_s if arithmetic else None, "FLOP/s")
        text = f"{done} is {show_share(share, 0)} of the peak, {peak.shown if peak else 'as given'}"
    text = f"{text}; nothing runs faster than its hardware"
    if limit is not None and limit.basis == "measured":
        why = "perhaps the machine was busy when it was measured"
        supply = "the result of {measure_here} on a quiet machine"
        return (Note("above_ceiling", text), Note("above_ceiling_why", why, supply=supply))
    causes = why_above_one(share, kind, seq=target.seq, devices=target.devices)
    if target.model_flops is None:
        causes = (
            "the bytes per token: they depend on model, batch and method; a model says them better",
            *causes,
        )
    return (
        Note("above_ceiling", f"{text} (contract v1 would call it 100 %, grade A)"),
        *(Note("above_ceiling_why", f"perhaps {cause}") for cause in causes),
    )


PRODUCTS = ("attention", "convolution", "gemm")
MULTIPROCESSING_LOADER = "_MultiProcessingDataLoaderIter"
STARTING_SHARE = 0.1
# Operations of other classes move memory; none of the FLOPs that a grade counts are in them.
_MAY_COMPUTE = ("attention", "convolution", "gemm", "other", None)
# Of phases more of the step than this bounds nothing; a timeline has seen all of it.
_MOST_SHARE = 0.995


class Bound(Struct, frozen=True, kw_only=True):
    """The most of its ceiling that a run can have reached, and why it cannot be more."""

    share: float
    because: str

    @property
    def grade(self) -> str:
        """Return the best grade that the run can have."""
        return str(Grade.from_efficiency(self.share))

    @property
    def note(self) -> Note:
        """Return the bound in words, for those who read why there is no grade."""
        return Note(AT_MOST, f"{self.grade} at best: {self.because}")


def busy_machine_note(profile: Profile, times: RunTimes, limits: Limits) -> Note | None:
    """Return how much other programs held up a recorded run; None if hardly or if that is not known.

    It is fatal where a processor's times are no longer those of the run.
    """
    machine = profile.machine
    if machine is None or (machine.waited_for_core_share or 0.0) < limits.core_wait_note_share:
        return None
    others = machine.busy_share or 0.0
    if others < limits.busy_cores_share and not machine.throttled:
        return None  # its own threads and workers waited for each other
    whose = f"other programs took {show_share(others, 0)} of its cores"
    if machine.throttled:
        whose = "the run used up the processor time that its control group gives it"
    text = (
        f"the machine was busy: {whose}, and a step waited for a core "
        f"{show_share(machine.waited_for_core_share or 0.0, 0)} of its time"
    )
    alone_ms = _without_waiting_ms(machine, times)
    if alone_ms is not None and times.typical_ms is not None:
        text += f"; without that it takes about {show_ms(alone_ms)}, not {show_ms(times.typical_ms)}"
    on_processor = profile.recorded is not None and profile.recorded.processor is not None
    is_long = (machine.waited_for_core_share or 0.0) >= limits.core_wait_share
    return Note("busy_machine", text, fatal=on_processor and is_long)


def _without_waiting_ms(machine: Machine, times: RunTimes) -> float | None:
    """Return how long a step takes where nobody else wants the cores: no longer than its fastest one."""
    if times.typical_ms is None:
        return None
    alone_ms = times.typical_ms * (1.0 - (machine.waited_for_core_share or 0.0))
    return min(alone_ms, times.steady.least_ms) if times.steady is not None else alone_ms


def why_ungraded(
    profile: Profile,
    times: RunTimes,
    options: ScoreOptions,
    efficiency: Efficiency,
    ledger: Ledger | None,
    held_up: Note | None = None,
) -> tuple[tuple[Note, ...], Bound | None]:
    """Return why there is no grade (nothing if there is one), and what bounds it all the same."""
    unfit, work = profile.unfit, options.work or profile.work
    if held_up is not None and held_up.fatal:
        unfit = (held_up, *unfit)
    if work == "inference":
        text = (
            "the steps are inference, a forward pass without backward or optimizer; a grade is for training"
        )
        unfit = (Note("inference", text, supply="{work}" if options.work is None else ""), *unfit)
    elif work == "unknown":
        unfit = (*(note for note in profile.notes if note.code == WORK_UNKNOWN), *unfit)
    # Where no step was timed, no figure that could be given would make a grade.
    untimed = profile.hang is not None or (profile.compilation is not None and profile.mean_step_ms is None)
    reasons = unfit if untimed else (*unfit, *efficiency.ungraded_because)
    if not reasons or untimed or work == "inference" or (unfit and work != "training"):
        return reasons, None
    if held_up is not None and held_up.fatal:  # what bounds a run rests on its times as well
        bound = _bound_without_waiting(profile.machine, times, efficiency)
    else:
        bound = bound_of(profile, ledger, efficiency.arithmetic, efficiency.roof)
    return (*reasons, *((bound.note,) if bound else ())), bound


def _bound_without_waiting(machine: Machine | None, times: RunTimes, efficiency: Efficiency) -> Bound | None:
    """Return what the run would reach if no step had waited for a core."""
    alone_ms = _without_waiting_ms(machine, times) if machine is not None else None
    if efficiency.share is None or not alone_ms or times.typical_ms is None:
        return None
    share = min(1.0, efficiency.share * times.typical_ms / alone_ms)
    return Bound(share=share, because=f"{show_share(share)} if no step had waited for a core")


def bound_of(
    profile: Profile, ledger: Ledger | None, arithmetic: Arithmetic | None, roof: Ceiling | None
) -> Bound | None:
    """Return the lower of two bounds: how much of the step is computing, and how much arithmetic there is.

    `ledger` is that of the device or that of the phases; `roof` is the ceiling that a grade would be taken
    against. None where nothing bounds the run.
    """
    bounds = []
    if ledger is not None and ledger.compute is not None:
        on_link = roof is not None and roof.kind == "link"
        communicates = (ledger.exposed_communication or 0.0) if on_link else 0.0
        if profile.ledger is not None:
            share = ledger.compute + communicates
            part = "processor" if profile.activity and profile.activity.driver == "host" else "device"
            does = "computes or communicates" if on_link else "computes"
            because = f"the {part} {does} {show_share(share, 0)} of the step"
        else:  # phases show only some of the time in which nothing is computed
            known = ledger.known().items()
            waits = [share for name, share in known if name not in ("compute", "unattributed")]
            share = max(0.0, 1.0 - sum(waits) + communicates)
            because = f"at most {show_share(share, 0)} of the step is computing"
        bounds.append(Bound(share=share, because=because))
    busy = bounds[0].share if bounds else 1.0
    computing = [op for op in profile.operations if op.kind != "communication"]
    on_arithmetic = (roof is None or roof.kind == "compute") and not _moves_memory(profile)
    if arithmetic is not None and arithmetic.share is not None and on_arithmetic:
        whole_ms = sum(op.ms or 0.0 for op in computing)
        arithmetic_ms = sum(op.ms or 0.0 for op in computing if op.kind in _MAY_COMPUTE)
        may_count = arithmetic_ms / whole_ms if whole_ms else 1.0
        uncounted = busy * may_count * (1.0 - (arithmetic.known_share or 0.0))
        counted = f"the counted arithmetic is {show_share(arithmetic.share)} of the peak"
        rest = f", what has no count takes {show_share(uncounted)} of the step" if uncounted >= 0.0005 else ""
        bounds.append(Bound(share=arithmetic.share + uncounted, because=f"{counted}{rest}"))
    lowest = min(bounds, key=lambda bound: bound.share, default=None)
    if lowest is None or (lowest.share >= _MOST_SHARE and profile.ledger is None):
        return None
    return lowest


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
        text = f"{device.key} is given, but the run was recorded on a processor ({recorded}), named {CPU_KEY}"
        yield Note("processor_not_device", text, fatal=True)
    elif profile.activity is not None and profile.activity.driver == "host":
        text = (
            f"{device.key} is given, but the profile contains CPU work only: either the run was on "
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
