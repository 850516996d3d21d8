"""Time and memory of an XPlane file of a million events, beside xprof where a Python that has it is given.

    python benchmarks/xplane.py [--events 1000000] [--xprof PYTHON_WITH_XPROF]

The file is made here: operations of a host's device with the stats that JAX writes of each, and as many
events of the runtime's own. Each measurement runs in its own process: the time is the processor's, the
memory the most that was resident.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

STATS = (
    "hlo_op",
    "hlo_module",
    "program_id",
    "run_id",
    "device_ordinal",
    "_src",
    "_pt",
    "_p",
    "step_num",
    "jit_step",
)
PER_STEP = 1000
OVERVIEW = (
    "import sys; from xprof.convert import raw_to_tool_data; "
    "raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], 'overview_page', {})"
)
READ = (
    "import sys; from stepgrade.readers.xplane.planes import read_space; "
    "read_space(open(sys.argv[1], 'rb').read())"
)


def number(value: int) -> bytes:
    """Return a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def part(place: int, value: int | bytes) -> bytes:
    """Return a field: a number, or bytes with their length."""
    if isinstance(value, int):
        return number(place << 3) + number(value)
    return number(place << 3 | 2) + number(len(value)) + value


def make(path: Path, events: int) -> None:
    """Write the file: steps of a thousand operations, each with an event of the runtime behind it."""
    names = {place + 100: f"op.{place}" for place in range(PER_STEP)}
    stats = {place + 1: name for place, name in enumerate(STATS)} | names
    names |= {1: "ThreadpoolListener::Record", 2: "train"}
    with path.open("wb") as file:
        body = [part(2, b"/host:CPU")]
        line, marks = [part(1, 7), part(2, b"tf_XLAEigen/7")], [part(1, 8), part(2, b"python")]
        for index in range(events // 2):
            step, place = divmod(index, PER_STEP)
            at = 10_000_000 * index
            if not place:
                mark = part(1, 2) + part(2, at) + part(3, 10_000_000 * PER_STEP - 1)
                marks.append(part(4, mark + part(4, part(1, 9) + part(4, step))))
            own = (
                (1, 7, 100 + place),
                (2, 7, 10),
                (3, 4, 82),
                (4, 4, 1 << 40 | step),
                (5, 4, 0),
                (6, 7, 6),
                (7, 4, 0),
                (8, 4, index),
            )
            told = b"".join(part(4, part(1, key) + part(kind, value)) for key, kind, value in own)
            line.append(part(4, part(1, 100 + place) + part(2, at) + part(3, 9_000_000) + told))
            noise = part(4, part(1, 7) + part(4, 15)) + part(4, part(1, 8) + part(4, index))
            line.append(part(4, part(1, 1) + part(2, at + 9_500_000) + part(3, 1000) + noise))
        body += [part(3, b"".join(line)), part(3, b"".join(marks))]
        for field, texts in ((4, names), (5, stats)):
            body += [
                part(field, part(1, key) + part(2, part(1, key) + part(2, text.encode())))
                for key, text in texts.items()
            ]
        file.write(part(1, b"".join(body)))


def measure(name: str, command: list[str], size: int) -> None:
    """Run a command and print what it took."""
    child = os.posix_spawn(
        command[0], command, os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )  # fmt: skip
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    rate, memory = size / seconds / 1e6, used.ru_maxrss / 1024
    print(f"{name:24} {seconds:6.1f} s {rate:6.0f} MB/s {memory:6.0f} MB  exit {status >> 8}")


def main() -> None:
    """Measure reading alone and the whole score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--xprof", help="a Python that has xprof")
    options = parser.parse_args()
    events = options.events
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.xplane.pb"
        make(path, events)
        size = path.stat().st_size
        print(f"{size / 1e6:.0f} MB, {events:,} events")
        measure("decoding into columns", [sys.executable, "-c", READ, str(path)], size)
        measure("stepgrade score", [sys.executable, "-m", "stepgrade", "score", str(path)], size)
        if options.xprof:
            measure("xprof, overview_page", [options.xprof, "-c", OVERVIEW, str(path)], size)


if __name__ == "__main__":
    main()
