"""Sum the edges of a step, and steps over the whole run in bounded memory."""

from __future__ import annotations

from collections import defaultdict
from statistics import correlation

from stepgrade.record.timeline import (
    AFTER_FORWARD,
    BACKWARD,
    BACKWARD_DONE,
    BWD_IN,
    BWD_OUT,
    FORWARD,
    FWD_IN,
    FWD_OUT,
    GRADIENTS,
    HOST,
    LAYER_BASE,
    LAYER_WIDTH,
    LOSS,
    NONE,
    OPTIMIZER,
    RECOMPUTE_IN,
    RECOMPUTE_OUT,
    UPDATED,
)

SAMPLES_KEPT = 4096
# Steps are uneven if large ones are larger by this factor and take longer accordingly.
_LEAST_SIZES, _UNEVEN_RATIO, _UNEVEN_CORRELATION = 10, 1.5, 0.7
_CLOSED_BY = {FWD_IN: FWD_OUT, RECOMPUTE_IN: RECOMPUTE_OUT, BWD_IN: BWD_OUT}
# Names of time outside phases, by the main phases before and after it; a step starts after NONE.
_MAIN = frozenset({FORWARD, BACKWARD, OPTIMIZER, UPDATED})
_GAPS = {
    (NONE, FORWARD): HOST,
    (OPTIMIZER, FORWARD): HOST,
    (BACKWARD, FORWARD): HOST,
    (FORWARD, FORWARD): FORWARD,
    (FORWARD, BACKWARD): LOSS,
    (BACKWARD, OPTIMIZER): GRADIENTS,
    (BACKWARD, UPDATED): OPTIMIZER,
}


class Samples:
    """Per-step times; beyond twice `SAMPLES_KEPT` every second one is dropped, evenly over the run."""

    def __init__(self) -> None:
        self.kept_ns: list[int] = []
        self.every = 1
        self._seen = 0

    def add(self, wall_ns: int) -> None:
        """Keep one sample in `every`."""
        if self._seen % self.every == 0:
            self.kept_ns.append(wall_ns)
            if len(self.kept_ns) >= 2 * SAMPLES_KEPT:
                self.kept_ns = self.kept_ns[::2]
                self.every *= 2
        self._seen += 1


class StepSizes:
    """Sizes of steps with their times, to detect uneven steps."""

    def __init__(self) -> None:
        self._sizes, self._times = Samples(), Samples()  # thinned in the same way

    def add(self, size: int, wall_ns: int) -> None:
        """Add a step."""
        self._sizes.add(size)
        self._times.add(wall_ns)

    def uneven(self) -> tuple[int, int] | None:
        """Return the sizes of small and large steps if they differ a lot and times correlate; else None."""
        sizes, times = self._sizes.kept_ns, self._times.kept_ns
        if len(sizes) < _LEAST_SIZES:
            return None
        ordered, tenth = sorted(sizes), len(sizes) // 10
        small, large = ordered[tenth], ordered[-1 - tenth]
        if small == large or large < _UNEVEN_RATIO * small or min(times) == max(times):
            return None
        return (small, large) if correlation(sizes, times) >= _UNEVEN_CORRELATION else None


class Totals:
    """Times of one step, or sums over many: wall time, phases, layers, tokens and samples."""

    def __init__(self) -> None:
        self.steps = 0
        self.wall_ns = 0
        self.tokens = 0
        self.rows = 0  # training samples
        self.phases_ns: dict[int, int] = defaultdict(int)
        self.forward_ns: dict[int, int] = defaultdict(int)
        self.backward_ns: dict[int, int] = defaultdict(int)
        self.recompute_ns: dict[int, int] = defaultdict(int)
        self.samples = Samples()

    def add(self, other: Totals) -> None:
        """Add a step, or the steps of another sum in order."""
        self.steps += other.steps
        self.wall_ns += other.wall_ns
        self.tokens += other.tokens
        self.rows += other.rows
        for wall_ns in other.samples.kept_ns:
            self.samples.add(wall_ns)
        for sums, parts in (
            (self.phases_ns, other.phases_ns),
            (self.forward_ns, other.forward_ns),
            (self.backward_ns, other.backward_ns),
            (self.recompute_ns, other.recompute_ns),
        ):
            for key, spent_ns in parts.items():
                sums[key] += spent_ns


