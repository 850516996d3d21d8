"""Measure the gate: false alarms, power, change points, and a hundred thousand runs of history.

    python benchmarks/regression.py             everything, in minutes: the tables of docs/regressions.md
    python benchmarks/regression.py aa power    only these parts
    python benchmarks/regression.py changes --rival otava=/path/to/its/python

Everything is seeded: the same machine prints the same tables, but for the times.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from simulated import Floats, Machine

import stepgrade as sg
from stepgrade.compare.change_points import change_points
from stepgrade.compare.levels import judged_levels
from stepgrade.compare.metrics import change_of
from stepgrade.compare.noise import critical, noise_of
from stepgrade.compare.turns import compare_in_turns, is_decided
from stepgrade.config import Sensitivity
from stepgrade.contract.scorecard import step_time_regression
from stepgrade.model import Profile, Source
from stepgrade.model.comparison import METRICS
from stepgrade.model.scorecard import Baseline
from stepgrade.scoring.step_times import step_times
from stepgrade.store import NewRun, open_history

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT.parent / "shared" / "samples" / "history"
COMPARISONS = 4000
HISTORY = 10
ROUNDS = 7
_TCPD = ("nile", *(f"quality_control_{n}" for n in range(1, 6)), "run_log", "well_log")
_MARGIN = 5

# How runs differ: evenly, with heavy tails, or by the kind of their machine.
NOISES: dict[str, dict[str, Any]] = {
    "2 %, normal": {"run_noise": 0.02},
    "5 %, normal": {"run_noise": 0.05},
    "13 %, normal": {"run_noise": 0.13},
    "1 %, Student's with 3 degrees": {"run_noise": 0.01, "heavy_tails": True},
    "2 %, Student's with 3 degrees": {"run_noise": 0.02, "heavy_tails": True},
    "2 %, one run in five 6 % slower": {"run_noise": 0.02, "slow_kind": (0.2, 0.06)},
    "1 %, one run in five 6 % slower": {"run_noise": 0.01, "slow_kind": (0.2, 0.06)},
    "none, one run in five 6 % slower": {"run_noise": 0.0, "slow_kind": (0.2, 0.06)},
}

GRID_NOISES: dict[str, dict[str, Any]] = {
    "1 %, normal": {"run_noise": 0.01},
    **{name: NOISES[name] for name in ("2 %, normal", "5 %, normal")},
    "10 %, normal": {"run_noise": 0.10},
    **{name: noise for name, noise in NOISES.items() if name.startswith(("1 %, one", "2 %, St", "2 %, one"))},
}

Row = Sequence[object]
Verdicts = dict[str, int]


def table(head: Row, rows: Sequence[Row]) -> None:
    """Print a table in Markdown."""
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def verdicts(machine: Machine, *, runs: int, history: int, steps: int = 50, slower: float = 0.0) -> str:
    """Return what one comparison says of the step time."""
    before, now = machine.sample(history, steps), machine.sample(runs, steps, slower=slower)
    metric, sensitivity = METRICS["step_time_ms"], Sensitivity()
    return change_of(metric, now, before, noise_of(now, before, metric), sensitivity).outcome


def alarms_of_v1(machine: Machine, *, slower: float = 0.0) -> bool:
    """Tell whether contract v1's threshold fires on the averages of two runs."""
    before, now = machine.samples(), machine.samples(slower=slower)
    return step_time_regression(float(before.mean()), float(now.mean())) is not None


def share(count: int, of: int) -> str:
    """Return a percentage."""
    return f"{100.0 * count / of:.1f} %"


def false_alarms(count: int) -> None:
    """Compare identical runs."""
    print(f"### False alarms among {count:,} comparisons of identical runs\n")
    rows = []
    for noise in (0.02, 0.05, 0.13):
        v1 = sum(alarms_of_v1(machine) for machine in [Machine(1, run_noise=noise)] for _ in range(count))
        row = [f"{noise:.0%}", share(v1, count)]
        for history in (1, HISTORY, 30):
            machine = Machine(2, run_noise=noise)
            said = [verdicts(machine, runs=1, history=history) for _ in range(count)]
            wrong = sum(one in ("regressed", "improved") for one in said)
            row += [share(wrong, count), share(said.count("cannot tell"), count)]
        rows.append(row)
    head = ["run-to-run noise", "contract v1"]
    for name in ("no history", f"{HISTORY} earlier runs", "30 earlier runs"):
        head += [f"{name}: alarms", "cannot tell"]
    table(head, rows)


