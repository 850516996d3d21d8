"""Plant random faults, one at a time, and run the tests that execute the changed lines: do they notice?

    python -m tests.mutation.run --count 300             as `make mutate` does
    python -m tests.mutation.run --count 40 --room compare --room whatif
    python -m tests.mutation.run --records FILE          go on where an earlier run into FILE stopped
    python -m tests.mutation.run --count 0 --measure     only measure which tests execute which lines

Works in copies of the repository, one for each worker, so a run that is killed leaves no fault behind. Which tests
execute which line is measured once and kept in `.cache/mutation/map.json`; after changes of the code its lines are
found again by their text, and `--measure` measures anew. A fault counts as caught when a test fails or takes much
longer than it should; a fault that no test executes is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import operator
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
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
WHICH = ("-q", "-p", "no:cacheprovider", "-m", "not slow and not measuring", "--seed=1",
         "--hypothesis-seed=0")  # fmt: skip
# Seconds of tests against one fault, as they take without it: most faults fall to the first of them.
STAGES = (8.0, 20.0)
CONTROL_EVERY = 50  # of so many faults, the tests of one are run without it first: they must pass
LEAST_TEXT = 12  # shorter lines are alike in many files
LEAST_CAUGHT = 0.85


class Covering(NamedTuple):
    """A test as it was measured."""

    name: str
    seconds: float


class Map:
    """Which tests execute which lines; the tests of a line are the bits of a number, in hexadecimal."""

    def __init__(self, kept: dict[str, Any], names: set[str]) -> None:
        self._tests = [Covering(name, seconds) for name, seconds in kept["tests"]]
        # A name that changes from run to run, or is gone, would look like a failure.
        self._there = sum(1 << number for number, test in enumerate(self._tests) if test.name in names)
        self._by_text: dict[str, dict[str, int]] = {}
        for path, text in kept["texts"].items():
            lines = kept["lines"].get(path, {})
            for number, line in enumerate(text.splitlines(), start=1):
                files = self._by_text.setdefault(line.strip(), {})
                files[path] = files.get(path, 0) | int(lines.get(str(number), "0"), 16)

    def _executing(self, path: str, line: str) -> int:
        """Return the tests that executed lines of this text: in the file, or else in any."""
        files = self._by_text.get(line.strip(), {})
        if path in files or len(line.strip()) < LEAST_TEXT:
            return files.get(path, 0)
        return functools.reduce(operator.or_, files.values(), 0)

    def tests_of(self, path: str, text: str, mutant: Mutant) -> Iterator[list[Covering]]:
        """Yield, stage by stage, the tests that execute any of the changed lines.

        The tests of the changed room and those of every field of the output come first, then all others; of each file
        the fastest first, and files take turns, so that a line that thousands of tests execute meets every kind.
        """
        lines = text.splitlines()
        bits = 0
        for line in lines[mutant.line - 1 : mutant.last_line]:
            bits |= self._executing(path, line)
        above = [
            self._executing(path, line) for line in reversed(lines[max(0, mutant.line - 6) : mutant.line - 1])
        ]
        if not bits and lines[mutant.line - 1].strip() not in self._by_text:
            bits = next(filter(None, above), 0)  # a line that is new: the tests of the nearest above it
        executing = (test for number, test in enumerate(self._tests) if (bits & self._there) >> number & 1)
        close = (f"tests/{path.partition('/')[0]}/", "tests/golden_json/")
        turns: Counter[str] = Counter()
        order = []
        for test in sorted(executing, key=lambda test: test.seconds):
            file = test.name.partition("::")[0]
            turns[file] += 1
            order.append((not file.startswith(close), turns[file], test.seconds, test))
        waiting = [test for *_, test in sorted(order)]
        for most in STAGES:
            chosen, left, spent = [], [], 0.0
            for test in waiting:
                fits = spent + test.seconds <= most
                (chosen if fits else left).append(test)
                spent += test.seconds if fits else 0.0
            waiting = left
            if chosen:
                yield chosen
        if waiting and len(waiting) == len(order):  # every test takes longer than a stage
            yield waiting[:1]


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
bits = {name: 1 << number for number, (name, _) in enumerate(tests)}
lines, data = {}, watched.get_data()
for path in data.measured_files():
    by_line = data.contexts_by_lineno(path).items()
    lines[path.partition("/src/stepgrade/")[2]] = {
        line: f"{sum(bits.get(name, 0) for name in set(names)):x}" for line, names in by_line
    }
json.dump({"tests": tests, "lines": lines}, open(out, "w"))
sys.exit(code)
"""

