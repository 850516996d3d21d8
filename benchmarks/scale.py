"""Many ranks: time for each, memory of the client, the merge of 16,000, and HTA beside it.

    python benchmarks/scale.py --ranks 64 256 --engines here pool dask
    python benchmarks/scale.py --samples FOLDER --ranks 8 64 --hta PYTHON

Ranks are generated: from traces of eight ranks that are in FOLDER (each made many, with its times moved and
stretched), or simulated with a slow host, a slow link and a slow stage planted in turn. HTA runs in an
interpreter of its own, which has it installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
FAULTS: dict[str, dict[str, int]] = {
    "host": {"slow_host": 1},
    "link": {"slow_link": 1},
    "stage": {"slow_stage": 1},
}
_PEAK = """
def peak_mb():
    # Unlike ru_maxrss, this begins anew with each program.
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
"""
_LOAD = """
import json, resource, sys, time
import stepgrade as sg
begin, cpu = time.perf_counter(), time.process_time()
profile = sg.load(sys.argv[1], engine=sys.argv[2], workers=2, cache=False)
card = sg.score(profile, device="h100-sxm5-80gb")
print(json.dumps({
    "seconds": time.perf_counter() - begin,
    "client_cpu_s": time.process_time() - cpu,
    "client_mb": peak_mb(),
    "children_cpu_s": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
    "json_kb": len(card.to_json()) / 1024,
    "ranks": len(profile.ranks),
    "slow": [(part.kind, part.ranks) for part in profile.many_ranks.slow],
}))
"""
_HTA = """
import json, resource, sys, time
begin = time.perf_counter()
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
analysis.get_temporal_breakdown(visualize=False)
print(json.dumps({
    "seconds": time.perf_counter() - begin,
    "client_mb": peak_mb(),
}))
"""


def generate(folder: Path, ranks: int, samples: Path | None, fault: dict[str, int]) -> int:
    """Write the traces of so many ranks and return their bytes."""
    from tests.cluster import Planned, kineto_of, simulate  # noqa: PLC0415  after the path is set

    if samples is None:
        plan = Planned(world=ranks, tensor=4, pipeline=2, steps=4, layers=40, **fault)  # type: ignore[arg-type]
        for rank, events in simulate(plan):
            packed = gzip.compress(kineto_of(rank, events, plan), 1)
            (folder / f"rank{rank}.json.gz").write_bytes(packed)
        return sum(path.stat().st_size for path in folder.iterdir())
    sources = sorted(samples.glob("*8xH100_rank*.json.gz"))
    texts = [gzip.decompress(path.read_bytes()) for path in sources]
    rng = np.random.default_rng(0)
    for rank in range(ranks):
        text = texts[rank % len(texts)]
        for name, value in (("rank", rank), ("world_size", ranks)):
            text = re.sub(rf'"{name}": \d+'.encode(), f'"{name}": {value}'.encode(), text)
        members = ", ".join(str(number) for number in range(min(ranks, 30))) + (", ..." if ranks > 30 else "")
        text = re.sub(
            rb'"Process Group Ranks": "\[[^"]*', f'"Process Group Ranks": "[{members}]'.encode(), text
        )
        text = re.sub(rb'"Group size": \d+', f'"Group size": {ranks}'.encode(), text)
        shift = int(rng.integers(0, 200_000))  # nanoseconds that this rank is late
        base = re.search(rb'"baseTimeNanoseconds": (\d+)', text)
        if base:
            text = text.replace(base[0], b'"baseTimeNanoseconds": %d' % (int(base[1]) + shift))
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text, 1))
    return sum(path.stat().st_size for path in folder.iterdir())


def run(code: str, *arguments: str, python: str = sys.executable) -> dict[str, Any]:
    """Run code in a process of its own and return what it prints."""
    ran = subprocess.run(
        [python, "-c", _PEAK + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ,
    )
    if ran.returncode:
        return {"failed": ran.stderr.strip().splitlines()[-1:]}
    printed: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return printed


def merge_many(ranks: int, collectives: int) -> dict[str, float]:
    """Match the collectives of generated results and return what that takes."""
    from stepgrade.trace.matching import Arrivals, CollectiveCall, Matching, ProcessGroup  # noqa: PLC0415

    rng = np.random.default_rng(0)
    group = ProcessGroup(name="0", size=ranks, ranks="[0, 1, 2, ...]")
    calls = tuple(CollectiveCall(name=name, group=group, bytes=1 << 20) for name in ("gather", "scatter"))
    call = (np.arange(collectives) % 2).astype("<i4").tobytes()
    step = np.sort(np.arange(collectives) % 8).astype("<i8").tobytes()
    matching = Matching()
    for rank in range(ranks):
        late = rng.integers(0, 200_000, collectives)
        start = np.arange(collectives) * 1_000_000 + 1_760_000_000_000_000_000 + late
        matching.add(
            rank,
            Arrivals(
                calls=calls,
                call=call,
                step=step,
                start_ns=np.diff(start, prepend=0).astype("<i8").tobytes(),
                dur_ns=(500_000 - late).astype("<i8").tobytes(),
            ),
        )
    begin = time.process_time()
    matched = matching.match(range(8), 10**9)
    return {
        "matched": matched.matched if matched else 0,
        "cpu_s": time.process_time() - begin,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Print a line of JSON for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1000])
    parser.add_argument("--engines", nargs="*", default=["here", "pool", "dask"])
    parser.add_argument("--faults", nargs="*", default=["host"], choices=tuple(FAULTS))
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument(
        "--merge", type=int, nargs=2, default=[16_000, 2_000], metavar=("RANKS", "COLLECTIVES")
    )
    args = parser.parse_args()
    if args.merge[0]:
        print(json.dumps({"merge": args.merge, **merge_many(*args.merge)}), flush=True)
    for ranks in args.ranks:
        for fault in args.faults:
            with tempfile.TemporaryDirectory(prefix="scale-") as place:
                size = generate(Path(place), ranks, args.samples, FAULTS[fault])
                base = {
                    "ranks": ranks,
                    "mb": round(size / 1e6, 1),
                    "planted": None if args.samples else fault,
                }
                for engine in args.engines:
                    print(json.dumps({**base, "engine": engine, **run(_LOAD, place, engine)}), flush=True)
                if args.hta:
                    print(
                        json.dumps({**base, "engine": "hta", **run(_HTA, place, python=args.hta)}), flush=True
                    )


if __name__ == "__main__":
    main()
