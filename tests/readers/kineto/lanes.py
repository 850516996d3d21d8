"""The compiled lane beside the Python lane: traces that look strange in every way, and whether both read the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kineto_traces import read_file

from stepgrade.errors import BadInput
from stepgrade.readers import compiled

NEEDS_LIBRARY = pytest.mark.skipif(compiled.load() is None, reason="the library is not built (make lane)")

SPELLINGS: dict[str, tuple[str, ...]] = {
    "ph": ('"X"', '"X"', '"X"', '"X"', '"i"', '"M"', '"s"', '"C"', '"\\u0058"', '""', "1"),
    "cat": (
        *('"cpu_op"', '"cpu_op"', '"kernel"', '"kernel"', '"cuda_runtime"', '"cuda_driver"', '"python_function"'),
        *('"user_annotation"', '"gpu_user_annotation"', '"overhead"', '"gpu_memcpy"', '"gpu_memset"', '"ac2g"'),
        *('"cpu_instant_event"', '"hardware_counters"', '"Kernel"', '"xpu_driver"', '"hpu_op"', '"unheard_of"'),
    ),
    "name": (
        *('"aten::mm"', '"aten::mm"', '"gemm"', '"nn.Module: Linear_0"', '"train.py(3): main"', '"[memory]"'),
        *('"torch/nn/modules/module.py(1): _call_impl"', '"<built-in method run of Node object at 0x7f0>"'),
        *('"nn\\u002eModule: Linear_1"', '"a\\"b\\\\c\\/d\\n"', '"é漢🙂"', '"\\ud83d\\ude00"', '"},{"', '""'),
        *('"ProfilerStep#7"', '"Memcpy HtoD (Pageable -> Device)"', '"thread_name"', '"\\u0000x"', '"x\\u007f"'),
    ),
    "pid": ("9", "9", "9", '"9"', "9.0", "0", "-1", '"CPU"', '"GPU 0 Counters"', "null", "18446744073709551615"),
    "tid": ("1", "1", "2", '"1"', "7", '"stream 7"', "7.0", "-3", "true", "[7]", '"\\u0031"'),
    "ts": (
        *("6322354305173.787", "6322354305173.788", "6322354305200", "1712195495519689.123", "1712195495519689"),
        *("5", "0", "-3.5", "12.34567", "1e3", '"12.5"', "8796093022208", "8796093022207.999", "00", "1.", "null"),
    ),
    "dur": ("3.250", "3.250", "12", "0", "100", "99.999", "150.5", "-1", "1.2345", "1E2", '"7"', "null", "-0"),
}  # fmt: skip
ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("External id", "external id", "correlation", "device", "stream", "bytes", "Sequence number"),
            *("Fwd thread id", "Python id", "Python parent id", "In msg nelems", "Group size", "Src Rank"),
        ),
        (
            *("1", "2", "7", "7", "0", "-1", "9223372036854775808", "18446744073709551615", "7.0", "7.5", "-0"),
            *("18446744073709551616", "-9223372036854775808", "4294967296", "null", "true", '"7"', "[]"),
        ),
    ),
    **dict.fromkeys(
        ("Input Dims", "Input dims", "Input type", "Concrete Inputs", "Input Strides", "kernel_backend"),
        ("[]", "[[1, 2], []]", "[[1,2],[]]", '["float", "a\\"b"]', "null", '"triton"', '{"a": [1.5e9]}', "1e5"),
    ),
    "est. achieved occupancy %": ("0", "0", "31", "31.0", "31.5", "null", '"x"', "true", "-0.0", "0.0"),
    "blocks per SM": ("0.545455", "1", "1.0", "1e-05", "null", "false"),
    "registers per thread": ("32", "255", "32.0", '"32"'),
    "shared memory": ("0", "4096", "null", "1e300"),
    "block": ("[128, 1, 1]", "[1, 1]", "[128,1,1]", '"[1, 1, 1]"', "null", "[" + "1, " * 40 + "1]"),
    "Collective name": ('"allreduce"', '"send"', "null", "3", '"_all\\u0067ather"'),
    **dict.fromkeys(("dtype", "Process Group Name", "Process Group Ranks"), ('"BFloat16"', '"0"', "null", "[0, 1]")),
    "Dst Rank": ("1", "null", '"1"'),
    "name": ('"worker 3"', '"\\u0041"', "5"),
    "": ("3.5", "7", "true", "1e301"),
    "Device Type": ("0", "1"),
    "Bytes": ("512", "-512"),
    "Ev Idx": ("4",),
    "anything": ("[[[[1]]]]", '{"a": {"b": [null, true]}}', '"x"', "1e99", "0.1E-7", "[1 , 2 ]"),
}  # fmt: skip
RARE = (
    '"rank": 3',
    '"Task Type": "AI_CORE"',
    '"External\\u0020id": 5',
    '"x": 1e400',
    '"x": 01',
    '"x": [1,]',
    '"x": {"a"}',
)
BLANKS = ("", "", " ", "\n    ", "\t", "\r\n")


def event(dice: random.Random, strangeness: float) -> str:
    """Return an event; each value is strange with this probability, else what profilers write."""

    def pick(spellings: tuple[str, ...]) -> str:
        usual = max(1, len(spellings) // 3)
        return dice.choice(spellings if dice.random() < strangeness else spellings[:usual])

    def members(parts: list[str]) -> str:
        if dice.random() < strangeness:
            dice.shuffle(parts)
            parts += dice.sample(parts, min(len(parts), 1))  # a key that comes twice
        blank = dice.choice(BLANKS)
        return "{" + blank + f",{blank}".join(parts) + blank + "}"

    def member(key: str, value: str) -> str:
        return f'"{key}"{dice.choice(BLANKS[:3])}:{dice.choice(BLANKS[:3])}{value}'

    chosen = dice.sample(sorted(ARGUMENTS), dice.randint(0, 12))
    args = [member(key, pick(ARGUMENTS[key])) for key in chosen]
    if dice.random() < strangeness / 8:
        args.append(dice.choice(RARE))
    parts = [
        member(key, dice.choice(spellings) if key in {"cat", "name"} else pick(spellings))
        for key, spellings in SPELLINGS.items()
        if dice.random() > strangeness / 8
    ]
    return members([*parts, member("args", members(args))] if args else parts)


def document(dice: random.Random) -> bytes:
    """Return a trace of up to 60 events."""
    strangeness = dice.choice((0, 0, 0.02, 0.1, 0.5))
    events = [event(dice, strangeness) for _ in range(dice.randint(1, 60))]
    text = dice.choice((",\n  ", ",", " , ")).join(events)
    text = f'{{"schemaVersion": 1,\n "traceEvents": [\n  {text}\n ], "traceName": "t"}}\n'
    return text.encode(errors="surrogatepass")


@contextmanager
def only_python() -> Iterator[None]:
    """Leave the compiled lane out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiled.PURE, "1")
        yield


