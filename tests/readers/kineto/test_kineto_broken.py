"""Damaged files give what is intact, with words about the rest; files of nothing give one line."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from make_kineto import plain_trace
from slow_kineto import TABLES, fast_rows
from tests.kineto_traces import looks_like_kineto, read_file, read_ranks, read_trace

import stepgrade as sg
from stepgrade.errors import BadInput, BadOption, TooLarge
from stepgrade.model.events import Trace
from stepgrade.readers.steps import only_steps

COUNT = 60
TEXT = plain_trace(COUNT)
WHOLE = read_trace(TEXT)


def rows(trace: Trace) -> int:
    return sum(len(getattr(trace, table).name) for table in TABLES)


def without_start(trace: Trace) -> set[Any]:
    """Return the rows as a set; the first event may be missing, so starts may count from another zero."""
    zero = trace.base_ns or 0
    return {
        (table, row[0], row[1] + zero, *row[2:-1], repr(row[-1]))
        for table, found in fast_rows(trace).items()
        for row in found
    }


def test_the_whole_is_whole() -> None:
    assert rows(WHOLE) == COUNT
    assert WHOLE.lost == ()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_cut_anywhere_it_gives_the_events_before_the_cut(packed: bool) -> None:
    text = gzip.compress(TEXT, mtime=0) if packed else TEXT
    for cut in range(0, len(text), 7 if packed else 97):
        try:
            trace = read_trace(text[:cut])
        except BadInput as error:
            assert "\n" not in str(error)  # noqa: PT017 (both outcomes are right, depending on the cut)
            continue
        assert trace.lost, cut
        if not packed and TEXT[:cut].count(b"schemaVersion"):
            assert without_start(trace) <= without_start(WHOLE)
            assert rows(trace) >= TEXT[:cut].count(b"\n  },\n")


@pytest.mark.parametrize(
    ("old", "new", "kept", "words"),
    [
        (b'"aten::mm"', b'"aten::"mm"', COUNT, ""),  # PyTorch 2.13 writes frames such as x.py(0): "all" so
        (b'"aten::mm"', b'"aten::"mm\\" """', COUNT, ""),
        (b'"aten::mm"', b'"aten::mm" "pid": 9', COUNT - 1, "1 event left out, not valid JSON"),
        (b'"aten::mm"', b'"aten::\xff\xfe"', COUNT, ""),
        (b'"aten::mm"', b'"aten::\nmm"', COUNT, ""),
        (b'"aten::mm"', b"null", COUNT, ""),
        (b'"aten::mm"', b'"\\ud800"', COUNT, ""),
        (b'"dur": 1.250', b'"dur": -1.250', COUNT - 1, "1 event left out, with a negative duration"),
        (b'"dur": 1.250', b'"dur": "1.250"', COUNT, ""),  # torch_npu writes times as text
        (b'"dur": 1.250', b'"dur": "soon"', COUNT - 1, "1 event left out, without a usable time"),
        (b'"dur": 1.250', b'"dur": null', COUNT - 1, "1 event left out, without a usable time"),
        (b'"dur": 1.250', b'"dur": 1e400', COUNT - 1, "1 event left out, without a usable time"),
        (b'"dur": 1.250', b'"dur": NaN', COUNT - 1, "1 event left out, not valid JSON"),
        (b'"dur": 1.250', b'"dur": ' + b"9" * 5000, COUNT - 1, "1 event left out, without a usable time"),
        (
            b'"ts": 1000000000.000',
            b'"ts": 9223372036854775807',
            COUNT - 1,
            "1 event left out, without a usable time",
        ),
        (b'"External id": 0', b'"External id": 99999999999999999999999', COUNT, ""),
        (b'"External id": 0', b'"External id": "0"', COUNT, ""),
        (
            b'"External id": 0',
            b'"External id": ' + b"[" * 5000 + b"]" * 5000,
            COUNT - 1,
            "1 event left out, not valid JSON",
        ),
        (b'"External id": 0', b'"External id": {"a": [null]}', COUNT, ""),
        (b'"pid": 9', b'"pid": [9]', COUNT, ""),
        (b'"tid": 1', b'"tid": {"a": 1}', COUNT, ""),
        (b'"traceName"', b'"x": [\n  {\n    "a": 1\n  },\n  {\n    "a": 1\n  }\n  ], "traceName"', COUNT, ""),
    ],
)
def test_one_odd_event_costs_no_other(old: bytes, new: bytes, kept: int, words: str) -> None:
    assert old in TEXT
    trace = read_trace(TEXT.replace(old, new, 1))
    assert rows(trace) == kept
    assert " ".join(trace.lost).startswith(words)
    assert bool(trace.lost) is bool(words)


