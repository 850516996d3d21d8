"""The faults that `make mutate` plants: each is one change, and the module still parses."""

from __future__ import annotations

import ast
import random

import pytest

from tests.house.measures import sources
from tests.mutation.mutants import choose, mutants


@pytest.mark.parametrize(
    ("body", "kind", "after"),
    [
        ("return a < b", "comparison", "return (a <= b)"),
        ("return a is None", "comparison", "return (a is not None)"),
        ("return a and not b", "boolean", "return ((a) or (not b))"),
        ("return not a", "not", "return bool(a)"),
        ("return a * b", "arithmetic", "return ((a) / (b))"),
        ("return a[0]", "constant", "return a[1]"),
        ("return 0.0 or a", "constant", "return 1.0 or a"),
        ("return a(b)", "return None", "return None"),
        ("a.append(b)", "dropped statement", "pass"),
        ("a += 1", "dropped statement", "pass"),
    ],
)
def test_each_kind_of_fault(body: str, kind: str, after: str) -> None:
    text = f"def f(a, b):\n    {body}\n"
    made = {one.applied(text) for one in mutants(text) if one.kind == kind}
    assert made == {f"def f(a, b):\n    {after}\n"}


@pytest.mark.parametrize(
    "text",
    [
        "LIMIT = 3 + 4\n",  # not in a function
        "def f(a: int = 3) -> None:\n    raise ValueError(a + 1)\n",
        "def f(a):\n    return None\n",
        "def f(a):\n    x: list[3] = a\n",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert [one.kind for one in mutants(text) if one.kind != "dropped statement"] == []


def test_text_is_not_subtracted() -> None:
    assert [one.kind for one in mutants("def f(a):\n    print(a + 'x' + f'{a:3}')\n")] == [
        "dropped statement"
    ]


def test_every_fault_in_this_package_parses() -> None:
    chance = random.Random(0)
    for path, text in sources().items():
        for one in chance.sample(found := mutants(text), min(1, len(found))):
            ast.parse(one.applied(text), str(path))
            assert one.applied(text) != text


def test_kinds_are_drawn_alike() -> None:
    found = mutants("def f(a):\n    return [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] if not a else a\n")
    drawn = [choose(found, random.Random(seed)) for seed in range(300)]
    assert {"not", "constant", "return None"} == {one.kind for one in drawn if one}
    assert sum(1 for one in drawn if one and one.kind == "not") > 60
    assert choose([], random.Random(0)) is None