def outcome(text: bytes, **options: Any) -> Any:
    """Return the traces, or the words of the refusal."""
    try:
        return read_file(text, processes=1, **options)
    except BadInput as error:
        return str(error)


def differences(one: Any, other: Any, path: str = "trace") -> list[str]:
    """Return where two results differ, in any bit."""
    if type(one) is not type(other):
        return [f"{path}: {one!r:.200} and {other!r:.200}"]
    if isinstance(one, np.ndarray):
        is_same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return [] if is_same else [f"{path}: {one!r:.200} and {other!r:.200}"]
    if isinstance(one, msgspec.Struct):
        pairs = [(getattr(one, name), getattr(other, name), name) for name in one.__struct_fields__]
    elif isinstance(one, list | tuple) and len(one) == len(other):
        pairs = [
            (left, right, str(index)) for index, (left, right) in enumerate(zip(one, other, strict=True))
        ]
    else:
        return [] if repr(one) == repr(other) else [f"{path}: {one!r:.200} and {other!r:.200}"]
    return [found for left, right, name in pairs for found in differences(left, right, f"{path}.{name}")]


def check(text: bytes, **options: Any) -> None:
    """Fail if the lanes read a text differently."""
    compiled_lane = outcome(text, **options)
    with only_python():
        python_lane = outcome(text, **options)
    assert differences(compiled_lane, python_lane) == [], text[:3000]
