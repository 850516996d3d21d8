"""Record a few training steps of the example GPT with torch.profiler, as anybody would: a Kineto trace.

The trace names files of the machine it was made on; they are cut to their last part before it is written.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from record_gpt import Stopwatch, Training
from torch.profiler import ProfilerActivity, profile, schedule

WARMUP, STEPS = 3, 6


def record(attention: str, path: Path) -> None:
    """Train for a few steps under the profiler and write the trace."""
    torch.set_num_threads(1)  # several wait for each other whenever another program wants a core
    training, watch = Training(attention), Stopwatch()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=1),
        record_shapes=True,
        with_modules=True,
        with_stack=True,
    ) as profiler:
        for _ in range(WARMUP + STEPS):
            training.step(watch)
            profiler.step()
    with TemporaryDirectory() as folder:
        raw = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(raw))
        path.write_bytes(gzip.compress(json.dumps(slim(json.loads(raw.read_text()))).encode(), 9, mtime=0))


def slim(trace: dict) -> dict:
    """Keep what a reader of traces looks at, and no name of this machine's folders."""
    kept = [event for event in trace["traceEvents"] if is_needed(event)]
    for event in kept:
        event["name"] = re.sub(r"[^ (]*/", "", event["name"])
    known = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds", "trace_id")
    flags = ("record_shapes", "with_stack", "with_modules")
    return {key: trace[key] for key in (*known, *flags) if key in trace} | {"traceEvents": kept}


def is_needed(event: dict) -> bool:
    """Tell whether an event is more than a python frame that is no module."""
    return event.get("cat") != "python_function" or event["name"].startswith("nn.Module")


def main() -> None:
    """Record with the attention that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attention", choices=("naive", "fused"), default="fused")
    parser.add_argument("path", type=Path, help="where to write the trace, such as trace.json.gz")
    options = parser.parse_args()
    record(options.attention, options.path)


if __name__ == "__main__":
    main()
