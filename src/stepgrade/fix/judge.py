"""Whether a change did the same work, and what it gained: from trials that ran in turns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from stepgrade.compare.turns import paired_shift
from stepgrade.errors import NotMeasured
from stepgrade.fix.changes import Equality
from stepgrade.fix.trial import WARMUP, Trial, Witnessed
from stepgrade.model.fix import Gain, Loss
from stepgrade.units import show_bytes, show_share, show_si

_LEVEL = 0.05  # of all looks at the growing number of rounds together
# Relative differences of a loss that are allowed: at the first step, and later, when rounding has grown.
_FIRST: dict[Equality, float] = {"exact": 0.0, "rounding": 1e-3, "tolerance": 2e-2}
_LATER: dict[Equality, float] = {"exact": 0.0, "rounding": 1e-2, "tolerance": 5e-2}
_LEAST_FLOPS = 0.999  # of the base's; a fused operation may count a few less
_MOST_MEMORY = 1.10  # of the base's peak
_FREE_BYTES = {"cpu": 512 * 2.0**20}  # code that is loaded, such as a compiler's, counts there too

_SINGLE = ("float64",), ("float32",)  # a change of the weights that can be asked for


class Sameness(Struct, frozen=True, kw_only=True):
    """Whether the work was the same; `problem` says what differs, None if nothing does.

    Where something cannot be compared, `is_known` is False.
    """

    problem: str | None
    loss: Loss
    is_known: bool = True
    is_redrawn: bool = False  # the same samples were prepared with other random numbers


class Base(Struct, frozen=True, kw_only=True):
    """What the unchanged script does: twice with the same seed, once with another."""

    one: Trial
    other: Trial
    seeded: Trial | None

    def check(self) -> None:
        """Raise NotMeasured if there is nothing to compare with."""
        for trial in (self.one, self.other):
            check_base(trial)

    @property
    def repeats(self) -> bool:
        """Tell whether the unchanged script does the same bits twice."""
        return all(
            losses_of(first) == losses_of(second) and first.weights == second.weights
            for first, second in zip(self.one.ranks, self.other.ranks, strict=True)
        )

    def band(self, equality: Equality, *, is_redrawn: bool = False) -> float:
        """Return the relative difference of losses that is allowed: never more than another seed makes."""
        own = _largest(self.one, self.other) or 0.0
        seeded = None if self.seeded is None else _largest(self.one, self.seeded)
        if is_redrawn:
            return max(own, seeded or 0.0)
        return max(own, min(_LATER[equality], seeded or math.inf))


def check_base(trial: Trial) -> None:
    """Raise NotMeasured if a trial of the unchanged script failed, or is too short to be compared."""
    if trial.code is None:
        raise NotMeasured(f"the unchanged script {trial.said}", hint="a quieter machine would help")
    if trial.code:
        problem = f"the unchanged script ends with code {trial.code}: {trial.said}"
        raise NotMeasured(problem, hint="fix that first")
    if not trial.ranks or any(len(rank.steps) < WARMUP + 3 for rank in trial.ranks):
        problem = "the unchanged script takes too few steps to be compared"
        raise NotMeasured(problem, hint="let it train longer")


def losses_of(seen: Witnessed) -> list[float | None]:
    """Return every loss, in order."""
    return [loss for step in seen.steps for loss in step.losses]


def gain_of(base_ms: Sequence[float], changed_ms: Sequence[float]) -> Gain:
    """Return what was saved in the rounds so far; the interval holds for all looks together."""
    paired = paired_shift(list(zip(base_ms, changed_ms, strict=True)))
    low, high = (-math.expm1(paired.shift + way * paired.reach(_LEVEL)) for way in (1.0, -1.0))
    return Gain(gain=-math.expm1(paired.shift), low=low, high=high, rounds=paired.pairs)


def same_work(
    base: Base, changed: Trial, equality: Equality, *, counts_alike: bool = True, redraws: bool = False
) -> Sameness:
    """Compare what a changed trial did with the unchanged one, rank by rank and step by step.

    With `redraws` random augmentation of the same samples may draw other numbers.
    """
    unknown = Loss(compared=0, max_relative=None, allowed=0.0)
    if changed.code is None:
        return Sameness(problem=changed.said, loss=unknown)
    if changed.code != base.one.code:
        said = f": {changed.said}" if changed.said else ""
        return Sameness(problem=f"it ended with code {changed.code}, not {base.one.code}{said}", loss=unknown)
    if len(changed.ranks) != len(base.one.ranks):
        return Sameness(
            problem=f"{len(changed.ranks)} processes trained, not {len(base.one.ranks)}", loss=unknown
        )
    pairs = list(zip(base.one.ranks, changed.ranks, strict=True))
    # Batches of the same samples hold other data, and no fewer different ones.
    is_redrawn = redraws and any(
        (after.digests, after.sampled) != (before.digests, before.sampled)
        and before.asked
        and len({*after.digests}) >= len({*before.digests})
        for before, after in pairs
    )
    band, furthest = base.band(equality, is_redrawn=is_redrawn), _largest(base.one, changed)
    compared = sum(len(losses_of(rank)) for rank in base.one.ranks)
    loss = Loss(compared=compared, max_relative=furthest, allowed=band)
    problems = [_difference(before, after, is_redrawn=is_redrawn) for before, after in pairs]
    if counts_alike:
        problems += [
            f"a step computes {show_si(after.flops, 'FLOP')}, not {show_si(before.flops, 'FLOP')}"
            for before, after in pairs
            if before.flops is not None
            and after.flops is not None
            and after.flops < _LEAST_FLOPS * before.flops
        ]
    problems.append(None if is_redrawn else _drift(base, changed, equality))
    if furthest is not None and furthest > band:
        problems.append(f"a loss is {show_share(furthest)} off; {show_share(band)} is allowed")
    if changed.files != base.one.files:
        problems.append(f"other files were written: {min(changed.files ^ base.one.files)}")
    return Sameness(
        problem=next((problem for problem in problems if problem), None),
        loss=loss,
        is_known=compared > 0 and furthest is not None,
        is_redrawn=is_redrawn,
    )


def _difference(before: Witnessed, after: Witnessed, *, is_redrawn: bool) -> str | None:
    """Return what a process did differently, beside its figures."""
    if len(after.steps) != len(before.steps):
        return f"{len(after.steps)} steps, not {len(before.steps)}"
    for number, (one, other) in enumerate(zip(before.steps, after.steps, strict=True), 1):
        for name, what in (
            ("backwards", "backward passes"),
            ("updates", "optimizer updates"),
            ("gradients", "weights with a gradient"),
            ("evaluations", "switches to evaluation"),
        ):
            if getattr(one, name) != getattr(other, name):
                return f"step {number} has {getattr(other, name)} {what}, not {getattr(one, name)}"
    unlike = {
        "other numbers of batches were read": after.batches != before.batches,
        "the batches have other shapes": after.shapes != before.shapes,
        "other samples were asked for": after.asked != before.asked,
        "the batches hold other data": not is_redrawn
        and (after.digests, after.sampled) != (before.digests, before.sampled),
    }
    if after.dtypes != before.dtypes and (before.dtypes, after.dtypes) != _SINGLE:
        return f"the weights are {' and '.join(after.dtypes)}, not {' and '.join(before.dtypes)}"
    if any(unlike.values()):
        return next(problem for problem, is_so in unlike.items() if is_so)
    most_bytes = _MOST_MEMORY * (before.peak_bytes or math.inf) + _FREE_BYTES.get(before.device, 0.0)
    if (after.peak_bytes or 0.0) > most_bytes:
        sizes = [show_bytes(one.peak_bytes or 0.0) for one in (after, before)]
        return f"it takes {sizes[0]} of memory, not {sizes[1]}"
    return None


def _drift(base: Base, changed: Trial, equality: Equality) -> str | None:
    """Return how the first loss, the weights, or the bits of an exact change differ too much."""
    for before, after in zip(base.one.ranks, changed.ranks, strict=True):
        if equality == "exact" and base.repeats:
            if losses_of(before) != losses_of(after):
                return "the losses are not the same bits"
            if before.weights != after.weights:
                return "the weights at the end are not the same bits"
        first = next((_relative(*pair) for pair in _pairs(before, after)), 0.0)
        if first > max(_FIRST[equality], base.band("exact")):
            return f"the first loss is {show_share(first)} off"
        moved = _moved(before, after)
        if moved is not None and moved > 0.5:
            return f"the weights end {show_share(moved)} of their way elsewhere"
    return None


def _pairs(before: Witnessed, after: Witnessed) -> list[tuple[float, float]]:
    return [
        (a, b)
        for a, b in zip(losses_of(before), losses_of(after), strict=False)
        if a is not None and b is not None
    ]


def _relative(before: float, after: float) -> float:
    return abs(after - before) / max(abs(before), abs(after), 1e-12)


def _largest(one: Trial, other: Trial) -> float | None:
    """Return the largest relative difference of a loss; None if there is none, or one that is not finite."""
    found = list[float]()
    for before, after in zip(one.ranks, other.ranks, strict=False):
        losses = losses_of(before)
        if None in losses or None in losses_of(after) or not losses:
            return None
        found += [_relative(*pair) for pair in _pairs(before, after)]
    return max(found, default=None)


def _moved(before: Witnessed, after: Witnessed) -> float | None:
    """Return how far two trainings ended from each other, as a share of how far the first one went."""
    if before.first_weights is None or len(before.last_weights) != len(after.last_weights):
        return None
    flat = [
        (first, one, other)
        for starts, ones, others in zip(
            before.first_weights, before.last_weights, after.last_weights, strict=True
        )
        for first, one, other in zip(starts, ones, others, strict=False)
    ]
    if any(None in row for row in flat):
        return None
    rows = [(a or 0.0, b or 0.0, c or 0.0) for a, b, c in flat]
    went = math.sqrt(sum((b - a) ** 2 for a, b, _ in rows))
    apart = math.sqrt(sum((c - b) ** 2 for _, b, c in rows))
    return apart / went if went else None


def step_ms(trial: Trial) -> float:
    """Return the time of a step: that of the slowest rank."""
    return max(rank.step_ms for rank in trial.ranks)
