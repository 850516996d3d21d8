"""Run the commands on damaged inputs, each within limits of time and memory, and count what must not happen.

    python -m tests.fuzz.run --count 100000      as `make fuzz` does
    python -m tests.fuzz.run --seconds 60 --count 10000      as `make check` does
    python -m tests.fuzz.run --records FILE      the same, going on where an earlier run into FILE stopped
    python -m tests.fuzz.run --first 50000 --count 10000      a part of the whole
    python -m tests.fuzz.run --table FILE FILE   the table and the summary of parts
    python -m tests.fuzz.run --only 4711         one input again, with its output

Commands run in forked processes that have everything imported, some dozens of inputs each; a process that dies
or hangs is replaced, and the input at fault is written down and run again, alone: a machine that sleeps or is
moved can lose minutes in the middle of anything, so a hang counts when it comes twice. One that came once is
shown, with where it was.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import mmap
import os
import re
import resource
import shlex
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from stepgrade.cli import dispatch
from stepgrade.readers import registry
from tests.fuzz.inputs import Input, make_input, prepare
from tests.fuzz.samples import CANARY

CPU_S = 20  # for one input; the slowest honest one takes under a second
WALL_S = 900  # for one that waits without end, on a machine however busy
MEMORY_BYTES = 1 << 30  # beside what the process has when it starts
READ_MEMORY = "200M"
INPUTS_EACH = 40
CODES = (0, 1, 2, 3)
_VOID = {
    "br",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "col",
    "path",
    "line",
    "rect",
    "circle",
    "use",
    "stop",
    "source",
    "wbr",
}


class _Balanced(HTMLParser):
    """Raises ValueError for an HTML page whose tags do not close in their order, or that runs a foreign script."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if any(name.startswith("on") for name, _ in attrs):
            raise ValueError(f"<{tag}> has an event handler")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self.open or self.open.pop() != tag:
            raise ValueError(f"</{tag}> closes nothing")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def check_output(text: str, to: str) -> None:
    """Raise ValueError, or what the parser raises, when a real parser refuses the output."""
    if to in ("json", "sarif"):
        json.loads(text, parse_constant=_refuse_constant)
    elif to == "lines":
        for line in text.splitlines():
            json.loads(line, parse_constant=_refuse_constant)
    elif to in ("junit", "badge"):
        ET.fromstring(text)
    elif to == "html":
        page = _Balanced()
        page.feed(text)
        page.close()
        if page.open:
            raise ValueError(f"<{page.open[-1]}> is not closed")
    elif to in ("terminal", "markdown", "github"):
        if any(sign in text for sign in "\x1b\x00\x9b\u202e"):
            raise ValueError("control characters")
        if to != "github" and re.search(r"(?m)^\s*::|##\w*\[", text):
            raise ValueError("a command to a CI system")


def run_input(item: Input) -> tuple[int, str, str]:
    """Run one input in this process, in a folder of its own; return exit code, standard output and error."""
    folder, here = tempfile.mkdtemp(prefix="stepgrade-fuzz-"), Path.cwd()
    before = {name: os.environ.get(name) for name in item.environment}
    streams = sys.stdin, sys.stdout, sys.stderr
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", write_through=True) for _ in range(2)
    )
    try:
        os.chdir(folder)
        for name, content in item.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content)
        os.environ.update(item.environment)
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), out, err
        argv = list(item.argv)
        if argv[0] in ("score", "gate", "parity", "inspect", "convert") and "--help" not in argv:
            argv += ["--max-memory", READ_MEMORY]
        code = dispatch.run(argv)
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)
    texts = [stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in (out, err)]
    return code, texts[0], texts[1]


def judge(item: Input) -> tuple[int, list[str]]:
    """Run an input and return its exit code and what is wrong with what happened."""
    code, out, err = run_input(item)
    wrong = []
    if code not in CODES:
        lines = [line for line in err.splitlines() if line.strip()]
        wrong.append(f"exit code {code}: {lines[-2][:150] if len(lines) > 1 else err[:150]}")
    if "not enough memory" in err:
        wrong.append("memory: more than the limit was asked for")
    if CANARY in out or CANARY in err:
        wrong.append("canary")
    if code in (0, 1, 3) and out:
        try:
            check_output(out, item.out)
        except (ValueError, ET.ParseError, RecursionError) as error:
            wrong.append(f"refused output ({item.out}): {str(error)[:100]}")
    if code == 2 and (err.count("\n") != 1 or not err.startswith("stepgrade: ")):
        wrong.append(f"an error that is not one line: {err[:100]!r}")
    return code, wrong


