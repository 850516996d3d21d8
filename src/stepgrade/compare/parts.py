"""Operations, layers and phases that changed, and how the parts of a step explain its new length.

Per-part tests, corrected for multiple comparisons: with a hundred operations one in a hundred looks changed
by chance, and the procedure of Benjamini and Hochberg keeps the share of false ones among those reported
below a limit. A part's noise comes from enough earlier runs, else from its own times in each step, with the
noise between runs that is given or assumed for the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from stepgrade.compare.effect import p_value_of
from stepgrade.compare.metrics import change_of
from stepgrade.compare.noise import LEAST_RUNS, Sample, noise_of
from stepgrade.config import Sensitivity
from stepgrade.model.comparison import Change, Metric, Noise, PartChange, Shift, StepChange
from stepgrade.model.scorecard import Baseline
from stepgrade.scoring.step_times import LEAST_PART_SHARE, step_times

FALSE_SHARE = 0.01
SHIFTS_SHOWN = 4
NO_PHASE = "in no phase"
_NOTHING_MS = 1e-9
_COMMUNICATION = "exposed_communication"

# The fields with the times of each kind of part, and with their times in each step; layers have none.
_Times = Callable[[Baseline], dict[str, float]]
_Samples = Callable[[Baseline], dict[str, tuple[float, ...]]]
_KINDS: dict[str, tuple[_Times, _Samples]] = {
    "operation": (lambda run: run.operations_ms, lambda run: run.operation_samples_ms),
    "layer": (lambda run: run.layers_ms, lambda _: {}),
    "phase": (lambda run: run.phases_ms, lambda run: run.phase_samples_ms),
}


def changed_parts(
    now: Sequence[Baseline],
    before: Sequence[Baseline],
    sensitivity: Sensitivity,
    pooled_noise: Noise | None = None,
) -> tuple[PartChange, ...]:
    """Return the parts that changed significantly, largest change first."""
    # Smaller parts do not matter, and each further test costs power.
    least = LEAST_PART_SHARE * max((run.step_ms or 0.0 for run in now), default=0.0)
    found: list[PartChange] = []
    for kind, (times, _) in _KINDS.items():
        tested = []
        for name in sorted({name for run in now for name, ms in times(run).items() if ms >= least}):
            samples = _samples(kind, name, now, before)
            if samples is not None:
                metric = Metric(
                    name=name, title=name, unit="ms", worse="up", from_steps=True, heavy_tails=False
                )
                noise = noise_of(*samples, metric, given=sensitivity.run_noise, pooled=pooled_noise)
                tested.append((metric, samples, noise, p_value_of(*samples, noise)))
        # Intervals are expensive: compute them only for significant changes.
        for (metric, samples, noise, _), is_real in zip(
            tested, beyond_chance([p_value for *_, p_value in tested]), strict=True
        ):
            if is_real:
                change = change_of(metric, *samples, noise, sensitivity)
                found.append(PartChange(kind=kind, name=metric.name, change=change))
    found = [part for part in found if part.change.outcome in ("regressed", "improved")]
    return tuple(sorted(found, key=lambda part: -abs(part.change.now - part.change.before)))


def _samples(
    kind: str, name: str, now: Sequence[Baseline], before: Sequence[Baseline]
) -> tuple[Sample, Sample] | None:
    """Return a part's values now and before; None if there are too few runs and samples."""
    times, steps = _KINDS[kind]
    samples = []
    for runs in (now, before):
        per_step = [step_times(steps(run).get(name, ())) for run in runs]
        known = [part for part in per_step if part and part.sigma_log is not None and part.median_ms > 0.0]
        if len(known) < len(runs):
            break
        samples.append(
            Sample(
                values=tuple(part.median_ms for part in known),
                sigmas=tuple(part.sigma_log for part in known),
                steps=sum(part.effective or 0.0 for part in known) or None,
            )
        )
    else:
        return samples[0], samples[1]
    here, there = (tuple(ms for run in runs if (ms := times(run).get(name))) for runs in (now, before))
    if not here or len(there) < LEAST_RUNS:
        return None
    return Sample(values=here), Sample(values=there)


def beyond_chance(p_values: Sequence[float]) -> list[bool]:
    """Return which of many tests are significant at a false discovery rate of `FALSE_SHARE`."""
    ordered = sorted(p_values)
    passing = [p for rank, p in enumerate(ordered, start=1) if p <= FALSE_SHARE * rank / len(ordered)]
    bound = max(passing, default=-1.0)
    return [p <= bound for p in p_values]


