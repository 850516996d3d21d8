"""Pickles of plain values decode as Python decodes them; every other one is refused, and costs nothing."""

from __future__ import annotations

import itertools
import os
import pickle
import pickletools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.errors import BadInput, TooLarge
from stepgrade.readers import flight_recorder
from stepgrade.readers.plain_pickle import DEEPEST, LONGEST_TEXT, Row, decode
from stepgrade.readers.source import ByteSource
from tests.readers.snapshot.snapshots import train
from tests.samples import shared

PLENTY = 1 << 30
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(TEXTS, inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=40,
)


def parts(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def refused(data: bytes, most_bytes: int = PLENTY) -> BadInput:
    with pytest.raises(BadInput) as caught:
        decode(parts(data, 1 << 16), most_bytes)
    return caught.value


@settings(deadline=None)
@given(VALUES, st.sampled_from([2, 3, 4, 5]), st.integers(1, 50))
def test_plain_values_are_what_python_makes_of_them(value: Any, protocol: int, size: int) -> None:
    data = pickle.dumps(value, protocol)
    assert repr(decode(parts(data, size), PLENTY)) == repr(pickle.loads(data))  # noqa: S301  our own


SHARED = [{"name": "f", "line": 1}, {"name": "g", "line": 2}, "a text", 7]
ROW_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(0, 300)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.lists(st.sampled_from(SHARED), max_size=6)
    | st.sampled_from(SHARED)
    | VALUES
)


@st.composite
def tables(draw: st.DrawFn) -> list[Any]:
    """Return what a pickler writes as rows: a few shapes of dicts, again and again, among other values."""
    shapes = draw(st.lists(st.lists(TEXTS, min_size=1, max_size=9, unique=True), min_size=1, max_size=3))
    rows: list[Any] = [SHARED]
    for keys in draw(st.lists(st.sampled_from(shapes), max_size=25)):
        row = {key: draw(ROW_VALUES) for key in keys}
        rows += draw(st.sampled_from([[row], [row, row], [[row]], [(row,)]]))
    return rows


def plain(value: Any) -> Any:
    """Return rows as dicts, and tuples as lists, for which both may stand."""
    if isinstance(value, Row):
        return {key: plain(value.get(key)) for key in value[0]}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


@settings(deadline=None, max_examples=300)
@given(tables(), st.sampled_from([2, 3, 4, 5]), st.sampled_from([7, 50, 1 << 16]))
def test_rows_are_what_python_makes_of_them(value: Any, protocol: int, size: int) -> None:
    data = pickle.dumps(value, protocol)
    expected = pickle.loads(data)  # noqa: S301  our own
    assert repr(decode(parts(data, size), PLENTY)) == repr(expected)
    assert repr(plain(decode(parts(data, size), PLENTY, has_rows=True))) == repr(plain(expected))


def many_rows(count: int) -> bytes:
    frames = [{"name": "f", "line": n} for n in range(40)]
    rows = [
        {"action": "alloc", "addr": 10**12 + n, "size": 512, "frames": frames[n % 9 :]} for n in range(count)
    ]
    return pickle.dumps([frames, rows])


def test_rows_are_found_and_take_less_memory() -> None:
    data = many_rows(3000)
    held = {}
    for has_rows in (False, True):
        tracemalloc.start()
        value: Any = decode(parts(data, 1 << 16), PLENTY, has_rows=has_rows)
        held[has_rows], _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        kinds = [type(row) for row in value[1]]
        assert (
            kinds.count(Row if has_rows else dict) >= 2990
        )  # but for the first, and those between two chunks
    assert held[True] < held[False] / 2
    row: Any = value[1][1000]
    assert ("addr" in row, "none" in row, row.get("none", 3)) == (True, False, 3)
    assert value[1][1000].get("frames") is value[1][1009].get("frames"), "equal lists are one"


@pytest.mark.parametrize(
    "opcodes",
    [
        b"}\x94(h\x00h\x02u",  # a row that holds itself
        b"}\x94(h\x00]\x94(h\x03eu",  # a list that does
        b"}\x94(h\x00]\x94(h\x01euh\x03h\x01a",  # a list that grows behind its row
        b"}\x94(h\x00K\x01uh\x02h\x00h\x01s",  # a row that does
        b"}\x94(h\x01K\x01u",  # a key that is no text
        b"}\x94(h\x00K\x01h\x00K\x02u",  # a key twice
        b"}\x94(h\x00h\x50u",  # what was never kept
        b"}\x94(h\x00j\xff\xff\xff\x7fu",
        b"}\x94(h\x00]\x94(h\x50eu",
        b"}\x94(" + b"h\x00K\x01" * 5000 + b"u",
    ],
)
def test_rows_that_no_pickler_writes_end(opcodes: bytes) -> None:
    data = b"\x80\x04](\x8c\x01k\x94)\x94" + opcodes + b"e."
    for has_rows in (False, True):
        try:
            assert isinstance(decode(parts(data, 1 << 16), PLENTY, has_rows=has_rows), list)
        except BadInput as error:
            assert "are inconsistent" in error.problem  # noqa: PT017  either will do


