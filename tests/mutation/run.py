"""Plant random faults, one at a time, and run the tests that are close to them: do they notice?

    python -m tests.mutation.run --count 300             as `make mutate` does
    python -m tests.mutation.run --count 40 --room compare --room whatif
    python -m tests.mutation.run --records FILE          go on where an earlier run into FILE stopped

One process imports stepgrade and collects the tests; for each fault a fork of it exchanges the code of the one
function that has the fault and runs tests until one fails, so that no file is changed and nothing is imported again.
What tests start as a process of its own runs without the fault. The fault notes that it was executed: one that no
test of `MOST_SECONDS` executes is counted apart. A test that also fails without the fault does not count.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import gc
import importlib
import inspect
import itertools
import json
import os
import pkgutil
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Mutant, choose, mutants

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stepgrade"
ROOMS = (
    *("trace", "scoring", "diagnosis", "compare", "hardware", "gating", "store", "whatif", "readers"),
    *("timeline", "replay", "costs", "ranks", "loading"),
)
# The tests that are run against faults: behaviour, not documents, browsers or real trainings.
TESTS = (
    *("trace", "scoring", "diagnosis", "compare", "hardware", "gating", "store", "whatif", "readers"),
    *("timeline", "costs", "ranks", "golden_json", "model", "naming", "report", "cli", "engine"),
)
WHICH = (
    "-q",
    "-p",
    "no:cacheprovider",
    "-m",
    "not slow and not measuring",
    "--seed=1",
    "--hypothesis-seed=0",
)
MOST_SECONDS = 30.0  # of processor time for one fault: most fall to the first tests
FIRST_OF_A_FILE, MOST_OF_A_FILE = 1.5, 8.0
SILENT_SECONDS = 30.0  # more than any test takes
LEAST_CAUGHT = 0.85
MARK = "stepgrade_fault_is_executed"


def marked(mutant: Mutant) -> Mutant:
    """Return the fault with a call that notes its execution."""
    if mutant.kind == "return None":
        return mutant._replace(after=f"return {MARK}()")
    if mutant.kind == "dropped statement":
        return mutant._replace(after=f"{MARK}()")
    return mutant._replace(after=f"({MARK}(), {mutant.after})[1]")


def faulty_code(text: str, path: Path, mutant: Mutant) -> CodeType | None:
    """Return the code of the outermost function around a fault, with the fault; None if it is in no function."""
    try:
        whole = compile(marked(mutant).applied(text), str(path), "exec", dont_inherit=True)
    except SyntaxError:  # a pattern cannot call
        return None
    first = max((line for line in _function_lines(ast.parse(text)) if line <= mutant.line), default=0)
    return next((code for code in _codes(whole) if code.co_firstlineno == first), None)


def _function_lines(tree: ast.Module | ast.ClassDef) -> Iterator[int]:
    """Yield the first line of each function that is in no other, that of its first decorator if it has one."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        elif isinstance(node, ast.ClassDef):
            yield from _function_lines(node)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions in a module or a class, not of those within functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and inner.co_name != "<lambda>":
            if inner.co_flags & inspect.CO_OPTIMIZED:  # a function, not the body of a class
                yield inner
            else:
                yield from _codes(inner)


