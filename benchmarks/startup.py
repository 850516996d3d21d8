"""How long the command takes to answer, as ratios to `python -c pass` in the same environment.

The runs alternate, so that a noisy machine disturbs all of them alike; medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROFILE = str(ROOT / "examples" / "runs" / "gpt_naive.json")
TRACE = str(ROOT / "examples" / "traces" / "gpt_fused.json.gz")
MODEL = str(ROOT / "examples" / "models" / "qwen2.5-coder-1.5b.json")
RUN = ["--model", MODEL, "--device", "rtx-4060-laptop", "--batch", "4", "--seq", "512", "--method", "qlora"]
COMMAND = str(Path(sys.executable).with_name("stepgrade"))

CASES: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "stepgrade --version": ([COMMAND, "--version"], 3.0),
    "stepgrade --help": ([COMMAND, "--help"], None),
    "stepgrade score": ([COMMAND, "score", PROFILE, "--throughput", "194", "--device", "gb10"], 6.0),
    "stepgrade score --format json": ([COMMAND, "score", PROFILE, "--format", "json"], 6.0),
    "python -c 'import numpy'": ([sys.executable, "-c", "import numpy"], None),
    "stepgrade score TRACE": ([COMMAND, "score", TRACE], 12.0),
    "stepgrade score --model": ([COMMAND, "score", PROFILE, "--throughput", "194", *RUN], None),
    "stepgrade devices": ([COMMAND, "devices"], 6.0),
    "stepgrade devices KEY": ([COMMAND, "devices", "h100-sxm5-80gb"], 6.0),
    "stepgrade estimate": ([COMMAND, "estimate", *RUN], 6.0),
}


def main() -> None:
    """Print each command's median time and its ratio to starting Python."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="runs of each command, alternating")
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, (command, _) in CASES.items():
            seconds[name].append(_run(command))
    base = statistics.median(seconds["python -c pass"])
    print(f"{'command':32} {'median':>9} {'ratio':>7} {'goal':>6}")
    for name, (_, goal) in CASES.items():
        median = statistics.median(seconds[name])
        print(f"{name:32} {median * 1000:6.1f} ms {median / base:6.2f}x {f'{goal:g}x' if goal else '':>6}")


def _run(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
