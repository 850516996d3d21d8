"""Measure how the work of a command grows with its input: instructions, counted by valgrind, not time.

    python -m tests.complexity.measure                 every shape; the highest go into docs/security.md
    python -m tests.complexity.measure "kinds of"      those whose name holds the words
    python -m tests.complexity.measure --records FILE  the same, going on where an earlier run into FILE stopped

Each shape is run at n, 2n and 4n in a process under callgrind, which writes its counts down whenever the
process asks for its parent's number; a few shapes share a process, since importing everything takes as long as one. The exponent is that of the growth: log2((c4 - c2) / (c2 - c1)), so that
what a command costs without any input hides nothing. Without valgrind the lines of Python that run are counted
instead; they do not show what happens inside numpy or a regular expression.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import io
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

MOST = 1.2
SHOWN = 12  # rows of the table: the highest exponents
# In place of a command: the analysis of traces that are read already. Reading an event takes so many instructions
# that thousands of passes of numpy over thousands of rows do not show beside them.
ANALYSIS = ("analysis",)
SIZES = (1, 2, 4)
WARM_UP = 1  # the first run of a shape imports what it needs, and its memory is fresh
IN_ONE_PROCESS = 3


def run_once(argv: tuple[str, ...], files: dict[str, bytes]) -> int:
    """Run a command in this process, in a folder of its own."""
    from stepgrade.cli import dispatch

    if argv == ANALYSIS:
        from stepgrade.trace.profile import profile_of_traces

        traces = pickle.loads(files["f"])  # noqa: S301  our own
        os.getppid()
        profile_of_traces(traces)
        os.getppid()
        return 0
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        tempfile.TemporaryDirectory() as kept,
    ):
        os.environ["STEPGRADE_CACHE"] = kept  # what a smaller run has kept is worked out again
        for name, content in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content)
        # What a smaller run has looked up is looked up again.
        for module in [module for name, module in sys.modules.items() if name.startswith("stepgrade")]:
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
        re.purge()  # it keeps some hundred patterns and then begins anew, in the middle of any run
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            os.getppid()  # callgrind writes down what happened before,
            code = dispatch.run([*argv])
            os.getppid()  # and what the command did
    if code not in (0, 1, 2, 3):
        raise SystemExit(err.getvalue())
    return code


def child(inputs: str) -> None:
    """Run every shape at every size; the counts are callgrind's to write."""
    gc.disable()  # when it runs depends on what ran before
    for argv, files in pickle.loads(Path(inputs).read_bytes()):  # noqa: S301  our own
        run_once(argv, files)


def instructions(names: list[str]) -> list[int]:
    """Return what each command of `child` took in instructions."""
    from tests.complexity.shapes import SHAPES

    with tempfile.TemporaryDirectory() as folder:
        out, inputs = Path(folder, "counts"), Path(folder, "inputs")
        made = [
            (SHAPES[name].argv, SHAPES[name].make(max(1, int(times * SHAPES[name].size))))
            for name in names
            for times in (WARM_UP, *SIZES)
        ]
        inputs.write_bytes(pickle.dumps(made))
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", "--quiet"),
                *(f"--callgrind-out-file={out}", "--dump-before=getppid"),
                *(sys.executable, "-m", "tests.complexity.measure", "--child", str(inputs)),
            ],
            check=True,
            env=environment,
        )
        dumps = sorted(Path(folder).glob("counts.*"), key=lambda path: int(path.suffix[1:]))
        totals = [int(re.findall(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)[-1]) for dump in dumps]
    return totals[1::2]  # the others are what was done to make the files


def lines(names: list[str]) -> list[int]:
    """Return how many lines of Python each command of `child` ran."""
    from tests.complexity.shapes import SHAPES

    counts = []
    for name in names:
        shape = SHAPES[name]
        for times in (WARM_UP, *SIZES):
            counted = 0

            def count(frame: FrameType, what: str, arg: Any) -> Any:
                nonlocal counted
                counted += 1
                return count

            files = shape.make(max(1, int(times * shape.size)))
            watched_by = sys.gettrace()  # coverage's, in the checks
            sys.settrace(count)
            try:
                run_once(shape.argv, files)
            finally:
                sys.settrace(watched_by)
            counts.append(counted)
    return counts


def exponents(names: list[str], *, by_lines: bool = False) -> dict[str, tuple[float, list[int]]]:
    """Return the exponent of each shape, and the three counts it comes from."""
    counts = lines(names) if by_lines else instructions(names)
    found = {}
    for place, name in enumerate(names):
        one, two, four = counts[4 * place + 1 : 4 * place + 4]
        # What does not grow at all has no exponent; what a command costs anyway varies by some thousands.
        grows = four - two > 0.02 * four and two - one > 0
        found[name] = (math.log2((four - two) / (two - one)) if grows else 0.0, [one, two, four])
    return found


def main() -> int:
    """Print the table; 1 when something grows faster than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--child", help="used by itself")
    parser.add_argument("--lines", action="store_true", help="count lines of Python, without valgrind")
    parser.add_argument("--records", help="a file of what is measured already; new shapes are added to it")
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return 0
    from tests.complexity.shapes import SHAPES

    by_lines = args.lines or shutil.which("valgrind") is None
    unit = "lines of Python" if by_lines else "million instructions"
    if by_lines:
        print("only lines of Python are counted, not what happens inside numpy", file=sys.stderr)
    names = [name for name in SHAPES if not args.words or any(words in name for words in args.words)]
    records = Path(args.records) if args.records else None
    found: dict[str, tuple[float, list[int]]] = {}
    if records is not None and records.exists():
        for line in records.read_text().splitlines():
            name, exponent, counts = json.loads(line)
            found[name] = exponent, counts
    left = [name for name in names if name not in found]
    for start in range(0, len(left), IN_ONE_PROCESS):
        began = time.monotonic()
        new = exponents(left[start : start + IN_ONE_PROCESS], by_lines=by_lines)
        found |= new
        for name, (exponent, counts) in new.items():
            print(f"{exponent:5.2f}  {name}", file=sys.stderr, flush=True)
            if records is not None:
                with records.open("a") as file:
                    file.write(json.dumps([name, exponent, counts]) + "\n")
        print(f"       {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    scale = 1 if by_lines else 1_000_000
    print(f"| what grows | {unit} at n, 2n, 4n | exponent |\n|---|---:|---:|")
    for name in sorted(names, key=lambda name: -found[name][0])[:SHOWN]:
        exponent, counts = found[name]
        print(f"| {name} | {', '.join(f'{count / scale:,.0f}' for count in counts)} | {exponent:.2f} |")
    return 1 if any(found[name][0] > MOST for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
