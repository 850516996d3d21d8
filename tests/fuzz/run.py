"""Run the commands, the client and the server on damaged inputs, and count what must not happen.

    python -m tests.fuzz.run --count 100000      as `make fuzz` does
    python -m tests.fuzz.run --seconds 60 --count 10000 --no-feedback      as `make check` does
    python -m tests.fuzz.run --records FILE      the same, going on where an earlier run into FILE stopped
    python -m tests.fuzz.run --first 50000 --count 10000      a part of the whole
    python -m tests.fuzz.run --table FILE FILE   the table and the summary of parts
    python -m tests.fuzz.run --only 12.400.4711  one input again, by its name, with its output
    python -m tests.fuzz.run --write-corpus FILE    the inputs of FILE that led somewhere new, for corpus.txt

Inputs run in forked processes that have everything imported, some dozens each; a process that dies or hangs is
replaced, and the input at fault is written down and run again, alone: a machine that sleeps or is moved can lose
minutes in the middle of anything, so a hang counts when it comes twice. One that came once is shown, with where
it was.

An input that takes a jump in the code that none took before it joins the corpus, and later inputs are made from
it. The first inputs are made from corpus.txt alone, so that they are the same on every machine.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import random
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from stepgrade.readers import registry
from tests.fuzz.arcs import Arcs
from tests.fuzz.inputs import Input, Name, kind_of, make_input, prepare
from tests.fuzz.judging import CODES, judge, run_input
from tests.fuzz.peers import forbid_the_network

CPU_S = 20  # for one input; the slowest honest one takes under a second
WALL_S = 900  # for one that waits without end, on a machine however busy
MEMORY_BYTES = 1 << 30  # beside what the process has when it starts
INPUTS_EACH = 40
ROUND = 1_000  # inputs that are made from the same corpus
SAME_EVERYWHERE = 10_000  # the first inputs, of corpus.txt alone
TRACED = 2  # one of so many inputs is looked at for new jumps
LONGEST_NAME = 8
LARGEST_PARENT = 200_000
CORPUS = Path(__file__).with_name("corpus.txt")


class Corpus:
    """Inputs that led somewhere new, by their kind, and all jumps that were taken."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.seen: set[str] = set()
        self._known: dict[str, list[Name]] = {}
        self._found: dict[str, list[Name]] = {}
        for line in CORPUS.read_text().split() if CORPUS.exists() else ():
            self._put(self._known, name_of(line))

    def _put(self, where: dict[str, list[Name]], name: Name) -> None:
        where.setdefault(kind_of(self._seed, name[0]), []).append(name)

    def add(self, record: dict[str, Any]) -> None:
        """Take an input that was run: its jumps, and itself when some are new."""
        new = set(record.get("new", ())) - self.seen
        if not new:
            return
        self.seen |= new
        name = name_of(record["name"])
        if record.get("main") and len(name) < LONGEST_NAME:
            self._put(self._found, name)

    def name(self, number: int) -> Name:
        """Return the name of an input: made from nothing, or from one of the corpus."""
        dice = random.Random(f"{self._seed}:{number}:corpus")
        kind = kind_of(self._seed, number)
        parents = self._known.get(kind, [])
        if number >= SAME_EVERYWHERE:
            parents = parents + self._found.get(kind, [])
        if not parents or dice.random() < 0.4:
            return (number,)
        newer = int(len(parents) * dice.random() ** 0.7)
        return (*parents[newer], number)


def name_of(text: str) -> Name:
    """Return the name in a text like 12.400.4711."""
    return tuple(int(part) for part in text.split("."))


def text_of(name: Name) -> str:
    """Return a name as it is written."""
    return ".".join(map(str, name))


class Tally:
    """What happened so far."""

    def __init__(self) -> None:
        self.inputs: Counter[str] = Counter()
        self.codes: Counter[tuple[str, int]] = Counter()
        self.wrong: list[tuple[str, str, str]] = []
        self.records: list[dict[str, Any]] = []

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.inputs[record["kind"]] += 1
        self.codes[record["kind"], record["code"]] += 1
        self.wrong += [(record["name"], record["kind"], problem) for problem in record["wrong"]]

    def table(self) -> str:
        """Return the table for docs/security.md."""
        lines = ["| input | inputs | exit 0 | 1 | 2 | 3 | wrong |", "|---|" + "---:|" * 6]
        for kind in [*sorted(self.inputs), None]:
            codes: Counter[int] = Counter()
            for (one, code), count in self.codes.items():
                codes[code] += count if kind in (one, None) else 0
            count = self.inputs[kind] if kind else self.inputs.total()
            wrong = sum(kind in (found, None) for _, found, _ in self.wrong)
            figures = [count, *(codes[c] for c in CODES), wrong]
            lines.append(f"| {kind or '**all**'} | {' | '.join(f'{n:,}' for n in figures)} |")
        return "\n".join(lines)

    def summary(self, seed: int) -> str:
        """Return one line that says what was run and whether anything was wrong."""
        numbers = sorted(name_of(record["name"])[-1] for record in self.records)
        runs = f"{numbers[0]:,} to {numbers[-1]:,}" if numbers else "none"
        whole = len(set(numbers)) == len(numbers) == (numbers[-1] - numbers[0] + 1 if numbers else 0)
        gaps = "" if whole else ", with gaps or repeats"
        slowest = max(self.records, key=lambda record: record.get("cpu_s", 0.0), default={})
        if slowest.get("cpu_s"):
            gaps += f"; the slowest, {slowest['name']}, took {slowest['cpu_s']} s of processor time"
        return f"fuzz: {len(numbers):,} inputs (seed {seed}, numbers {runs}{gaps}), {len(self.wrong):,} wrong"


