"""Measure what reading a memory snapshot takes: processor time and largest memory, in a process of its own.

  python benchmarks/snapshots.py [--megabytes 105]

The snapshot is made here as `torch.cuda.memory._dump_snapshot` pickles one: every entry has a dict and a list
of its own, frames, keys and names of actions are shared, and stacks hold the frames of C++ too.
"""

from __future__ import annotations

import argparse
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_MEASURE = """
import sys, time
import stepgrade as sg
began = time.process_time()
sg.load(sys.argv[1])
spent = time.process_time() - began
largest = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(f"{spent:.1f} s of processor time, {int(largest) >> 10} MB at most")
"""
_LAYERS, _OPERATIONS, _DEPTH = 48, 12, 34


def frame(file: str, name: str, line: int) -> dict[str, Any]:
    """Return a frame as PyTorch writes it."""
    return {"name": name, "filename": file, "line": line}


def make_snapshot(steps: int) -> dict[str, Any]:
    """Return a snapshot of so many steps of a model with layers, backward pass and optimizer."""
    chance = random.Random(0)
    native = [
        frame("??", f"torch::autograd::generated::op_{number}(at::Tensor const&)", 0) for number in range(60)
    ]
    outer = [frame("/home/me/train.py", "main", 200), frame("/home/me/train.py", "<module>", 220)]
    stacks = []
    for layer in range(_LAYERS):
        own = [frame("/home/me/model.py", f"forward_{layer}", line) for line in range(50, 62)]
        module = frame("/usr/lib/torch/nn/modules/module.py", "_call_impl", 1773)
        for operation in range(_OPERATIONS):
            inner = chance.sample(native, _DEPTH - 8)
            stacks.append([*inner, own[operation], module, module, own[0], module, module, *outer])
    backward = [chance.sample(native, _DEPTH) for _ in range(_LAYERS)]
    entries: list[dict[str, Any]] = []
    address, time_us = 30_000_000_000, 1_783_874_495_000_000

    def add(action: str, size: int, at: int, frames: list[Any]) -> None:
        nonlocal time_us
        time_us += chance.randrange(1, 400)
        entry = {"action": action, "addr": at, "size": size, "stream": 0, "time_us": time_us}
        # A text and a list of its own in every entry.
        entries.append(entry | {"compile_context": "/".join("NA"), "user_metadata": "", "frames": frames})

    for _ in range(steps):
        held = []
        for frames in stacks:
            size, address = chance.choice([512, 2048, 8_388_608, 33_554_432]), address + 33_554_432
            held.append((size, address))
            add("alloc", size, address, list(frames))
        for number, (size, at) in enumerate(reversed(held)):
            freed = list(backward[number % _LAYERS])  # one list for both of its entries
            add("free_requested", size, at, freed)
            add("free_completed", size, at, freed)
    block = {
        "address": 1,
        "size": 33_554_432,
        "requested_size": 33_554_432,
        "state": "active_allocated",
        "frames": [],
    }
    segment = {"device": 0, "address": 1, "total_size": 33_554_432, "stream": 0, "segment_type": "large"}
    return {
        "segments": [{**segment, "frames": [], "blocks": [dict(block)]} for _ in range(400)],
        "device_traces": [entries],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }


def main() -> None:
    """Make a snapshot of that size, and print what reading it takes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=105)
    wanted = parser.parse_args().megabytes * 1_000_000
    few = len(pickle.dumps(make_snapshot(2)))
    steps = max(2, round(wanted / ((len(pickle.dumps(make_snapshot(12))) - few) / 10)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.pickle")
        path.write_bytes(pickle.dumps(make_snapshot(steps)))
        print(f"{path.stat().st_size / 1e6:.0f} MB, {steps} steps: ", end="", flush=True)
        subprocess.run([sys.executable, "-c", _MEASURE, path], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