def test_rows_of_many_shapes_cost_no_more_than_their_bytes() -> None:
    """Only so many shapes become patterns; the rest goes opcode by opcode, with the same result."""
    keys = [f"k{n}" for n in range(60)]
    rows = [dict.fromkeys(keys[n % 29 : n % 29 + 1 + n % 31], n) for n in range(3000)]
    data = pickle.dumps(rows)
    assert decode(parts(data, 1 << 16), PLENTY) == rows
    assert plain(decode(parts(data, 1 << 16), PLENTY, has_rows=True)) == rows


def test_rows_nest_no_deeper_than_the_rest() -> None:
    def nested(depth: int) -> bytes:
        return b"\x80\x04]\x8c\x01k\x940".replace(b"0", b"") + b"(" * depth + b"}(h\x00K\x01u}(h\x00K\x01u"

    assert "nests deeper" in refused(nested(DEEPEST)).problem
    assert "truncated" in refused(nested(DEEPEST - 1)).problem


def test_a_value_that_stands_in_two_places_is_one() -> None:
    frames = [{"name": "f"}]
    both = decode(parts(pickle.dumps([frames, frames]), 9), PLENTY)
    assert isinstance(both, list)
    assert both[0] is both[1]


def test_texts_and_chunks_meet_at_every_place() -> None:
    value = ["x" * n for n in (0, 1, 255, 256, 257, 60_000)] * 20
    data = pickle.dumps([value, [text + "y" for text in value]])
    for size in (1 << 12, 65_537, 1 << 20):
        assert decode(parts(data, size), PLENTY) == pickle.loads(data)  # noqa: S301  our own


class Calls:
    def __reduce__(self) -> Any:
        return os.system, ("echo ran > /tmp/never",)


class State:
    def __init__(self) -> None:
        self.a = 1


ALLOWED = frozenset(
    [
        "PROTO",
        "FRAME",
        "MARK",
        "BINPUT",
        "LONG_BINPUT",
        "BINGET",
        "LONG_BINGET",
        "MEMOIZE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "EMPTY_DICT",
        "EMPTY_LIST",
        "EMPTY_TUPLE",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "APPEND",
        "APPENDS",
        "SETITEM",
        "SETITEMS",
        "STOP",
    ]
)


@pytest.mark.parametrize(
    "opcode", [op for op in pickletools.opcodes if op.name not in ALLOWED], ids=lambda op: op.name
)
def test_every_other_opcode_is_refused_by_its_byte(opcode: Any) -> None:
    error = refused(b"\x80\x04]" + opcode.code.encode("latin-1") + b"\x01" * 20 + b"\n.")
    assert "with the opcode" in error.problem


@pytest.mark.parametrize("value", [Calls(), State(), {1, 2}, b"x" * 9, bytearray(9), {1: 2}, len, 1 << 80])
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_what_is_not_plain_is_refused(value: object, protocol: int) -> None:
    refused(pickle.dumps({"segments": value}, protocol))