class Tally:
    """What happened so far."""

    def __init__(self) -> None:
        self.inputs: Counter[str] = Counter()
        self.codes: Counter[tuple[str, int]] = Counter()
        self.wrong: list[tuple[int, str, str]] = []
        self.records: list[dict[str, Any]] = []

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.inputs[record["kind"]] += 1
        self.codes[record["kind"], record["code"]] += 1
        self.wrong += [(record["number"], record["kind"], problem) for problem in record["wrong"]]

    def table(self) -> str:
        """Return the table for docs/security.md."""
        heads = ("exit code", "hang", "refused", "canary", "memory", "an error")
        columns = (
            "other exit codes",
            "hangs",
            "refused outputs",
            "canaries",
            "over the memory",
            "garbled errors",
        )
        lines = [
            f"| input | inputs | exit 0 | 1 | 2 | 3 | {' | '.join(columns)} |",
            "|---|" + "---:|" * (5 + len(columns)),
        ]
        for kind in [*sorted(self.inputs), None]:
            codes = Counter({c: n for (k, c), n in self.codes.items() if kind in (k, None)}) if kind else None
            if codes is None:
                codes = Counter()
                for (_, code), count in self.codes.items():
                    codes[code] += count
            bad = [sum(p.startswith(h) for _, k, p in self.wrong if kind in (k, None)) for h in heads]
            count = self.inputs[kind] if kind else self.inputs.total()
            figures = [count, *(codes[c] for c in CODES), *bad]
            lines.append(f"| {kind or '**all**'} | {' | '.join(f'{n:,}' for n in figures)} |")
        return "\n".join(lines)

    def summary(self, seed: int) -> str:
        """Return one line that says what was run and whether anything was wrong."""
        numbers = sorted(record["number"] for record in self.records)
        runs = f"{numbers[0]:,} to {numbers[-1]:,}" if numbers else "none"
        whole = len(set(numbers)) == len(numbers) == (numbers[-1] - numbers[0] + 1 if numbers else 0)
        gaps = "" if whole else ", with gaps or repeats"
        slowest = max(self.records, key=lambda record: record.get("cpu_s", 0.0), default={})
        if slowest.get("cpu_s"):
            gaps += f"; the slowest, {slowest['number']}, took {slowest['cpu_s']} s of processor time"
        return f"fuzz: {len(numbers):,} inputs (seed {seed}, numbers {runs}{gaps}), {len(self.wrong):,} wrong"


