"""The faults that `make mutate` plants: each is one change, and the module still parses."""

from __future__ import annotations

import ast
import builtins
import random
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import pytest

from tests.house.measures import sources
from tests.mutation import run
from tests.mutation.mutants import choose, mutants
from tests.mutation.run import MARK, Suite, faulty_code


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


def code_of(text: str, kind: str) -> tuple[str, int] | None:
    """Return the name and the line of the function whose code a fault changes; run it with the mark."""
    (fault,) = (one for one in mutants(text) if one.kind == kind)
    code = faulty_code(text, Path("x.py"), fault)
    return code and (code.co_qualname, code.co_firstlineno)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(a):\n    return a < 1\n", ("f", 1)),
        ("x = 1\n@cache\n@other\ndef f(a):\n    return a < 1\n", ("f", 2)),
        ("class A:\n    x = 1\n    def f(self):\n        return self < 1\n", ("A.f", 3)),
        ("def f():\n    def g(a):\n        return a < 1\n    return g\n", ("f", 1)),
        (
            "def f():\n    class A:\n        def g(self):\n            return self < 1\n    return A\n",
            ("f", 1),
        ),
        ("def g():\n    x\ndef f(a):\n    y = lambda: (a <\n        1)\n", ("f", 3)),
    ],
)
def test_the_outermost_function_gets_the_fault(text: str, expected: tuple[str, int]) -> None:
    assert code_of(text, "comparison") == expected


def test_a_fault_notes_that_it_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []
    monkeypatch.setattr(builtins, MARK, lambda: noted.append(1), raising=False)
    text = "def f(a, b):\n    if a:\n        a += 1\n    if b:\n        return a * 3\n"
    for fault in mutants(text):
        code = faulty_code(text, Path("x.py"), fault)
        assert code is not None
        function = FunctionType(code, {})
        noted.clear()
        function(0, 0)
        assert not noted
        function(2, 2)
        assert noted


def test_a_fault_in_a_pattern_has_no_code() -> None:
    text = "def f(a):\n    match a:\n        case 3:\n            pass\n"
    (fault,) = mutants(text)
    assert faulty_code(text, Path("x.py"), fault) is None


class Item(NamedTuple):
    """What the order of tests looks at."""

    nodeid: str

    def get_closest_marker(self, name: str) -> bool:
        return name == "samples" and self.nodeid.endswith("real")


def test_close_tests_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    files = {
        "tests/cli/test_a.py": "import stepgrade",
        "tests/report/test_b.py": "from stepgrade.trace.memory import x",
        "tests/trace/test_c.py": "",
        "tests/trace/test_memory.py": "",
        "tests/golden_json/test_golden_json.py": "",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    items: list[Any] = [Item(f"{file}::{number}") for file in files for number in (1, 2)]
    suite = Suite(items)
    suite.seconds = {"tests/trace/test_memory.py::1": 1.2, "tests/trace/test_c.py::2": 100.0}
    order = [item.nodeid for part in suite.against("trace/memory.py", 1) for item in part]
    assert order[:4] == [
        *("tests/trace/test_memory.py::2", "tests/trace/test_memory.py::1"),
        *("tests/report/test_b.py::1", "tests/report/test_b.py::2"),
    ]
    assert order[4] == "tests/trace/test_c.py::1"
    assert "tests/trace/test_c.py::2" not in order  # takes longer than any fault may
    assert order[5].startswith("tests/golden_json/")
    suite.catching["trace/memory.py tests/cli/test_a.py::2"] += 1
    suite.unfit.add("tests/trace/test_memory.py::2")
    order = [item.nodeid for part in suite.against("trace/memory.py", 1) for item in part]
    assert order[:2] == ["tests/cli/test_a.py::2", "tests/trace/test_memory.py::1"]