class Series:
    """First, last, lowest, highest and mean of a value that is read from time to time."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last = 0.0
        self.low = float("inf")
        self.high = float("-inf")
        self.total = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """Add a reading."""
        self.first = value if self.first is None else self.first
        self.last, self.total, self.count = value, self.total + value, self.count + 1
        self.low, self.high = min(self.low, value), max(self.high, value)

    def summary(self) -> dict[str, float] | None:
        """Return the summary; None without readings."""
        if self.first is None:
            return None
        mean = self.total / self.count
        return {"first": self.first, "last": self.last, "low": self.low, "high": self.high, "mean": mean}


def fold_step(
    times_ns: list[int], codes: list[int], ends_by: dict[int, int | None], exposed_ns: int = 0
) -> Totals:
    """Return the times of one step from its edges: every nanosecond is in one phase or in none.

    `ends_by` names the layer whose backward begins where another's ends; so long before the end of backward
    as `exposed_ns` nothing was computed any more.
    """
    step = Totals()
    step.steps, step.wall_ns = 1, times_ns[-1] - times_ns[0]
    step.samples.add(step.wall_ns)
    phases_ns = step.phases_ns
    layers, gaps = _Layers(step, ends_by), _Gaps(phases_ns, updates_itself=UPDATED in codes)
    current, since_ns = NONE, times_ns[0]
    for time_ns, code in zip(times_ns, codes, strict=True):
        if code >= LAYER_BASE:
            layers.add_edge(time_ns, code - LAYER_BASE)
        elif code == BACKWARD_DONE:
            layers.end_backward(time_ns - exposed_ns)
        else:
            if current in (NONE, AFTER_FORWARD):
                gaps.open_ns += time_ns - since_ns
            else:
                phases_ns[current] += time_ns - since_ns
            gaps.begin_phase(code)
            current, since_ns = NONE if code == UPDATED else code, time_ns
    gaps.end_step()
    return step


class _Gaps:
    """Time outside phases, kept until the next main phase shows what it was."""

    def __init__(self, phases_ns: dict[int, int], *, updates_itself: bool) -> None:
        self.open_ns = 0
        self._phases_ns = phases_ns
        self._last = NONE
        # A loop on plain tensors, without modules and optimizers.
        self._unseen = FORWARD if updates_itself else None

    def begin_phase(self, code: int) -> None:
        """Name the time since the last main phase when another one starts."""
        if code not in _MAIN:
            return
        if code == OPTIMIZER and self._last != BACKWARD:
            return  # `zero_grad` before forward or backward: the gap ends with those
        starts_with_backward = self._last == NONE and code == BACKWARD
        self._close(self._unseen if starts_with_backward else _GAPS.get((self._last, code)))
        self._last = code

    def end_step(self) -> None:
        """Name the time after the optimizer; without one, the end of a step stays unnamed."""
        self._close(HOST if self._last == OPTIMIZER and FORWARD in self._phases_ns else None)

    def _close(self, phase: int | None) -> None:
        if phase is not None and self.open_ns:
            self._phases_ns[phase] += self.open_ns
        self.open_ns = 0


class _Layers:
    """Layers between their edges; recomputation is not counted as backward."""

    def __init__(self, step: Totals, ends_by: dict[int, int | None]) -> None:
        self._totals_ns = {
            FWD_OUT: step.forward_ns,
            BWD_OUT: step.backward_ns,
            RECOMPUTE_OUT: step.recompute_ns,
        }
        self._since: dict[int, dict[int, int]] = {edge: {} for edge in _CLOSED_BY.values()}
        self._backward = self._since[BWD_OUT]
        self._ends_by = ends_by

    def add_edge(self, time_ns: int, code: int) -> None:
        layer, edge = divmod(code, LAYER_WIDTH)
        closing = _CLOSED_BY.get(edge)
        if closing is None:
            self._close(layer, edge, time_ns)
            return
        if edge == BWD_IN and self._backward:
            for other in [open_ for open_ in self._backward if self._ends_by.get(open_) == layer]:
                self._close(other, BWD_OUT, time_ns)
        self._since[closing][layer] = time_ns

    def end_backward(self, time_ns: int) -> None:
        """Close the layers whose input needs no gradient."""
        for layer, since_ns in list(self._backward.items()):
            self._close(layer, BWD_OUT, max(since_ns, time_ns))

    def _close(self, layer: int, edge: int, time_ns: int) -> None:
        started = self._since[edge].pop(layer, None)
        if started is None:
            return
        self._totals_ns[edge][layer] += time_ns - started
        if edge == RECOMPUTE_OUT:
            for other in self._backward:
                self._backward[other] += time_ns - started
