"""Sound files of every reader, with stores, configurations and descriptions: what the fuzzer damages.

Every file holds a canary where a stranger's own data can stand. A reader without a row in SAMPLES fails
`test_registry.py`; with one, its files are fuzzed without more.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import stepgrade as sg
from stepgrade.store import NewRun, open_history
from tests.builders import make_step_profile
from tests.cluster import Planned, kineto_of, simulate
from tests.kineto_text import kineto_text
from tests.readers.logs.generated import DIALECTS, EVENTS, Plan, generate
from tests.readers.nsys.export import two_ranks
from tests.readers.rocprof.files import write_csv, write_json, write_rocpd, write_rpd
from tests.readers.snapshot.snapshots import train
from tests.readers.xplane.files import (
    PlaneFile,
    chrome_trace,
    cpu_profile,
    gpu_profile,
    tpu_profile,
    xla_allocations,
)
from tests.trace_builder import Run, make_trace

CANARY = "hf_canaryTOKEN0123456789"


@cache
def traces() -> tuple[bytes, ...]:
    """Return sound traces: on a device, on a host, of several ranks in one file, of 2021."""
    texts = []
    for run in (Run(steps=3, layers=2), Run(steps=2, layers=1)):
        document = json.loads(kineto_text(make_trace(run)))
        document["environ"] = {"HF_TOKEN": CANARY}
        document["traceEvents"][len(document["traceEvents"]) // 2]["args"]["my_secret"] = CANARY
        texts.append(json.dumps(document, indent=1).encode())
        host = {
            **document,
            "traceEvents": [e for e in document["traceEvents"] if e["cat"] in ("cpu_op", "user_annotation")],
        }
        texts.append(json.dumps(host).encode())
    small = json.loads(texts[2])["traceEvents"]
    merged = [{**e, "pid": rank, "args": {**e["args"], "rank": rank}} for rank in range(3) for e in small]
    texts.append(json.dumps({"traceEvents": merged}).encode())
    texts.append(texts[2].replace(b'"cpu_op"', b'"Operator"').replace(b'"kernel"', b'"Kernel"'))
    texts.append(json.dumps(small).encode())
    texts.append(_everything_traced())
    return tuple(texts)


@cache
def clusters() -> tuple[tuple[bytes, ...], ...]:
    """Return traces of ranks that wait for each other in collectives: one file each, and all in one."""
    found = []
    for plan in (
        Planned(world=2, tensor=2, pipeline=1, steps=6),
        Planned(world=4, tensor=2, pipeline=1, steps=2),
    ):
        slow = plan._replace(slow_rank=1)
        files = tuple(kineto_of(rank, events, slow) for rank, events in simulate(slow))
        found.append(files)
        documents = [json.loads(text) for text in files]
        for rank, document in enumerate(documents):
            for event in document["traceEvents"]:
                event["pid"], event["args"] = rank, {**event.get("args", {}), "rank": rank}
        merged = [event for document in documents for event in document["traceEvents"]]
        found.append((json.dumps({"traceEvents": merged}).encode(),))
    return tuple(found)


def _everything_traced() -> bytes:
    """Return a trace with a little of everything that a profiler writes: frames, collectives, memory, flows."""
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "thread 1 (python)"}},
    ]

    def add(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        rows.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    for number in range(3):
        at = 1000.0 * number
        frame = {"Python id": 3 * number + 1, "Python parent id": None, "Python thread": 0}
        add("user_annotation", f"ProfilerStep#{number}", at, 990)
        add("python_function", "train.py(12): loop", at + 1, 980, **frame)
        add(
            "python_function",
            "nn.Module: Block_0",
            at + 20,
            200,
            **{"Python id": 3 * number + 2, "Python parent id": 3 * number + 1},
        )
        add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 2, 15)
        add("cpu_op", "aten::to", at + 18, 3, **{"External id": 9})
        add("cuda_runtime", "cudaMemcpyAsync", at + 19, 1, correlation=100 * number + 1)
        add(
            "gpu_memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            at + 22,
            4,
            7,
            correlation=100 * number + 1,
            device=0,
            stream=7,
            bytes=4096,
        )
        dims = {
            "Input Dims": [[8, 64], [64, 64]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"],
            "Concrete Inputs": ["", ""],
            "Sequence number": number,
            "Fwd thread id": 0,
        }
        for part in range(4):
            add("cpu_op", "aten::mm", at + 30 + 20 * part, 15, **dims)
            add(
                "cuda_runtime",
                "cudaLaunchKernel",
                at + 32 + 20 * part,
                5,
                correlation=100 * number + 10 + part,
            )
            add(
                "kernel",
                "ampere_bf16_s16816gemm_bf16_128x64_tn",
                at + 40 + 20 * part,
                18,
                7,
                correlation=100 * number + 10 + part,
                device=0,
                stream=7,
                grid=[8, 1, 1],
                block=[128, 1, 1],
                **{"est. achieved occupancy %": 25},
            )
        add(
            "cpu_op",
            "autograd::engine::evaluate_function: MmBackward0",
            at + 300,
            50,
            2,
            **{**dims, "Fwd thread id": 1},
        )
        add("cuda_runtime", "cudaLaunchKernel", at + 310, 5, 2, correlation=100 * number + 30)
        add(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            at + 360,
            80,
            13,
            correlation=100 * number + 30,
            device=0,
            stream=13,
            **{
                "Collective name": "allreduce",
                "In msg nelems": 4096,
                "Out msg nelems": 4096,
                "Group size": 2,
                "dtype": "BFloat16",
                "Process Group Name": "0",
                "Process Group Ranks": "[0, 1]",
            },
        )
        add("user_annotation", "Optimizer.step#AdamW.step", at + 500, 100)
        add("cpu_op", "aten::_fused_adamw_", at + 510, 60)
        add("cuda_runtime", "cudaLaunchKernel", at + 520, 5, correlation=100 * number + 40)
        add(
            "kernel",
            "void at::native::multi_tensor_apply_kernel<x>",
            at + 530,
            40,
            7,
            correlation=100 * number + 40,
            device=0,
            stream=7,
        )
        add("cuda_runtime", "cudaStreamSynchronize", at + 700, 50)
        add("cpu_op", "aten::item", at + 690, 70)
        add("overhead", "Buffer Flush", at + 800, 5)
        add("gpu_memset", "Memset (Device)", at + 810, 1, 7, device=0, stream=7, bytes=64)
        rows.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": at + 31,
                "s": "t",
                "args": {
                    "Bytes": 1 << 20,
                    "Addr": 4711,
                    "Device Type": 1,
                    "Device Id": 0,
                    "Total Allocated": 5 << 20,
                    "Total Reserved": 8 << 20,
                },
            }
        )
        rows.append(
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, "pid": 1, "tid": 1, "ts": at + 32}
        )
        rows.append(
            {
                "ph": "f",
                "bp": "e",
                "cat": "ac2g",
                "name": "ac2g",
                "id": number,
                "pid": 0,
                "tid": 7,
                "ts": at + 40,
            }
        )
    rows[5]["args"]["my_secret"] = CANARY
    return json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000, "numSms": 108}],
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1], "pg_size": 2}]},
            "cuda_runtime_version": 12040, "profile_memory": 1, "with_stack": 1, "record_shapes": 1, "environ": {"HF_TOKEN": CANARY},
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": rows,
        },
        indent=1,
    ).encode()  # fmt: skip


@cache
def profiles() -> tuple[bytes, ...]:
    """Return sound profiles that are one JSON object."""
    step = json.loads(make_step_profile())
    step["my_secret"] = {"token": CANARY}
    step["samples_ms"] = [100.0 + n % 7 for n in range(30)]
    step["per_layer"] = [
        {"layer": n, "fwd_ms": 1.0, "bwd_ms": 2.0, "ops": {"qkv": 0.5}, "x": CANARY} for n in range(4)
    ]
    recorded = {
        **step,
        "stepgrade": {
            "world_size": 2,
            "device": {"name": "NVIDIA H100 80GB HBM3", "kind": "cuda"},
            "versions": {"torch": "2.13.0"},
            "config": {"model": "Llama", "batch_size": 4, "autocast": "bf16"},
            "loss": {"first": 4.0, "last": 2.0},
            "notes_coded": [{"code": "a", "text": "b"}],
            "hidden": CANARY,
        },
    }
    parity = {
        "runtime": "ours", "throughput_tok_s": 100.0, "step_time_ms": 10.0, "kernel_launches_per_step": 5,
        "ops": {"qkv": 1.0, "mlp": 2.0, "attention": 0.5}, "my_secret": CANARY,
    }  # fmt: skip
    apr = {k: v for k, v in step.items() if k != "steps"} | {
        "_profiler": "apr_training_profiler_v1",
        "steps_profiled": 10,
    }
    documents = (step, recorded, apr, parity, _sampled(recorded))
    return tuple(json.dumps(document, indent=2).encode() for document in documents)


def _sampled(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return a recording with everything that a sampled step adds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.json")
        path.write_bytes(traces()[-1])
        traced = sg.load(path)
    operations = [
        {"name": op.name, "total_ms": op.ms, "calls": op.calls, "flops": op.flops, "bytes": op.bytes}
        for op in (one.per_step(1 / (traced.steps or 1)) for one in traced.operations)
    ]
    sampled = {
        "steps": 2, "model_ms": 120.0, "busy_ms": 80.0, "tokens": 256.0, "samples": 8.0, "matmul_flops": 1e9,
        "matmul_known_share": 1.0, "matmul_dtype": "bf16", "operations": operations,
        "activity": msgspec.to_builtins(traced.activity), "hidden": CANARY,
    }  # fmt: skip
    lines = {"stall": [{"where": "train.py:12", "function": "loop", "calls": "sleep", "ms": 3.0}]}
    more = {"sampled": sampled, "lines": lines, "rank": 0, "recorded_steps": 30}
    return {**recorded, "stepgrade": {**recorded["stepgrade"], **more}}


@cache
def card() -> bytes:
    """Return a sound scorecard with a canary among keys of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.json")
        path.write_bytes(profiles()[1])
        document = json.loads(sg.score(sg.load(path)).to_json())
    return json.dumps({**document, "my_secret": CANARY}).encode()


