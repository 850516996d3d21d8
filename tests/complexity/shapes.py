"""Inputs that grow in one direction each, and what of the code they lead through.

A reader, or a module of the analysis, that no shape covers fails `test_registry.py`.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

import stepgrade as sg
from stepgrade.model.scorecard import Fingerprint
from stepgrade.readers.logs.frameworks import DIALECTS
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource
from stepgrade.store import NewRun, open_history
from tests.builders import make_step_profile
from tests.complexity.measure import ANALYSIS
from tests.fuzz.samples import DEVICE, MODEL
from tests.readers.logs.generated import event as tensorboard_event
from tests.readers.logs.generated import version
from tests.readers.nsys.export import MS, Export
from tests.readers.rocprof.files import write_csv, write_json, write_rocpd, write_rpd
from tests.readers.snapshot.snapshots import Recorded, train
from tests.readers.xplane.files import (
    PlaneFile,
    chrome_trace,
    cpu_profile,
    gpu_profile,
    hlo,
    instruction,
    text,
    tpu_profile,
    whole,
    xla_allocations,
)

Files = dict[str, bytes]


class Shape(NamedTuple):
    """One direction to grow in: `make(n)` gives the files, `argv` what is run on them."""

    make: Callable[[int], Files]
    argv: tuple[str, ...] = ("score", "f", "--format", "json")
    covers: tuple[str, ...] = ()  # modules below src/stepgrade
    size: int = 400  # n of the smallest of three, each twice the one before


def event(cat: str, name: str, ts: float, dur: float = 1, tid: int = 1, **more: Any) -> dict[str, Any]:
    args = more.pop("args", {})
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
        **more,
    }


def kernel(name: str, ts: float, number: int, dur: float = 2, **args: Any) -> list[dict[str, Any]]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", ts, args={"correlation": number}),
        event(
            "kernel", name, ts + 3, dur, tid=7, args={"correlation": number, "device": 0, "stream": 7, **args}
        ),
    ]


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def trace(events: Iterable[dict[str, Any]], **keys: Any) -> Files:
    return {"f": json.dumps({"schemaVersion": 1, **keys, "traceEvents": [*events]}, indent=1).encode()}


def one_step(n: int, inside: Callable[[int], list[dict[str, Any]]], each: float = 10) -> Files:
    """Return a trace of two steps whose parts `inside` makes, `each` microseconds apart."""
    rows = [row for i in range(n) for row in inside(i)]
    return trace([step(1, 0, n * each), step(2, n * each, 10), *kernel("last", n * each + 1, 10**7), *rows])


def steps(n: int) -> Files:
    rows = []
    for i in range(n):
        rows += [
            step(i, i * 100, 90),
            event("cpu_op", "aten::mm", i * 100 + 1, 20),
            *kernel("gemm", i * 100 + 2, i),
        ]
    return trace(rows)


def warm_up(n: int) -> Files:
    rows, at = [], 0.0
    for i in range(n):
        dur = 100.0 + 10 * (n - i)
        rows += [step(i, at, dur), *kernel("gemm", at + 2, i, dur - 10)]
        at += dur
    return trace(rows)


def apart_steps(n: int) -> Files:
    rows = []
    for i in range(n):
        at = i * 1000
        rows += [
            step(3 * i, at, 90),
            event("user_annotation", "enumerate(DataLoader)#A.__next__", at + 1, 20),
        ]
        rows += kernel("gemm", at + 30, i)
    return trace(rows)


def operations(n: int) -> Files:
    return one_step(
        n, lambda i: [event("cpu_op", f"aten::op{i}", i * 10, 8), *kernel(f"k{i}", i * 10 + 1, i)]
    )


def steps_of_operations(n: int) -> Files:
    rows = []
    for i in range(n):
        rows += [
            step(i, i * 100, 90),
            event("cpu_op", f"aten::op{i}", i * 100 + 1, 20),
            *kernel(f"k{i}", i * 100 + 2, i),
        ]
    return trace(rows)


def host_operations(n: int) -> Files:
    return one_step(n, lambda i: [event("cpu_op", f"aten::op{i % 50}", i * 10, 8, tid=i % 7)])


def shapes_of_matmuls(n: int) -> Files:
    def inside(i: int) -> list[dict[str, Any]]:
        args = {"Input Dims": [[i + 1, 64], [64, 64]], "Input type": ["float", "float"]}
        return [event("cpu_op", "aten::mm", i * 10, 8, args=args), *kernel("gemm", i * 10 + 1, i)]

    return one_step(n, inside)


def shapes_of_library_operations(n: int) -> Files:
    """Return calls of libraries, of Triton's kernels and of what moves data, each with a size of its own."""
    names = (
        *("flash_attn::_flash_attn_forward", "triton_poi_fused_add_0", "aten::cat", "aten::index_select"),
        *(
            "aten::_foreach_add_",
            "my::own",
            "bitsandbytes::dequantize_4bit",
            "aten::embedding_dense_backward",
        ),
    )

    def inside(i: int) -> list[dict[str, Any]]:
        sizes = [[2, i + 1, 8, 64]] * 3 if i % 8 == 0 else [[[i + 1, 64]] * 5, [i + 1, 64], [i + 1]]
        args = {"Input Dims": sizes, "Input type": ["c10::BFloat16"] * 3, "Concrete Inputs": ["", "", "1"]}
        return [event("cpu_op", names[i % 8], i * 10, 8, args=args), *kernel(f"k{i % 9}", i * 10 + 1, i)]

    return one_step(n, inside)


def compiled_frames(n: int) -> Files:
    """Return n frames that are compiled, each in a function of its own that goes on after a break."""

    def inside(i: int) -> list[dict[str, Any]]:
        at, line = i * 40, f"/home/me/train.py({i + 1})"
        return [
            event("python_function", f"{line}: torch_dynamo_resume_in_f{i}_at_{i + 1}", at, 38),
            event("cpu_op", "entire_frame_compile", at + 1, 10),
            event("cpu_op", f"Torch-Compiled Region: {i}/{i % 3}", at + 12, 20),
            *kernel(f"k{i}", at + 13, i, **{"est. achieved occupancy %": 50, "blocks per SM": 2.0}),
        ]

    return one_step(n, inside)


