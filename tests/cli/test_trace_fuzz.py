"""Odd and damaged traces all the way to their output: a scorecard or one clear line, never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran
from tests.kineto_text import kineto_text
from tests.trace_builder import Run, make_trace

Command = Callable[..., Ran]
TEXT = kineto_text(make_trace(Run(steps=3, layers=2)))
COUNT = max(300, int(os.environ.get("STEPGRADE_FUZZ", "0")) // 50)
BATCHES = 5
DEEP = b"[" * 100_000 + b"]" * 100_000

EVENT_CHANGES: dict[str, dict[str, Any]] = {
    "phase B": {"ph": "B"},
    "phase M": {"ph": "M"},
    "phase 5": {"ph": 5},
    "phase null": {"ph": None},
    "category null": {"cat": None},
    "name of an object": {"name": {"a": 1}},
    "arguments in a list": {"args": [1, 2]},
    "arguments in a text": {"args": "a"},
    "no arguments": {"args": None},
    "time in a text": {"ts": "5"},
    "time in a list": {"ts": [5]},
    "one time": {"ts": 1000.0},
    "far future": {"ts": 10**30, "dur": 10**25},
    "long": {"dur": 10**14},
    "before the beginning": {"ts": -(10**9)},
    "no time at all": {"dur": 0},
    "next to nothing": {"ts": 1e-12, "dur": 1e-300},
}
ARGUMENT_CHANGES: dict[str, dict[str, Any]] = {
    "one correlation": {"correlation": 7},
    "ids near the limit": {"correlation": 2**63 - 1, "External id": 2**64 - 1, "Sequence number": 2**62},
    "ids in texts": {"correlation": "12", "External id": "x", "stream": "stream 7", "device": "0"},
    "ids in fractions": {"correlation": 1.5, "External id": 0.1, "stream": 7.5, "device": True},
    "odd devices": {"stream": -5, "device": 2**31 - 1},
    "odd shapes": {"Input Dims": [[10**18] * 5, [-1], [0], "x", None, {}]},
    "shapes in a text": {"Input Dims": "[[", "Input type": 5},
    "many shapes": {"Input Dims": [[2] * 300] * 20},
    "not a number": {"a": float("nan"), "stream": float("inf")},
    "a stranger's megabyte": {"notes": {f"k{n}": ["x" * 100] * 10 for n in range(3)}},
}
TEXT_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "CR": lambda text: text.replace(b"\n", b"\r"),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "UTF-32": lambda text: text.decode().encode("utf-32"),
    "half surrogates": lambda text: text.replace(b"aten::", b"\\udc00\\ud800aten::"),
    "no UTF-8": lambda text: text.replace(b"aten::", b"\xff\xfeaten::"),
    "no UTF-8 in shapes": lambda text: text.replace(b'"float"', b'"\xfbfloat"'),
    "control characters": lambda text: text.replace(b"aten::", b"\\u0000\\u001b[31maten::"),
    "NaN": lambda text: text.replace(b'"dur": ', b'"dur": NaN, "x": ', 30),
    "Infinity": lambda text: text.replace(b'"ts": ', b'"ts": -Infinity, "x": '),
    "keys twice": lambda text: text.replace(b'"ph": "X"', b'"ph": "X", "ph": "M", "ts": 5, "ts": 6'),
    "events twice": lambda text: text.rstrip()[:-1] + b', "traceEvents": [{"ph": "X", "cat": "kernel"}]}',
    "deep arguments": lambda text: text.replace(b'"args": {', b'"args": {"deep": ' + DEEP + b",", 1),
    "deep header": lambda text: text.replace(b'"schemaVersion": 1', b'"schemaVersion": 1, "d": ' + DEEP),
    "a long number": lambda text: text.replace(b'"ts": ', b'"ts": ' + b"9" * 100_000 + b', "y": ', 3),
    "a long name": lambda text: text.replace(b"aten::mm", b"aten::" + b"m" * 300_000),
    "odd steps": lambda text: text.replace(b"ProfilerStep#", b"ProfilerStep#99999999999999999999"),
    "one step often": lambda text: re.sub(rb"ProfilerStep#\d", b"ProfilerStep#1", text),
    "odd ranks": lambda text: text.replace(
        b'"schemaVersion": 1', b'"distributedInfo": {"rank": 1e30, "world_size": 1000000000000}'
    ),
    "no events": lambda _: b'{"schemaVersion": 1, "traceEvents": []}',
    "events of null": lambda _: b'{"schemaVersion": 1, "traceEvents": null}',
    "events of numbers": lambda _: b'{"schemaVersion": 1, "traceEvents": [1, 2, 3]}',
    "events in events": lambda _: b'{"schemaVersion": 1, "traceEvents": [[{"ph": "X", "cat": "kernel"}]]}',
    "gzip in gzip": lambda text: gzip.compress(gzip.compress(text)),
    "gzip and more": lambda text: gzip.compress(text) + b"junk" * 100,
    "zeros": lambda _: bytes(3_000_000),
    "gzipped zeros": lambda _: gzip.compress(bytes(30_000_000)),
}
TOKENS = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"NaN",
    b"null",
    b"-",
    b"1e999",
    b"\0",
    b"},{",
    b"\r\n",
)
NUMBERS = (b"0", b"-1", b"9223372036854775807", b"18446744073709551615", b"1e308", b'"x"', b"null", b"[]")
NAMES = (b'""', b"null", b'"kernel"', b'"cpu_op"', b'"ProfilerStep#3"', b'"M"', b'"Optimizer.step#A.step"')


def changed(event_change: dict[str, Any], argument_change: dict[str, Any]) -> bytes:
    document = json.loads(TEXT)
    for event in document["traceEvents"]:
        event["args"] |= argument_change
        event.update(event_change)
    return json.dumps(document, indent=1).encode()


def assert_answered(stepgrade: Command, path: Path, command: str) -> None:
    ran = stepgrade(command, path)
    assert ran.code in (0, 2, 3), ran.err
    assert ran.out or ran.err.count("\n") == 1


@pytest.mark.parametrize("command", ["score", "inspect", "convert"])
def test_odd_traces(command: str, stepgrade: Command, tmp_path: Path) -> None:
    texts = [changed(change, {}) for change in EVENT_CHANGES.values()]
    texts += [changed({}, change) for change in ARGUMENT_CHANGES.values()]
    texts += [change(TEXT) for change in TEXT_CHANGES.values()]
    for text in texts:
        (tmp_path / "trace.json").write_bytes(text)
        assert_answered(stepgrade, tmp_path / "trace.json", command)


def damaged(dice: random.Random) -> bytes:
    text = bytearray(TEXT)
    for _ in range(dice.choice((1, 1, 2, 5, 30))):
        dice.choice((_insert, _remove, _repeat, _renumber, _rename))(text, dice.randrange(len(text)), dice)
    return bytes(text)


def _insert(text: bytearray, at: int, dice: random.Random) -> None:
    text[at:at] = dice.choice((*TOKENS, bytes((dice.randrange(256),))))


def _remove(text: bytearray, at: int, dice: random.Random) -> None:
    del text[at : at + dice.choice((1, 3, 50, 2000))]


def _repeat(text: bytearray, at: int, dice: random.Random) -> None:
    other = dice.randrange(len(text))
    text[at:at] = text[other : other + dice.choice((10, 300, 5000))]


def _renumber(text: bytearray, at: int, dice: random.Random) -> None:
    if match := re.compile(rb"-?\d+(\.\d+)?").search(text, at):
        text[match.start() : match.end()] = dice.choice(NUMBERS)


def _rename(text: bytearray, at: int, dice: random.Random) -> None:
    if match := re.compile(rb'"[^"]{1,40}"').search(text, at):
        text[match.start() : match.end()] = dice.choice(NAMES)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_damaged_traces(batch: int, stepgrade: Command, tmp_path: Path) -> None:
    dice = random.Random(batch)
    for _ in range(COUNT // BATCHES):
        (tmp_path / "trace.json").write_bytes(damaged(dice))
        assert_answered(stepgrade, tmp_path / "trace.json", dice.choice(("score", "inspect", "convert")))


def test_folders_with_all_sorts_of_things(stepgrade: Command, tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(TEXT)
    (tmp_path / "notes.json").write_bytes(b"{}")
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "binary.json.gz").write_bytes(b"\x1f\x8b" + bytes(50))
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "sub").symlink_to(tmp_path)
    ran = stepgrade("score", tmp_path)
    assert ran.code == 0, ran.err
    for name in ("loop.json", "gone.json", "folder.json"):
        assert stepgrade("score", tmp_path / name).code == 2
    (tmp_path / "rank0_again.json").write_bytes(TEXT)
    twice = stepgrade("score", tmp_path)
    assert twice.code == 2
    assert "both say they are rank 0" in twice.err


def test_files_without_an_end_are_stopped(stepgrade: Command, tmp_path: Path) -> None:
    with (tmp_path / "sparse.json").open("wb") as file:
        file.write(b'{"schemaVersion": 1, "traceEvents": [')
        file.truncate(10 << 30)
    for path in ("/dev/zero", tmp_path / "sparse.json"):
        ran = stepgrade("score", path, "--max-bytes", "100M")
        assert ran.code == 2
        assert ran.err.count("\n") == 1
