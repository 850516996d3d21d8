"""Run another change-point library on series from standard input; started with that library's own Python.

Prints, for each series, the indices it found and the seconds it took, as JSON. Only the standard library and
the one library that is asked for are imported, so it runs in an environment that does not know stepgrade.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any


def otava(values: list[float], least_change: float) -> list[int]:
    """Return Otava's points with its default window and p-value."""
    from otava.analysis import compute_change_points  # type: ignore[import-not-found]  # not ours

    points, _ = compute_change_points(values, window_len=50, max_pvalue=0.001, min_magnitude=least_change)
    return [int(point.index) for point in points]


def ruptures(values: list[float], least_change: float) -> list[int]:  # noqa: ARG001  it has no such setting
    """Return PELT's points with absolute deviations and a penalty of three log n."""
    import ruptures as rpt  # type: ignore[import-not-found]  # not ours

    steps = [abs(b - a) for a, b in pairwise(values)]
    noise = 1.4826 * statistics.median(steps) / math.sqrt(2.0)
    scaled: Any = __import__("numpy").array(values) / noise
    found = rpt.Pelt(model="l1", min_size=4, jump=1).fit(scaled).predict(pen=3.0 * math.log(len(values)))
    return [int(point) for point in found[:-1]]


def spa(values: list[float], least_change: float) -> list[int]:  # noqa: ARG001  it has no such setting
    """Return signal-processing-algorithms' E-divisive points with its defaults."""
    from signal_processing_algorithms.energy_statistics.energy_statistics import (  # type: ignore[import-not-found]  # not ours
        e_divisive,
    )

    return [int(point) for point in e_divisive(values, pvalue=0.01, permutations=100)]


RIVALS: dict[str, Callable[[list[float], float], list[int]]] = {
    "otava": otava,
    "ruptures": ruptures,
    "spa": spa,
}


def main() -> None:
    """Answer for every series."""
    warnings.filterwarnings("ignore")
    find = RIVALS[sys.argv[1]]
    find([1.0 + 0.01 * (n % 3) for n in range(60)], 0.0)  # imports are not what is measured
    answers = []
    for values, least_change in json.load(sys.stdin):
        start = time.perf_counter()
        points = find(values, least_change)
        answers.append([points, time.perf_counter() - start])
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
