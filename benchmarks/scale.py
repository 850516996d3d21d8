"""Many ranks: time for each, memory of the client, the merge of 16,000, and HTA beside it.

    python benchmarks/scale.py --ranks 64 256 1000 --engines pool dask
    python benchmarks/scale.py --samples FOLDER --ranks 8 64 --engines here --hta PYTHON
    python benchmarks/scale.py --ranks 1000 --faults host link stage --engines pool

Ranks are simulated, so that whoever is slow makes the others wait; a slow host, a slow link or a slow stage
is planted. With --samples their work consists of the kernels of a trace in FOLDER, by name and share of the
time; without, of a few. HTA runs in an interpreter of its own, which has it installed. What is printed beside
`planted` as `slow` is what the card names. Processor seconds count: another one's load moves the others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
FAULTS: dict[str, dict[str, int]] = {
    "none": {},
    "host": {"slow_host": 1},
    "link": {"slow_link": 1},
    "stage": {"slow_stage": 1},
}
_PEAK = """
import resource
def peak_mb():
    # Unlike ru_maxrss, this begins anew with each program.
    status = open("/proc/self/status").read()
    return round(int(status.split("VmHWM:")[1].split()[0]) / 1024)
def used_s(who):
    found = resource.getrusage(who)
    return round(found.ru_utime + found.ru_stime, 2)
"""
_LOAD = """
import json, sys, time
import stepgrade as sg
from stepgrade.loading import ranks as many
begin, merging = time.perf_counter(), []
def merge_ranks(ranks, merge=many.merge_ranks):
    start = time.process_time()
    merged = merge(ranks)
    merging.append(time.process_time() - start)
    return merged
many.merge_ranks = merge_ranks
profile = sg.load(sys.argv[1], engine=sys.argv[2], workers=2, cache=False)
card = sg.score(profile, device="h100-sxm5-80gb")
print(json.dumps({
    "seconds": round(time.perf_counter() - begin, 1),
    "client_cpu_s": used_s(resource.RUSAGE_SELF),
    "workers_cpu_s": used_s(resource.RUSAGE_CHILDREN),
    "merge_cpu_s": round(sum(merging), 2),
    "client_mb": peak_mb(),
    "json_kb": round(len(card.to_json()) / 1024),
    "ranks": len(profile.ranks),
    "slow": [f"{part.kind}: {part.ranks}" for part in profile.many_ranks.slow],
}))
"""
_HTA = """
import json, sys, time
begin = time.perf_counter()
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
read_s = time.perf_counter() - begin
analysis.get_temporal_breakdown(visualize=False)
print(json.dumps({
    "seconds": round(time.perf_counter() - begin, 1),
    "seconds_to_read": round(read_s, 1),
    "client_cpu_s": used_s(resource.RUSAGE_SELF),
    "workers_cpu_s": used_s(resource.RUSAGE_CHILDREN),
    "client_mb": peak_mb(),
}))
"""
_MERGE = """
import json, sys, time, zlib
from pathlib import Path
sys.path.insert(0, ".")
import msgspec, numpy as np
from msgspec import structs
from stepgrade.loading.ranks import FileTask, analyse_file, FileRanks
from stepgrade.readers.discover import RunFile
from stepgrade.ranks.ranks import merge_ranks
from stepgrade.ranks.collectives import Arrivals, CollectiveCall, ProcessGroup
from stepgrade.ranks.packed_ranks import pack
count, collectives, steps = int(sys.argv[2]), int(sys.argv[3]), 8
known = []
for path in sorted(Path(sys.argv[1]).iterdir()):
    file = RunFile(path=str(path), format="kineto", name=path.name)
    task = FileTask(file=file, steps=None, max_bytes=1 << 34, max_memory=1 << 34)
    answer = analyse_file(msgspec.msgpack.encode(task), lambda _: None)
    known += msgspec.msgpack.decode(answer, type=FileRanks).ranks