def step_change(now: Baseline, before: Baseline) -> StepChange | None:
    """Return the parts of both steps, largest change first; None if they cannot be split the same way."""
    if not now.step_ms or not before.step_ms:
        return None
    if _have_timelines(now, before):
        # Leave out accounts that are empty in both.
        accounts = _accounts_ms(before, now), _accounts_ms(now, before)
        old, new = ({name: ms for name, ms in known.items() if ms} for known in accounts)
    elif now.phases_ms and before.phases_ms:
        old, new = (run.phases_ms | {NO_PHASE: _in_no_phase_ms(run) or 0.0} for run in (before, now))
    else:
        return None
    names = dict.fromkeys((*old, *new))
    parts = [Change(name=name, before_ms=old.get(name), now_ms=new.get(name)) for name in names]
    return StepChange(
        basis="ledger" if _have_timelines(now, before) else "phases",
        before_ms=before.step_ms,
        now_ms=now.step_ms,
        parts=tuple(sorted(parts, key=lambda part: (-abs(part.difference_ms), part.name))),
    )


def shifts_of(now: Baseline, before: Baseline) -> tuple[Shift, ...]:
    """Return what changed between two runs: lost overlap, accounts, phases, operations, launches, calls.

    Of each the largest change comes first, and only as many as a reader takes in.
    """
    accounts: list[Shift] = []
    phases = [
        Shift(kind="phase", name=name, before=before.phases_ms[name], now=now.phases_ms[name])
        for name in sorted(now.phases_ms.keys() & before.phases_ms.keys())
    ]
    rest, rest_before = _in_no_phase_ms(now), _in_no_phase_ms(before)
    if _have_timelines(now, before):  # a ledger derived from phases adds nothing
        here, there = _accounts_ms(now, before), _accounts_ms(before, now)
        both = [name for name in here if name in there]
        accounts = [Shift(kind="ledger", name=name, before=there[name], now=here[name]) for name in both]
    elif rest is not None and rest_before is not None:
        phases.append(Shift(kind="phase", name=NO_PHASE, before=max(rest_before, 0.0), now=max(rest, 0.0)))
    operations: list[Shift] = []
    if now.operations_ms and before.operations_ms:
        for name in now.operations_ms.keys() | before.operations_ms.keys():
            ms, ms_before = now.operations_ms.get(name), before.operations_ms.get(name)
            kind: Literal["operation", "new operation", "gone operation"] = "operation"
            if ms is None or ms_before is None:
                kind = "gone operation" if ms is None else "new operation"
            operations.append(Shift(kind=kind, name=name, before=ms_before, now=ms))
    least = LEAST_PART_SHARE * (now.step_ms or 0.0)
    operations = _largest(operations, least, 2 * SHIFTS_SHOWN)
    launches = now.launches_per_step, before.launches_per_step
    calls = now.operation_calls, before.operation_calls
    # Communication that is now exposed although it does not take longer.
    lost = []
    runs = (now, before), (before, now)
    exposed, exposed_before = (_accounts_ms(*pair).get(_COMMUNICATION) for pair in runs)
    if exposed is not None and exposed_before is not None and before.step_ms:
        total, total_before = (
            sum(ms for name, ms in run.operations_ms.items() if re.search("nccl|c10d", name, re.IGNORECASE))
            for run in (now, before)
        )
        more = exposed - exposed_before
        if more >= 0.01 * before.step_ms and total - total_before <= more / 2.0:
            text = "communication that computation used to hide"
            lost.append(Shift(kind="overlap", name=text, before=exposed_before, now=exposed))
    return (
        *lost,
        *_largest(accounts, least, SHIFTS_SHOWN),
        *_largest(phases, least, SHIFTS_SHOWN),
        *operations,
        *_counts("launches", "launches per step", *launches, unit=""),
        *(
            shift
            for name in (operation.name for operation in operations)
            for shift in _counts("calls", name, calls[0].get(name), calls[1].get(name), unit="calls")
        ),
    )


def _largest(shifts: Iterable[Shift], least_ms: float, most: int) -> list[Shift]:
    worth_showing = [shift for shift in shifts if abs(shift.difference) >= max(least_ms, _NOTHING_MS)]
    return sorted(worth_showing, key=lambda shift: (-abs(shift.difference), shift.name))[:most]


def _counts(
    kind: Literal["calls", "launches"], name: str, now: float | None, before: float | None, unit: str
) -> Iterator[Shift]:
    """Yield a count that changed by more than 1 %."""
    if now and before and abs(now - before) > 0.01 * before:
        yield Shift(kind=kind, name=name, before=before, now=now, unit=unit)


def _have_timelines(now: Baseline, before: Baseline) -> bool:
    """Return whether both ledgers come from a device timeline, not from phases."""
    return all(run.ledger is not None and run.ledger.idle_sync is not None for run in (now, before))


def _accounts_ms(run: Baseline, other: Baseline) -> dict[str, float]:
    """Return the known accounts of a run's ledger in milliseconds, split as finely as the other's."""
    if run.ledger is None or not run.step_ms:
        return {}
    ledger = run.ledger
    if other.ledger is None or other.ledger.wait_ranks is None:
        ledger = ledger.without_waiting()
    return {name: share * run.step_ms for name, share in ledger.known().items()}


def _in_no_phase_ms(run: Baseline) -> float | None:
    """Return the step time outside all phases, negative if they overlap; None without phases."""
    return run.step_ms - sum(run.phases_ms.values()) if run.step_ms and run.phases_ms else None
