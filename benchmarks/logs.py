"""Time and memory of a training log of a gigabyte.

    python benchmarks/logs.py [--megabytes 1000]

The log is made here: a step line of torchtitan's and four lines of something else, over and over, for weeks.
The time is the processor's, the memory the most that was resident.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

OTHER = "[rank0]:[titan] 2025-06-16 22:30:48,735 - root - INFO - [GC] Performing periodical GC collection\n"


def make(path: Path, size: int) -> None:
    """Write the log: a step every two seconds."""
    began, first, written = datetime(2025, 6, 1), 1, 0  # noqa: DTZ001  as logs write it
    with path.open("w") as file:
        while written < size:
            lines = []
            for step in range(first, first + 5000):
                clock = (began + timedelta(seconds=2 * step)).strftime("%Y-%m-%d %H:%M:%S,735")
                lines.append(
                    f"[rank0]:[titan] {clock} - root - INFO - step: {step}  loss:  6.1384  memory: "
                    "49.66GiB(52.28%)  tps: 5,856  tflops: 339.16  mfu: 34.29%\n" + OTHER * 4
                )
            written += file.write("".join(lines))
            first += 5000


def main() -> None:
    """Print what the whole score of the log took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        make(path, parser.parse_args().megabytes * 10**6)
        size = path.stat().st_size
        command = [sys.executable, "-m", "stepgrade", "score", str(path), "--max-bytes", str(2 * size)]
        nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        _, status, used = os.wait4(os.posix_spawn(command[0], command, os.environ, file_actions=nowhere), 0)
    seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    rate = size / seconds / 1e6
    print(f"{size / 1e6:.0f} MB: {seconds:.1f} s, {rate:.0f} MB/s, {memory:.0f} MB, exit {status >> 8}")


if __name__ == "__main__":
    main()
