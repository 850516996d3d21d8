"""Judge runs of two commits made in turns on one machine; the answer may be checked after every pair.

A pair's difference has neither the machine's level nor its slow changes in it, so it needs no history. To
look after each pair and stop at the first answer would multiply the false alarms of a test for one look.
The interval here holds at all looks together: it has those changes against which a Bayes factor never gets as
large as one over the level. Under no change the factor is a martingale, and reaches 100 in at most 1 % of all
series, however long (Ville's inequality; Lai, 1976, for a normal mean with an unknown deviation).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from msgspec import Struct

from stepgrade.compare.effect import NEAR_LEVEL, Effect
from stepgrade.compare.fingerprint import differences
from stepgrade.compare.metrics import COMPARED, DEFAULT_SENSITIVITY, LEVEL, outcome_of
from stepgrade.compare.parts import shifts_of, step_change
from stepgrade.config import Sensitivity
from stepgrade.model.comparison import METRICS, Comparison, MetricChange, Noise
from stepgrade.model.scorecard import Baseline
from stepgrade.statistics import mean
from stepgrade.units import show_delta, show_share

FEWEST_PAIRS = 3
# The variance of changes worth finding, in units of the pairs' noise: those of 3 to 10 deviations.
_PRIOR = 25.0
# Pairs never agree better than this.
_LEAST_NOISE = 0.001


class PairedShift(Struct, frozen=True):
    """How far two sides differ in runs that were made in turns: the mean of the pairs' logarithms."""

    shift: float
    deviation: float
    pairs: int

    @property
    def error(self) -> float:
        """Return the standard error of the shift."""
        return max(self.deviation, _LEAST_NOISE) / math.sqrt(self.pairs)

    def reach(self, level: float) -> float:
        """Return how far the interval reaches to each side; it holds at all looks together."""
        return min(reach_of(level, self.pairs) * self.error, math.log(100.0))


def paired_shift(pairs: Sequence[tuple[float, float]]) -> PairedShift:
    """Return how far the second of each pair is from the first; of two pairs or more."""
    apart = [math.log(now / before) for before, now in pairs]
    shift = mean(apart)
    deviation = math.sqrt(math.fsum((log - shift) ** 2 for log in apart) / (len(apart) - 1))
    return PairedShift(shift, deviation, len(apart))


def changes_in_turns(
    pairs: Sequence[tuple[Baseline, Baseline]], sensitivity: Sensitivity = DEFAULT_SENSITIVITY
) -> tuple[MetricChange, ...]:
    """Return the change of every metric that all runs have; in a pair the earlier commit's run is first."""
    changes = []
    for name, read in COMPARED.items():
        values = [(read(before), read(now)) for before, now in pairs]
        known = [(before, now) for before, now in values if before and now]
        if len(known) == len(pairs) >= 2:
            changes.append(_change(name, known, sensitivity))
    return tuple(changes)


def compare_in_turns(
    pairs: Sequence[tuple[Baseline, Baseline]], sensitivity: Sensitivity, allowed: Collection[str] = ()
) -> Comparison:
    """Return what changed from the earlier commit to the new one, as far as the pairs show."""
    before, now = pairs[-1]
    differing = differences(now.fingerprint, before.fingerprint)
    if any(note.code not in allowed for note in differing):
        return Comparison(differences=differing, is_comparable=False)
    changes = changes_in_turns(pairs, sensitivity)
    is_changed = any(change.outcome != "no change" for change in changes)
    return Comparison(
        differences=differing,
        changes=changes,
        shifts=shifts_of(now, before) if is_changed else (),
        step_change=step_change(now, before),
    )


def is_decided(comparison: Comparison) -> bool:
    """Return whether to stop: the change of the processor time, else of the step time, is decided."""
    changes = {change.metric: change for change in comparison.changes}
    deciding = changes.get("processor_ms") or changes.get("step_time_ms")
    known = deciding is not None and deciding.before_runs >= FEWEST_PAIRS and not deciding.more
    return known or not comparison.is_comparable


def _change(name: str, values: Sequence[tuple[float, float]], sensitivity: Sensitivity) -> MetricChange:
    paired = paired_shift(values)
    shift, error, count = paired.shift, paired.error, paired.pairs
    reach, near = paired.reach(LEVEL), paired.reach(NEAR_LEVEL)
    metric = METRICS[name]
    sides = [[value[side] for value in values] for side in (0, 1)]
    differ = max(max(side) / min(side) - 1.0 for side in sides)
    effect = Effect(
        change=math.expm1(shift),
        low=math.expm1(shift - reach),
        high=math.expm1(shift + reach),
        near_low=math.expm1(shift - near),
        near_high=math.expm1(shift + near),
        p_value=min(1.0, 1.0 / bayes_factor(shift / error, count)),
        is_other_kind=False,
        sigma=error,
        run_sigma=error,
    )
    outcome = outcome_of(effect, metric, sensitivity, differ)
    bounds = f"{show_delta(effect.low)} to {show_delta(effect.high)}"
    noise = show_share(math.expm1(paired.deviation))
    words = {
        "regressed": f"in every look beyond the noise of the pairs: surely {bounds}",
        "improved": f"in every look beyond the noise of the pairs: surely {bounds}",
        "probably slower": f"probably beyond the noise of the pairs, but not surely ({bounds})",
        "no change": f"within the noise of the pairs: {bounds}",
        "cannot tell": f"within the noise of the pairs, which differ by {noise}",
    }
    is_open = outcome in ("cannot tell", "probably slower")
    return MetricChange(
        metric=name,
        outcome=outcome,
        before=math.exp(mean([math.log(value) for value in sides[0]])),
        now=math.exp(mean([math.log(value) for value in sides[1]])),
        change=effect.change,
        low=effect.low,
        high=effect.high,
        near_low=effect.near_low,
        near_high=effect.near_high,
        p_value=effect.p_value,
        noise=Noise(share=math.expm1(paired.deviation), basis="turns", freedom=count - 1),
        before_runs=count,
        now_runs=count,
        apart=differ,
        why=words[outcome],
        more="more pairs in turns would tell" if is_open else "",
    )


def bayes_factor(t: float, count: int) -> float:
    """Return how much likelier a change is than none, given Student's t of so many pairs."""
    wider, freedom = 1.0 + count * _PRIOR, count - 1
    ratio = (1.0 + t * t / (wider * freedom)) / (1.0 + t * t / freedom)
    return math.exp(-0.5 * (math.log(wider) + count * math.log(ratio)))


def reach_of(level: float, count: int) -> float:
    """Return the t at which the factor of so many pairs is one over the level; infinite for too few."""
    wider, freedom = 1.0 + count * _PRIOR, count - 1
    ratio = (math.sqrt(wider) / level) ** (-2.0 / count)
    return math.sqrt(freedom * (1.0 - ratio) / (ratio - 1.0 / wider)) if ratio > 1.0 / wider else math.inf
