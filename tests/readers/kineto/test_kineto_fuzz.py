"""Thousands of damaged traces: each gives a trace or one line of ours, never a foreign error.

`STEPGRADE_FUZZ` sets how many files are tried (`make fuzz` tries many more than the suite does), and
`STEPGRADE_FUZZ_SEED` where to begin.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from make_kineto import LAYOUTS, plain_trace, write
from slow_kineto import TABLES
from tests.kineto_traces import looks_like_kineto, read_file, read_ranks

from stepgrade.errors import BadInput
from stepgrade.model.events import NONE, Trace
from stepgrade.readers.kineto import chunks

COUNT = int(os.environ.get("STEPGRADE_FUZZ", "9000"))
SEED = int(os.environ.get("STEPGRADE_FUZZ_SEED", "0"))
BATCHES = 12
TOKENS = [
    b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\n", b"null", b"true", b"-1", b"NaN",
    b"18446744073709551616", b"9" * 400, b"[" * 3000, b'{"a":' * 1500, b'""', b"{}", b"[]", b"\xff\xfe",
    b'"traceEvents": [', b"-0.0005", b"1E5", b"0x10", b'"dur": -7', b'"ts": {}', b'"cat": "kernel"',
    b'"args": []', b"1e400", b"\\ud83d",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, -1, 2**63, 2**64, 10**30, -(2**70), 1.5, 1e18, "", "12", "é", "\ud800", "x" * 999,
    [], {}, [[]], {"a": None},
]  # fmt: skip


def damage_bytes(text: bytes, dice: random.Random) -> bytes:
    broken = bytearray(text)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(broken) + 1)
        length = dice.choice((0, 0, 1, 3, 40, 900))
        kind = dice.randrange(4)
        if kind == 0 and at < len(broken):
            broken[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            broken[at : at + length] = dice.choice(TOKENS)
        elif kind == 2:
            broken[at:at] = broken[at : at + length]
        else:
            del broken[at : at + length]
    return bytes(broken)


def damage_end(text: bytes, dice: random.Random) -> bytes:
    tails = (b"", b"\0" * 500, text[:300], b"}]}", dice.randbytes(64))
    return text[: dice.randrange(len(text) + 1)] + dice.choice(tails)


def damage_gzip(text: bytes, dice: random.Random) -> bytes:
    packed = gzip.compress(text, mtime=0)
    return dice.choice((damage_bytes, damage_end))(packed, dice)


def damage_fields(text: bytes, dice: random.Random) -> bytes:
    document = json.loads(text, parse_float=lambda digits: f"@{digits}@")
    listed = document["traceEvents"]
    for _ in range(dice.randint(1, 8)):
        event = dice.choice(listed)
        place = dice.choice((event, event, event.get("args"), document))
        if isinstance(place, dict) and place and (place is not document or dice.random() < 0.3):
            key = dice.choice(list(place))
            if dice.random() < 0.4:
                del place[key]
            else:
                place[key] = dice.choice(VALUES)
        if not isinstance(document.get("traceEvents"), list):
            break
    layout = dice.choice(LAYOUTS) if isinstance(document.get("traceEvents"), list) else "one line"
    return write(document, layout)


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    damage_bytes,
    damage_end,
    damage_gzip,
    damage_fields,
)


def check(trace: Trace) -> None:
    """Look through a trace for rows that point nowhere."""
    for table in TABLES:
        rows = getattr(trace, table)
        lengths = {len(getattr(rows, name)) for name in rows.__struct_fields__}
        assert len(lengths) == 1
        if not len(rows.name):
            continue
        assert rows.start_ns.min() >= 0
        assert rows.dur_ns.min() >= 0
        assert (np.diff(rows.start_ns) >= 0).all()
        assert 0 <= rows.name.min() <= rows.name.max() < len(trace.strings)
        for column, held in (
            ("thread", trace.threads),
            ("inputs", trace.inputs),
            ("collective", trace.collectives),
            ("launch", trace.launches),
        ):
            if column in rows.__struct_fields__:
                assert NONE <= getattr(rows, column).min() <= getattr(rows, column).max() < len(held)
    assert all("\n" not in words for words in trace.lost)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_damage_escapes(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(SEED * BATCHES + batch)
    document = json.loads(plain_trace(40), parse_float=lambda digits: f"@{digits}@")
    texts = [write(document, layout) for layout in LAYOUTS]
    texts += [text.replace(b'"cpu_op"', b'"Operator"').replace(b'"kernel"', b'"Kernel"') for text in texts]
    for _ in range(COUNT // BATCHES):
        monkeypatch.setattr(chunks, "SLOT_BYTES", dice.choice((600, 3000, 1 << 19)))
        state = dice.getstate()
        text = dice.choice(DAMAGES)(dice.choice(texts), dice)
        try:
            looks_like_kineto(text)
            traces = read_file(text)
        except BadInput as error:
            assert "\n" not in str(error)  # noqa: PT017 (both outcomes are right)
            continue
        except BaseException as error:
            error.add_note(f"damage made by the state {state[1][:2]} of batch {batch}: {text[:2000]!r}")
            raise
        for trace in traces:
            check(trace)


def test_the_way_in_for_runs_is_as_careful(tmp_path: Any) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(plain_trace(9)[:1700])
    try:
        check(next(read_ranks([file])))
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017 (both outcomes are right)