def _work(seed: int, names: list[Name], seen: set[str] | None, shown: mmap.mmap, write: int) -> None:
    """Run inputs in this process, which is the fork of one that has everything imported."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * 4096 if sys.platform == "linux" else 1 << 30
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    forbid_the_network()
    arcs = Arcs()
    for end in (signal.SIGVTALRM, signal.SIGALRM):
        signal.signal(end, signal.SIG_DFL)
        faulthandler.register(end, file=sys.__stderr__ or sys.stderr, chain=True)  # says where, then ends us
    with os.fdopen(write, "wb") as results:
        for place, name in enumerate(names):
            item = make_input(seed, *name)
            shown[:4] = place.to_bytes(4, "little")
            is_traced = seen is not None and name[-1] % TRACED == 0
            began = time.process_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
            signal.alarm(WALL_S)
            with arcs.watched() if is_traced else nullcontext(set()) as found:
                code, wrong = judge(item)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.alarm(0)
            took = round(time.process_time() - began, 2)
            record = {"name": text_of(name), "kind": item.kind, "code": code, "wrong": wrong, "cpu_s": took}
            if new := {f"{file}:{jump}" for file, jump in found} - (seen or set()):
                record |= {"new": sorted(new), "main": 0 < len(item.main) < LARGEST_PARENT}
            results.write(json.dumps(record).encode() + b"\n")
            results.flush()


def run_batch(seed: int, names: list[Name], seen: set[str] | None) -> list[dict[str, Any]]:
    """Run inputs in forked processes and return what happened, also for those that killed theirs."""
    records: list[dict[str, Any]] = []
    shown = mmap.mmap(-1, 8)
    hung_once: set[Name] = set()
    while names:
        shown[:4] = bytes(4)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(read)
                _work(seed, names, seen, shown, write)
                os._exit(0)
            except BaseException:  # noqa: BLE001  shown, and the process ends
                traceback.print_exc()
                os._exit(99)
        os.close(write)
        with os.fdopen(read, "rb") as results:
            records += map(json.loads, results)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        at = int.from_bytes(shown[:4], "little")
        name = names[at]
        item = make_input(seed, *name)
        names = names[at + 1 :]
        hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGVTALRM, signal.SIGALRM)
        if hung and name not in hung_once:
            hung_once.add(name)
            names = [name, *names]
            print(
                f"input {text_of(name)} ({item.kind}) hung and is run again: {keep(item, seed, name)}",
                flush=True,
            )
            continue
        problem = (
            f"hang: more than {CPU_S} s of processor time, or {WALL_S} s, twice"
            if hung
            else f"exit code: died with status {status}"
        )
        records.append({"name": text_of(name), "kind": item.kind, "code": -1, "wrong": [problem]})
    return records


def keep(item: Input, seed: int, name: Name) -> str:
    """Write the files of an input into a folder and return the command line that runs it there."""
    folder = Path(tempfile.gettempdir(), f"stepgrade-fuzz-{seed}-{text_of(name)}")
    shutil.rmtree(folder, ignore_errors=True)
    for file, content in item.files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    settings = "".join(f"{key}={value!r} " for key, value in item.environment.items())
    again = f"python -m tests.fuzz.run --seed {seed} --only {text_of(name)}"
    text = f"{again}    (cd {folder} && {settings}stepgrade {shlex.join(item.argv)})"
    return text.encode("utf-8", "backslashreplace").decode()


def import_everything() -> None:
    """Import what the commands import lazily, so that no forked process has to."""
    for reader in registry.readers():
        reader.name  # noqa: B018
    for number in range(60):
        judge(make_input(-1, number))


def _in_child(seed: int, names: list[Name], seen: set[str] | None) -> tuple[int, Any]:
    """Start a process that runs some inputs; return it, and where it writes what happened."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "wb") as results:
            results.write(json.dumps(run_batch(seed, names, seen)).encode())
        os._exit(0)
    os.close(write)
    return child, os.fdopen(read, "rb")


