"""Small traces in the dialects of all eras, as bytes."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

LAYOUTS = ("kineto", "one line", "compact", "indented")
ERAS = ("2020", "2021", "2022", "2024-04", "2024-05")
_CAPITALS = {
    "cpu_op": "Operator",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "cuda_runtime": "Runtime",
    "user_annotation": "Operator",
}
_EPOCH_US = 1_712_195_495_519_689
_NAMES = st.sampled_from(
    [
        "aten::mm",
        "Memcpy HtoD (Pageable -> Device)",
        'odd "quoted" \\ name',
        "void k<4, {lambda()#1}>",
        "é漢🙂",
        "},{",
    ]
) | st.text(max_size=12)
_IDS = st.integers(0, 2**40) | st.integers(2**63, 2**64 - 2)


def number(nanoseconds: int) -> str:
    """Return microseconds with three decimals; `write` takes off the quotes that json puts around them."""
    return f"@{nanoseconds // 1000}.{nanoseconds % 1000:03d}@"


@st.composite
def events(draw: st.DrawFn, era: str) -> dict[str, Any]:
    """Draw one event as an era would write it."""
    category = draw(
        st.sampled_from([*_CAPITALS, "python_function", "ac2g", "gpu_user_annotation", "unheard_of"])
    )
    old = era in {"2020", "2021"}
    event: dict[str, Any] = {
        "ph": "X",
        "cat": _CAPITALS.get(category, category) if old else category,
        "name": draw(_names(category)),
        "pid": draw(st.integers(0, 3)),
        "tid": draw(st.integers(0, 2**33)),
        "ts": draw(_times(era, start=True)),
        "dur": draw(_times(era, start=False)),
    }
    if old and category in {"cpu_op", "cuda_runtime", "user_annotation"}:
        event["tid"] = str(event["tid"])
    args = draw(_args(category, old=old))
    return event | ({"args": args} if args else {})


def _names(category: str) -> st.SearchStrategy[str]:
    marks = st.sampled_from(["ProfilerStep#7", "Optimizer.step#SGD.step"])
    special = {
        "user_annotation": marks,
        "python_function": st.sampled_from(["nn.Module: Linear_0", "train.py(3): main"]),
        "cpu_op": st.sampled_from(["aten::mm", "aten::add_", 'aten::"x"']),
        "gpu_memcpy": st.sampled_from(
            ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy"]
        ),
    }
    return special.get(category, _NAMES)


def _times(era: str, *, start: bool) -> st.SearchStrategy[Any]:
    us = st.integers(0, 10**7)
    if era in {"2020", "2021", "2022"}:
        return us.map(lambda n: n + _EPOCH_US) if start else us
    base = _EPOCH_US if era == "2024-04" else 6_322_354_305_173
    ns = st.integers(0, 10**10)
    return ns.map(lambda n: number(n + (base * 1000 if start else 0)))


@st.composite
def _args(draw: st.DrawFn, category: str, *, old: bool) -> dict[str, Any]:
    device_side = category in {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
    keys: dict[str, st.SearchStrategy[Any]] = {
        "external id" if old and category != "cpu_op" else "External id": st.integers(0, 2**62),
        "correlation": st.integers(0, 2**40),
        "Comms Id": _IDS,
        "nested": st.just([{"a": [[]]}, {"a": "]}"}]),
    }
    if category == "cpu_op":
        keys |= {"Sequence number": st.integers(0, 99), "Fwd thread id": st.integers(0, 3)}
        keys |= {"Input type": st.lists(st.sampled_from(["float", 'a"b']))}
        keys |= {"Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2)}
    if device_side:
        keys |= {"device": st.integers(0, 7), "stream": st.integers(0, 99), "bytes": st.integers(0, 2**40)}
        keys |= {
            "Collective name": st.sampled_from(["allreduce", "broadcast"]),
            "In msg nelems": st.integers(0, 9),
        }
    if category == "python_function":
        keys |= {"Python id": st.integers(0, 99), "Python parent id": st.none() | st.integers(0, 99)}
    chosen = draw(st.sets(st.sampled_from(sorted(keys))))
    always = {"Input type"} if category == "cpu_op" and old else set()
    return {key: draw(keys[key]) for key in sorted(chosen | always)}


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """Draw a whole trace: a list in 2020, an object later, keys before and after the events."""
    era = draw(st.sampled_from(ERAS))
    drawn = draw(st.lists(events(era), min_size=1, max_size=30))
    anchor = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": draw(_times(era, start=True)),
        "dur": 1,
    }
    listed = [*drawn, anchor]
    if era == "2020":
        return listed
    extra = {"baseTimeNanoseconds": 1_759_300_074_000_000_000} if era == "2024-05" else {}
    before = draw(st.booleans())
    keys: dict[str, Any] = {
        "schemaVersion": 1,
        "secret": {"traceEvents": [1, "]"], "t": '"traceEvents": ['},
    } | extra
    return {**keys, "traceEvents": listed} if before else {"traceEvents": listed, **keys}


def write(document: Any, layout: str) -> bytes:
    """Write a document as one of the known writers would."""
    made = {
        "one line": lambda: json.dumps(document),
        "compact": lambda: json.dumps(document, separators=(",", ":"), ensure_ascii=False),
        "indented": lambda: json.dumps(document, indent=4),
        "kineto": lambda: _as_kineto(document),
    }
    return re.sub(r'"@(\d+\.\d+)@"', r"\1", made[layout]()).encode(errors="surrogatepass")


def _as_kineto(document: Any) -> str:
    listed = document["traceEvents"] if isinstance(document, dict) else document
    body = ",\n".join("  {\n    " + json.dumps(event)[1:-1] + "\n  }" for event in listed)
    array = f"[\n{body}\n  ]"
    if isinstance(document, list):
        return array
    keys = [
        f'"{key}": {array if key == "traceEvents" else json.dumps(value)}' for key, value in document.items()
    ]
    return "{\n  " + ",\n  ".join(keys) + "\n}\n"


def plain_trace(count: int = 60) -> bytes:
    """Return a fixed trace of `count` events in the profiler's own layout."""
    listed = [
        {
            "ph": "X",
            "cat": ("cpu_op", "cuda_runtime", "kernel")[n % 3],
            "name": ("aten::mm", "cudaLaunchKernel", "gemm")[n % 3],
            "pid": 9,
            "tid": 1,
            "ts": number(10**12 + n * 1537),
            "dur": number(1250 + n),
            "args": {"External id": n // 3, "correlation": n // 3, "device": 0, "stream": 7},
        }
        for n in range(count)
    ]
    keys = {"schemaVersion": 1, "baseTimeNanoseconds": 1_759_300_074_000_000_000}
    return write({**keys, "traceEvents": listed, "traceName": "t.json"}, "kineto")
