"""The wire format in bulk: the same fields as a plain walk gives, whatever the bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepgrade.protobuf import walk
from stepgrade.readers.xplane.wire import rounds, run_of
from tests.readers.xplane.files import number, real, text, whole

FIELDS = st.one_of(
    st.builds(whole, st.integers(1, 60), st.integers(0, 2**64 - 1)),
    st.builds(text, st.integers(1, 60), st.binary(max_size=40)),
    st.builds(real, st.integers(1, 60), st.floats()),
)
MESSAGES = st.lists(
    st.one_of(st.lists(FIELDS, max_size=60).map(b"".join), st.binary(max_size=60)), max_size=20
)


@settings(deadline=None)
@given(MESSAGES)
def test_many_messages_at_once_have_the_fields_of_each_alone(messages: list[bytes]) -> None:
    data = b"".join(messages)
    ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
    starts = ends - np.array([len(message) for message in messages], np.int64)
    found: dict[int, list[tuple[int, ...]]] = {}
    for part in rounds(data, starts, ends):
        for row in zip(*(column.tolist() for column in part[:5]), strict=True):
            found.setdefault(row[0], []).append(row[1:])
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        alone = [
            (field.number, field.kind, field.value - (field.value >> 63 << 64), field.size)
            for field in walk(data, start, end)
            if field.number < 1 << 28
        ]
        assert [row for row in found.get(index, []) if 0 <= row[0] < 1 << 28] == alone


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=20), st.binary(max_size=9))
def test_a_run_is_walked_as_far_as_it_goes(messages: list[bytes], rest: bytes) -> None:
    data = b"".join(text(4, message) for message in messages) + rest
    starts, ends, place = run_of(data, 0, len(data), 4 << 3 | 2)
    walked = [(field.value, field.after) for field in walk(data, 0, len(data)) if field.number == 4]
    pairs = [*zip(starts.tolist(), ends.tolist(), strict=True)]
    assert pairs == walked[: len(pairs)]
    assert place == (pairs[-1][1] if pairs else 0)


def test_a_message_of_very_many_fields_is_read_to_its_end() -> None:
    data = whole(1, 5) * 100_000 + number(0x7F)
    (starts, ends) = np.array([[0], [len(data)]], np.int64)
    assert sum(len(part.message) for part in rounds(data, starts, ends)) == 100_000