def launches_and_counters(n: int) -> Files:
    """Return n kernels, each laid over the device in its own way, and as many samples of many counters."""
    rows = [step(1, 0, n * 10), step(2, n * 10, 10), *kernel("last", n * 10 + 1, 10**7)]
    for i in range(n):
        how = {"blocks per SM": 1.0 + i, "registers per thread": 32 + i % 200, "shared memory": i}
        how |= {"est. achieved occupancy %": 0, "block": [128, 1, 1]}
        rows += kernel("k", i * 10, i, **how)
        sample = event("hardware_counters", f"counter{i % 300}", i * 10, ph="C", pid="GPU 0 Counters")
        rows.append(sample | {"args": {"": float(i)}})
    device = {"id": 0, "name": "NVIDIA H100", "numSms": 132, "computeMajor": 9, "computeMinor": 0}
    device |= {"maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536}
    return trace(rows, deviceProperties=[device | {"sharedMemPerMultiprocessor": 233472}])


def events_of_mlperf(n: int) -> Files:
    """Return a log of MLPerf with n blocks."""
    lines = ['{"key": "global_batch_size", "value": 8, "time_ms": 1700000000000, "metadata": {}}']
    for i in range(n):
        for key, at in (("block_start", 0), ("block_stop", 96)):
            about = {"first_epoch_num": i * 384, "epoch_count": 384, "samples_count": i * 384}
            event_ = {
                "key": key,
                "value": None,
                "time_ms": 1_700_000_000_000 + (i * 100 + at) * 1000,
                "metadata": about,
            }
            lines.append(json.dumps(event_))
    return {"f": "\n".join(f":::MLLOG {line}" for line in lines).encode()}


def kernel_names(n: int) -> Files:
    return one_step(n, lambda i: kernel(f"sgemm_{i}", i * 10, i))


def forward_threads(n: int) -> Files:
    def inside(i: int) -> list[dict[str, Any]]:
        maker = event("cpu_op", "aten::mm", i * 10, 2, tid=i + 10, args={"Sequence number": i})
        args = {"Sequence number": i, "Fwd thread id": i + 1}
        return [
            maker,
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", i * 10 + 3, 5, args=args),
            *kernel("k", i * 10 + 4, i),
        ]

    return one_step(n, inside)


def ranges(n: int) -> Files:
    def inside(i: int) -> list[dict[str, Any]]:
        name = "".join(chr(97 + int(digit)) for digit in str(i))
        return [event("user_annotation", f"{name}_{part}", i * 10 + 5 * part, 4) for part in (0, 1)] + kernel(
            "k", i * 10 + 1, i, 1
        )

    return one_step(n, inside)


def modules(n: int) -> Files:
    def inside(i: int) -> list[dict[str, Any]]:
        name = "".join(chr(97 + int(digit)) for digit in str(i))
        return [
            event("python_function", f"nn.Module: {name}_{part}", i * 10 + 5 * part, 4) for part in (0, 1)
        ] + kernel("k", i * 10 + 1, i, 1)

    return one_step(n, inside)


def blocks(n: int) -> Files:
    def inside(i: int) -> list[dict[str, Any]]:
        outer = event("python_function", f"nn.Module: Block_{i}", i * 10, 9)
        return [
            outer,
            event("python_function", f"nn.Module: Linear_{i}", i * 10 + 1, 6),
            event("cpu_op", "aten::mm", i * 10 + 2, 4),
            *kernel("k", i * 10 + 3, i, 1),
        ]

    return one_step(n, inside)


def nest(n: int) -> Files:
    deep = [event("cpu_op", "aten::a", i, 2 * n - 2 * i + 1) for i in range(n)]
    return trace(
        [step(1, 0, 20 * n), *deep, *(event("cpu_op", "aten::b", 3 * n + 5 * i, 2) for i in range(n))]
    )


def nest_of_matmuls(n: int) -> Files:
    args = {"Input Dims": [[8, 64], [64, 64]], "Input type": ["float", "float"]}
    deep = [event("cpu_op", "aten::mm", i, 2 * n - 2 * i + 1, args=args) for i in range(n)]
    return trace([step(1, 0, 20 * n), *deep, *kernel("gemm", n, 1)])


def pattern(n: int) -> Files:
    rows = []
    for i in range(n):
        rows.append(step(i, i * 1000, 990))
        for part in range(16):
            rows += [
                event("cpu_op", f"aten::{'abcd'[part % 4]}", i * 1000 + part * 50, 20),
                *kernel("k", i * 1000 + part * 50 + 1, i * 100 + part),
            ]
    return trace(rows)


def optimizers(n: int) -> Files:
    return trace(
        [
            row
            for i in range(n)
            for row in (
                event("user_annotation", f"Optimizer.step#A{i}.step", i * 10, 5),
                *kernel("k", i * 10 + 1, i),
            )
        ]
    )


def loaders(n: int) -> Files:
    return trace(
        [
            row
            for i in range(n)
            for row in (
                event("user_annotation", "enumerate(DataLoader)#A.__next__", i * 10, 5),
                *kernel("k", i * 10 + 6, i),
            )
        ]
    )


def backward_steps(n: int) -> Files:
    rows = []
    for i in range(n):
        rows.append(event("cpu_op", "aten::mm", i * 10, 3, args={"Sequence number": i}))
        rows.append(
            event(
                "cpu_op",
                "autograd::engine::evaluate_function: MmBackward0",
                i * 10 + 4,
                3,
                args={"Sequence number": i, "Fwd thread id": 1},
            )
        )
    return trace(rows)


def collectives(n: int) -> Files:
    return one_step(
        n,
        lambda i: kernel(
            "ncclDevKernel_AllReduce",
            i * 10,
            i,
            **{
                "Collective name": f"c{i}",
                "In msg nelems": i,
                "Out msg nelems": i,
                "dtype": "Float",
                "Group size": 8,
                "Process Group Ranks": f"[{i}]",
            },
        ),
    )


def waits(n: int) -> Files:
    return one_step(
        n,
        lambda i: [
            event("cpu_op", f"aten::item{i}", i * 10, 8),
            event("cuda_runtime", "cudaStreamSynchronize", i * 10 + 4, 3),
            *kernel("k", i * 10 + 1, i),
        ],
    )


def copies(n: int) -> Files:
    def inside(i: int) -> list[dict[str, Any]]:
        call = event("cuda_runtime", "cudaMemcpyAsync", i * 10, 2, args={"correlation": i})
        copy = event(
            "gpu_memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            i * 10 + 3,
            4,
            args={"correlation": i, "device": 0, "stream": i, "bytes": 9},
        )
        return [call, copy]

    return one_step(n, inside)


def streams(n: int) -> Files:
    return one_step(n, lambda i: kernel("k", i * 10, i, stream=i, device=i % 97))


def overlaps(n: int) -> Files:
    """Return kernels and operations that all reach into those after them."""
    return one_step(
        n,
        lambda i: [
            event("cpu_op", "aten::a", i * 10, 15 * n - i),
            *kernel("k", i * 10, i, dur=25 + i),
        ],
    )


def threads(n: int) -> Files:
    return one_step(
        n,
        lambda i: [
            event("cpu_op", "aten::a", i * 10, 8, tid=i + 10),
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": f"t{i}"}},
        ],
    )


def frames(n: int) -> Files:
    return one_step(
        n,
        lambda i: [
            event(
                "python_function",
                f"train.py({i}): f{i}",
                i * 10,
                9,
                args={"Python id": i + 1, "Python parent id": i},
            ),
            *kernel("k", i * 10 + 1, i),
        ],
    )


def merged_ranks(n: int) -> Files:
    rows = []
    for rank in range(n):
        for number in (1, 2):
            own = [
                step(number, number * 100, 90),
                event("cpu_op", f"aten::op{rank}", number * 100 + 1, 20),
                *kernel(f"k{rank}", number * 100 + 2, 10 * rank + number),
            ]
            rows += [{**row, "pid": rank, "args": {**row["args"], "rank": rank}} for row in own]
    return trace(rows)


def rank_files(n: int) -> Files:
    return {
        f"f/rank{rank}.json": trace(
            json.loads(steps(3)["f"])["traceEvents"], distributedInfo={"rank": rank, "world_size": n}
        )["f"]
        for rank in range(n)
    }


def archive_of_ranks(n: int) -> Files:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in rank_files(n).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return {"f": packed.getvalue()}


def windows_paths(n: int) -> Files:
    whole = trace(row for i in range(n) for row in [event("cpu_op", f"C:|Users|x{i}", i * 10, 5)])["f"]
    return {"f": whole.replace(b"|", b"\\")}


def bare_quotes(n: int) -> Files:
    """Return events on lines of their own whose names hold quotes that were not escaped."""
    whole = b",\n".join(
        b'{\n"ph": "X", "cat": "cpu_op",\n "name": "x.py(0): "%d"",\n "ts": %d, "dur": 5, "pid": 1, "tid": 1}'
        % (i, i * 10)
        for i in range(n)
    )
    return {"f": b'{"schemaVersion": 1, "traceEvents": [' + whole + b"]}"}


def unclosed(n: int) -> Files:
    """Return events each of which opens what nothing closes, with filler that makes each look whole."""
    text = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}'
    return {
        "f": text
        + (b', {"a": [{"ph": 1}, {"ph": "X", "x": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]' * n)
    }