def fuzz(
    corpus: Corpus,
    seed: int,
    numbers: list[int],
    *,
    seconds: float | None = None,
    jobs: int = 1,
    feedback: bool = True,
) -> Iterator[dict[str, Any]]:
    """Run inputs, or as many as `seconds` allow, `jobs` processes at a time; yield what happened to each."""
    prepare()
    import_everything()
    end = time.monotonic() + seconds if seconds else float("inf")
    while numbers:
        some = [number for number in numbers if number // ROUND == numbers[0] // ROUND]
        numbers = numbers[len(some) :]
        names = [corpus.name(number) for number in some]
        starts = iter(range(0, len(names), INPUTS_EACH))
        running: dict[int, Any] = {}
        while True:
            while (
                len(running) < jobs and time.monotonic() < end and (start := next(starts, None)) is not None
            ):
                batch = names[start : start + INPUTS_EACH]
                child, results = _in_child(seed, batch, corpus.seen if feedback else None)
                running[child] = results
            if not running:
                break
            child, results = next(iter(running.items()))
            for record in json.loads(results.read()):
                corpus.add(record)
                yield record
            results.close()
            os.waitpid(child, 0)
            del running[child]
        if time.monotonic() >= end:
            return


def run_one(seed: int, name: Name) -> int:
    """Run one input again and show it."""
    prepare()
    forbid_the_network()
    item = make_input(seed, *name)
    print(item.kind, keep(item, seed, name), sep="\n")
    happened = run_input(item)
    print(happened.code, happened.out[:20_000], happened.err, sep="\n")
    code, wrong = judge(item)
    print(*(wrong or [f"nothing wrong, exit code {code}"]), sep="\n")
    return 1 if wrong else 0


def read_records(names: list[str], tally: Tally, corpus: Corpus) -> None:
    """Add what was run before."""
    for name in names:
        for line in Path(name).read_text().splitlines():
            record = json.loads(line)
            tally.add(record)
            corpus.add(record)


def write_corpus(tally: Tally) -> None:
    """Write the names of inputs that led somewhere new: those with the most new jumps, a few of each kind."""
    chosen: dict[str, list[tuple[int, str]]] = {}
    for record in tally.records:
        if (
            record.get("new")
            and record.get("main")
            and not record["wrong"]
            and len(name_of(record["name"])) < LONGEST_NAME
        ):
            chosen.setdefault(record["kind"], []).append((len(record["new"]), record["name"]))
    names = [name for found in chosen.values() for _, name in sorted(found, reverse=True)[:25]]
    CORPUS.write_text("\n".join(sorted(names, key=name_of)) + "\n")
    print(f"{len(names)} inputs in {CORPUS}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=name_of, metavar="NAME")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument(
        "--no-feedback", dest="feedback", action="store_false", help="do not look for new jumps"
    )
    parser.add_argument("--kind", action="append", help="only inputs of this kind; may be repeated")
    parser.add_argument(
        "--records", help="a file of what happened already, of the same seed; the rest is added"
    )
    parser.add_argument("--table", nargs="+", help="print the table of such files and leave")
    parser.add_argument(
        "--write-corpus", nargs="+", metavar="FILE", help="write corpus.txt from such files and leave"
    )
    return parser.parse_args()


def main() -> int:
    """Run from the command line; 1 when anything was wrong."""
    args = _arguments()
    if args.only is not None:
        return run_one(args.seed, args.only)
    tally, corpus = Tally(), Corpus(args.seed)
    earlier = [args.records] if args.records and Path(args.records).exists() else []
    read_records(args.table or args.write_corpus or earlier, tally, corpus)
    if args.write_corpus:
        write_corpus(tally)
        return 0
    if not args.table:
        done = {name_of(record["name"])[-1] for record in tally.records}
        numbers = [n for n in range(args.first, args.first + args.count) if n not in done]
        if args.kind:
            numbers = [n for n in numbers if kind_of(args.seed, n) in args.kind]
        began = said = time.monotonic()
        with Path(args.records or os.devnull).open("a") as records:
            options = {"seconds": args.seconds, "jobs": args.jobs, "feedback": args.feedback}
            for record in fuzz(corpus, args.seed, numbers, **options):
                tally.add(record)
                records.write(json.dumps(record) + "\n")
                records.flush()
                for problem in record["wrong"]:
                    name = name_of(record["name"])
                    print(f"input {record['name']} ({record['kind']}): {problem}", flush=True)
                    print(f"    {keep(make_input(args.seed, *name), args.seed, name)}", flush=True)
                if time.monotonic() - said > 60:
                    said = time.monotonic()
                    done_now = f"{tally.inputs.total():,} inputs, {said - began:.0f} s"
                    print(f"{done_now}, {len(corpus.seen):,} jumps, {len(tally.wrong)} wrong", flush=True)
    print(tally.table())
    for problem, count in Counter(problem for _, _, problem in tally.wrong).most_common(40):
        print(count, problem)
    print(tally.summary(args.seed))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
