"""Fit the rates of the throughput model to published runs, and print how far its predictions lie from them.

  python benchmarks/throughput.py [--fit]

Each project's runs are predicted by rates fitted to the runs of all others, then each table's (a release, a
device) by rates fitted to all other tables. With --fit, prints the rates and intervals to put into
src/stepgrade/hardware/throughput.py.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import structs

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.hardware.published_throughput import Run, error, runs  # noqa: E402

from stepgrade.hardware.throughput import RATES, Rates  # noqa: E402  what it is run from comes first

# Where the fit starts: rates as kernels are known to reach them. A logarithm's step of `PRIOR` away from
# there costs as much as a run that is `NOISE` off.
START = Rates(
    gemm=0.9,
    gemm_fp8=0.8,
    gemm_experts=0.7,
    width=130.0,
    attention=0.45,
    attention_hopper=0.35,
    bandwidth=0.9,
    eager=1.5,
    compiled=1.0,
    te=0.8,
    transformers=2.0,
    casts=1.0,
    permutes=2.0,
    adapters=2.0,
    host_s=0.0008,
    host_experts_s=0.004,
    link=0.8,
    tensor_exposed=0.9,
    tensor_exposed_te=0.5,
    expert_exposed=0.8,
    data_exposed=0.15,
    straggler=0.012,
)
PRIOR, NOISE = 0.3, 0.12
# Better known than the others.
PRIORS = {"gemm": 0.08, "gemm_fp8": 0.15, "bandwidth": 0.15, "link": 0.15, "compiled": 0.2}
# No rate is above the hardware's.
AT_MOST_ONE = ("gemm", "gemm_fp8", "gemm_experts", "bandwidth", "link")
# Runs of one project are worth at most this many independent ones.
MOST_OF_A_PROJECT = 20.0
ROUNDS, MORE_ROUNDS = 10, 3
NAMES = Rates.__struct_fields__


def fit(chosen: Sequence[Run], begin: Rates | None = None) -> Rates:
    """Return the rates that explain the runs best, by damped Gauss-Newton steps on robust residuals.

    `begin` are rates fitted to nearly the same runs, from which few steps are enough.
    """
    start = np.log([getattr(START, name) for name in NAMES])
    prior = np.array([PRIORS.get(name, PRIOR) for name in NAMES])
    counts = Counter(run.project for run in chosen)
    worth = np.sqrt([min(1.0, MOST_OF_A_PROJECT / counts[run.project]) for run in chosen])

    def residuals(point: np.ndarray) -> np.ndarray:
        rates = Rates(**dict(zip(NAMES, np.exp(point).tolist(), strict=True)))
        return np.array([error(run, rates) / NOISE for run in chosen])

    highest = np.array([0.0 if name in AT_MOST_ONE else np.inf for name in NAMES])
    point = start.copy() if begin is None else np.log([getattr(begin, name) for name in NAMES])
    for _ in range(ROUNDS if begin is None else MORE_ROUNDS):
        base = residuals(point)
        slopes = np.empty((len(base), len(point)))
        for index in range(len(point)):
            moved = point.copy()
            moved[index] += 0.02
            slopes[:, index] = (residuals(moved) - base) / 0.02
        # Runs that are far off count less: the weight of a soft absolute value.
        weight = worth / (1 + base**2) ** 0.25
        left = np.vstack([slopes * weight[:, None], np.diag(1 / prior)])
        right = np.concatenate([-base * weight, (start - point) / prior])
        change = np.linalg.lstsq(left, right, rcond=None)[0]
        point = np.minimum(point + np.clip(change, -0.3, 0.3), highest)
        if np.abs(change).max() < 0.01:
            break
    return Rates(**dict(zip(NAMES, np.exp(point).tolist(), strict=True)))


def left_out(by: Callable[[Run], str], whole: Rates) -> list[tuple[Run, float]]:
    """Return every run with its error, by rates fitted to the runs of the other groups."""
    found = []
    for group in sorted({by(run) for run in runs()}):
        rates = fit([run for run in runs() if by(run) != group], whole)
        found += [(run, error(run, rates)) for run in runs() if by(run) == group]
    return found


class Group(NamedTuple):
    """How far predictions lie from the runs of one project, kind, device and precision."""

    name: str
    runs: int
    median: float
    p90: float
    bias: float


def groups(errors: Sequence[tuple[Run, float]]) -> list[Group]:
    """Return the errors of all runs, then by group."""
    found: dict[str, list[float]] = {"all": [value for _, value in errors]}
    for run, value in errors:
        name = f"{run.project}, {run.kind}, {run.row['device']}, {run.row['dtype']}"
        found.setdefault(name, []).append(value)
    rows = []
    for name, values in sorted(found.items()):
        off = np.abs(np.expm1(values))
        ninth, bias = float(np.quantile(off, 0.9)), math.expm1(float(np.median(values)))
        rows.append(Group(name, len(values), float(np.median(off)), ninth, bias))
    return rows


def show(title: str, errors: Sequence[tuple[Run, float]]) -> None:
    """Print medians and 90th percentiles, of all runs and by group."""
    print(title)
    for name, count, middle, ninth, bias in groups(errors):
        print(f"  {name:62} {count:4} runs  {middle:4.0%}  p90 {ninth:4.0%}  bias {bias:+.0%}")


def intervals(errors: Sequence[tuple[Run, float]]) -> dict[str, tuple[float, float]]:
    """Return measured over predicted at the 5th and 95th percentile, by kind."""
    found = {}
    for kind in sorted({run.kind for run, _ in errors}):
        ratios = [math.exp(-value) for run, value in errors if run.kind == kind]
        low, high = (round(float(np.quantile(ratios, share)), 2) for share in (0.05, 0.95))
        found[kind] = low, high
    return found


def main() -> None:
    """Print the errors, or what was fitted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="print the fitted rates and intervals")
    args = parser.parse_args()
    show("as shipped", [(run, error(run)) for run in runs()])
    rates = RATES
    if args.fit:
        rates = fit(runs())
        print({name: float(f"{value:.3g}") for name, value in structs.asdict(rates).items()})
        show("fitted to all", [(run, error(run, rates)) for run in runs()])
    projects = left_out(lambda run: run.project, rates)
    show("each project left out", projects)
    tables = left_out(lambda run: run.row["source"], rates)
    show("each table left out", tables)
    print("intervals, projects:", intervals(projects), "tables:", intervals(tables))


if __name__ == "__main__":
    main()
