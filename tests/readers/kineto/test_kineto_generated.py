"""Properties that hold for any trace: same rows as the slow reader, whatever the layout, cut or order."""

from __future__ import annotations

import gzip
import io
import json
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_kineto import LAYOUTS, documents, plain_trace, write
from slow_kineto import fast_rows, slow_rows
from tests.kineto_traces import read_trace

from stepgrade.readers.kineto import chunks


@pytest.fixture(params=[chunks.SLOT_BYTES, 700], ids=["one chunk", "many chunks"], autouse=True)
def _slot(request: pytest.FixtureRequest) -> Any:
    before, chunks.SLOT_BYTES = chunks.SLOT_BYTES, request.param
    yield
    chunks.SLOT_BYTES = before


def slow(text: bytes) -> dict[str, list[tuple[Any, ...]]]:
    return slow_rows(json.loads(text, parse_float=Decimal))


@settings(max_examples=120, deadline=None)
@given(document=documents(), layout=st.sampled_from(LAYOUTS))
def test_the_fast_reader_agrees_with_the_slow_one(document: Any, layout: str) -> None:
    text = write(document, layout)
    trace = read_trace(text)
    assert fast_rows(trace) == slow(text)
    assert trace.lost == ()


@settings(max_examples=40, deadline=None)
@given(document=documents(), dice=st.randoms(use_true_random=False))
def test_shuffled_events_are_the_same_set(document: Any, dice: random.Random) -> None:
    listed = document["traceEvents"] if isinstance(document, dict) else document
    before = fast_rows(read_trace(write(document, "kineto")))
    dice.shuffle(listed)
    assert fast_rows(read_trace(write(document, "kineto"))) == before


def test_gzip_of_several_members_reads_as_one() -> None:
    text = plain_trace(300)
    packed = gzip.compress(text[:5000]) + gzip.compress(text[5000:])
    assert fast_rows(read_trace(packed)) == fast_rows(read_trace(text))


def test_an_open_file_reads_like_its_bytes() -> None:
    text = plain_trace(300)
    assert fast_rows(read_trace(io.BytesIO(gzip.compress(text)))) == slow(text)


def test_two_events_longer_than_a_chunk_may_meet_anywhere() -> None:
    for length in range(1200, 1400):
        events = [
            {"ph": "X", "cat": "cpu_op", "name": "x" * size, "pid": 1, "tid": 1, "ts": at, "dur": 1}
            for at, size in enumerate((length, 3000, 5))
        ]
        text = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
        assert len(read_trace(text).ops.name) == 3


def test_an_event_longer_than_a_chunk_is_read() -> None:
    document = json.loads(plain_trace(9), parse_float=lambda text: f"@{text}@")
    document["traceEvents"][4]["args"]["Call stack"] = "x" * 2_000_000
    for layout in LAYOUTS:
        text = write(document, layout)
        assert fast_rows(read_trace(text)) == slow(text)


KNOWN = {"block": [16, 8, 2], "registers per thread": 40, "shared memory": 1024, "blocks per SM": 1.5,
         "est. achieved occupancy %": 30}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ({}, "block_threads", 256),
        ({"block": [0, 8, 2]}, "block_threads", None),
        ({"block": "odd"}, "block_threads", None),
        ({}, "registers", 40),
        ({"registers per thread": 0}, "registers", None),
        ({}, "shared_bytes", 1024),
        ({"shared memory": 0}, "shared_bytes", 0),  # none is used, which is known
        ({"shared memory": -1}, "shared_bytes", None),
        ({"shared memory": 1 << 40}, "shared_bytes", None),
        ({}, "blocks_per_sm", 1.5),
        ({"blocks per SM": -1.0}, "blocks_per_sm", None),
        ({"blocks per SM": float(1 << 40)}, "blocks_per_sm", None),
        ({}, "occupancy", 0.3),
        ({"est. achieved occupancy %": 0}, "occupancy", None),  # Kineto could not compute it
        ({"est. achieved occupancy %": 130}, "occupancy", 1.0),
    ],
)
def test_how_a_kernel_was_launched(said: dict[str, Any], field: str, value: float | None) -> None:
    args = {"device": 0, "stream": 7, "correlation": 3, **KNOWN, **said}
    if field in ("block_threads", "shared_bytes"):  # kept where Kineto could not compute the occupancy
        args["est. achieved occupancy %"] = 0
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0,
              "args": args}  # fmt: skip
    trace = read_trace(json.dumps({"schemaVersion": 1, "traceEvents": [kernel]}).encode())
    assert trace.work.launch is not None
    assert getattr(trace.launches[trace.work.launch[0]], field) == value
