"""Count the instructions of short commands, with valgrind, as a step profile that `stepgrade gate` compares.

  python benchmarks/instructions.py --output now.json
  stepgrade gate now.json --baseline before.json

Other programs on the machine do not change them, as they do times. An operation is a command, and a
millisecond a million instructions; a step runs all commands once. Each starts with compiled modules, and
`again` reads the same file a second time, from the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
TRACE = ["-m", "stepgrade", "score", str(EXAMPLES / "traces" / "gpt_fused.json.gz")]
CASES = {
    "python": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "help": ["-m", "stepgrade", "--help"],
    "score profile": ["-m", "stepgrade", "score", str(EXAMPLES / "runs" / "gpt_naive.json")],
    "score log": ["-m", "stepgrade", "score", str(EXAMPLES / "titan.log"), "--no-cache"],
    "score trace": [*TRACE, "--no-cache"],
    "score trace again": TRACE,
}


def count(arguments: list[str], environment: dict[str, str]) -> float:
    """Return the instructions of one run of Python, in millions."""
    python = [sys.executable, *arguments]
    subprocess.run(python, env=environment, stdout=subprocess.DEVNULL, check=True)
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *python]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"Collected : (\d+)", ran.stderr)
    if found is None:
        sys.exit(f"valgrind counted nothing: {ran.stderr[-500:]}")
    return int(found[1]) / 1e6


def main() -> None:
    """Print the instructions of each command and their ratio to starting Python; write the profile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        # The order of sets, and byte code that is written while counting, would change the counts.
        fixed = {"PYTHONHASHSEED": "0", "STEPGRADE_CACHE": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        millions = {name: count(arguments, os.environ | fixed) for name, arguments in CASES.items()}
    for name, million in millions.items():
        print(f"{name:20} {million:8.0f} million {million / millions['python']:6.1f}x")
    if output is not None:
        total = sum(millions.values())
        profile = {
            "_profiler": "step_profiler_v2",
            "steps": 3,
            "avg_step_ms": total,
            "samples_ms": [total] * 3,
            "phases": {"other": {"avg_ms": total, "total_ms": 3 * total, "pct": 100.0}},
            "ops": {name: 3 * million for name, million in millions.items()},
        }
        output.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
