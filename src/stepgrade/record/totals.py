"""What all steps so far add up to, in bounded memory however long the run is."""

from __future__ import annotations

from collections import defaultdict

from stepgrade.record.fold import StepTimes

SAMPLES_KEPT = 4096


class Samples:
    """Per-step times; beyond twice `SAMPLES_KEPT` every second one is dropped, so they stay spread out."""

    def __init__(self) -> None:
        self.kept_ns: list[int] = []
        self.every = 1
        self._seen = 0

    def add(self, wall_ns: int) -> None:
        """Keep the sample if its turn has come."""
        if self._seen % self.every == 0:
            self.kept_ns.append(wall_ns)
            if len(self.kept_ns) >= 2 * SAMPLES_KEPT:
                self.kept_ns = self.kept_ns[::2]
                self.every *= 2
        self._seen += 1


class Totals:
    """Sums over steps: wall time, phases by code, layers by number, tokens, loss."""

    def __init__(self) -> None:
        self.steps = 0
        self.wall_ns = 0
        self.phases_ns: dict[int, int] = defaultdict(int)
        self.forward_ns: dict[int, int] = defaultdict(int)
        self.backward_ns: dict[int, int] = defaultdict(int)
        self.again_ns: dict[int, int] = defaultdict(int)
        self.tokens = 0
        self.samples = Samples()

    def add(self, step: StepTimes, tokens: int) -> None:
        """Add one step."""
        self.steps += 1
        self.wall_ns += step.wall_ns
        self.tokens += tokens
        self.samples.add(step.wall_ns)
        self._add_parts(step)

    def merge(self, other: Totals) -> None:
        """Add the steps of another sum, in their order."""
        self.steps += other.steps
        self.wall_ns += other.wall_ns
        self.tokens += other.tokens
        for wall_ns in other.samples.kept_ns:
            self.samples.add(wall_ns)
        self._add_parts(other)

    def _add_parts(self, other: StepTimes | Totals) -> None:
        for part in ("phases_ns", "forward_ns", "backward_ns", "again_ns"):
            into = getattr(self, part)
            for key, spent_ns in getattr(other, part).items():
                into[key] += spent_ns


class Series:
    """First, last, lowest, highest and mean of a figure that is read now and then."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last = 0.0
        self.low = float("inf")
        self.high = float("-inf")
        self.total = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """Take one more reading."""
        self.first = value if self.first is None else self.first
        self.last, self.total, self.count = value, self.total + value, self.count + 1
        self.low, self.high = min(self.low, value), max(self.high, value)

    def summary(self) -> dict[str, float]:
        """Return the figures; nothing when there was no reading."""
        if self.first is None:
            return {}
        mean = self.total / self.count
        return {"first": self.first, "last": self.last, "low": self.low, "high": self.high, "mean": mean}
