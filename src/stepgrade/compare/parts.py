"""Operations, layers and phases that changed: each held against its own noise, all together against luck.

With a hundred operations one in a hundred looks changed by chance. Benjamini and Hochberg's procedure keeps
the share of false ones among those reported below a limit. A part's noise comes from enough earlier runs,
else from its own times in each step, with the noise between runs that is given or assumed for the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from stepgrade.compare.effect import LEAST_RUNS, Side
from stepgrade.compare.step_change import NO_PHASE, accounts_ms, have_timelines, in_no_phase_ms
from stepgrade.compare.verdict import Metric, Sensitivity, change_of
from stepgrade.model import Baseline
from stepgrade.model.comparison import PartChange, Shift
from stepgrade.scoring.step_times import LEAST_PART_SHARE, StepTimes, step_times

FALSE_SHARE = 0.01
SHIFTS_SHOWN = 4
_NOTHING_MS = 1e-9
_COMMUNICATION = "exposed_communication"


class _Kind(Struct, frozen=True, kw_only=True):
    """Where a run has the times of one kind of part; layers have no samples."""

    times: Callable[[Baseline], dict[str, float]]
    samples: Callable[[Baseline], dict[str, tuple[float, ...]]] = lambda _: {}


_KINDS = {
    "operation": _Kind(times=lambda run: run.operations_ms, samples=lambda run: run.operation_samples_ms),
    "layer": _Kind(times=lambda run: run.layers_ms),
    "phase": _Kind(times=lambda run: run.phases_ms, samples=lambda run: run.phase_samples_ms),
}


def changed_parts(
    now: Sequence[Baseline], before: Sequence[Baseline], how: Sensitivity
) -> tuple[PartChange, ...]:
    """Return the parts that changed beyond their noise and beyond luck, the largest change first."""
    found: list[PartChange] = []
    for name, kind in _KINDS.items():
        tested = [
            PartChange(kind=name, name=part, change=change_of(_metric(part), *sides, how))
            for part in _names(now, kind)
            if (sides := _sides(part, now, before, kind)) is not None
        ]
        real = not_by_luck([part.change.p_value or 0.0 for part in tested])
        found += [
            part
            for part, stands in zip(tested, real, strict=True)
            if stands and part.change.outcome in ("regressed", "improved")
        ]
    return tuple(sorted(found, key=lambda part: -abs((part.change.now or 0.0) - (part.change.before or 0.0))))


def not_by_luck(p_values: Sequence[float], share: float = FALSE_SHARE) -> list[bool]:
    """Tell which of many tests stand when at most `share` of those that do may be false."""
    ordered = sorted(p_values)
    passing = [p for rank, p in enumerate(ordered, start=1) if p <= share * rank / len(ordered)]
    bound = max(passing, default=-1.0)
    return [p <= bound for p in p_values]


def shifts_of(now: Baseline, before: Baseline) -> tuple[Shift, ...]:
    """Return what changed between two runs: lost overlap, accounts, phases, operations, launches, calls.

    Of each the largest change comes first, and only as many as a reader takes in.
    """
    least = LEAST_PART_SHARE * (now.step_ms or 0.0)
    operations = _largest(_operations(now, before), least, 2 * SHIFTS_SHOWN)
    return (
        *_overlap(now, before),
        *_largest(_accounts(now, before), least, SHIFTS_SHOWN),
        *_largest(_phases(now, before), least, SHIFTS_SHOWN),
        *operations,
        *_launches(now, before),
        *(call for shift in operations for call in _calls(shift.name, now, before)),
    )


def _largest(shifts: Iterable[Shift], least_ms: float, most: int) -> list[Shift]:
    telling = [shift for shift in shifts if abs(_moved(shift)) >= max(least_ms, _NOTHING_MS)]
    return sorted(telling, key=lambda shift: (-abs(_moved(shift)), shift.name))[:most]


def _metric(name: str) -> Metric:
    return Metric(name=name, worse="up", read=lambda run: run.operations_ms.get(name), from_steps=True)


def _names(runs: Sequence[Baseline], kind: _Kind) -> list[str]:
    """Return the parts worth a test: smaller ones change nothing, and each costs power."""
    least = LEAST_PART_SHARE * max((run.step_ms or 0.0 for run in runs), default=0.0)
    return sorted({name for run in runs for name, ms in kind.times(run).items() if ms >= least})


def _sides(
    name: str, now: Sequence[Baseline], before: Sequence[Baseline], kind: _Kind
) -> tuple[Side, Side] | None:
    """Return both sides of a part; None when neither enough runs nor its samples tell its noise."""
    paces = [[step_times(kind.samples(run).get(name, ())) for run in runs] for runs in (now, before)]
    if all(times and times.sigma_log is not None and times.median_ms > 0.0 for row in paces for times in row):
        return _sampled(paces[0]), _sampled(paces[1])
    here, there = ([ms for run in runs if (ms := kind.times(run).get(name))] for runs in (now, before))
    if not here or len(there) < LEAST_RUNS:
        return None
    return Side(values=tuple(here)), Side(values=tuple(there))


def _sampled(paces: Sequence[StepTimes | None]) -> Side:
    known = [times for times in paces if times is not None]
    return Side(
        values=tuple(times.median_ms for times in known),
        sigmas=tuple(times.sigma_log for times in known),
        steps=sum(times.effective or 0.0 for times in known) or None,
    )


def _accounts(now: Baseline, before: Baseline) -> Iterable[Shift]:
    """Yield the ledger's accounts in milliseconds; one that was made from phases says what they say."""
    if have_timelines(now, before):
        here, there = accounts_ms(now), accounts_ms(before)
        yield from (
            Shift(kind="ledger", name=name, before=there[name], now=here[name])
            for name in here
            if name in there
        )