def power(count: int) -> None:
    """Compare a run with slower ones."""
    print(f"### Slowdowns found, of {count:,}\n")
    cases: list[tuple[str, Callable[[float], Iterator[bool]]]] = [
        (
            "2 % between steps, none between runs, 1 run of 50 steps against 10",
            _finder(count, 0.0, 1, 10, 50),
        ),
        (
            "2 % between steps, none between runs, 1 run of 50 steps against 12",
            _finder(count, 0.0, 1, 12, 50),
        ),
        ("0.5 % between runs, 1 run of 50 steps against 10", _finder(count, 0.005, 1, 10, 50)),
        ("1 % between runs, 1 run of 50 steps against 30", _finder(count, 0.01, 1, 30, 50)),
        ("2 % between runs, 1 run of 50 steps against 30", _finder(count, 0.02, 1, 30, 50)),
        ("2 % between runs, 3 runs of 50 steps against 30", _finder(count, 0.02, 3, 30, 50)),
        ("2 % between runs, 5 runs of 50 steps against 30", _finder(count, 0.02, 5, 30, 50)),
        ("5 % between runs, 5 runs of 50 steps against 30", _finder(count, 0.05, 5, 30, 50)),
    ]
    slower = (0.02, 0.03, 0.05, 0.10)
    rows = [[name, *(share(sum(find(by)), count) for by in slower)] for name, find in cases]
    machine = Machine(3, run_noise=0.02)
    v1 = [share(sum(alarms_of_v1(machine, slower=by) for _ in range(count)), count) for by in slower]
    rows.append(["contract v1, 2 % between runs", *v1])
    table(["noise and runs", *(f"{by:.0%} slower" for by in slower)], rows)