@cache
def journal() -> bytes:
    """Return a sound journal."""
    head = {"_recording": 1, "layers": ["a", "b"], "tokens_per_step": 128, "stepgrade": {"hidden": CANARY}}
    sums = {
        "steps": 5,
        "wall_ms": 50.0,
        "phases_ms": {"forward": 20.0},
        "layers_ms": [[0, 1.0, 2.0, 0.0]],
        "samples_ms": [10.0] * 5,
    }
    lines = [head, {"warmup": sums}, *({"steady": sums, "recorded_steps": n, "x": CANARY} for n in range(3))]
    return b"\n".join(map(msgspec.json.encode, lines)) + b"\n"


@cache
def logs() -> tuple[bytes, ...]:
    """Return sound logs: plain text around a profile, and one that quotes it."""
    profile = json.loads(profiles()[0])
    text = json.dumps(
        {"_profiler": "step_profiler_v2", **{k: v for k, v in profile.items() if k != "_profiler"}}
    )
    plain = f"epoch 1 loss 3.2\nexport HF_TOKEN={CANARY} \n" + "step\n" * 60 + text + "\ndone\n"
    quoted = json.dumps({"stdout": plain, "env": {"TOKEN": CANARY}})
    return plain.encode(), quoted.encode(), *training_logs()


