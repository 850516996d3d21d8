"""Plant random faults, one at a time, and run the tests that execute the changed lines: do they notice?

    python -m tests.mutation.run --count 300             as `make mutate` does
    python -m tests.mutation.run --count 40 --room compare --room whatif
    python -m tests.mutation.run --records FILE          go on where an earlier run into FILE stopped

Works in a copy of the repository, so a run that is killed leaves no fault behind. Which tests execute which line
is measured once and kept in `.cache/mutation`. A fault counts as caught when a test fails or takes much longer
than it should; one that no test executes is counted apart.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutation.mutants import Mutant, choose, mutants
from tests.samples import put_samples_beside

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    *("trace", "scoring", "diagnosis", "compare", "hardware", "gating", "store", "whatif", "readers"),
    *("timeline", "costs", "ranks", "loading"),
)
# The tests that are run against faults: behaviour, not documents, browsers or real trainings.
TESTS = (
    *("trace", "scoring", "diagnosis", "compare", "hardware", "gating", "store", "whatif", "readers"),
    *("timeline", "costs", "ranks", "golden_json", "model", "naming", "report", "cli", "engine"),
)
WHICH = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow and not measuring")
MOST_SECONDS = 40.0  # of the tests against one fault, as they take without it
LEAST_CAUGHT = 0.85


class Test(NamedTuple):
    """A test as it was measured."""

    name: str
    seconds: float


class Map:
    """Which tests execute which lines."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self._tests = [Test(name, seconds) for name, seconds in kept["tests"]]
        self._lines: dict[str, dict[str, list[int]]] = kept["lines"]

    def tests_of(self, path: str, mutant: Mutant) -> list[Test]:
        """Return the tests that execute any of the changed lines, fastest first, within the time for one fault."""
        numbers: set[int] = set()
        for line in range(mutant.line, mutant.last_line + 1):
            numbers.update(self._lines.get(path, {}).get(str(line), ()))
        chosen, total = [], 0.0
        for test in sorted((self._tests[number] for number in numbers), key=lambda test: test.seconds):
            total += test.seconds
            if chosen and total > MOST_SECONDS:
                break
            chosen.append(test)
        return chosen


def copy_tree(target: Path) -> None:
    """Copy what git tracks, and what it would."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    put_samples_beside(target)


_MEASURE = """
import json, sys, time, coverage, pytest
out, *arguments = sys.argv[1:]
watched = coverage.Coverage(data_file=None, source=["src/stepgrade"], config_file=False)
tests = []
class Measuring:
    def pytest_runtest_protocol(self, item):
        self.began = time.process_time()
        watched.switch_context(item.nodeid)
    def pytest_runtest_logfinish(self, nodeid):
        tests.append((nodeid, round(time.process_time() - self.began, 3)))
watched.start()
code = pytest.main(arguments, plugins=[Measuring()])
watched.stop()
numbers = {name: number for number, (name, _) in enumerate(tests)}
lines, data = {}, watched.get_data()
for path in data.measured_files():
    by_line = data.contexts_by_lineno(path)
    kept = {line: [numbers[one] for one in names if one in numbers] for line, names in by_line.items()}
    lines[path.partition("/src/stepgrade/")[2]] = {line: found for line, found in kept.items() if found}