def few_runs(count: int) -> None:
    """Compare with one to twenty earlier runs, of several kinds of noise between them."""
    print(f"### Few earlier runs, {count:,} comparisons each\n")
    found = 0.25
    rows = []
    for name, noise in NOISES.items():
        for history in (1, 2, 3, 5, 10, 20):
            machine = Machine(6, **noise)
            said = [verdicts(machine, runs=1, history=history) for _ in range(count)]
            alarms = sum(one in ("regressed", "improved") for one in said)
            slow = [verdicts(machine, runs=1, history=history, slower=found) for _ in range(count // 4)]
            rows.append(
                [
                    name,
                    history,
                    share(alarms, count),
                    share(said.count("no change"), count),
                    share(said.count("cannot tell"), count),
                    share(slow.count("regressed"), len(slow)),
                ]
            )
    head = ["noise between runs", "earlier runs", "alarms", "passes", "cannot tell"]
    table([*head, f"{found:.0%} slower found"], rows)


def grid(count: int) -> None:
    """Compare one run with earlier ones, over kinds of noise, numbers of runs and slowdowns."""
    slower = (0.0, 0.05, 0.10, 0.15, 0.25, 0.50)
    print(f"### Called regressed, % of {count:,}: one run against 3, 5, 10 and 30 earlier ones\n")
    rows = []
    for name, noise in GRID_NOISES.items():
        row = [name]
        for by in slower:
            cells = []
            for history in (3, 5, 10, 30):
                machine = Machine(10, **noise)
                draws = (
                    verdicts(machine, runs=1, history=history, steps=100, slower=by) for _ in range(count)
                )
                cells.append(f"{100.0 * sum(outcome == 'regressed' for outcome in draws) / count:.1f}")
            row.append(", ".join(cells))
        rows.append(row)
    table(["noise between runs", "unchanged", *(f"{by:.0%} slower" for by in slower[1:])], rows)


def rivals(count: int) -> None:
    """Judge the draws of the grid by other tools' rules, written down here from their documentation."""
    print(f"### Called slower by other rules, % of {count:,}: against 3, 5, 10 and 30 earlier runs\n")
    rules: dict[str, Callable[[Sequence[float], float], bool]] = {
        "t-test for one more run, 99 %": lambda before, now: _beyond_t(before, now, 0.01, 1.0 / len(before)),
        "bencher: t_test, boundary 0.99": lambda before, now: _beyond_t(before, now, 0.02, -1.0),
        "asv continuous: factor 1.1 to the last run": lambda before, now: now > 1.1 * before[-1],
    }
    rows = []
    for noise, options in GRID_NOISES.items():
        for name, rule in rules.items():
            row = [noise, name]
            for by in (0.0, 0.10, 0.25):
                cells = []
                for history in (3, 5, 10, 30):
                    machine = Machine(10, **options)
                    found = 0
                    for _ in range(count):
                        before, now = machine.sample(history, 100), machine.sample(1, 100, slower=by)
                        found += rule(before.values, now.values[0])
                    cells.append(f"{100.0 * found / count:.1f}")
                row.append(", ".join(cells))
            rows.append(row)
    table(["noise between runs", "rule", "unchanged", "10 % slower", "25 % slower"], rows)


def _beyond_t(before: Sequence[float], now: float, level: float, more: float) -> bool:
    """Tell whether a run is above the mean by more than Student's t deviations, two-sided at `level`.

    `more` is the variance of the mean beside that of the run; below 0 there is none of both, only the spread.
    """
    deviation = float(np.std(before, ddof=1)) * (math.sqrt(1.0 + more) if more >= 0.0 else 1.0)
    return now > float(np.mean(before)) + critical(level, len(before) - 1) * deviation


def open_words(count: int) -> None:
    """Count what is said of unchanged runs, and of a doubling, beside pass and fail."""
    print(f"### What is said, % of {count:,}: against 3, 5, 10 and 30 earlier runs\n")
    rows = []
    for name, noise in GRID_NOISES.items():
        row = [name]
        for by, words in ((0.0, "probably slower"), (0.10, "probably slower"), (1.0, "cannot tell")):
            cells = []
            for history in (3, 5, 10, 30):
                machine = Machine(10, **noise)
                said = (
                    verdicts(machine, runs=1, history=history, steps=100, slower=by) for _ in range(count)
                )
                cells.append(f"{100.0 * sum(word == words for word in said) / count:.1f}")
            row.append(", ".join(cells))
        rows.append(row)
    head = ["unchanged: probably slower", "10 % slower: probably slower", "100 % slower: cannot tell"]
    table(["noise between runs", *head], rows)


def alerts(count: int) -> None:
    """Look at series of sixty runs after each run, unchanged ones and ones that get slower half way."""
    print(f"### Alerts in {count:,} series of sixty runs, looked at after each\n")
    rows = []
    for name, options in GRID_NOISES.items():
        row = [name]
        for by in (0.0, 0.05, 0.10):
            found, after = 0, []
            machine = Machine(11, **options)
            for _ in range(count):
                values = [*machine.sample(30, 100).values, *machine.sample(30, 100, slower=by).values]
                opened = None
                for runs in range(8, 61):
                    levels = judged_levels("step_time_ms", values[:runs], sure=True)
                    if any(level.change > 0.0 for level in levels) and (by == 0.0 or runs > 30):
                        opened = runs
                        break
                found += opened is not None
                after += [opened - 30] if opened is not None and by else []
            late = f", after {int(np.median(after))} runs" if after else ""
            row.append(f"{share(found, count)}{late}")
        rows.append(row)
    table(["noise between runs", "unchanged", "5 % slower", "10 % slower"], rows)


def turns(count: int) -> None:
    """Compare two commits in turns, with a look after each pair."""
    print(f"### Runs in turns, {count:,} series of at most twelve pairs\n")
    rows = []
    for noise in (0.005, 0.01, 0.02, 0.05):
        row = [f"{noise:.1%}"]
        for by in (0.0, 0.10, 0.20):
            random, found, pairs_made = np.random.default_rng(12), 0, 0
            for _ in range(count):
                pairs: list[tuple[Baseline, Baseline]] = []
                for turn in range(12):
                    before, now = 100.0 * np.exp(random.normal(0.0, noise, 2))
                    now *= 1.0 + by
                    pairs.append((Baseline(name="a", step_ms=before), Baseline(name="b", step_ms=now)))
                    if turn and is_decided(found_now := compare_in_turns(pairs, Sensitivity())):
                        break
                pairs_made += len(pairs)
                found += found_now.changes[0].outcome in ("regressed", "improved")
            row.append(f"{share(found, count)}, {pairs_made / count:.1f} pairs")
        rows.append(row)
    table(["noise of a run", "unchanged: alarms", "10 % slower: found", "20 % slower: found"], rows)


def _finder(
    count: int, noise: float, runs: int, history: int, steps: int
) -> Callable[[float], Iterator[bool]]:
    def find(slower: float) -> Iterator[bool]:
        machine = Machine(3, run_noise=noise)
        for _ in range(count):
            said = verdicts(machine, runs=runs, history=history, steps=steps, slower=slower)
            yield said == "regressed"

    return find


def methods(count: int) -> None:
    """Compare intervals of the median: by ranks with the neighbours considered, and by bootstraps."""
    print(f"### Intervals of the median (95 %), {count:,} runs of 50 correlated steps\n")
    ways: dict[str, Callable[[Floats, np.random.Generator], tuple[float, float] | None]] = {
        "ranks, neighbours considered (used)": lambda s, _: _by_ranks(s),
        "moving-block bootstrap, 1,000 draws": lambda s, r: _bootstrap(s, r, block=6),
        "plain bootstrap, 1,000 draws": lambda s, r: _bootstrap(s, r, block=1),
    }
    rows = []
    for name, interval in ways.items():
        machine, random = Machine(4, run_noise=0.0), np.random.default_rng(4)
        hits, width, start = 0, 0.0, time.perf_counter()
        for _ in range(count):
            low, high = interval(machine.samples()[3:], random) or (0.0, np.inf)
            hits += low <= 100.0 <= high
            width += min(high - low, 100.0)
        each = (time.perf_counter() - start) / count
        rows.append([name, share(hits, count), f"{width / count:.2f} %", f"{each * 1e3:.2f} ms"])
    table(["interval", "holds the true median", "mean width", "time"], rows)


def _by_ranks(steps: Floats) -> tuple[float, float] | None:
    times = step_times(steps.tolist())
    return (times.low_ms, times.high_ms) if times and times.low_ms and times.high_ms else None


def _bootstrap(samples: Floats, random: np.random.Generator, *, block: int) -> tuple[float, float]:
    count = len(samples)
    starts = random.integers(0, count - block + 1, size=(1000, -(-count // block)))
    places = (starts[:, :, None] + np.arange(block)).reshape(1000, -1)[:, :count]
    medians = np.median(samples[places], axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def labelled_series() -> Iterator[tuple[str, list[float], list[list[int]], float]]:
    """Yield name, values, each annotator's change points, and the least change that counts."""
    annotations = json.loads((SAMPLES / "tcpd" / "annotations.json").read_text())
    for name in _TCPD:
        raw = json.loads((SAMPLES / "tcpd" / f"{name}.json").read_text())["series"][0]["raw"]
        yield name, [value for value in raw if value is not None], list(annotations[name].values()), 0.0
    tigerbeetle = json.loads((SAMPLES / "otava" / "tigerbeetle.json").read_text())
    yield "tigerbeetle", tigerbeetle["series"], [tigerbeetle["otava_expected"][0]["change_points"]], 0.05


def precision_recall(found: Sequence[int], annotators: Sequence[Sequence[int]]) -> tuple[float, float, float]:
    """Return precision, recall and F1 as van den Burg and Williams (2020) define them, margin 5."""
    given, people = sorted({0, *found}), [sorted({0, *points}) for points in annotators]
    precision = _hits(sorted(set().union(*people)), given) / len(given)
    recall = sum(_hits(points, given) / len(points) for points in people) / len(people)
    return precision, recall, 2.0 * precision * recall / (precision + recall)


def _hits(true: Sequence[int], found: Sequence[int]) -> int:
    left, hits = set(found), 0
    for point in true:
        near = [(abs(point - one), one) for one in left if abs(point - one) <= _MARGIN]
        if near:
            left.remove(min(near)[1])
            hits += 1
    return hits


def changes(rivals: dict[str, str]) -> None:
    """Find the labelled changes of real series, beside other libraries."""
    if not SAMPLES.is_dir():
        print("### Change points: the labelled series are not beside this clone\n")
        return
    print("### Change points on real series with labelled changes\n")
    series = list(labelled_series())
    found = {"stepgrade": [_ours(values, least) for _, values, _, least in series]}
    for name, python in rivals.items():
        found[name] = _asked(name, python, [(values, least) for _, values, _, least in series])
    rows: list[Row] = []
    for place, (name, values, annotators, _) in enumerate(series):
        scores = [precision_recall(answers[place][0], annotators) for answers in found.values()]
        rows.append([name, len(values), *(f"{p:.2f} / {r:.2f} / {f:.2f}" for p, r, f in scores)])
    means = []
    for answers in found.values():
        scores = [precision_recall(answer[0], one[2]) for answer, one in zip(answers, series, strict=True)]
        means.append(" / ".join(f"{np.mean([score[part] for score in scores]):.2f}" for part in range(3)))
    seconds = [f"{sum(answer[1] for answer in answers):.2f} s" for answers in found.values()]
    rows += [["**mean**", "", *means], ["time for all", "", *seconds]]
    table(["series", "points", *(f"{name}: precision / recall / F1" for name in found)], rows)


def _ours(values: list[float], least_change: float) -> tuple[list[int], float]:
    start = time.perf_counter()
    found = change_points(values, least_change=least_change)
    return [point.index for point in found], time.perf_counter() - start


def _asked(name: str, python: str, series: list[tuple[list[float], float]]) -> list[tuple[list[int], float]]:
    script = Path(__file__).with_name("rivals.py")
    ran = subprocess.run(
        [python, script, name], input=json.dumps(series), capture_output=True, text=True, check=True
    )
    return [(points, seconds) for points, seconds in json.loads(ran.stdout)]


def scale(_: int) -> None:
    """Keep up to a hundred thousand runs, and ask for a trend and for the gate's answer."""
    print("### A long history\n")
    rows = []
    for count in (1_000, 10_000, 100_000):
        with tempfile.TemporaryDirectory() as folder:
            place, profile = Path(folder) / "history.db", Path(folder) / "run.json"
            _fill(place, count)
            profile.write_text(sg.convert(_profile(Machine(9, run_noise=0.02).run())))
            trend = _timed("history", "trend", "--branch", "main", "--history", place)
            gate = _timed("gate", profile, "--against", "history:main", "--history", place)
            size = place.stat().st_size / 1e6
            rows.append([f"{count:,}", f"{size:,.0f} MB", trend, gate])
    table(
        ["runs", "file", "`history trend`, wall (processor)", "`gate --against history`, wall (processor)"],
        rows,
    )


def _profile(run: Baseline) -> Profile:
    source = Source(format="step_profiler_v2", files=("run.json",), producer="step_profiler_v2")
    return Profile(
        source=source, steps=len(run.samples_ms), mean_step_ms=run.step_ms, samples_ms=run.samples_ms
    )


def _fill(place: Path, count: int) -> None:
    machine = Machine(8, run_noise=0.02)
    cards = [sg.score(_profile(machine.run(slower=0.0 if n < 100 else 0.04))) for n in range(200)]
    late = count * 9 // 10
    runs = (
        NewRun(card=cards[n % 100 + (100 if n >= late else 0)], branch="main", commit=f"{n:040x}")
        for n in range(count)
    )
    with open_history(str(place)) as history:
        history.add_all(runs)


def _timed(*arguments: object) -> str:
    """Return the least wall and processor time of some runs of a command: others use the machine too."""
    walls, processors = [], []
    for _ in range(ROUNDS):
        used, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "stepgrade", *map(str, arguments)], capture_output=True, check=False
        )
        walls.append(time.perf_counter() - start)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        processors.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
        if ran.returncode not in (0, 1, 3):
            raise SystemExit(ran.stderr.decode())
    return f"{min(walls):.2f} s ({min(processors):.2f} s)"


PARTS: dict[str, Callable[[int], None]] = {
    "aa": false_alarms,
    "few": few_runs,
    "grid": grid,
    "rivals": rivals,
    "words": open_words,
    "alerts": lambda count: alerts(count // 4),
    "turns": lambda count: turns(count // 4),
    "power": lambda count: power(count // 2),
    "methods": lambda count: methods(count // 2),
    "scale": scale,
}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "changes", []], default=[])
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    args = parser.parse_args()
    for name in args.parts or [*PARTS, "changes"]:
        if name == "changes":
            changes(dict(rival.split("=", 1) for rival in args.rival))
        else:
            PARTS[name](args.comparisons)


if __name__ == "__main__":
    main()