def training_logs() -> tuple[bytes, ...]:
    """Return sound logs of several frameworks, with a header, a secret in it, and pauses."""
    header = f"export HF_TOKEN={CANARY} \nGPU: NVIDIA H100 80GB HBM3 | x\n  hidden_size ..... 1024\n"
    plan = Plan(steps=60, every=1, checkpoint_every=20, evaluate_every=15, breaks_at=45, resumes_at=40)
    return tuple(header.encode() + generate(plan, dialect)[0] for dialect in DIALECTS)


@cache
def metrics() -> tuple[bytes, ...]:
    """Return sound files of metrics: a table, an event file, the JSON of a trainer, W&B's and MLflow's own."""
    table = "step,loss,elapsed,note\n" + "".join(f"{n},2.5,{n * 0.5},{CANARY}\n" for n in range(1, 40))
    records = [
        {"step": n, "loss": 2.5, "train_runtime": n * 0.5, "num_input_tokens_seen": n * 64}
        for n in range(1, 40)
    ]
    state = {"log_history": records, "global_step": 39, "train_batch_size": 4, "secret": CANARY}
    return table.encode(), EVENTS, json.dumps(state).encode(), wandb_file(), mlflow_database()


def wandb_file() -> bytes:
    """Return an offline file of Weights & Biases, written by hand; the canary is among its settings."""

    def field(number: int, content: bytes) -> bytes:
        key, size = number << 3 | 2, len(content)
        head = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
        return head + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + content

    def item(name: str, value: object) -> bytes:
        return field(1, field(1, name.encode()) + field(16, json.dumps(value).encode()))

    settings = item("api_key", {"value": CANARY}) + item("batch_size", {"value": 8})
    records = [field(17, field(4, settings))]
    for step in range(1, 60):
        values = {"_step": step, "_runtime": 0.5 * step, "train/loss": 2.5, "_timestamp": 1e9 + 0.5 * step}
        records.append(field(2, b"".join(item(name, value) for name, value in values.items())))
    framed = b"".join(bytes(4) + len(record).to_bytes(2, "little") + b"\x01" + record for record in records)
    return b":W&B\xe1\xbe\x00" + framed


