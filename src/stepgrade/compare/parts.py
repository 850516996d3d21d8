"""Operations and layers that changed: each held against its own noise, and all together against luck.

With a hundred operations one in a hundred looks changed by chance. Benjamini and Hochberg's procedure keeps
the share of false ones among those reported below a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from stepgrade.analysis.change import MetricChange, Shift
from stepgrade.compare.effect import LEAST_RUNS, Side
from stepgrade.compare.verdict import Metric, Sensitivity, change_of
from stepgrade.model import Baseline

FALSE_SHARE = 0.01
# Operations shorter than this share of the step are not tested: they change nothing, and each costs power.
LEAST_SHARE = 0.002
SHIFTS_SHOWN = 8
_LEAST_SHIFT_SHARE = 0.002
_COMMUNICATION = "exposed_communication"


class PartChange(Struct, frozen=True, kw_only=True):
    """One operation or layer that changed beyond its own noise."""

    kind: str
    name: str
    change: MetricChange


def changed_parts(
    now: Sequence[Baseline], before: Sequence[Baseline], how: Sensitivity
) -> tuple[PartChange, ...]:
    """Return the operations and layers that changed; needs enough earlier runs to know each one's noise."""
    found: list[PartChange] = []
    for kind, read in _KINDS.items():
        tested = [
            (name, change_of(_metric(name), *sides, how))
            for name in _names(now, read)
            if (sides := _sides(name, now, before, read)) is not None
        ]
        found += [
            PartChange(kind=kind, name=name, change=change)
            for (name, change), real in zip(
                tested, not_by_luck([c.p_value or 0.0 for _, c in tested]), strict=True
            )
            if real and change.outcome in ("regressed", "improved")
        ]
    return tuple(sorted(found, key=lambda part: -abs((part.change.now or 0.0) - (part.change.before or 0.0))))


def not_by_luck(p_values: Sequence[float], share: float = FALSE_SHARE) -> list[bool]:
    """Tell which of many tests stand when at most `share` of those that do may be false."""
    ordered = sorted(p_values)
    passing = [p for rank, p in enumerate(ordered, start=1) if p <= share * rank / len(ordered)]
    bound = max(passing, default=-1.0)
    return [p <= bound for p in p_values]


def shifts_of(now: Baseline, before: Baseline) -> tuple[Shift, ...]:
    """Return what changed between two runs, the largest first: accounts, operations, launches, overlap."""
    found = [
        *_accounts(now, before),
        *_operations(now, before),
        *_launches(now, before),
    ]
    least = _LEAST_SHIFT_SHARE * (now.step_ms or 0.0)
    telling = [shift for shift in found if shift.unit != "ms" or abs(_moved(shift)) >= least]
    ranked = sorted(telling, key=lambda shift: (shift.unit != "ms", -abs(_moved(shift)), shift.name))
    return (*_overlap(now, before), *ranked[:SHIFTS_SHOWN])


def _operations_ms(run: Baseline) -> dict[str, float]:
    return run.operations_ms


def _layers_ms(run: Baseline) -> dict[str, float]:
    return run.layers_ms


_KINDS: dict[str, Callable[[Baseline], dict[str, float]]] = {
    "operation": _operations_ms,
    "layer": _layers_ms,
}


def _metric(name: str) -> Metric:
    return Metric(name=name, worse="up", read=lambda run: run.operations_ms.get(name))


def _names(runs: Sequence[Baseline], read: Callable[[Baseline], dict[str, float]]) -> list[str]:
    least = LEAST_SHARE * max((run.step_ms or 0.0 for run in runs), default=0.0)
    return sorted({name for run in runs for name, ms in read(run).items() if ms >= least})


def _sides(
    name: str,
    now: Sequence[Baseline],
    before: Sequence[Baseline],
    read: Callable[[Baseline], dict[str, float]],
) -> tuple[Side, Side] | None:
    here, there = ([ms for run in runs if (ms := read(run).get(name))] for runs in (now, before))
    if not here or len(there) < LEAST_RUNS:
        return None
    return Side(values=tuple(here)), Side(values=tuple(there))


def _accounts(now: Baseline, before: Baseline) -> Iterable[Shift]:
    """Yield the ledger's accounts in milliseconds, or the phases where there is no ledger."""
    if not (now.step_ms and before.step_ms):
        return
    if now.ledger and before.ledger:
        for name in now.ledger:
            here, there = now.ledger[name], before.ledger.get(name)
            if here is not None and there is not None:
                yield Shift(kind="ledger", name=name, before=there * before.step_ms, now=here * now.step_ms)
    for name in sorted(now.phases_ms.keys() & before.phases_ms.keys()):
        yield Shift(kind="phase", name=name, before=before.phases_ms[name], now=now.phases_ms[name])


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


def _launches(now: Baseline, before: Baseline) -> Iterable[Shift]:
    here, there = now.launches_per_step, before.launches_per_step
    if here and there and abs(here - there) > 0.01 * there:
        yield Shift(kind="launches", name="launches per step", before=there, now=here, unit="")


def _overlap(now: Baseline, before: Baseline) -> tuple[Shift, ...]:
    """Return lost overlap: more communication shows although no communication takes longer."""
    here, there = now.ledger.get(_COMMUNICATION), before.ledger.get(_COMMUNICATION)
    if here is None or there is None or not now.step_ms or not before.step_ms:
        return ()
    shown, hidden_before = here * now.step_ms, there * before.step_ms
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