def test_what_a_file_claims_takes_no_memory() -> None:
    """Each of these makes `pickle.load` allocate, or would if it believed the file."""
    claims = {
        "a memo of 2**28 places": b"\x80\x02]r\x00\x00\x00\x10.",
        "a memo of 2**32 places": b"\x80\x02]r\xff\xff\xff\xff.",
        "a text of 4 GiB": b"\x80\x02X\xff\xff\xff\xff.",
        "a text of 2**63 bytes": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
        "an integer of 2 GiB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
        "a bytearray of 8 GiB": b"\x80\x05\x96\x00\x00\x00\x00\x02\x00\x00\x00.",
        "a frame of 2**63 bytes": b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f]",
        "frames without end": b"\x80\x04" + (b"\x95" + bytes(8)) * 200_000,
        "frames in frames": b"\x80\x04" + (b"\x95\xff\xff\xff\xff\0\0\0\0") * 200_000,
        "marks without end": b"\x80\x04" + b"(" * 2_000_000,
        "a place that was never kept": b"\x80\x04]j\xff\xff\xff\x7f.",
    }
    tracemalloc.start()
    try:
        for what, data in claims.items():
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            refused(data)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 1 << 20, what
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "piece", [b"]", b"}", b")", b"K\x01\x85", b"\x8a\x08" + b"\x7f" * 8, b"\x8c\x01a", b"h\x00", b"\x94"]
)
def test_memory_stays_within_the_limit_however_small_the_pieces(piece: bytes) -> None:
    """The estimate covers what is made: with a limit of 4 MiB no file makes more than that."""
    data = b"\x80\x04]\x94" + piece * 400_000
    limit = 4 << 20
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with pytest.raises(TooLarge):
            decode(parts(data, 1 << 14), limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < limit + (1 << 20)


def test_dicts_and_lists_are_within_the_limit_too() -> None:
    pieces = (
        b"}h\x00Ns",
        b"]h\x00a",
        b"](h\x00h\x00h\x00e",
        b"}(h\x00Nu",
        b"}\x94(h\x00\x8c\x00\x94u",
        b"}\x94(h\x00](h\x00h\x00h\x00eu",
        b"}\x94(h\x00\x8a\x08########h\x01\x8c\x08########\x94u",  # numbers and texts that are all different
    )
    numbers = [number.to_bytes(8, "little") for number in range(60_000)]
    for piece, has_rows in itertools.product(pieces, (False, True)):
        made = (
            [piece.replace(b"########", number) for number in numbers] if b"#" in piece else [piece] * 300_000
        )
        data = b"\x80\x04\x8c\x01k\x94\x8c\x01l\x94" + b"".join(made)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            with pytest.raises(TooLarge):
                decode(parts(data, 1 << 14), 4 << 20, has_rows=has_rows)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak - before < 5 << 20, (piece, has_rows)


def test_nesting_has_an_end() -> None:
    deep: list[Any] = []
    for _ in range(DEEPEST + 5):
        deep = [deep, 1]
    assert "nests deeper" in refused(pickle.dumps(deep)).problem
    # Without marks nothing is held for a level but the value itself.
    assert decode(parts(b"\x80\x04" + b"]" * 5000 + b"a" * 4999 + b".", 999), PLENTY) is not None


def test_a_list_that_holds_itself_ends() -> None:
    assert isinstance(decode(parts(b"\x80\x04]\x94h\x00a.", 3), PLENTY), list)


@pytest.mark.parametrize("size", range(0, 400, 7))
def test_a_file_that_is_cut_off_is_refused(size: int) -> None:
    data = pickle.dumps(
        {"segments": [{"address": 1 << 40, "frames": ["é" * 9, 1.5, (1, 2)]}] * 9, "more": [*range(90)]}
    )
    refused(data[: min(size, len(data) - 1)])


@settings(deadline=None, max_examples=300)
@given(VALUES | tables(), st.data())
def test_damage_ends_in_a_value_or_a_refusal(value: Any, data: st.DataObject) -> None:
    body = bytearray(pickle.dumps([value, value], data.draw(st.sampled_from([2, 4]))))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    for size, has_rows in ((64, False), (1 << 16, False), (1 << 16, True)):
        try:
            decode(parts(bytes(body), size), 1 << 24, has_rows=has_rows)
        except BadInput:
            continue


def test_the_longest_text_is_read_and_a_longer_one_is_not() -> None:
    longest = "x" * LONGEST_TEXT
    assert decode(parts(pickle.dumps(longest), 1 << 12), PLENTY) == longest
    refused(pickle.dumps(longest + "x"))


@pytest.mark.samples
def test_hostile_samples_are_refused() -> None:
    for path in sorted(shared("samples/memory/hostile").iterdir()):
        if not path.name.startswith("valid"):
            assert refused(path.read_bytes()).problem, path.name


def test_lists_that_hold_each_other_are_no_text(tmp_path: Path) -> None:
    """A pickle of 400 bytes whose text has more characters than there are atoms, where a name is expected."""
    nested: list[object] = ["x"]
    for _ in range(18):
        nested = [nested] * 8
    row = {"record_id": 0, "profiling_name": nested, "state": nested, "process_group": (nested, nested)}
    dump = {
        "nccl_version": "2",
        "pg_config": {"0": {"name": nested, "ranks": nested}},
        "entries": [{**row, "frames": [{"filename": nested, "name": nested, "line": 1}]}],
    }
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump, 2))
    sg.load(tmp_path / "nccl_trace_rank_0")
    value = train(steps=3).value()
    for entry in value["device_traces"][0]:
        entry["action"] = nested if entry["action"] == "segment_alloc" else entry["action"]
        entry["frames"] = [{"filename": nested, "name": nested, "line": 1}]
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(value, 4))
    sg.load(tmp_path / "snapshot.pickle")


def test_one_list_of_ranks_in_every_group_is_one(tmp_path: Path) -> None:
    ranks = list(range(5000))
    groups = {str(n): {"name": str(n), "ranks": ranks} for n in range(4000)}
    dump = {"nccl_version": "2", "pg_config": groups, "entries": []}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump, 2))
    with ByteSource(tmp_path / "nccl_trace_rank_0") as source:
        found = flight_recorder.read(source).hang
    assert found is not None
    assert len({id(members) for members in found.groups.values()}) == 1
    assert len(found.groups) == 4000