def _work(seed: int, numbers: list[int], shown: mmap.mmap, write: int) -> None:
    """Run inputs in this process, which is the fork of one that has everything imported."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * 4096 if sys.platform == "linux" else 1 << 30
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    for end in (signal.SIGVTALRM, signal.SIGALRM):
        signal.signal(end, signal.SIG_DFL)
        faulthandler.register(end, file=sys.__stderr__ or sys.stderr, chain=True)  # says where, then ends us
    with os.fdopen(write, "wb") as results:
        for number in numbers:
            item = make_input(seed, number)
            shown[:8] = struct.pack("<q", number)
            began = time.process_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
            signal.alarm(WALL_S)
            code, wrong = judge(item)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.alarm(0)
            took = round(time.process_time() - began, 2)
            record = {"number": number, "kind": item.kind, "code": code, "wrong": wrong, "cpu_s": took}
            results.write(json.dumps(record).encode() + b"\n")
            results.flush()


def run_batch(seed: int, numbers: list[int]) -> list[dict[str, Any]]:
    """Run inputs in forked processes and return what happened, also for those that killed theirs."""
    records: list[dict[str, Any]] = []
    shown = mmap.mmap(-1, 8)
    hung_once: set[int] = set()
    while numbers:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(read)
                _work(seed, numbers, shown, write)
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
        at = struct.unpack("<q", shown[:8])[0]
        item = make_input(seed, at)
        numbers = numbers[numbers.index(at) + 1 :]
        hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGVTALRM, signal.SIGALRM)
        if hung and at not in hung_once:
            hung_once.add(at)
            numbers = [at, *numbers]
            print(f"input {at} ({item.kind}) hung and is run again: {keep(item, seed, at)}", flush=True)
            continue
        problem = (
            f"hang: more than {CPU_S} s of processor time, or {WALL_S} s, twice"
            if hung
            else f"exit code: died with status {status}"
        )
        records.append({"number": at, "kind": item.kind, "code": -1, "wrong": [problem]})
    return records


def keep(item: Input, seed: int, number: int) -> str:
    """Write the files of an input into a folder and return the command line that runs it there."""
    folder = Path(tempfile.gettempdir(), f"stepgrade-fuzz-{seed}-{number}")
    for name, content in item.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    settings = "".join(f"{name}={value!r} " for name, value in item.environment.items())
    return f"cd {folder} && {settings}stepgrade {shlex.join(item.argv)}".encode(
        "utf-8", "backslashreplace"
    ).decode()


def import_everything() -> None:
    """Import what the commands import lazily, so that no forked process has to."""
    for reader in registry.readers():
        reader.name  # noqa: B018
    for name in dispatch.COMMANDS:
        if name != "record":
            __import__(f"stepgrade.cli.{name}")
    for number in range(60):
        judge(make_input(-1, number))


def fuzz(
    seed: int, numbers: list[int], tally: Tally, *, seconds: float | None = None, jobs: int = 1
) -> Iterator[dict[str, Any]]:
    """Run inputs, or as many as `seconds` allow, `jobs` processes at a time; yield what happened to each."""
    prepare()
    import_everything()
    began, said = time.monotonic(), time.monotonic()
    starts = iter(range(0, len(numbers), INPUTS_EACH))
    readers: dict[int, Any] = {}
    while True:
        while len(readers) < jobs and not (seconds and time.monotonic() - began > seconds):
            start = next(starts, None)
            if start is None:
                break
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                with os.fdopen(write, "wb") as results:
                    batch = run_batch(seed, numbers[start : start + INPUTS_EACH])
                    results.write(json.dumps(batch).encode())
                os._exit(0)
            os.close(write)
            readers[child] = os.fdopen(read, "rb")
        if not readers:
            return
        child, results = next(iter(readers.items()))
        for record in json.loads(results.read()):
            tally.add(record)
            for problem in record["wrong"]:
                print(f"input {record['number']} ({record['kind']}): {problem}", flush=True)
                item = make_input(seed, record["number"])
                print(f"    {keep(item, seed, record['number'])}", flush=True)
            yield record
        results.close()
        os.waitpid(child, 0)
        del readers[child]
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(
                f"{tally.inputs.total():,} inputs in {said - began:.0f} s, {len(tally.wrong)} wrong",
                flush=True,
            )


def main() -> int:
    """Run from the command line; 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument(
        "--records", help="a file of what happened already, of the same seed; the rest is added"
    )
    parser.add_argument("--table", nargs="+", help="print the table of such files and leave")
    args = parser.parse_args()
    if args.only is not None:
        item = make_input(args.seed, args.only)
        print(item.kind, keep(item, args.seed, args.only), sep="\n")
        print(*run_input(item), sep="\n")
        return 0
    tally = Tally()
    for name in args.table or ([args.records] if args.records and Path(args.records).exists() else []):
        for line in Path(name).read_text().splitlines():
            tally.add(json.loads(line))
    if not args.table:
        done = {record["number"] for record in tally.records}
        numbers = [n for n in range(args.first, args.first + args.count) if n not in done]
        with Path(args.records or os.devnull).open("a") as records:
            for record in fuzz(args.seed, numbers, tally, seconds=args.seconds, jobs=args.jobs):
                records.write(json.dumps(record) + "\n")
                records.flush()
    print(tally.table())
    for problem, count in Counter(problem for _, _, problem in tally.wrong).most_common(40):
        print(count, problem)
    print(tally.summary(args.seed))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