def test_quotes_that_were_not_escaped_are_single_ones() -> None:
    trace = read_trace(TEXT.replace(b'"aten::mm"', b'"x.py(0): "all\\"""', 1))
    assert "x.py(0): 'all\"'" in trace.strings


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (b"\0" * 4096, "4096 NUL bytes after the end"),
        (b"garbage } ] {", "after the end of the JSON"),
        (TEXT, "after the end of the JSON"),
        (b"\n\n  ", ""),
    ],
)
def test_what_follows_the_end_is_said(tail: bytes, words: str) -> None:
    trace = read_trace(TEXT + tail)
    assert rows(trace) == COUNT
    assert words in " ".join(trace.lost)
    assert bool(words) is bool(trace.lost)


def test_broken_keys_before_the_events_cost_only_those() -> None:
    trace = read_trace(TEXT.replace(b'"schemaVersion": 1', b'"schemaVersion": oops', 1))
    assert rows(trace) == COUNT
    assert trace.versions == {}
    assert trace.lost == ("the keys before the events, which are not valid JSON",)


NOTHING = [
    b"",
    b"\0" * 5000,
    b"{}",
    b"[]",
    b"null",
    b"[1, 2, 3]",
    b'{"traceEvents": []}',
    b'{"traceEvents": {}}',
    b'{"traceEvents": [{}]}',
    b'{"traceEvents": [{"ph": "X"}]}',
    b'{"traceEvents": [' + b"[" * 100_000,
    b"{" * 100_000,
    b'"traceEvents": [' * 20_000,
    gzip.compress(b""),
    gzip.compress(b"hello"),
    gzip.compress(TEXT)[:20],
    b"\x1f\x8b",
    b"\x1f\x8b" + b"x" * 100,
    b"SQLite format 3\0" + b"\0" * 1000,
]


@pytest.mark.parametrize("text", NOTHING, ids=range(len(NOTHING)))
def test_a_file_of_nothing_gives_one_line(text: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        read_trace(text)
    assert "\n" not in str(caught.value)


def test_a_gzip_bomb_is_stopped_and_costs_no_memory() -> None:
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20))
    with pytest.raises(TooLarge, match="max_bytes"):
        read_file(bomb, max_bytes=4 << 20)


def test_missing_files_and_directories_are_bad_input(tmp_path: Any) -> None:
    for path in (tmp_path / "missing.json", tmp_path, "nul\0name"):
        with pytest.raises(BadInput):
            read_trace(path)
    with pytest.raises(BadInput, match="contains no trace files"):
        sg.load(tmp_path)


def test_steps_that_the_trace_does_not_hold() -> None:
    with pytest.raises(BadOption, match="it marks no steps"):
        next(only_steps([read_trace(TEXT)], (1, 2)))


def test_ranks_come_from_the_file_or_its_name(tmp_path: Any) -> None:
    said = TEXT.replace(b'"schemaVersion": 1', b'"distributedInfo": {"rank": 5}', 1)
    (tmp_path / "a.json").write_bytes(said)
    (tmp_path / "run_rank-3.json.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "worker_rank10.json").write_bytes(TEXT)
    (tmp_path / "b.json").write_bytes(TEXT)
    (tmp_path / "notes.json").write_bytes(b'{"a": 1}')
    traces = list(read_ranks([tmp_path]))
    assert [(trace.rank, trace.file.rsplit("/", 1)[-1]) for trace in traces] == [
        (5, "a.json"),
        (None, "b.json"),
        (3, "run_rank-3.json.gz"),
        (10, "worker_rank10.json"),
    ]
    (tmp_path / "c_rank5.json").write_bytes(TEXT)
    with pytest.raises(BadInput, match="both say they are rank 5"):
        list(read_ranks([tmp_path]))


def test_other_formats_are_not_ours() -> None:
    viewer = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [{"ph": "M"}, {}]}
    rocm: Any = {"rocprofiler-sdk-tool": [{"metadata": {}, "agents": []}]}
    chrome = {"traceEvents": [{"ph": "X", "cat": "toplevel", "name": "x", "ts": 1, "dur": 1}]}
    profile = {"_profiler": "step_profiler_v2", "steps": 2}
    others: list[Any] = [viewer, rocm, chrome, profile, [], 3]
    for other in others:
        assert not looks_like_kineto(json.dumps(other).encode())
    assert looks_like_kineto(TEXT)
    assert looks_like_kineto(gzip.compress(TEXT)[:700])
    with pytest.raises(BadInput, match="gzip"):
        looks_like_kineto(b"\x1f\x8bjunk")


def test_progress_is_reported(tmp_path: Any) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(plain_trace(9000))
    seen: list[tuple[int, int]] = []
    read_trace(file, progress=lambda done, total: seen.append((done, total)))
    assert seen
    assert all(0 < done <= total == file.stat().st_size for done, total in seen)