def mlflow_database() -> bytes:
    """Return a database as MLflow makes it, of one run; the canary is among its settings and tags."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mlflow.db")
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("create table runs (run_uuid text primary key, start_time bigint)")
            file.execute("create table latest_metrics (key text, value float, run_uuid text)")
            file.execute(
                "create table metrics (key text, value float, timestamp bigint, run_uuid text, step bigint,"
                " is_nan boolean)"
            )
            file.execute("create table params (key text, value text, run_uuid text)")
            file.execute("create table tags (key text, value text, run_uuid text)")
            file.execute("insert into runs values ('a', 1000)")
            file.executemany(
                "insert into metrics values ('loss', 2.5, ?, 'a', ?, 0)",
                [(1_700_000_000_000 + 500 * step, step) for step in range(1, 60)],
            )
            file.executemany(
                "insert into params values (?, ?, 'a')", [("api_key", CANARY), ("batch_size", "8")]
            )
            file.execute("insert into tags values ('mlflow.user', ?, 'a')", (CANARY,))
        return path.read_bytes()


@cache
def store() -> bytes:
    """Return a history of a dozen runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.json")
        path.write_bytes(profiles()[1])
        card = sg.score(sg.load(path))
        with open_history(str(Path(folder, "history.db"))) as history:
            for number in range(12):
                history.add(
                    NewRun(
                        card=card,
                        branch="main" if number % 3 else "dev",
                        labels={"n": str(number)},
                        added_at=f"2026-01-{number + 1:02}T00:00:00+00:00",
                    )
                )
        return Path(folder, "history.db").read_bytes()


CONFIG = f"""# token {CANARY}
[gate]
allow = 0.02
detect = 0.1
cannot_tell = "pass"
fail_on = ["grade:F"]

[[budget]]
metric = "step_time_ms"
device = "*"
at_most = 500.0

[[budget]]
metric = "op:q*"
allow = 0.1

[[waiver]]
metric = "step_time_ms"
until = 2030-01-01
reason = "known"

[limits]
unexplained_share = 0.1

[rules]
ignore = []

[[dialect]]
name = "mine"
contains = "step="
line = "step={{step}} took {{step_ms}}"
""".encode()
DEVICE = b"""name = "Mine"
peak_bw_gb_s = 1000.0
memory_gb = 80.0

[peak_tflops]
bf16 = 500.0
"""
MODEL = json.dumps(
    {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "head_dim": 128,
        "tie_word_embeddings": False, "_name_or_path": CANARY,
    },
    indent=1,
).encode()  # fmt: skip


@cache
def nsys() -> tuple[bytes, ...]:
    """Return a sound export of Nsight Systems; the canary is in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        return (two_ranks(Path(folder) / "run.sqlite").read_bytes(),)


@cache
def rocprof() -> tuple[bytes, ...]:
    """Return a sound file of each of ROCm's formats; the canary is in commands and environments."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        paths = (
            write_json(place / "a.json", steps=3),
            write_csv(place, 3),
            write_rocpd(place / "a.db", steps=3),
            write_rpd(place / "a.rpd", 3),
        )
        return tuple(path.read_bytes() for path in paths)