def functions() -> dict[tuple[str, int], list[FunctionType]]:
    """Import the rooms, and return their functions by file and first line."""
    for room in ROOMS:
        package = importlib.import_module(f"stepgrade.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(str(SOURCE)):
            found.setdefault((one.__code__.co_filename, one.__code__.co_firstlineno), []).append(one)
    return found


class Suite:
    """The collected tests, in the order in which they are run against a fault."""

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        self.by_name = {item.nodeid: item for item in items}
        self._files: dict[str, list[pytest.Item]] = {}
        for item in items:
            self._files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        self._texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in self._files}
        self.seconds: dict[str, float] = {}  # of each test that ran
        self.catching: Counter[str] = Counter()  # tests that caught a fault in a module: f"{path} {test}"
        self.unfit: set[str] = set()  # that fail without a fault
        self._real = {item.nodeid for item in items if item.get_closest_marker("samples")}  # files, and large

    def against(self, path: str, seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
        """Return the tests for a fault in a module: those that caught one there, its own, its room's, the golden.

        Those of close files come first; of the others, those in files that executed the fault.
        """
        module = "stepgrade." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        room, name = path.partition("/")[0], module.rpartition(".")[2]

        def distance(file: str) -> int:
            imports = f"from {module} import" in self._texts[file]
            if imports or f"test_{name}." in file:
                return 0 if f"tests/{room}/" in file or f"test_{name}." in file else 1
            folder = "/".join(path.split("/")[:-1])
            near = [
                f"tests/{folder}/",
                f"tests/{room}/",
                "tests/golden_json/test_golden",
                "tests/golden_json/",
            ]
            return next((2 + number for number, part in enumerate(near) if part in file), 6)

        chance = random.Random(seed)
        by_distance = sorted(self._files, key=lambda file: (distance(file), chance.random()))
        every = [item for file in by_distance for item in self._files[file]]
        caught = [item for item in every if self.catching[f"{path} {item.nodeid}"]][:5]
        chosen = {item.nodeid: item for item in caught}
        for most in (FIRST_OF_A_FILE, MOST_OF_A_FILE):  # a little of each close file, then more of all
            for file in by_distance:
                if most == FIRST_OF_A_FILE and distance(file) > 5:
                    break
                left = [item for item in self._files[file] if item.nodeid not in chosen]
                # A large file is a table of cases: any of them, but the quick ones of a small one first.
                order = {item: chance.random() if len(left) > 50 else self._expected(item) for item in left}
                spent = 0.0
                for item in sorted(left, key=lambda item: (item.nodeid in self._real, order[item])):
                    is_late = item.nodeid in self._real and most == FIRST_OF_A_FILE
                    if spent + self._expected(item) <= most and not is_late:
                        chosen[item.nodeid] = item
                        spent += self._expected(item)
            if most == FIRST_OF_A_FILE:
                first = [item for name, item in chosen.items() if name not in self.unfit]
        return first, [item for name, item in chosen.items() if name not in self.unfit][len(first) :]

    def _expected(self, item: pytest.Item) -> float:
        return self.seconds.get(item.nodeid, 0.1)


class Fork:
    """A fork of this process that prepares itself and runs tests until one fails."""

    def __init__(
        self,
        first: Sequence[pytest.Item],
        more: Sequence[pytest.Item],
        folder: Path,
        change: tuple[CodeType, Sequence[FunctionType]] | None = None,
    ) -> None:
        self.failed: str | None = None  # the test that failed, or in which it died
        self.executed = False
        self.seconds: dict[str, float] = {}  # of processor time, of each test that ran
        self.folder, self._test, self._rest, self.heard = folder, "", b"", time.monotonic()
        self.reading, writing = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            try:
                if change:
                    for function in change[1]:
                        function.__code__ = change[0]
                self._run(first, more, writing)
            finally:  # a fork never returns, whatever happens in it
                os._exit(3)
        os.close(writing)

    def _run(self, first: Sequence[pytest.Item], more: Sequence[pytest.Item], writing: int) -> None:
        os.setsid()
        most = int(MOST_SECONDS + SILENT_SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        config: Any = first[0].config
        self.folder.mkdir()
        config._tmp_path_factory._basetemp = self.folder
        executed: list[bool] = []
        setattr(builtins, MARK, lambda: executed.append(True) if not executed else None)
        began = before = time.process_time()
        waiting, executing = [*first, *more], set[str]()
        while waiting:
            item = waiting.pop(0)
            after = waiting[0] if waiting else None
            os.write(writing, f"{json.dumps([item.nodeid])}\n".encode())
            is_last = before - began > MOST_SECONDS
            is_end = item is first[-1]
            reports = runtestprotocol(item, log=False, nextitem=None if is_last or is_end else after)
            now = time.process_time()
            failed = any(report.failed for report in reports)
            row = [item.nodeid, failed, bool(executed), now - before]
            os.write(writing, f"{json.dumps(row)}\n".encode())
            before = now
            if failed or is_last:
                break
            if executed:
                executing.add(item.nodeid.partition("::")[0])
                executed.clear()
            if is_end:  # of files that execute the fault more, before all others
                waiting.sort(key=lambda item: item.nodeid.partition("::")[0] not in executing)
        os._exit(0)

    def hear(self) -> bool:
        """Read what the fork has written; return whether it has ended. One that is silent for long is ended."""
        ready, _, _ = select.select([self.reading], [], [], 0)
        new = os.read(self.reading, 65536) if ready else None
        if new:
            self.heard = time.monotonic()
            *lines, self._rest = (self._rest + new).split(b"\n")
            for row in map(json.loads, lines):
                self._test = row[0]
                if len(row) > 1:
                    _, failed, is_executed, self.seconds[self._test] = row
                    self.executed |= is_executed
                    self.failed = self._test if failed else self.failed
        if new != b"" and time.monotonic() - self.heard < 20 * SILENT_SECONDS:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        _, status = os.waitpid(self._process, 0)
        os.close(self.reading)
        shutil.rmtree(self.folder, ignore_errors=True)
        if new is None or (status and self._test not in self.seconds):  # it was ended, or died, in a test
            self.failed, self.executed = self._test, True
        return True


def drawn(seed: int, rooms: tuple[str, ...]) -> Iterator[tuple[str, Mutant]]:
    """Yield faults at random, modules by their size: the same ones for the same seed and the same code."""
    chance = random.Random(seed)
    files = sorted(path for room in rooms for path in (SOURCE / room).rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    found = {path: mutants(text) for path, text in texts.items()}
    files = [path for path in files if found[path]]
    seen = set()
    while True:
        path = chance.choices(files, [len(texts[path]) for path in files])[0]
        one = choose(found[path], chance)
        if one is not None and (path, one) not in seen:
            seen.add((path, one))
            yield str(path.relative_to(SOURCE)), one


class Judged:
    """A fault on its way to a verdict: its tests run, and what fails is run once more without the fault."""

    fork: Fork

    def __init__(self, path: str, mutant: Mutant, known: dict[tuple[str, int], list[FunctionType]]) -> None:
        self.path, self.mutant = path, mutant
        self.verdict, self.seconds = "not executed", 0.0
        self.caught_by: str | None = None
        file = SOURCE / path
        self._code = faulty_code(file.read_text(encoding="utf-8"), file, mutant)
        self._functions = known.get((str(file), self._code.co_firstlineno), []) if self._code else []

    def start(self, suite: Suite, folder: str) -> bool:
        """Run the tests with the fault; return False if its function is nowhere to be found."""
        if self._code and self._functions:
            first, more = suite.against(self.path, self.mutant.start)
            self.fork = Fork(first, more, _new_folder(folder), (self._code, self._functions))
            return True
        return False

    def goes_on(self, suite: Suite, folder: str) -> bool:
        """Take what the fork found and return whether another one runs; without, there is a verdict."""
        fork, self.seconds = self.fork, self.seconds + sum(self.fork.seconds.values())
        suite.seconds |= fork.seconds
        if self.caught_by is not None and fork.failed is not None:  # it fails without the fault too
            suite.unfit.add(fork.failed)
            self.caught_by = None
            return self.start(suite, folder)
        if self.caught_by is not None:
            suite.catching[f"{self.path} {self.caught_by}"] += 1
            self.verdict = "caught"
        elif fork.failed is not None:
            self.caught_by = fork.failed
            self.fork = Fork([suite.by_name[fork.failed]], [], _new_folder(folder))
            return True
        elif fork.executed:
            self.verdict = "survived"
        return False


def _new_folder(folder: str) -> Path:
    return Path(tempfile.mkdtemp(dir=folder)) / "tests"


class Judging:
    """Judges faults, several at a time; a plug-in of pytest, which collects the tests first."""

    def __init__(self, chosen: list[tuple[str, Mutant]], records: Path | None, workers: int) -> None:
        self._chosen, self._file, self._workers = chosen, records, workers
        self.kept: dict[tuple[str, Mutant], dict[str, Any]] = {}
        if records and records.exists():
            for record in map(json.loads, records.read_text().splitlines()):
                self.kept[record["path"], Mutant(*(record[name] for name in Mutant._fields))] = record

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge the faults instead of running the tests."""
        known, suite = functions(), Suite(session.items)
        waiting = [
            Judged(path, mutant, known) for path, mutant in self._chosen if (path, mutant) not in self.kept
        ]
        waiting.reverse()
        running: list[Judged] = []
        gc.freeze()
        with tempfile.TemporaryDirectory(prefix="stepgrade-mutation-") as folder:
            while waiting or running:
                while waiting and len(running) < self._workers:
                    fault = waiting.pop()
                    if fault.start(suite, folder):
                        running.append(fault)
                    else:
                        self._keep(fault)
                select.select([fault.fork.reading for fault in running], [], [], 1.0)
                for fault in [fault for fault in running if fault.fork.hear()]:
                    if fault.goes_on(suite, folder):
                        continue
                    running.remove(fault)
                    self._keep(fault)
        for name in sorted(suite.unfit):
            print(f"fails without any fault: {name}")
        return True

    def _keep(self, fault: Judged) -> None:
        record = {"path": fault.path, "verdict": fault.verdict, "seconds": round(fault.seconds, 1)}
        record |= fault.mutant._asdict()
        self.kept[fault.path, fault.mutant] = record
        place = f"{fault.path}:{fault.mutant.line} {fault.mutant.kind}"
        by = f" by {fault.caught_by}" if fault.caught_by else ""
        print(f"{len(self.kept)} {fault.verdict:12} {fault.seconds:5.1f} s  {place}{by}", flush=True)
        with (self._file or Path(os.devnull)).open("a") as out:
            out.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Return a record for each fault."""
        return [self.kept[fault] for fault in self._chosen if fault in self.kept]


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
    parser.add_argument("--workers", type=int, default=max(1, min(os.cpu_count() or 1, 4)))
    parser.add_argument("--records", type=Path, help="one line for each fault; those in it are not run again")
    args = parser.parse_args()
    rooms = tuple(args.room or ROOMS)
    judging = Judging(list(itertools.islice(drawn(args.seed, rooms), args.count)), args.records, args.workers)
    os.chdir(ROOT)
    code = pytest.main([*WHICH, "-n0", *(f"tests/{name}" for name in TESTS)], plugins=[judging])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    share = report(judging.records())
    if share < LEAST_CAUGHT:
        print(f"only {share:.1%} of the executed faults were caught; at least {LEAST_CAUGHT:.0%} must be")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