def no_array_end(n: int) -> Files:
    text = b'{"schemaVersion": 1, "traceEvents": ['
    return {
        "f": text
        + b",".join(b'{"ph": "X", "cat": "cpu_op", "name": "a\\q", "ts": %d, "dur": 1}' % i for i in range(n))
    }


def nested_headers(n: int) -> Files:
    return {
        "f": b'{"schemaVersion": 1, "x": ['
        + b'{"traceEvents": [], "y": {"traceEvents": [1]}},' * n
        + b'0], "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}]}'
    }


def many_devices(n: int) -> Files:
    return trace(kernel("k", 1, 1), deviceProperties=[{"id": i, "name": f"d{i}"} for i in range(n)])


def gzip_members(n: int) -> Files:
    text = steps(20)["f"]
    return {
        "f": b"".join(
            gzip.compress(text[i * len(text) // n : (i + 1) * len(text) // n], 1, mtime=0) for i in range(n)
        )
    }


def profile(**fields: Any) -> Files:
    return {"f": json.dumps({**json.loads(make_step_profile()), **fields}).encode()}


def sampled(n: int) -> Files:
    ops = [{"name": f"aten::op{i}", "total_ms": 1.0, "calls": 1.0} for i in range(n)]
    return profile(stepgrade={"sampled": {"steps": 1, "model_ms": 50.0, "operations": ops}})


def recorded_ranks(n: int) -> Files:
    return {
        f"f/rank{rank}.json": profile(
            samples_ms=[100.0 + rank] * 10, stepgrade={"rank": rank, "world_size": n}
        )["f"]
        for rank in range(n)
    }


def recordings(n: int) -> Files:
    files = {}
    for part in range(n):
        rows = [
            row for i in range(3) for row in (step(3 * part + i, i * 100, 90), *kernel("k", i * 100 + 2, i))
        ]
        keys = {"baseTimeNanoseconds": 10**18 + part * 10**9, "distributedInfo": {"rank": 0, "world_size": 1}}
        files[f"f/host_1.{part}.pt.trace.json"] = trace(rows, **keys)["f"]
    return files


def journal(n: int) -> Files:
    sums = {
        "steps": 5,
        "wall_ms": 50.0,
        "phases_ms": {"forward": 20.0},
        "layers_ms": [[0, 1.0, 2.0, 0.0]],
        "samples_ms": [10.0] * 5,
    }
    lines = [{"_recording": 1, "layers": ["a"]}, *({"steady": sums} for _ in range(n))]
    return {"f": b"\n".join(json.dumps(line).encode() for line in lines) + b"\n\n\n{torn" + b"\n" * n}


def journal_layers(n: int) -> Files:
    sums = {
        "steps": 5,
        "wall_ms": 50.0,
        "phases_ms": {f"p{i}": 1.0 for i in range(n)},
        "layers_ms": [[i, 1.0, 2.0, 0.0] for i in range(n)],
    }
    return {
        "f": json.dumps({"_recording": 1, "layers": [str(i) for i in range(n)]}).encode()
        + b"\n"
        + json.dumps({"steady": sums}).encode()
    }


PROFILE_LINE = json.dumps({"_profiler": "step_profiler_v2", **json.loads(make_step_profile())})


def log(n: int) -> Files:
    return {"f": (("noise " * 20 + "\n") * 20 + PROFILE_LINE + "\n").encode() * n}


def cut_profiles(n: int) -> Files:
    return {"f": b'text {"_profiler": "step_profiler_v2", "a": {"b": [ "' * n + b"\n" + PROFILE_LINE.encode()}


def quoted_log(n: int) -> Files:
    return {"f": json.dumps({"lines": ['epoch {} \\ "x" loss' * 3] * n + [PROFILE_LINE + "\n"]}).encode()}


def step_lines(n: int) -> Files:
    """Return a log of n steps with a checkpoint, an evaluation and a restart every so often."""
    lines = []
    for i in range(n):
        stamp = f"2026-03-{1 + i // 80_000:02d} {i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d},000"
        lines.append(
            f"[{stamp}] iteration {i + 1 - (i > n // 2) * 9}/ {n} | elapsed time per iteration (ms): 1000.0 | lm loss: 2.0 |"
        )
        if i % 7 == 0:
            lines.append(f"[{stamp}] saved checkpoint, validation loss 2.0")
    return {"f": "\n".join(lines).encode()}


FAILED = (
    b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.06 GiB. GPU 4 has a total capacity of 178.35 GiB "
    b"of which 343.44 MiB is free. Process 1 has 96.66 GiB memory in use. Including non-PyTorch memory, this process has "
    b"81.32 GiB memory in use. Of the allocated memory 79.17 GiB is allocated by PyTorch, and 575.27 MiB is reserved by "
    b"PyTorch but unallocated.\n"
)


def plain_lines(n: int) -> Files:
    line = b"epoch %d step %d, loss: 2.3, time: 2.0s, tokens/sec: %d, mem 3.5 GB\n"
    return {"f": b"".join(line % (i // 50, i % 50, 8000 + i) for i in range(n))}


def progress_bars(n: int, name: bytes = b"Validation") -> Files:
    """Return a bar of training with a loss, redrawn, and after every tenth of it another bar."""
    train = b"\rEpoch 1:  10%%|#   | %d/%d [00:%02d<00:30,  1.00s/it, loss=2.3]"
    other = b"\n%s: 100%%|####| 4/4 [00:08<00:00,  2.10s/it]\n"
    bars = (
        train % (i, n, i % 60) + (other % name.replace(b"#", b"%d" % i) if i % 10 == 9 else b"")
        for i in range(n)
    )
    return {"f": b"".join(bars) + b"\n"}


def lines_of_every_dialect(n: int) -> Files:
    anchors = b"\n".join(dialect.anchor + b" 1 2 3 x" for dialect in DIALECTS)
    return {"f": (anchors + b"\n") * (n // 10 + 1) + step_lines(n)["f"]}


def one_line_of_anchors(n: int) -> Files:
    return {"f": b"tps: step: 1 loss: " * n + b"\n" + step_lines(50)["f"]}


def table_of_metrics(n: int) -> Files:
    return {"f": ("step,loss,elapsed\n" + "".join(f"{i},2.5,{i * 0.5}\n" for i in range(n))).encode()}


def event_file(n: int) -> Files:
    return {
        "f": version() + b"".join(tensorboard_event(i % 120, 1e9 + i, "train/loss", 2.0) for i in range(n))
    }


def wandb_file(n: int) -> Files:
    items = b"".join(b"\x0a\x0e\x0a\x05_step\x82\x01\x04%4d" % (i % 9999) for i in range(8))
    record = b"\x12" + bytes([len(items) % 128]) + items[: len(items) % 128]
    chunk = bytes(4) + len(record).to_bytes(2, "little") + b"\x01" + record
    return {"f": b":W&B\xe1\xbe\x00" + chunk * n}


def records_of_a_trainer(n: int) -> Files:
    history = [{"step": i, "loss": 2.5, "train_runtime": i * 0.5} for i in range(1, n + 1)]
    return {"f": json.dumps({"log_history": history, "global_step": n}).encode()}


def mlflow_store(n: int) -> Files:
    lines = "".join(f"{1_700_000_000_000 + i * 500} 2.5 {i}\n" for i in range(1, n + 1))
    return {"mlruns/1/a/meta.yaml": b"status: 3\n", "mlruns/1/a/metrics/loss": lines.encode()}


def parity(n: int) -> Files:
    def of(name: str, low: int) -> bytes:
        ops = {f"op_{i}": 1.0 + i % 7 for i in range(low, low + n)}
        return json.dumps(
            {
                "runtime": name,
                "throughput_tok_s": 10,
                "step_time_ms": 9.0,
                "kernel_launches_per_step": 5,
                "ops": ops,
            }
        ).encode()

    return {"f": of("ours", 0), "g": of("theirs", n // 2)}


def cards(n: int) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.json")
        ops = {f"op{i}": 1.0 + i for i in range(n)}
        path.write_bytes(
            profile(
                ops=ops,
                samples_ms=[100.0 + i % 9 for i in range(n)],
                per_layer=[{"layer": i, "fwd_ms": 1.0, "bwd_ms": 2.0} for i in range(n)],
            )["f"]
        )
        card = sg.score(sg.load(path)).to_json().encode()
        return {"f": path.read_bytes(), "g": card}


@cache
def _card() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.json")
        path.write_bytes(profile(samples_ms=[100.0 + i % 9 for i in range(12)])["f"])
        return sg.score(sg.load(path))


def history(n: int) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        with open_history(str(Path(folder, "h.db"))) as store:
            store.add_all(
                NewRun(
                    card=structs.replace(_card(), step_time_ms=100.0 + (i % 13) / 9 + 5 * (i > n // 2)),
                    branch="main",
                    labels={"n": str(i)},
                )
                for i in range(n)
            )
        return {
            "h.db": Path(folder, "h.db").read_bytes(),
            **profile(samples_ms=[100.0 + i % 9 for i in range(12)]),
        }


def budgets(n: int) -> Files:
    rows = "".join(
        f'[[budget]]\nmetric = "op:a{i}*"\nallow = 0.1\n[[waiver]]\nmetric = "op:b{i}"\nuntil = 2030-01-01\nreason = "x"\n'
        for i in range(n)
    )
    return {"c.toml": rows.encode(), **cards(50)}


def dotted_keys(n: int) -> Files:
    return {"c.toml": b"a" + b".a" * n + b" = 1\n", **profile()}


def toml_lists(n: int) -> Files:
    return {"c.toml": b"[rules]\nignore = [" + b'"x", ' * n + b"]\n", **profile()}


def nsys(fill: Callable[[Export], object]) -> Files:
    """Return an export of Nsight Systems that `fill` puts events into, with two kernels of its own."""
    with tempfile.TemporaryDirectory() as folder:
        export = Export(Path(folder) / "f")
        for start in (0, 10 * MS):
            export.kernel("gemm", start, start + MS, 7, launch=start)
        fill(export)
        return {"f": export.close().read_bytes()}


def nsys_kernels(n: int) -> Files:
    return nsys(
        lambda export: [
            (export.range(f"step {i}", i * MS, (i + 1) * MS - 1, 7), export.kernel(f"k{i % 50}", i * MS, i * MS + 9000, 7))
            for i in range(n)
        ]
    )  # fmt: skip


def nsys_ranges(n: int) -> Files:
    return nsys(lambda export: [export.range(f"aten::mm, seq = {i}, sizes = [[{i}, 2], [2, 3]]", i * 20, i * 20 + 9, 7) for i in range(n)])  # fmt: skip


def nsys_processes(n: int) -> Files:
    return nsys(
        lambda export: [export.kernel("gemm", i * MS, i * MS + 9000, 7 + i, device=i) for i in range(n)]
    )


def nsys_collectives(n: int) -> Files:
    """Return collectives whose calls are all in one group, which is the worst for finding its start."""

    def fill(export: Export) -> None:
        group = {"NCCL communicator ID": 5, "No. of ranks": 2, "Rank": 0}
        export.range("ncclCommInitRank", 0, 10, 7, payload=group)
        export.range("ncclGroupStart", 10, 11, 7)
        for i in range(n):
            message = {"NCCL communicator ID": 5, "Message size [bytes]": 1 << 20}
            export.range("ncclSend", 20 + i, 20 + i, 7, payload=message)
            export.kernel(
                "ncclDevKernel_SendRecv(x)", (i + 1) * MS, (i + 1) * MS + 9000, 7, launch=10**4 * n + i
            )
        export.range("ncclGroupEnd", 10**3 * n, 10**5 * n, 7)

    return nsys(fill)


def allocations(n: int) -> Files:
    """Return a step whose operations each allocate, and free what the one before them did."""

    def inside(i: int) -> list[dict[str, Any]]:
        def change(at: float, size: int, address: int) -> dict[str, Any]:
            args = {
                "Device Type": 1,
                "Device Id": 0,
                "Bytes": size,
                "Addr": address,
                "Total Allocated": 10**6,
                "Total Reserved": 10**7,
                "Ev Idx": 2 * i + (size < 0),
            }
            return {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": at,
                "args": args,
            }

        return [
            event("cpu_op", f"aten::op{i}", i * 10, 8),
            change(i * 10 + 2, 512 * (i + 1), i + 1),
            change(i * 10 + 4, -512 * max(i, 1), max(i, 1)),
            *kernel("k", i * 10 + 1, i),
        ]

    return one_step(n, inside)


def snapshot(n: int) -> Files:
    """Return a memory snapshot of n steps."""
    return {"f": train(steps=n).pickled()}


def memory_timeline(n: int) -> Files:
    """Return a memory timeline of n events."""
    rows = [[1_794_811_706_585_954_000 + i, 2 + 2 * (i % 2), 512 * (-1) ** i, 4] for i in range(n)]
    return {"f": json.dumps([[-1, 1, 4096, 0], *rows]).encode()}


def snapshot_of_stacks(n: int) -> Files:
    """Return a snapshot whose allocations are each of a line of their own, with deep stacks."""
    run = Recorded()
    outer = [{"name": f"f{i}", "filename": f"/home/me/a{i}.py", "line": i} for i in range(50)]
    for i in range(n):
        run.frames["forward"] = [{"name": "f", "filename": f"/home/me/m{i}.py", "line": i}, *outer]
        run.alloc(1 << 20, "forward")
    return {"f": run.pickled()}


def snapshot_of_one_list(n: int) -> Files:
    """Return a snapshot in which the same lists stand in many places."""
    value = train(steps=n // 20 + 1).value()
    blocks = value["segments"][0]["blocks"] * n
    value["segments"] = [{**value["segments"][0], "blocks": blocks} for _ in range(n)]
    value["device_traces"] = value["device_traces"] * n
    return {"f": pickle.dumps(value)}


def flight_recorders(n: int) -> Files:
    """Return the dumps of n ranks of a run that hangs, each with the last n collectives."""
    from tests.readers.test_flight_recorder import call  # beside the tests of what they hold

    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(n)])}}
    entries = [call(number) for number in range(1, n + 1)]
    value = {"version": "2.10", "pg_config": groups, "entries": entries}
    behind = value | {"entries": entries[:-1]}
    return {f"rank{rank}": pickle.dumps(value if rank % 7 else behind, 2) for rank in range(8)}


def flight_recorder_of_one_list(n: int) -> Files:
    """Return a dump in which the same lists stand in every entry."""
    from tests.readers.test_flight_recorder import call

    frames = [{"name": "f", "filename": "/x/torch/d.py", "line": 5}] * n
    sizes = [[1] * n] * n
    entries = [call(number, frames=frames, input_sizes=sizes) for number in range(1, n + 1)]
    return {"f": pickle.dumps({"version": "2.10", "pg_config": {}, "entries": entries}, 2)}


def compile_logs(n: int) -> Files:
    """Return the log of n frames of torch.compile, each compiled again and broken for a reason of its own."""
    from tests.readers.test_torch_trace import broken, guard, metrics  # beside the tests of what they hold

    records = [
        metrics(frame, 0)
        + guard(frame, 1, f"{frame}/0: tensor 'x{frame}' size")
        + metrics(frame, 1)
        + broken(f"Graph break in user code at /w/a.py:{frame}\nReason: {frame}\n", frame)
        for frame in range(1, n + 1)
    ]
    return {"f": "".join(records).encode()}


def compile_log_of_long_payloads(n: int) -> Files:
    """Return a log of torch.compile whose reasons are as long as the file, in one line and in many."""
    from tests.readers.test_torch_trace import broken, guard, metrics

    return {"f": (metrics(0) + broken("File " * n + "\nFile \n" * n) + guard(0, 1, "[" * n)).encode()}


def rocprof(write: Callable[[Path, int], Path]) -> Callable[[int], Files]:
    """Return a training run of n steps as one of ROCm's profilers writes it."""

    def make(n: int) -> Files:
        with tempfile.TemporaryDirectory() as folder:
            return {"f": write(Path(folder), n).read_bytes()}

    return make


def xplane_stats(n: int) -> Files:
    """Return an event with many stats, and many lines, names and stats that are used once."""
    plane = PlaneFile("/host:CPU")
    for i in range(n):
        plane.event(plane.line(f"line {i}"), f"name {i}", i, 1, **{f"stat {i}": f"text {i}"})
    many = text(1, text(2, "/host:CPU") + text(3, text(4, whole(1, 1) + text(4, whole(1, 1)) * n)))
    return {"f": cpu_profile() + plane.encoded() + many}


def xplane_hlo(n: int) -> Files:
    """Return a program of computations that call each other, in a chain and in circles."""
    path = "jit(f)/" + "jvp(" * 50 + "a/" * 50
    chain = {
        i + 2: [
            instruction(2 * i, f"fusion.{i}", "fusion", (8,), path=f"{path}layer_{i}/add", called=(i + 3, 2)),
            instruction(2 * i + 1, f"while.{i}", "while", (8,), operands=(2 * i,), called=(i + 1,)),
        ]
        for i in range(n)
    }
    about = PlaneFile("/host:metadata")
    about.metadata("jit_f(1)", Hlo__Proto=hlo("jit_f", chain))
    host = PlaneFile("/host:CPU")
    line = host.line("python")
    for i in range(n):
        host.event(
            line, f"while.{i}", i, 1, hlo_op=f"while.{i}", hlo_module="jit_f", program_id=1, run_id=i % 3
        )
    return {"f": about.encoded() + host.encoded()}


def analysed(make: Callable[[int], Files]) -> Callable[[int], Files]:
    """Return a shape's traces as they are once they are read, for sizes at which reading would hide the analysis."""

    def read(n: int) -> Files:
        made = read_source(ByteSource(make(n)["f"])).traces
        assert made is not None
        return {"f": pickle.dumps([*made])}

    return read


def waits_of_callers(n: int) -> Files:
    """Return waits, each of an operation of its own, under Python frames of their own."""

    def inside(i: int) -> list[dict[str, Any]]:
        frame = {"Python id": i + 1, "Python parent id": None}
        return [
            event("python_function", f"train.py({i}): f{i}", i * 10, 9, args=frame),
            event("cpu_op", f"aten::item{i}", i * 10 + 1, 8),
            event("cuda_runtime", "cudaStreamSynchronize", i * 10 + 4, 3),
            *kernel("k", i * 10 + 2, i),
        ]

    return one_step(n, inside)


def slow_first_calls(n: int) -> Files:
    """Return calls that set a device up, each of a name of its own and long enough for that."""

    def inside(i: int) -> list[dict[str, Any]]:
        return [
            event("cuda_runtime", f"cudaModuleLoad{i}", i * 10_000, 6_000),
            *kernel("k", i * 10_000 + 7_000, i),
        ]

    return one_step(n, inside, each=10_000)


def apart_steps_with_frames(n: int) -> Files:
    """Return steps none of which the next one follows, in Python code, with the device late."""
    rows = []
    for i in range(n):
        at = i * 1000
        rows += [
            step(3 * i, at, 90),
            event("python_function", f"train.py({i % 7}): f", at, 95, args={"Python id": i}),
        ]
        rows += kernel("gemm", at + 30, i, 20)
        rows[-1]["ts"] = at + 80  # the device ends the step after the host has
    return trace(rows)


def odd_kinds_of_modules(n: int) -> Files:
    """Return kinds of modules with five instances, one of them far slower than the others, each with modules inside."""

    def inside(i: int) -> list[dict[str, Any]]:
        name = "".join(chr(97 + int(digit)) for digit in str(i))
        rows = []
        for part in range(5):
            at = i * 1000 + part * 100
            rows += [
                event("python_function", f"nn.Module: {name}_{part}", at, 90),
                event("python_function", f"nn.Module: In{name}_{part}", at + 1, 80),
                event("cpu_op", "aten::mm", at + 2, 70),
                *kernel("k", at + 3, 10 * i + part, 90 if part == 4 else 2),
            ]
        return rows

    return one_step(n, inside, each=1000)


def nest_of_kinds(n: int) -> Files:
    """Return a deep nest of modules of different kinds, five times, once far slower, around many kernels."""
    rows, number = [], 0
    names = ["".join(chr(97 + int(digit)) for digit in str(i)) for i in range(n)]
    for part in range(5):
        base = part * 30 * n
        for i, name in enumerate(names):
            rows.append(event("python_function", f"nn.Module: {name}_{part}", base + i, 25 * n - 2 * i))
        for i in range(n):
            at = base + n + 10 * i
            rows.append(event("cpu_op", "aten::mm", at, 8))
            rows += kernel("gemm" if i % 2 else "softmax", at + 1, number, 9 if part == 4 else 1)
            number += 1
    return trace([step(1, 0, 200 * n), step(2, 200 * n, 10), *kernel("last", 200 * n + 1, 10**7), *rows])


def blocks_that_wander(n: int) -> Files:
    """Return modules that each run in two steps, so that blocks and steps grow together."""
    rows = []
    for i in range(n):
        rows.append(step(i, i * 100, 90))
        for part in (0, 1):
            rows += [
                event("python_function", f"nn.Module: Block_{i + part}", i * 100 + 5 + 40 * part, 30),
                event("python_function", f"nn.Module: In_{i + part}", i * 100 + 6 + 40 * part, 25),
                event("cpu_op", "aten::mm", i * 100 + 8 + 40 * part, 20),
                *kernel("k", i * 100 + 10 + 40 * part, 2 * i + part),
            ]
    return trace(rows)


def many_loops(n: int) -> Files:
    """Return loops of 70 turns over one small operation each, one after the other, on a host without a device."""
    rows = [event("cpu_op", f"aten::op{i % 9}", 80 * i + turn, 0.5) for i in range(n) for turn in range(70)]
    return trace([step(1, 0, 80 * n), step(2, 80 * n, 10), *rows])


def convolutions_on_threads(n: int) -> Files:
    def inside(i: int) -> list[dict[str, Any]]:
        args = {"Input Dims": [[8, 3, 32, 32], [16, 3, 3, 3]], "Input type": ["float", "float"]}
        after = {"Input Dims": [[8, 16, 30, 30]], "Input type": ["float"]}
        return [
            event("cpu_op", "aten::convolution", i * 10, 4, tid=i + 10, args=args),
            event("cpu_op", "aten::relu", i * 10 + 5, 4, tid=i + 10, args=after),
            event("cuda_runtime", "cudaLaunchKernel", i * 10 + 1, 1, tid=i + 10, args={"correlation": i}),
            event("kernel", "k", i * 10 + 3, 2, tid=7, args={"correlation": i, "device": 0, "stream": 7}),
        ]

    return one_step(n, inside)


def tensors_of_one_product(n: int) -> Files:
    dims = [[2 * i + 3, 2 * i + 4] for i in range(n)]
    args = {"Input Dims": dims, "Input type": ["float"] * n, "kernel_backend": "triton"}
    rows = [
        event("cpu_op", "triton_tem_fused_mm_0", 1, 50, args=args),
        *kernel("triton_tem_fused_mm_0", 5, 1),
    ]
    return trace([step(1, 0, 100), step(2, 100, 10), *kernel("last", 101, 10**7), *rows])


def short_host_operations(n: int) -> Files:
    return one_step(n, lambda i: [event("cpu_op", f"aten::op{i}", i * 10, 3)])


def recordings_of_their_own(n: int) -> Files:
    """Return recordings of one process, each with operations of its own and steps counted from 0."""
    files = {}
    for part in range(n):
        rows = [
            row
            for i in range(3)
            for row in (
                step(i, i * 100, 90),
                event("cpu_op", f"aten::op{part}", i * 100 + 1, 20),
                *kernel(f"k{part}", i * 100 + 2, i),
            )
        ]
        keys = {"baseTimeNanoseconds": 10**18 + part * 10**9, "distributedInfo": {"rank": 0, "world_size": 1}}
        files[f"f/host_1.{part}.pt.trace.json"] = trace(rows, **keys)["f"]
    return files


def sampled_parts(n: int) -> Files:
    """Return two recordings whose sampled steps have parts of n classes, half of them in both."""

    def of(low: int) -> bytes:
        parts = [
            {
                "work_class": f"c{i}",
                "role": f"r{i}",
                "direction": None,
                "ms": 1.0,
                "calls": 1.0,
                "kernels": 0.0,
            }
            for i in range(low, low + n)
        ]
        ops = [{"name": f"aten::op{i}", "total_ms": 1.0, "calls": 1.0} for i in range(low, low + n)]
        sampled = {
            "steps": 1,
            "model_ms": 50.0,
            "operations": ops,
            "activity": {"driver": "host", "parts": parts},
        }
        return profile(stepgrade={"sampled": sampled})["f"]

    return {"f": of(0), "g": of(n // 2)}


def fingerprints(n: int) -> Files:
    """Return a history in which every run is of another model and batch, and only half of them comparable."""
    with tempfile.TemporaryDirectory() as folder:
        with open_history(str(Path(folder, "h.db"))) as store:
            store.add_all(
                NewRun(card=structs.replace(_card(), fingerprint=Fingerprint(model=f"m{i}")), branch="main")
                for i in range(n)
            )
        body = Path(folder, "h.db").read_bytes()
    return {"h.db": body, **profile(samples_ms=[100.0 + i % 9 for i in range(12)])}


def noted(n: int) -> Files:
    """Return a recording with n notes, each with a code of its own."""
    return profile(stepgrade={"notes_coded": [{"code": f"c{i}", "text": f"note {i}"} for i in range(n)]})


def lines_of_code(n: int) -> Files:
    lines = [{"where": f"a{i}.py:{i}", "function": f"f{i}", "ms": 1.0} for i in range(n)]
    return profile(
        stepgrade={"lines": {f"stall{i}": [line] for i, line in enumerate(lines)} | {"stall": lines}}
    )


def empty_gzip_members(n: int) -> Files:
    return {"f": gzip.compress(b"", 1, mtime=0) * n + gzip.compress(profile()["f"], 1, mtime=0)}


def deep_json(n: int) -> Files:
    return {"f": b'{"a": ' + b"[" * n + b"]" * n + b', "_profiler": "step_profiler_v2"}'}


def escaped_names(n: int) -> Files:
    """Return one name that is nothing but escapes, in every output."""
    return profile(ops={"\u202e\x1b<&]]>|`" * n: 1.0})


def spaces_before(n: int) -> Files:
    return {"f": b" " * n + b"\n" * n + profile()["f"]}


def runs_of_digits(n: int) -> Files:
    return one_step(
        8,
        lambda i: [
            event("user_annotation", "step" + "1a" * n + str(i), i * 10, 8),
            *kernel("k", i * 10 + 1, i),
        ],
    )


def open_brackets(n: int) -> Files:
    """Return a log of lines that open what nothing closes, before a profile."""
    return {"f": (b'{"_profiler": [' + b"{" * 40 + b"\n") * n + PROFILE_LINE.encode() + b"\n"}


def config_values(n: int) -> Files:
    return {
        "config.json": json.dumps(
            {
                **json.loads(MODEL),
                **{f"k{i}": {"a": [i]} for i in range(n)},
                "layer_types": ["full_attention"] * n,
                "num_hidden_layers": n,
            }
        ).encode()
    }


def device_table(n: int) -> Files:
    return {"d.toml": DEVICE + b"".join(b"key%d = [%d]\n" % (i, i) for i in range(n)), **profile()}


KINETO = tuple(
    f"readers/kineto/{name}"
    for name in ("reader", "chunks", "header", "decode", "tables", "categories", "lane")
)
WHAT_IF = ("what-if", "f", "--without", "k", "--format", "json")
SCORE_HTML = ("score", "f", "--format", "html")
HISTORY = ("--history", "h.db")
SHAPES: dict[str, Shape] = {
    "steps of a trace": Shape(steps, covers=(*KINETO, "timeline/steps", "timeline/ledger", "trace/profile", "timeline/timeline", "trace/counts", "readers/steps", "loading/__init__", "loading/cached", "readers/discover", "readers/source", "readers/base", "readers/registry"), size=200),
    "steps of a trace, the later half": Shape(steps, ("score", "f", "--steps", "1-90000"), ("readers/steps",), 200),
    "steps as HTML": Shape(steps, SCORE_HTML, size=200),
    "warm-up steps": Shape(warm_up, covers=("timeline/ledger",), size=200),
    "steps apart, each with a loader": Shape(apart_steps, covers=("timeline/ledger", "timeline/intervals"), size=200),
    "operations by name": Shape(operations, covers=("trace/operations", "timeline/timeline"), size=200),
    "operations in steps of their own": Shape(steps_of_operations, covers=("trace/operations",), size=200),
    "operations on the host": Shape(host_operations, covers=("timeline/ledger", "timeline/links"), size=3000),
    "shapes of library operations": Shape(shapes_of_library_operations, covers=("costs/call_costs", "costs/patterns", "costs/table", "costs/recorded_inputs"), size=200),
    "launches of kernels and samples of counters": Shape(launches_and_counters, covers=("trace/kernels",), size=200),
    "frames that are compiled": Shape(compiled_frames, covers=("trace/compilation", "trace/kernels"), size=100),
    "events of MLPerf": Shape(events_of_mlperf, covers=("readers/logs/mlperf",), size=300),
    "shapes of matrix products": Shape(shapes_of_matmuls, covers=("costs/call_costs", "costs/table"), size=200),
    "names of kernels": Shape(kernel_names, covers=("trace/counts", "trace/activity"), size=300),
    "threads and forward threads": Shape(forward_threads, covers=("trace/layers",), size=200),
    "kinds of ranges": Shape(ranges, covers=("trace/layers",), size=200),
    "kinds of modules": Shape(modules, covers=("trace/layers", "trace/operations"), size=200),
    "blocks of a model": Shape(blocks, SCORE_HTML, ("trace/layers",), 100),
    "a nest followed by siblings": Shape(nest, covers=("timeline/links",), size=4000),
    "a nest of matrix products": Shape(nest_of_matmuls, covers=("trace/operations",), size=1500),
    "a repeating pattern": Shape(pattern, covers=("trace/layers",), size=20),
    "optimizers by name": Shape(optimizers, covers=("timeline/steps",), size=200),
    "loaders without steps": Shape(loaders, covers=("timeline/steps",), size=200),
    "backward passes without steps": Shape(backward_steps, covers=("timeline/steps",), size=400),
    "collectives": Shape(collectives, covers=("ranks/collectives", "ranks/matching"), size=400),
    "a step that is replayed": Shape(waits, WHAT_IF, ("replay/graph", "replay/replayer", "replay/packed", "replay/promises", "replay/run", "whatif/answers"), 200),
    "streams of a step that is replayed": Shape(streams, WHAT_IF, ("replay/graph",), 400),
    "ranks that are replayed": Shape(rank_files, ("what-if", "f", "--format", "json"), ("replay/graph",), 6),
    "waits of the host": Shape(waits, covers=("trace/activity",), size=200),
    "copies on streams of their own": Shape(copies, covers=("trace/activity",), size=800),
    "streams and devices": Shape(streams, covers=("timeline/ledger", "trace/tracks"), size=800),
    "overlapping events for Perfetto": Shape(overlaps, ("score", "f", "--format", "perfetto", "-o", "out"), ("trace/tracks", "readers/ranks"), 200),
    "host threads and their names": Shape(threads, covers=("timeline/links",), size=800),
    "python frames": Shape(frames, covers=("timeline/links", "trace/activity"), size=200),
    "ranks of one file": Shape(merged_ranks, covers=("ranks/ranks", "readers/kineto/reader", "trace/profile"), size=10),
    "ranks in an archive": Shape(archive_of_ranks, covers=("readers/archives",), size=6),
    "ranks in files of their own": Shape(rank_files, covers=("readers/ranks", "loading/ranks", "ranks/many_ranks", "ranks/collectives", "ranks/packed_ranks"), size=6),
    "recordings of ranks": Shape(recorded_ranks, ("score", "f", "--format", "json"), ("ranks/recorded_ranks",), 10),
    "recordings of one process": Shape(recordings, ("score", "f", "--format", "json"), ("ranks/ranks",), 6),
    "operations of sampled steps": Shape(sampled, covers=("readers/recording",), size=300),
    "kernels and steps of Nsight": Shape(nsys_kernels, covers=(*(f"readers/nsys/{name}" for name in ("reader", "device")), "readers/sqlite", "readers/processes"), size=300),
    "ranges of Nsight at one depth": Shape(nsys_ranges, covers=("readers/nsys/collectives",), size=500),
    "processes of Nsight": Shape(nsys_processes, covers=("readers/processes",), size=10),
    "collectives of one group": Shape(nsys_collectives, covers=("readers/nsys/collectives",), size=200),
    "steps of rocprofv3's JSON": Shape(rocprof(lambda folder, n: write_json(folder / "f", steps=n)), covers=("readers/rocprof/json_records", "readers/rocprof/tables", "readers/processes"), size=60),
    "steps of rocprofv3's CSV": Shape(rocprof(write_csv), covers=("readers/rocprof/tables",), size=300),
    "steps of rocpd": Shape(rocprof(lambda folder, n: write_rocpd(folder / "f", steps=n)), covers=("readers/rocprof/tables",), size=60),
    "steps of rpd": Shape(rocprof(lambda folder, n: write_rpd(folder / "f", n)), covers=("readers/rocprof/tables",), size=60),
    "steps of XLA on the processor": Shape(lambda n: {"f": cpu_profile(n)}, covers=(*(f"readers/xplane/{name}" for name in ("reader", "planes", "wire", "operations", "devices")), "timeline/links"), size=40),
    "steps of XLA on a GPU": Shape(lambda n: {"f": gpu_profile(n)}, covers=("readers/xplane/devices",), size=100),
    "allocations of XLA": Shape(lambda n: {"f": gpu_profile() + xla_allocations(n, allocator_name="GPU_0_bfc")}, covers=("readers/xplane/reader",), size=1000),
    "steps of XLA on a TPU": Shape(lambda n: {"f": tpu_profile(n, 1)}, covers=("readers/xplane/devices",), size=100),
    "devices of XLA": Shape(lambda n: {"f": tpu_profile(3, n)}, covers=("readers/xplane/reader",), size=10),
    "stats, names and lines of XLA": Shape(xplane_stats, covers=("readers/xplane/planes",), size=300),
    "computations that call each other": Shape(xplane_hlo, covers=("readers/xplane/hlo",), size=50),
    "steps of a Chrome trace of XLA": Shape(lambda n: {"f": chrome_trace(n)}, covers=("readers/xplane/chrome", "readers/xla_trace"), size=100),
    "allocations of a trace": Shape(allocations, covers=("trace/memory",), size=200),
    "steps of a memory snapshot": Shape(snapshot, covers=("readers/plain_pickle", "readers/snapshot/reader", "trace/memory"), size=30),
    "events of a memory timeline": Shape(memory_timeline, covers=("readers/memory_timeline", "trace/memory"), size=3000),
    "stacks of a memory snapshot": Shape(snapshot_of_stacks, SCORE_HTML, ("readers/snapshot/reader",), 60),
    "lists of a snapshot in many places": Shape(snapshot_of_one_list, covers=("readers/snapshot/reader",), size=1600),
    "dumps of the Flight Recorder": Shape(flight_recorders, ("score", *(f"rank{rank}" for rank in range(8))), ("readers/flight_recorder", "ranks/hang"), 100),
    "lists of the Flight Recorder in many places": Shape(flight_recorder_of_one_list, covers=("readers/flight_recorder",), size=200),
    "frames of a log of torch.compile": Shape(compile_logs, covers=("readers/torch_trace", "trace/compilation"), size=200),
    "long reasons in a log of torch.compile": Shape(compile_log_of_long_payloads, covers=("readers/torch_trace",), size=2000),
    "a file that is none of ours": Shape(lambda n: {"f": b"<html>" + b"<p>x</p>" * n}, covers=("readers/foreign",), size=20_000),
    "events with Windows paths": Shape(windows_paths, covers=("readers/kineto/chunks",), size=1000),
    "names with bare quotes": Shape(bare_quotes, covers=("readers/kineto/chunks",), size=1000),
    "events that nothing closes": Shape(unclosed, covers=("readers/kineto/chunks",), size=1000),
    "broken events without an end": Shape(no_array_end, covers=("readers/kineto/chunks",), size=1000),
    "arrays of events in the header": Shape(nested_headers, covers=("readers/kineto/header",), size=2000),
    "devices in the header": Shape(many_devices, covers=("readers/kineto/header",), size=100),
    "members of a gzip file": Shape(gzip_members, covers=("readers/source",), size=100),
    "samples of a profile": Shape(lambda n: profile(samples_ms=[100.0 + i % 9 for i in range(n)]), covers=("readers/step_profile",), size=2000),
    "layers of a profile": Shape(lambda n: profile(per_layer=[{"layer": i, "fwd_ms": 1.0, "bwd_ms": 2.0} for i in range(n)]), covers=("readers/step_profile",), size=300),
    "layers as HTML": Shape(lambda n: profile(per_layer=[{"layer": i, "fwd_ms": 1.0, "bwd_ms": 2.0} for i in range(n)]), SCORE_HTML, size=300),
    "operations of a profile": Shape(lambda n: profile(ops={f"op{i}": 1.0 for i in range(n)}), covers=("readers/step_profile",), size=300),
    "operations of a layer": Shape(lambda n: profile(per_layer=[{"layer": 0, "ops": {f"op{i}": 1.0 for i in range(n)}}]), covers=("readers/step_profile",), size=300),
    "phases of a profile": Shape(lambda n: profile(phases={f"p{i}": {"total_ms": 1.0} for i in range(n)}), covers=("readers/step_profile",), size=300),
    "keys that nobody knows": Shape(lambda n: profile(**{f"key{i}": [i] for i in range(n)}), covers=("readers/source",), size=2000),
    "a profile by contract v1": Shape(lambda n: profile(per_layer=[{"layer": i, "fwd_ms": 1.0, "bwd_ms": 1.0, "ops": {f"op{i}": 1.0}} for i in range(n)]), ("score", "f", "--contract", "v1", "--throughput", "100", "--peak-bw", "100", "--bytes-per-token", "100"), size=300),
    "lines of a journal": Shape(journal, covers=("readers/journal",), size=300),
    "layers of a journal": Shape(journal_layers, covers=("readers/journal",), size=300),
    "profiles in a log": Shape(log, covers=("readers/log",), size=20),
    "profiles in a log that are cut off": Shape(cut_profiles, covers=("readers/log",), size=4000),
    "strings of a quoted log": Shape(quoted_log, covers=("readers/log",), size=1000),
    "step lines of a log": Shape(step_lines, covers=("readers/logs/scan", "readers/logs/assemble", "readers/logs/steps", "readers/logs/dialect", "readers/logs/values", "readers/logs/lines", "readers/logs/frameworks", "readers/logs/facts", "readers/logs/failures", "readers/logs/own", "readers/logs/amounts"), size=300),
    "runs in one log": Shape(lambda n: {"f": step_lines(12)["f"].replace(b"saved", b"\nsaved") + b"\n" + (step_lines(6)["f"] + b"\n") * n}, covers=("readers/logs/runs",), size=100),
    "lines of every dialect": Shape(lines_of_every_dialect, covers=("readers/logs/scan",), size=300),
    "progress bars": Shape(progress_bars, covers=("readers/logs/bars",), size=300),
    "progress bars of many names": Shape(lambda n: progress_bars(n, b"stage #"), covers=("readers/logs/bars",), size=300),
    "lines of a plain loop": Shape(plain_lines, covers=("readers/logs/lines",), size=300),
    "words of a plain loop in one line": Shape(lambda n: {"f": (b"step 7 time 8 s, 9 tok/s " * n + b"\n") * 3}, covers=("readers/logs/lines",), size=6000),
    "words about memory": Shape(lambda n: {"f": b"out of memory RESOURCE_EXHAUSTED 9 GiB " * n + b"\n" + step_lines(50)["f"]}, covers=("readers/logs/failures",), size=2000),
    "messages of failed allocations": Shape(lambda n: {"f": step_lines(50)["f"] + FAILED * n}, covers=("readers/logs/failures",), size=200),
    "a line of nothing but anchors": Shape(one_line_of_anchors, covers=("readers/logs/scan",), size=8000),
    "a log that is followed": Shape(step_lines, ("watch", "f", "--once"), ("readers/logs/follow",), 300),
    "a log beside a trace": Shape(lambda n: {**step_lines(n), "g": trace([row for i in range(n) for row in (step(i, i * 1000, 900), *kernel("k", i * 1000 + 10, i))])["f"]}, ("score", "f", "g", "--format", "json"), ("loading/__init__",), 100),
    "a table of metrics": Shape(table_of_metrics, covers=("readers/metrics", "readers/logs/tables", "readers/logs/records", "readers/logs/names"), size=400),
    "an event file": Shape(event_file, covers=("readers/logs/tensorboard",), size=400),
    "a file of W&B": Shape(wandb_file, covers=("readers/logs/wandb",), size=400),
    "the records of a trainer": Shape(records_of_a_trainer, covers=("readers/metrics",), size=300),
    "a store of MLflow": Shape(mlflow_store, ("score", "mlruns", "--format", "json"), ("readers/logs/directories", "readers/logs/mlflow"), 400),
    "operations of two runtimes": Shape(parity, ("parity", "f", "g", "--format", "json"), ("readers/parity_profile", "compare/parity", "compare/canonical"), 100),
    "a scorecard as baseline": Shape(cards, ("gate", "f", "--baseline", "g", "--format", "json"), ("readers/scorecard", "compare/runs", "compare/parts", "compare/metrics", "compare/effect", "compare/fingerprint"), 100),
    "runs of a history, listed": Shape(history, ("history", "list", "--limit", "100000", *HISTORY), ("store/history", "store/sqlite"), 100),
    "runs of a history, exported": Shape(history, ("history", "export", *HISTORY), ("store/history",), 40),
    "the trend of a history": Shape(history, ("history", "trend", *HISTORY), ("store/tables", "compare/change_points", "compare/levels"), 100),
    "the gate with a history": Shape(history, ("gate", "f", "--against", "history:main", *HISTORY), ("gating/run", "compare/noise"), 40),
    "budgets and waivers": Shape(budgets, ("gate", "f", "--baseline", "g", "--budgets", "c.toml"), ("config/__init__", "gating/budgets"), 50),
    "a key of many parts": Shape(dotted_keys, ("score", "f", "--config", "c.toml"), ("config/toml",), 2000),
    "a list in the configuration": Shape(toml_lists, ("score", "f", "--config", "c.toml"), ("config/toml",), 500),
    # What an attacker would try who has read the code.
    "waits of callers of their own": Shape(analysed(waits_of_callers), ANALYSIS, ("trace/activity", "timeline/links"), 600),
    "calls that set up, by name": Shape(analysed(slow_first_calls), ANALYSIS, ("trace/activity", "trace/stalls"), 2000),
    "steps apart in Python code": Shape(analysed(apart_steps_with_frames), ANALYSIS, ("trace/activity", "timeline/links"), 600),
    "warm-up without end": Shape(analysed(warm_up), ANALYSIS, ("timeline/ledger",), 2000),
    "odd kinds of modules": Shape(analysed(odd_kinds_of_modules), ANALYSIS, ("trace/layers",), 80),
    "a nest of kinds of modules": Shape(analysed(nest_of_kinds), ANALYSIS, ("trace/layers",), 80),
    "blocks that wander through steps": Shape(analysed(blocks_that_wander), ANALYSIS, ("trace/layers",), 150),
    "loops one after the other": Shape(analysed(many_loops), ANALYSIS, ("trace/activity",), 60),
    "convolutions on threads of their own": Shape(analysed(convolutions_on_threads), ANALYSIS, ("costs/call_costs",), 1000),
    "tensors of one product": Shape(analysed(tensors_of_one_product), ANALYSIS, ("costs/table",), 400),
    "short operations on the host": Shape(short_host_operations, covers=("trace/operations",), size=300),
    "recordings with operations of their own": Shape(recordings_of_their_own, covers=("ranks/ranks",), size=6),
    "parts of sampled steps": Shape(sampled_parts, ("parity", "f", "g", "--format", "html"), ("compare/canonical",), 150),
    "fingerprints of a history": Shape(fingerprints, ("gate", "f", "--against", "history:main", "--allow-different", "all", *HISTORY), ("gating/run", "compare/noise"), 100),
    "notes of a recording": Shape(noted, SCORE_HTML, ("readers/step_profile",), 300),
    "notes of a recording on a terminal": Shape(noted, ("score", "f"), size=300),
    "lines of the user's code": Shape(lines_of_code, covers=("readers/recording",), size=300),
    "layers on a terminal": Shape(lambda n: profile(per_layer=[{"layer": i, "fwd_ms": 1.0, "bwd_ms": 2.0} for i in range(n)]), ("score", "f"), size=1000),
    "operations of two runtimes as HTML": Shape(parity, ("parity", "f", "g", "--format", "html"), ("compare/parity",), 200),
    "the gate as SARIF": Shape(cards, ("gate", "f", "--baseline", "g", "--format", "sarif"), ("compare/parts",), 200),
    # Below 256 kB at 4n, where isal takes over: it takes more for a stream, and a step is no growth.
    "members of a gzip file that are empty": Shape(empty_gzip_members, covers=("readers/source",), size=14_000),
    "brackets in brackets": Shape(deep_json, covers=("readers/source",), size=4000),
    "a name of nothing but escapes, as HTML": Shape(escaped_names, SCORE_HTML, size=4000),
    "a name of nothing but escapes, as JSON": Shape(escaped_names, size=4000),
    "blanks before a profile": Shape(spaces_before, covers=("readers/source",), size=80_000),
    "names of digits and letters": Shape(runs_of_digits, covers=("timeline/steps",), size=2000),
    "lines that open what nothing closes": Shape(open_brackets, covers=("readers/log",), size=300),
    "a model's description": Shape(config_values, ("estimate", "--model", "config.json", "--device", "h100-sxm5-80gb", "--batch", "1", "--seq", "128"), size=200),
    "a device's description": Shape(device_table, ("score", "f", "--device-file", "d.toml"), size=300),
}  # fmt: skip