@cache
def xplane() -> tuple[bytes, ...]:
    """Return sound profiles of XLA; the canary is in the settings of their task."""
    task = PlaneFile("Task Environment", {"profile_options": CANARY, "source": CANARY}).encoded()
    in_use = gpu_profile() + xla_allocations(allocator_name="GPU_0_bfc")
    return tuple(made + task for made in (cpu_profile(), in_use, tpu_profile()))


@cache
def snapshots() -> tuple[bytes, ...]:
    """Return sound memory snapshots of two protocols; the canary is where a user's own words can stand."""
    run = train(steps=5, layers=3, leak=1 << 20)
    run.fail(1 << 30, free=1 << 20)
    value = {**run.value(spare=4096), "my_secret": CANARY}
    for entry in value["device_traces"][0]:
        entry["user_metadata"] = CANARY
    return pickle.dumps(value, 4), pickle.dumps(value, 2)


@cache
def memory_timelines() -> tuple[bytes, ...]:
    """Return sound memory timelines, as sums and as events; they hold numbers only, and no place for a canary."""
    sums = [[0, 1000, 2000, 10, i % 7, 50 * i, 30, 5, 1] for i in range(40)]
    times = [1_794_811_706_585_954 + 1000 * i for i in range(40)]
    events = [[-1, 1, 4096 + i, i % 8] for i in range(20)]
    events += [[1_794_811_706_585_954_000 + 1000 * i, 2 + 2 * (i % 2), 512 * (-1) ** i, 4] for i in range(40)]
    return json.dumps([times, sums]).encode(), json.dumps(events).encode()


@cache
def flight_recorders() -> tuple[bytes, ...]:
    """Return sound dumps of the Flight Recorder, as a pickle and as JSON."""
    frames = [{"name": "step", "filename": "/home/me/train.py", "line": 7}]
    entries = [
        {
            "record_id": number,
            "collective_seq_id": number + 1,
            "process_group": ["0", "default_pg"],
            "profiling_name": "nccl:all_reduce" if number % 5 else "nccl:recv 0<-1",
            "is_p2p": number % 5 == 0,
            "input_sizes": [[4, 8]],
            "input_dtypes": ["Float"],
            "state": "completed" if number < 29 else "started",
            "frames": frames,
            "note": CANARY,
        }
        for number in range(30)
    ]
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    value = {"version": "2.10", "pg_config": groups, "entries": entries, "my_secret": CANARY}
    return pickle.dumps(value, 2), json.dumps(value).encode()


@cache
def torch_traces() -> tuple[bytes, ...]:
    """Return sound logs of torch.compile."""
    from tests.readers.test_torch_trace import broken, guard, line, metrics

    event = {"name": "CUDAGraphNode.record", "ph": "B", "args": {"compile_id": "0/0", "is_backward": False}}
    records = [line(str=[f"/home/{CANARY}/train.py", 0])]
    for number in range(10):
        records += [
            line(dynamo_start={"stack": []}, frame_id=number % 3, frame_compile_id=number // 3),
            guard(number % 3, number // 3, f'["0/1: tensor \'x\' size {number}", "0/0: other"]'),
            broken("Graph break in user code at /w/a.py:7\nGraph Break Reason: x\n", number % 3),
            metrics(number % 3, number // 3, rank=1, note=CANARY),
            line(json.dumps(event, indent=0), chromium_event={}),
            line("def forward(self, x): ...", inductor_output_code={}, frame_id=0),
        ]
    return ("".join(records).encode(),)


SAMPLES: dict[str, Callable[[], tuple[bytes, ...]]] = {
    "kineto": traces,
    "nsys": nsys,
    "rocprof": rocprof,
    "xplane": xplane,
    "xla_trace": lambda: (chrome_trace(), chrome_trace(devices=2)),
    "snapshot": snapshots,
    "memory_timeline": memory_timelines,
    "flight_recorder": flight_recorders,
    "torch_trace": torch_traces,
    "journal": lambda: (journal(),),
    "scorecard": lambda: (card(),),
    "parity_profile": lambda: (profiles()[3],),
    "step_profile": lambda: (*profiles()[:3], profiles()[4]),
    "metrics": metrics,
    "log": logs,
}
