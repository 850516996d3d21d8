"""Time and memory of an Nsight export of a million kernels, beside nsys-ai where its command is given.

    python benchmarks/nsys.py [--kernels 1000000] [--nsys-ai PATH_OF_ITS_COMMAND]

The export is made here, with the tables and columns of schema 3.27. Each command runs in its own process: the
time is the processor's, the memory the most that was resident. nsys-ai gets a copy, for it adds indexes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

KERNEL = [
    *("start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid"),
    *("demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread"),
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory"),
]
RUNTIME = ["start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId"]
NVTX = ["start", "end", "eventType", "text", "globalTid", "textId", "jsonText", "jsonTextId"]
PROCESS, THREAD = 77 << 24, 77 << 24 | 78
FIRST_NS, EACH_NS, PER_STEP = 10**9, 10_000, 1000


def make(path: Path, kernels: int) -> None:
    """Write the export: a kernel of 8 µs every 10 µs, a thousand in a step, every fifth call a wait."""
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode = off")
    connection.execute("pragma synchronous = off")
    connection.execute("create table StringIds (id integer primary key, value text)")
    for table, columns in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME),
        ("NVTX_EVENTS", NVTX),
    ):
        kinds = ", ".join(
            f'"{name}" {"text" if name in ("text", "jsonText") else "integer"}' for name in columns
        )
        connection.execute(f"create table {table} ({kinds})")
    names = [(number, f"void at::native::kernel_{number}<float>(int)") for number in range(1, 200)]
    names += [(300, "cudaLaunchKernel_v7000"), (301, "cudaStreamSynchronize_v3020")]
    connection.executemany("insert into StringIds values (?, ?)", names)

    def rows_of_kernels() -> Iterator[tuple[int, ...]]:
        for number in range(kernels):
            start = FIRST_NS + number * EACH_NS + 5000
            name = 1 + number % PER_STEP % 199
            yield (
                start,
                start + 8000,
                0,
                1,
                0,
                7,
                number + 1,
                PROCESS,
                name,
                name,
                1,
                1,
                0,
                32,
                100,
                1,
                1,
                256,
                1,
                1,
                0,
            )

    def rows_of_calls() -> Iterator[tuple[int, ...]]:
        for number in range(kernels):
            start = FIRST_NS + number * EACH_NS
            yield (start, start + 3000, 0, THREAD, number + 1, 300, 0, 0)
            if number % 5 == 0:
                yield (start + 3500, start + 4500, 0, THREAD, kernels + number + 1, 301, 0, 0)

    marks = ", ".join("?" * len(KERNEL))
    connection.executemany(f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({marks})", rows_of_kernels())  # noqa: S608
    marks = ", ".join("?" * len(RUNTIME))
    connection.executemany(f"insert into CUPTI_ACTIVITY_KIND_RUNTIME values ({marks})", rows_of_calls())  # noqa: S608
    step_ns = PER_STEP * EACH_NS
    ranges = [
        (FIRST_NS + step * step_ns, FIRST_NS + (step + 1) * step_ns - 10, f"step {step}", THREAD)
        for step in range(kernels // PER_STEP)
    ]
    connection.executemany(
        "insert into NVTX_EVENTS (start, end, eventType, text, globalTid) values (?, ?, 59, ?, ?)", ranges
    )
    connection.commit()
    connection.close()


def measure(command: list[str]) -> tuple[float, float]:
    """Return seconds of the processor and megabytes of a command, which must succeed or find no grade."""
    with Path(os.devnull).open("w") as nowhere:
        child = os.posix_spawn(
            command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)]
        )
    _, status, used = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 3):
        raise SystemExit(f"{command[0]} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--nsys-ai", help="the path of its command")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    options = parser.parse_args()
    reading = (
        "import sys\n"
        "from stepgrade.readers.source import ByteSource\n"
        "from stepgrade.readers.nsys import read\n"
        "with ByteSource(sys.argv[1]) as source: print(sum(len(trace.work.name) for trace in read(source)))"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        make(path, options.kernels)
        print(f"{options.kernels:,} kernels, {path.stat().st_size / 1e6:.0f} MB")
        commands = {
            "stepgrade, read": [sys.executable, "-c", reading, str(path)],
            "stepgrade score": [sys.executable, "-m", "stepgrade", "score", str(path)],
        }
        if options.nsys_ai:
            copy = shutil.copy(path, Path(folder) / "copy.sqlite")
            commands["nsys-ai, overlap_breakdown"] = [
                options.nsys_ai,
                "skill",
                "run",
                "overlap_breakdown",
                str(copy),
            ]
        found = {}
        for name, command in commands.items():
            rounds = [measure(command) for _ in range(options.rounds)]
            found[name] = (min(seconds for seconds, _ in rounds), min(memory for _, memory in rounds))
        base = found["stepgrade score"]
        print("| what | processor | memory | times the time | times the memory |\n|---|---:|---:|---:|---:|")
        for name, (seconds, memory) in found.items():
            ratios = f"{seconds / base[0]:.1f} | {memory / base[1]:.1f}"
            print(f"| {name} | {seconds:.1f} s | {memory:.0f} MB | {ratios} |")


if __name__ == "__main__":
    main()
