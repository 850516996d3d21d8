"""What the first finding says of each planted fault: all runs, faults and strengths, as a table.

Rows are what was planted, columns what was named first; only faults that cost a tenth of the step count.
Ends with 1 if a fault was missed or a run without one was warned about.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.wild_runs import Wild, profile_of
from tests.wild_table import FACTORS, NAMED, RUNS, SHARES, can_be_told, rules_for, with_fault

import stepgrade as sg

LEAST_COST = 0.10


def main() -> int:
    """Print the table and how many were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=list(RUNS), help="kinds of runs")
    named: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: list[str] = []
    for name in parser.parse_args().runs:
        step_ms = profile_of(RUNS[name]).mean_step_ms or 0.0
        wrong += [f"{name}: warned of {rule} though well" for rule in warnings_of(RUNS[name])]
        for fault in (one for one in NAMED if can_be_told(RUNS[name], one)):
            for strength in FACTORS.get(fault, SHARES):
                run = with_fault(RUNS[name], fault, strength, step_ms)
                wrong += judge(name, run, fault, step_ms, named)
    show(named, wrong)
    return 1 if wrong else 0


def warnings_of(run: Wild) -> list[str]:
    """Return the rules that warn, the first finding first."""
    return [one.rule for one in sg.score(profile_of(run)).findings if one.severity != "info"]


def judge(name: str, run: Wild, fault: str, step_ms: float, named: dict[str, Counter[str]]) -> list[str]:
    """Count what is named first if the fault costs enough; return what is wrong with that."""
    cost = 1.0 - step_ms / (profile_of(run).mean_step_ms or step_ms)
    warned, right = warnings_of(run), rules_for(run, fault)
    if cost < LEAST_COST:
        return [f"{name}: {fault} costs {cost:.0%}, and {rule} warns" for rule in warned if rule not in right]
    first = warned[0] if warned else "nothing"
    named[fault][first] += 1
    return [] if first in right else [f"{name}: {fault} costs {cost:.0%} and is called {first}"]


def show(named: dict[str, Counter[str]], wrong: list[str]) -> None:
    """Print each fault with what it was called."""
    for fault, counts in named.items():
        print(f"{fault:18}", ", ".join(f"{rule} {count}" for rule, count in counts.most_common()))
    total = sum(sum(counts.values()) for counts in named.values())
    print(f"\n{total} faults of {LEAST_COST:.0%} and more, {len(wrong)} wrong")
    print("\n".join(wrong))


if __name__ == "__main__":
    sys.exit(main())
