"""Runs as they are in the field: noise between runs and steps, neighbours alike, cold starts, spikes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stepgrade.compare.noise import Sample
from stepgrade.model.scorecard import Baseline
from stepgrade.scoring.step_times import StepTimes, step_times

Floats = NDArray[np.float64]
STEP_MS = 100.0
CORRELATION = 0.5
SPIKE_SHARE = 0.02
SPIKE = 2.0
COLD = (5.0, 1.6, 1.15)
DRAWN = 500


class Machine:
    """Makes runs; the same seed makes the same ones.

    With `heavy_tails` the noise between runs is Student's with three degrees of freedom, and `run_noise` its
    standard deviation as of any other; `slow_kind` is the share of runs on machines of a second kind, and how
    much slower they are.
    """

    def __init__(
        self,
        seed: int,
        *,
        run_noise: float,
        step_noise: float = 0.02,
        heavy_tails: bool = False,
        slow_kind: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._run_noise = run_noise
        self._step_noise = step_noise
        self._heavy_tails = heavy_tails
        self._slow_kind = slow_kind
        self._drawn: dict[int, list[StepTimes]] = {}

    def samples(self, steps: int = 50, *, slower: float = 0.0) -> Floats:
        """Return the steps of one run: log-normal, correlated, the first cold, some spiked."""
        noise = self._correlated(steps) * math.log1p(self._step_noise)
        samples = STEP_MS * np.exp(self._shift(slower) + noise)
        return self._disturbed(samples)

    def run(self, steps: int = 50, *, slower: float = 0.0) -> Baseline:
        """Return one run with what a comparison needs."""
        samples = self.samples(steps, slower=slower)
        ordered = tuple(float(ms) for ms in samples)
        times = step_times(ordered)
        return Baseline(name="run", step_ms=times.median_ms if times else None, samples_ms=ordered)

    def sample(self, runs: int, steps: int = 50, *, slower: float = 0.0) -> Sample:
        """Return what a comparison needs of several runs; their steps are drawn from a few hundred."""
        drawn = self._drawn.setdefault(steps, [])
        while len(drawn) < DRAWN:
            noise = self._correlated(steps) * math.log1p(self._step_noise)
            times = step_times(self._disturbed(STEP_MS * np.exp(noise)).tolist())
            if times:
                drawn.append(times)
        chosen = [drawn[place] for place in self._random.integers(0, DRAWN, size=runs)]
        return Sample(
            values=tuple(times.median_ms * math.exp(self._shift(slower)) for times in chosen),
            sigmas=tuple(times.sigma_log for times in chosen),
            steps=sum(times.effective or 0.0 for times in chosen) or None,
        )

    def _shift(self, slower: float) -> float:
        """Return how far a run is from the level, as a logarithm."""
        unit = self._random.standard_t(3) / math.sqrt(3.0) if self._heavy_tails else self._random.normal()
        share, kind_slower = self._slow_kind
        is_slow_kind = share > 0.0 and self._random.random() < share
        return (
            unit * math.log1p(self._run_noise)
            + math.log1p(slower)
            + (math.log1p(kind_slower) if is_slow_kind else 0.0)
        )

    def _disturbed(self, samples: Floats) -> Floats:
        samples[self._random.random(len(samples)) < SPIKE_SHARE] *= SPIKE
        samples[: len(COLD)] *= COLD
        return samples

    def _correlated(self, steps: int) -> Floats:
        fresh = self._random.normal(size=steps)
        noise = np.empty(steps)
        noise[0] = fresh[0]
        keep = math.sqrt(1.0 - CORRELATION**2)
        for place in range(1, steps):
            noise[place] = CORRELATION * noise[place - 1] + keep * fresh[place]
        return noise
