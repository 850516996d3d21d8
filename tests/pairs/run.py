"""Record each pair's faulty and fixed script in turns, and print what the card names and what fixing it brought.

python -m tests.pairs.run                        every pair, three turns
python -m tests.pairs.run --only loop --turns 1
python -m tests.pairs.run --busy 8               while so many processes keep the machine busy
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.pairs.table import PAIRS, Pair


def record(pair: Pair, text: str, folder: Path) -> dict[str, Any]:
    """Record a script and return its card."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    launcher = (
        ["torchrun", "--standalone", "--nproc-per-node", str(pair.processes)] if pair.processes > 1 else []
    )
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1" if pair.processes > 1 else "2",
        "NO_COLOR": "1",
    }
    program = [sys.executable, "-m", "stepgrade"]
    run = subprocess.run(
        [*program, "record", *launcher, str(script)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError(f"{pair.name} ended with {run.returncode}: {run.stderr[-2000:]}")
    files = sorted(str(path) for path in folder.glob("stepgrade*.json"))
    shown = subprocess.run(
        [*program, "score", *files, "--format", "json"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    card: dict[str, Any] = json.loads(shown.stdout)
    return card


def measure(pair: Pair, turns: int) -> dict[str, Any]:
    """Return which findings the faulty script's cards begin with, what they promise, and what was gained."""
    cards: dict[str, list[dict[str, Any]]] = {"faulty": [], "fixed": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for kind, text in sorted(pair.texts().items(), reverse=bool(turn % 2)):
                cards[kind].append(record(pair, text, Path(folder) / f"{kind}{turn}"))
    times = {kind: statistics.median(card["step_time_ms"] for card in made) for kind, made in cards.items()}
    first = [
        next((one for one in card["findings"] if one["severity"] != "info"), None) for card in cards["faulty"]
    ]
    promises = [one for one in first if one and one["rule"] in pair.rules]
    return {
        "pair": pair.name,
        "faulty_ms": times["faulty"],
        "fixed_ms": times["fixed"],
        "gain": 1.0 - times["fixed"] / times["faulty"],
        "first": [one["rule"] if one else None for one in first],
        "named": sum(bool(one and one["rule"] in pair.rules) for one in first),
        "turns": turns,
        "promised": [(one["gain_low"], one["gain_high"]) for one in promises],
        "fixed_findings": [one["rule"] for one in cards["fixed"][0]["findings"] if one["severity"] != "info"],
        "bottleneck": [card["bottleneck"] for card in cards["faulty"]],
        "all": [(one["rule"], one["gain_low"], one["gain_high"]) for one in cards["faulty"][0]["findings"]],
    }


def _spin() -> None:
    while True:
        sum(range(100_000))


def main() -> int:
    """Measure the pairs; return 1 when too few faults are named first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES")
    parser.add_argument("--records", type=Path, help="append one line of JSON for each pair")
    args = parser.parse_args()
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(args.busy)]
    for process in busy:
        process.start()
    rows = []
    for pair in PAIRS:
        if args.only not in pair.name:
            continue
        row = measure(pair, args.turns)
        rows.append(row)
        shown = ", ".join(f"{low:.0%} to {high:.0%}" for low, high in row["promised"])
        print(f"{row['pair']:28} {row['faulty_ms']:8.1f} {row['fixed_ms']:8.1f} {row['gain']:6.0%}  "
              f"{row['named']}/{row['turns']}  {row['first']}  {shown}", flush=True)  # fmt: skip
        if args.records:
            with args.records.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
    named = sum(row["named"] for row in rows) / max(1, sum(row["turns"] for row in rows))
    print(f"named first: {named:.0%}")
    for process in busy:
        process.terminate()
    return int(named < (0.8 if args.busy else 0.9))


if __name__ == "__main__":
    sys.exit(main())
