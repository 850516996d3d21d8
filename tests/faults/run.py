"""Let every system call of every writer fail, one at a time, and print what came of it.

python -m tests.faults.run                   as `make faults` does
python -m tests.faults.run --count 20        so many faults of each scenario, evenly spread
python -m tests.faults.run --count 0         every call fails once, each in one of its ways
python -m tests.faults.run --only outbox     the scenarios with this word in their names
python -m tests.faults.run --parts 4         the faults of each scenario spread over four processes
python -m tests.faults.run --records FILE    a line for each run; what the file has is not run again
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.harness import Plan, Result, Scenario, Share, environment, import_all, run_scenario
from tests.faults.recording import recorders
from tests.faults.remote import remote
from tests.faults.scenarios import local


def scenarios() -> list[Scenario]:
    """Return every scenario."""
    return [*local(), *recorders(), *remote()]


def main() -> int:
    """Run the scenarios, each in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--count", type=int, metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--parts", type=int, default=1, metavar="N")
    parser.add_argument("--part", type=int, metavar="I", help="only this one of the parts, from 1")
    parser.add_argument("--records", type=Path, metavar="FILE")
    parser.add_argument("--inside", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    records = args.records.resolve() if args.records else None
    if args.inside:
        _serve(args.inside, args.only, Share(args.count, args.part, args.parts, records))
        return 0
    everything = [one.name for one in scenarios()]
    names = [name for name in everything if args.only == name] or [
        name for name in everything if args.only in name
    ]
    parts = [args.part] if args.part else range(1, args.parts + 1)
    work = [([name], Share(args.count, part, args.parts, records)) for name in names for part in parts]
    results: dict[str, Result] = {}
    with ThreadPoolExecutor(args.jobs) as pool:
        for found in pool.map(lambda one: run_apart(*one), work):
            for result in found:
                print(row(result), *(f"  {problem}" for problem in result.wrong), sep="\n", flush=True)
                results[result.scenario] = joined(results.get(result.scenario), result)
    if args.parts > 1:
        print("", *map(row, results.values()), sep="\n")
    print(summary(list(results.values())))
    return 1 if any(result.wrong for result in results.values()) else 0


def run_apart(names: Sequence[str], share: Share) -> list[Result]:
    """Run scenarios in a process with the shim; raise RuntimeError when there can be none."""
    with tempfile.TemporaryDirectory(prefix="stepgrade-faults-") as folder:
        words = [
            sys.executable,
            "-m",
            "tests.faults.run",
            "--inside",
            folder,
            f"--only={chr(10).join(names)}",
        ]
        words += [f"--part={share.part}", f"--parts={share.parts}"]
        words += [] if share.count is None else [f"--count={share.count}"]
        words += [] if share.records is None else [f"--records={share.records}"]
        made = environment(Path(folder))
        ran = subprocess.run(words, check=False, env=made, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        if ran.returncode:
            lost = [f"the harness ended with {ran.returncode}"]
            return [Result(", ".join(names), 0, {}, 0, lost, 0.0)]
        return [Result(**json.loads(line)) for line in ran.stdout.splitlines()]


def _serve(folder: Path, names: str, share: Share) -> None:
    """Be the process with the shim: run scenarios and print a line for each."""
    chosen = [one for one in scenarios() if one.name in names.split("\n")]
    plan = Plan()
    import_all(with_torch=any("torch" in one.needs for one in chosen))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for number, scenario in enumerate(chosen):
        own = folder / str(number)
        own.mkdir()
        result = run_scenario(scenario, own, plan, share)
        answers.write(json.dumps(result._asdict()) + "\n")
        answers.flush()


def joined(first: Result | None, second: Result) -> Result:
    """Return the results of two parts of a scenario as those of one."""
    if first is None:
        return second
    longer = max(first, second, key=lambda one: one.calls)
    sums = (a + b for a, b in zip(first[3:], second[3:], strict=True))
    return Result(longer.scenario, longer.calls, longer.kinds, *sums)


def row(result: Result) -> str:
    """Return a row of the table."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in result.kinds.items())
    missed = f" ({result.missed} not reached)" if result.missed else ""
    runs = f"{result.runs:,}{missed}"
    return f"| {result.scenario} | {kinds} | {result.calls} | {runs} | {len(result.wrong)} |"


def summary(results: Sequence[Result]) -> str:
    """Return the sums, with the day."""
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    calls, runs = sum(one.calls for one in results), sum(one.runs for one in results)
    wrong = sum(len(one.wrong) for one in results)
    return f"{day}: {len(results)} scenarios, {calls:,} calls, {runs:,} runs, {wrong} wrong"


if __name__ == "__main__":
    sys.exit(main())