group = ProcessGroup(name="0", size=count, ranks="[0, 1, 2, ...]")
calls = tuple(CollectiveCall(name=name, group=group, bytes=1 << 20) for name in ("gather", "scatter"))
program = pack(Arrivals(
    calls=calls,
    call=(np.arange(collectives) % 2).astype("<i4").tobytes(),
    step=np.sort(np.arange(collectives) % steps).astype("<i8").tobytes(),
))
rng, ranks, shared = np.random.default_rng(0), [], {}
sent = 0
for number in range(count):
    one = known[number % len(known)]
    late = rng.integers(0, 200_000, collectives)
    start = np.arange(collectives) * 1_000_000 + 1_760_000_000_000_000_000 + late
    times = np.diff(start, prepend=0).astype("<i8").tobytes() + (500_000 - late).astype("<i8").tobytes()
    figures = np.frombuffer(zlib.decompress(one.operations.figures), "<f8") * (1 + number % 97 / 1000)
    spans = [one.steps[place % len(one.steps)] for place in range(steps)]
    spans = [structs.replace(span, number=place, steady=True) for place, span in enumerate(spans)]
    rank = structs.replace(
        one, rank=number, process=str(number), files=(f"rank{number}.json",), world_size=count,
        steps=tuple(spans), program=program, times=zlib.compress(times, 1),
        operations=structs.replace(one.operations, figures=zlib.compress(figures.tobytes(), 1)),
    )
    data = msgspec.msgpack.encode(rank)
    sent += len(data)
    ranks.append(msgspec.msgpack.decode(data, type=type(rank)).sharing(shared))
before, begin = peak_mb(), time.process_time()
profile = merge_ranks(ranks)
print(json.dumps({
    "ranks": len(profile.ranks),
    "matched": profile.links.collectives[0].calls * 2 if profile.links else 0,
    "kb_sent_a_rank": round(sent / count / 1024, 1),
    "merge_cpu_s": round(time.process_time() - begin, 2),
    "mb_before": before,
    "mb": peak_mb(),
}))
"""


def pieces_of(samples: Path) -> dict[str, list[tuple[str, str, float]]]:
    """Return what the blocks of work consist of: the kernels of a sample, a part of them for each block."""
    path = sorted(samples.glob("*8xH100_rank*.json.gz"))[0]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    operations = {
        event["args"]["External id"]: event["name"]
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    kernels = [
        (operations.get(event["args"].get("External id"), "aten::mm"), event["name"], event["dur"])
        for event in sorted((one for one in events if one.get("cat") == "kernel"), key=lambda one: one["ts"])
        if "nccl" not in event["name"]
    ]
    pieces = {}
    for number, name in enumerate(("gemm_forward", "gemm_backward", "adam")):
        # As many as a layer of a model has in one direction.
        part = kernels[number * len(kernels) // 3 :][: 24 if name != "adam" else 40]
        total = sum(dur for _, _, dur in part)
        pieces[name] = [(operation, kernel, dur / total) for operation, kernel, dur in part]
    return pieces


def generate(folder: Path, ranks: int, samples: Path | None, fault: dict[str, int]) -> int:
    """Write the traces of so many ranks and return their bytes."""
    from tests.cluster import Planned, kineto_of, simulate  # noqa: PLC0415  after the path is set

    pieces = pieces_of(samples) if samples else None
    tensor, pipeline = (4, 2) if ranks >= 16 else (2, 2)
    layers = 24 if samples else 4
    plan = Planned(world=ranks, tensor=tensor, pipeline=pipeline, steps=4, layers=layers, **fault)  # type: ignore[arg-type]
    for rank, events in simulate(plan):
        packed = gzip.compress(kineto_of(rank, events, plan, pieces), 1)
        (folder / f"rank{rank}.json.gz").write_bytes(packed)
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


def main() -> None:
    """Print a line of JSON for each measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1000])
    parser.add_argument("--engines", nargs="*", default=["pool", "dask"])
    parser.add_argument("--faults", nargs="*", default=["host"], choices=tuple(FAULTS))
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--merge", type=int, nargs=2, metavar=("RANKS", "COLLECTIVES"))
    args = parser.parse_args()
    if args.merge:
        with tempfile.TemporaryDirectory(prefix="scale-") as place:
            generate(Path(place), 8, args.samples, {})
            figures = run(_MERGE, place, *map(str, args.merge))
        print(json.dumps({"merge": args.merge, **figures}), flush=True)
    for ranks in args.ranks:
        for fault in args.faults:
            with tempfile.TemporaryDirectory(prefix="scale-") as place:
                size = generate(Path(place), ranks, args.samples, FAULTS[fault])
                base = {"planted": fault, "mb": round(size / 1e6, 1)}
                for engine in args.engines:
                    print(json.dumps({**base, "engine": engine, **run(_LOAD, place, engine)}), flush=True)
                if args.hta:
                    found = run(_HTA, place, python=args.hta)
                    print(json.dumps({**base, "engine": "hta", **found}), flush=True)


if __name__ == "__main__":
    main()
