"""The activity of a run of several ranks: that of the mean rank, and who the others wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from stepgrade.model.activity import Activity, HostGaps, KernelTally, OptimizerTally, Straggler
from stepgrade.statistics import mean, median
from stepgrade.trace.facts import TraceFacts
from stepgrade.trace.run import RunFacts
from stepgrade.units import NS_PER_MS

T = TypeVar("T", bound=Struct)
Item = TypeVar("Item", bound=Struct)


def join_activities(run: RunFacts) -> Activity | None:
    """Return the activity of the mean rank; None for a run without ranks."""
    facts = run.traces
    if not facts:
        return None
    all_of = [fact.activity for fact in facts]
    first = all_of[0]
    tokens = next((fact.tokens for fact in facts if fact.tokens), None)
    return Activity(
        driver=first.driver,
        kernels=_mean(KernelTally, [one.kernels for one in all_of]),
        gaps=_mean(HostGaps, [one.gaps for one in all_of]),
        copies=_pooled([one.copies for one in all_of], ("direction", "memory", "during")),
        waits=_pooled([one.waits for one in all_of], ("call", "caller", "direction")),
        collectives=_pooled([one.collectives for one in all_of], ("name", "group_size")),
        communication_ms=mean([one.communication_ms for one in all_of]),
        optimizer=_mean(OptimizerTally, [one.optimizer for one in all_of]),
        gemms=_pooled([one.gemms for one in all_of], ("batch", "m", "k", "n", "dtype")),
        parts=_pooled([one.parts for one in all_of], ("work_class", "role", "direction", "dtype")),
        matmul_dtype_ms=_added([one.matmul_dtype_ms for one in all_of]),
        marks=_added([one.marks for one in all_of]),
        kernel_group_ms=_added([one.kernel_group_ms for one in all_of]),
        class_kernels=_added([one.class_kernels for one in all_of]),
        input_ms=first.input_ms,
        loader=next((one.loader for one in all_of if one.loader), None),
        scalar_read_ms=mean([one.scalar_read_ms for one in all_of]),
        backward_passes=first.backward_passes,
        skipped_steps=max(one.skipped_steps for one in all_of),
        skipped_part=next((one.skipped_part for one in all_of if one.skipped_part), None),
        recompute_ms=mean([_recompute_ms(fact) for fact in facts]),
        skew_ms=_skew_ms(run),
        straggler=_straggler(run),
        capability=facts[0].device.capability,
        sequence=tokens.sequence if tokens else None,
    )


def _mean(kind: type[T], tallies: Sequence[T | None]) -> T | None:
    """Return a tally with the mean of each figure; a truth holds if it holds for all."""
    known = [one for one in tallies if one is not None]
    if not known:
        return None
    figures: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        values = [getattr(one, name) for one in known]
        figures[name] = _mean_of(values)
    return kind(**figures)


def _mean_of(values: Sequence[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], str):
        return values[0]
    return all(values) if isinstance(values[0], bool) else mean(values)


def _pooled(of_ranks: Sequence[tuple[Item, ...]], key: tuple[str, ...]) -> tuple[Item, ...]:
    """Return the ranks' rows with equal keys added up and divided by the number of ranks, longest first."""
    if len(of_ranks) == 1:
        return of_ranks[0]
    rows: dict[tuple[Any, ...], Item] = {}
    for tallies in of_ranks:
        for one in tallies:
            place = tuple(getattr(one, name) for name in key)
            rows[place] = _sum(rows[place], one, key) if place in rows else one
    shared = [_scaled(one, key, 1.0 / len(of_ranks)) for one in rows.values()]
    return tuple(sorted(shared, key=lambda one: -_ms(one)))


def _ms(one: Struct) -> float:
    ms: float = getattr(one, "ms")  # noqa: B009  every tally has it, Struct does not
    return ms


def _sum(one: Item, two: Item, key: tuple[str, ...]) -> Item:
    return _changed(one, key, lambda name: _plus(getattr(one, name), getattr(two, name)))


def _scaled(one: Item, key: tuple[str, ...], factor: float) -> Item:
    return _changed(one, key, lambda name: _times(getattr(one, name), factor))


def _changed(one: Item, key: tuple[str, ...], figure: Callable[[str], float | None]) -> Item:
    names = [name for name in one.__struct_fields__ if name not in key]
    return msgspec.structs.replace(one, **{name: figure(name) for name in names})


def _plus(one: float | None, two: float | None) -> float | None:
    return None if one is None or two is None else one + two


def _times(one: float | None, factor: float) -> float | None:
    return None if one is None else one * factor


def _added(of_ranks: Sequence[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in of_ranks:
        for name, figure in one.items():
            total[name] = total.get(name, 0.0) + figure / len(of_ranks)
    return total


def _recompute_ms(fact: TraceFacts) -> float:
    return fact.layers.recompute_ns / max(1, len(fact.steady_ns)) / NS_PER_MS


def _skew_ms(run: RunFacts) -> float | None:
    met = run.meetings
    return None if met is None else met.skew_ns / max(met.steps, 1) / NS_PER_MS


def _straggler(run: RunFacts) -> Straggler | None:
    met = run.meetings
    if met is None or met.straggler is None:
        return None
    worst = next(one for one in met.ranks if one.rank == met.straggler)
    trouble, excess = _trouble(run, worst.rank)
    return Straggler(
        rank=worst.rank,
        caused_ms=worst.caused_ns / max(met.steps, 1) / NS_PER_MS,
        last_share=worst.last / max(met.matched, 1),
        trouble=trouble,
        trouble_excess=excess,
        ranks=len(run.ranks),
    )


def _trouble(run: RunFacts, straggler: int) -> tuple[str | None, float]:
    """Return the account that the straggler's device has most more of than the others', and by how much."""
    own = next((one.ledger for one in run.ranks if one.rank == straggler), None)
    others = [one.ledger.shares() for one in run.ranks if one.rank != straggler and one.ledger]
    if own is None or not others:
        return None, 0.0
    excess = {
        name: share - median(other[name] for other in others)
        for name, share in own.shares().items()
        if name != "exposed_communication"
    }
    name = max(excess, key=lambda one: excess[one])
    return (name, excess[name]) if excess[name] > 0.0 else (None, 0.0)