def _phases(now: Baseline, before: Baseline) -> Iterable[Shift]:
    """Yield the phases that both have; of a step without a device's timeline also what no phase holds."""
    for name in sorted(now.phases_ms.keys() & before.phases_ms.keys()):
        yield Shift(kind="phase", name=name, before=before.phases_ms[name], now=now.phases_ms[name])
    rests = [in_no_phase_ms(run) for run in (before, now)]
    if not have_timelines(now, before) and rests[0] is not None and rests[1] is not None:
        yield Shift(kind="phase", name=NO_PHASE, before=max(rests[0], 0.0), now=max(rests[1], 0.0))


def _operations(now: Baseline, before: Baseline) -> Iterable[Shift]:
    if not (now.operations_ms and before.operations_ms):
        return
    for name in now.operations_ms.keys() | before.operations_ms.keys():
        here, there = now.operations_ms.get(name), before.operations_ms.get(name)
        if here is None:
            yield Shift(kind="gone operation", name=name, before=there, now=None)
        elif there is None:
            yield Shift(kind="new operation", name=name, before=None, now=here)
        else:
            yield Shift(kind="operation", name=name, before=there, now=here)


def _calls(name: str, now: Baseline, before: Baseline) -> Iterable[Shift]:
    """Yield an operation that is called more or less often than before."""
    here, there = now.operation_calls.get(name), before.operation_calls.get(name)
    if here and there and abs(here - there) > 0.01 * there:
        yield Shift(kind="calls", name=name, before=there, now=here, unit="calls")


def _launches(now: Baseline, before: Baseline) -> Iterable[Shift]:
    here, there = now.launches_per_step, before.launches_per_step
    if here and there and abs(here - there) > 0.01 * there:
        yield Shift(kind="launches", name="launches per step", before=there, now=here, unit="")


def _overlap(now: Baseline, before: Baseline) -> tuple[Shift, ...]:
    """Return lost overlap: more communication shows although no communication takes longer."""
    shown, hidden_before = accounts_ms(now).get(_COMMUNICATION), accounts_ms(before).get(_COMMUNICATION)
    if shown is None or hidden_before is None or not before.step_ms:
        return ()
    longer = _communicating(now) - _communicating(before)
    if shown - hidden_before < 0.01 * before.step_ms or longer > (shown - hidden_before) / 2.0:
        return ()
    name = "communication that computation used to hide"
    return (Shift(kind="overlap", name=name, before=hidden_before, now=shown),)


def _communicating(run: Baseline) -> float:
    return sum(
        ms for name, ms in run.operations_ms.items() if "nccl" in name.lower() or "c10d" in name.lower()
    )


def _moved(shift: Shift) -> float:
    return (shift.now or 0.0) - (shift.before or 0.0)