# Tests run in the order that they are named in; the suite draws its own.
_RUN = """
import sys, pytest
names, arguments = sys.stdin.read().splitlines(), sys.argv[1:]
places = {name: place for place, name in enumerate(names)}
class InOrder:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: places.get(item.nodeid, len(places)))
sys.exit(pytest.main([*arguments, *names], plugins=[InOrder()]))
"""


def measure(trees: list[Path], *, anew: bool) -> dict[str, Any]:
    """Return which tests execute which lines, measured now or found from an earlier time."""
    cache = ROOT / ".cache" / "mutation"
    kept = cache / "map.json"
    if anew or not kept.exists():
        print("measuring which tests execute which lines (ten minutes)", flush=True)
        cache.mkdir(parents=True, exist_ok=True)

        def measured(tree: Path, folder: str) -> dict[str, Any]:
            part = cache / f"{folder.replace('/', '-')}.part"
            ran = subprocess.run(
                [sys.executable, "-c", _MEASURE, str(part), *WHICH, folder],
                cwd=tree, env=_environment(tree), check=False, capture_output=True, text=True,
            )  # fmt: skip
            if ran.returncode:
                sys.exit(f"the tests fail without any fault: repair that first\n{ran.stdout[-4000:]}")
            found = dict(json.loads(part.read_text()))
            part.unlink()
            return found

        tests: list[Any] = []
        lines: dict[str, dict[str, int]] = {}
        for found in _on_each(trees, measured, _folders(trees[0])):
            for path, by_line in found["lines"].items():
                of_file = lines.setdefault(path, {})
                for line, bits in by_line.items():
                    of_file[line] = of_file.get(line, 0) | int(bits, 16) << len(tests)
            tests += found["tests"]
        source = trees[0] / "src" / "stepgrade"
        texts = {
            str(path.relative_to(source)): path.read_text(encoding="utf-8") for path in source.rglob("*.py")
        }
        shown = {path: {line: f"{bits:x}" for line, bits in by.items()} for path, by in lines.items()}
        kept.write_text(json.dumps({"tests": tests, "texts": texts, "lines": shown}))
    return dict(json.loads(kept.read_text()))