json.dump({"tests": tests, "lines": lines}, open(out, "w"))
sys.exit(code)
"""


def measure(tree: Path) -> Map:
    """Return which tests execute which lines, measured now or found from an earlier time."""
    digest = hashlib.sha256()
    for path in sorted([*(tree / "src").rglob("*.py"), *(tree / "tests").rglob("*.py")]):
        digest.update(path.read_bytes())
    kept = ROOT / ".cache" / "mutation" / f"{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        print("measuring which tests execute which lines (ten minutes)", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        folders = [f"tests/{name}" for name in TESTS if (tree / "tests" / name).is_dir()]
        ran = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(kept), *WHICH, *folders],
            cwd=tree,
            env=_environment(tree),
            check=False,
        )
        if ran.returncode:
            kept.unlink(missing_ok=True)
            sys.exit("the tests fail without any fault: repair that first")
    return Map(json.loads(kept.read_text()))


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"}


def run_tests(tree: Path, tests: list[Test]) -> bool:
    """Return whether one of the tests fails, dies, or takes far longer than it did without a fault."""
    most = int(20 + 5 * sum(test.seconds for test in tests))

    def limit() -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))

    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        *WHICH,
        "--hypothesis-seed=0",
        *(test.name for test in tests),
    ]
    with tempfile.TemporaryFile() as output:
        running = subprocess.Popen(
            command, cwd=tree, env=_environment(tree), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            preexec_fn=limit,  # noqa: PLW1509  this process has one thread
        )  # fmt: skip
        try:
            return running.wait(timeout=60 + 20 * most) != 0
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            return True


def drawn(seed: int, rooms: tuple[str, ...]) -> Iterator[tuple[str, Mutant]]:
    """Yield faults at random, modules by their size: the same ones for the same seed and the same code."""
    chance = random.Random(seed)
    source = ROOT / "src" / "stepgrade"
    files = sorted(path for room in rooms for path in (source / room).rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    found = {path: mutants(text) for path, text in texts.items()}
    files = [path for path in files if found[path]]
    seen = set()
    while True:
        path = chance.choices(files, [len(texts[path]) for path in files])[0]
        one = choose(found[path], chance)
        if one is not None and (path, one) not in seen:
            seen.add((path, one))
            yield str(path.relative_to(source)), one


def judge(tree: Path, known: Map, path: str, mutant: Mutant) -> str:
    """Return whether the tests catch a fault: caught, survived or not executed."""
    tests = known.tests_of(path, mutant)
    if not tests:
        return "not executed"
    module = tree / "src" / "stepgrade" / path
    text = module.read_text(encoding="utf-8")
    module.write_text(mutant.applied(text), encoding="utf-8")
    try:
        return "caught" if run_tests(tree, tests) else "survived"
    finally:
        module.write_text(text, encoding="utf-8")


def report(records: list[dict[str, Any]]) -> float:
    """Print the table and the survivors; return the share of executed faults that were caught."""
    rooms: dict[str, Counter[str]] = {}
    for record in records:
        rooms.setdefault(record["path"].split("/")[0], Counter())[record["verdict"]] += 1
    rooms["all"] = sum(rooms.values(), Counter())
    print(
        "\n| room | faults | executed | caught | survived | caught of executed |\n|---|---:|---:|---:|---:|---:|"
    )
    for room, counts in rooms.items():
        executed = counts["caught"] + counts["survived"]
        share = f"{counts['caught'] / executed:.0%}" if executed else ""
        print(
            f"| {room} | {counts.total()} | {executed} | {counts['caught']} | {counts['survived']} | {share} |"
        )
    for record in records:
        if record["verdict"] != "caught":
            print(f"{record['verdict']}: {record['path']}:{record['line']} {record['kind']}: ", end="")
            print(f"{' '.join(record['before'].split())[:100]} -> {' '.join(record['after'].split())[:100]}")
    executed = rooms["all"]["caught"] + rooms["all"]["survived"]
    return rooms["all"]["caught"] / executed if executed else 1.0


def main() -> int:
    """Run the faults; fail when too few are caught."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", choices=ROOMS)
    parser.add_argument("--records", type=Path, help="one line for each fault; those in it are not run again")
    args = parser.parse_args()
    rooms = tuple(room for room in args.room or ROOMS if (ROOT / "src" / "stepgrade" / room).is_dir())
    records = []
    if args.records and args.records.exists():
        records = [json.loads(line) for line in args.records.read_text().splitlines()]
    with tempfile.TemporaryDirectory(prefix="stepgrade-mutation-") as folder:
        tree = Path(folder) / "copy"
        copy_tree(tree)
        known = measure(tree)
        for number, (path, mutant) in enumerate(drawn(args.seed, rooms)):
            if number >= args.count:
                break
            if number < len(records):
                continue
            began = time.monotonic()
            verdict = judge(tree, known, path, mutant)
            records.append({"path": path, "verdict": verdict, **mutant._asdict()})
            print(f"{number + 1}/{args.count} {verdict:12} {time.monotonic() - began:5.1f} s  {path}:{mutant.line}"
                  f" {mutant.kind}", flush=True)  # fmt: skip
            if args.records:
                with args.records.open("a") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    share = report(records)
    if share < LEAST_CAUGHT:
        print(f"only {share:.1%} of the executed faults were caught; at least {LEAST_CAUGHT:.0%} must be")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
