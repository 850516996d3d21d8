"""The faults that `make mutate` plants: each is one change, and the module still parses."""

from __future__ import annotations

import ast
import random

import pytest

from tests.house.measures import sources
from tests.mutation.mutants import Mutant, choose, mutants
from tests.mutation.run import Covering, Map


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


TESTS = [("tests/cli/a.py::1", 0.1), ("tests/cli/a.py::2", 0.2), ("tests/report/b.py::1", 0.3),
         ("tests/trace/c.py::1", 9.0), ("tests/golden_json/d.py::1", 2.0), ("tests/cli/a.py::far", 0.0)]  # fmt: skip
NAMES = {name for name, _ in TESTS}
TEXT = "def f(a):\n    b = a + 1\n    c = b * 20 + a\n    return c\n"
KNOWN = {
    "tests": TESTS,
    "texts": {"trace/x.py": TEXT},
    "lines": {"trace/x.py": {"2": "3", "3": "1c", "4": "20"}},
}


def chosen(text: str, line: int, last: int, names: set[str] = NAMES) -> list[list[str]]:
    fault = Mutant("constant", line, last, 0, 1, "1", "2")
    stages = Map(KNOWN, names).tests_of("trace/x.py", text, fault)
    return [[test.name for test in stage] for stage in stages]


def test_close_tests_come_first_and_files_take_turns() -> None:
    fit = ["tests/golden_json/d.py::1", "tests/cli/a.py::1", "tests/report/b.py::1", "tests/cli/a.py::2"]
    assert chosen(TEXT, 2, 3) == [fit, ["tests/trace/c.py::1"]]  # too long for the first stage


def test_lines_are_found_again_by_their_text() -> None:
    moved = "x = 1\n" + TEXT.replace("c = b * 20 + a", "if c := b * 20 + a:\n        print(c)")
    assert chosen(moved, 3, 3) == chosen(TEXT, 2, 2)
    assert chosen(moved, 4, 4) == chosen(moved, 5, 5) == chosen(TEXT, 2, 2)  # new lines: as the nearest above
    elsewhere = Map(KNOWN, NAMES).tests_of("trace/y.py", TEXT, Mutant("constant", 3, 3, 0, 1, "1", "2"))
    assert [[test.name for test in stage] for stage in elsewhere] == chosen(TEXT, 3, 3)


def test_a_test_that_is_gone_is_not_run() -> None:
    assert chosen(TEXT, 2, 2, {"tests/cli/a.py::2"}) == [["tests/cli/a.py::2"]]
    assert chosen(TEXT, 2, 2, set()) == []


def test_a_test_longer_than_a_stage_still_runs() -> None:
    known = {
        "tests": [("tests/cli/a.py::1", 500.0)],
        "texts": {"trace/x.py": TEXT},
        "lines": {"trace/x.py": {"2": "1"}},
    }
    fault = Mutant("constant", 2, 2, 0, 1, "1", "2")
    stages = Map(known, {"tests/cli/a.py::1"}).tests_of("trace/x.py", TEXT, fault)
    assert list(stages) == [[Covering("tests/cli/a.py::1", 500.0)]]
