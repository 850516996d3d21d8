"""Sums over the steps of a run, in bounded memory."""

from __future__ import annotations

from collections import defaultdict
from statistics import correlation

SAMPLES_KEPT = 4096
# Steps are uneven if large ones are larger by this factor and take longer accordingly.
_LEAST_SIZES, _UNEVEN_RATIO, _UNEVEN_CORRELATION = 10, 1.5, 0.7


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
        self.processor = Samples()

    def add(self, other: Totals) -> None:
        """Add a step, or the steps of another sum in order."""
        self.steps += other.steps
        self.wall_ns += other.wall_ns
        self.tokens += other.tokens
        self.rows += other.rows
        for wall_ns in other.samples.kept_ns:
            self.samples.add(wall_ns)
        for processor_ns in other.processor.kept_ns:
            self.processor.add(processor_ns)
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