def _on_each(trees: list[Path], work: Callable[[Path, Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yield the work's result for each item as it is done; each tree is used by one worker at a time."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(item: Any) -> Any:
        tree = free.get()
        try:
            return work(tree, item)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        for done in as_completed([pool.submit(one, item) for item in items]):
            yield done.result()


def collect(tree: Path) -> list[str]:
    """Return the names of all tests; as a side effect every module of the copy is compiled, once for all faults."""
    environment = {**_environment(tree), "PYTHONDONTWRITEBYTECODE": ""}
    compiled = [sys.executable, "-m", "compileall", "-q", "src"]
    subprocess.run(compiled, cwd=tree, env=environment, check=True)
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", *WHICH, "--collect-only", *_folders(tree)],
        cwd=tree, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [line for line in listed.stdout.splitlines() if "::" in line]


def _folders(tree: Path) -> list[str]:
    return [f"tests/{name}" for name in TESTS if (tree / "tests" / name).is_dir()]


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"}


def run_tests(tree: Path, tests: list[Covering]) -> bool:
    """Return whether one of the tests fails, dies, or takes far longer than it did without a fault."""
    most = int(20 + 3 * sum(test.seconds for test in tests))
    with tempfile.TemporaryFile() as names:
        names.write("\n".join(test.name for test in tests).encode())
        names.seek(0)
        running = subprocess.Popen(
            [sys.executable, "-c", _RUN, "-x", *WHICH],
            cwd=tree, env=_environment(tree), stdin=names, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    resource.prlimit(running.pid, resource.RLIMIT_CPU, (most, most + 5))
    try:
        return running.wait(timeout=60 + 20 * most) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


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


def judge(tree: Path, known: Map, path: str, mutant: Mutant, *, control: bool) -> str:
    """Return whether the tests catch a fault: caught, survived or not executed."""
    module = tree / "src" / "stepgrade" / path
    text, changed = module.read_text(encoding="utf-8"), module.stat().st_mtime_ns
    stages = list(known.tests_of(path, text, mutant))
    if not stages:
        return "not executed"
    if control and any(run_tests(tree, tests) for tests in stages):
        sys.exit(f"tests fail without any fault, those of {path}:{mutant.line}")
    module.write_text(mutant.applied(text), encoding="utf-8")
    try:
        return "caught" if any(run_tests(tree, tests) for tests in stages) else "survived"
    finally:
        module.write_text(text, encoding="utf-8")
        os.utime(module, ns=(changed, changed))  # so that its compiled form is valid again


def run(
    chosen: list[tuple[str, Mutant]], file: Path | None, workers: int, *, anew: bool
) -> list[dict[str, Any]]:
    """Return a record for each fault; those that the file holds already are not run again."""
    kept: dict[tuple[str, Mutant], dict[str, Any]] = {}
    if file and file.exists():
        for record in map(json.loads, file.read_text().splitlines()):
            mutant = Mutant(*(record[name] for name in Mutant._fields))
            kept[record["path"], mutant] = record
    with tempfile.TemporaryDirectory(prefix="stepgrade-mutation-") as folder:
        trees = [Path(folder) / str(number) / "copy" for number in range(workers)]
        for tree in trees:
            copy_tree(tree)
            names = collect(tree)
        known = Map(measure(trees, anew=anew), set(names))

        def judged(tree: Path, fault: tuple[str, Mutant]) -> dict[str, Any]:
            path, mutant = fault
            began = time.monotonic()
            verdict = judge(tree, known, path, mutant, control=chosen.index(fault) % CONTROL_EVERY == 0)
            seconds = round(time.monotonic() - began, 1)
            return {"path": path, "verdict": verdict, "seconds": seconds, **mutant._asdict()}

        for record in _on_each(trees, judged, [fault for fault in chosen if fault not in kept]):
            kept[record["path"], Mutant(*(record[name] for name in Mutant._fields))] = record
            print(f"{len(kept)} {record['verdict']:12} {record['seconds']:5.1f} s  {record['path']}:{record['line']}"
                  f" {record['kind']}", flush=True)  # fmt: skip
            with (file or Path(os.devnull)).open("a") as out:
                out.write(json.dumps(record) + "\n")
    return [kept[fault] for fault in chosen]


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
    parser.add_argument("--measure", action="store_true", help="measure anew which tests execute which lines")
    parser.add_argument("--workers", type=int, default=max(1, min(os.cpu_count() or 1, 4)))
    parser.add_argument("--records", type=Path, help="one line for each fault; those in it are not run again")
    args = parser.parse_args()
    rooms = tuple(room for room in args.room or ROOMS if (ROOT / "src" / "stepgrade" / room).is_dir())
    chosen = list(itertools.islice(drawn(args.seed, rooms), args.count))
    records = run(chosen, args.records, args.workers, anew=args.measure)
    share = report(records)
    if share < LEAST_CAUGHT:
        print(f"only {share:.1%} of the executed faults were caught; at least {LEAST_CAUGHT:.0%} must be")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
